"""What a pull request built, on its way to the staging repositories, and what the comment says of it.

Its jobs can have uploaded anything. So a tree is staged only from the run of the newest commit, as GitHub itself tells
it, under the name that the run's records give it, and is verified as any other before it is uploaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kci.ci.gate import releasable
from kci.ci.pull_talk import STAGED, PullTalk
from kci.ci.tree_index import read_uploads
from kci.errors import FindingsError
from kci.plurals import count
from kci.tree.metadata import NAME_PATTERN

_MOST_KERNELS, _MOST_BYTES = 100, 8 * 1024**3
_LOADED = re.compile(r'get_kernel\("([A-Za-z0-9_.-]{1,96})/([a-z0-9-]{1,96})", revision="pr-([0-9]{1,18})"')


class StagedTree(msgspec.Struct, frozen=True):
    """A tree to stage: where the artifact is that holds it."""

    kernel: str
    run: str = ""
    artifact: str = ""


def to_stage(pulls: PullTalk, number: int, commit: str, folder: Path) -> list[StagedTree]:
    """The complete and tested trees of the newest commit's run; its records are put into the folder.

    FindingsError: the pull request is closed or has a newer commit, or the run has no such tree.
    """
    pull = pulls.pull(number)
    if pull.state != "open":
        raise FindingsError(f"#{number} is closed")
    if pull.head.sha != commit:
        raise FindingsError(f"#{number} is at {pull.head.sha[:12]} now, not at {commit[:40]!r}", hint="stage that one")
    run = pulls.newest_run(commit)
    if run is None or run.conclusion is None:
        raise FindingsError(f"the run of {commit[:12]} has not ended")
    if left := pulls.fetch_records(run, folder):
        raise FindingsError(f"{count(len(left), 'record')} of the run cannot be read")
    ready = [item.kernel for item in releasable(read_uploads(folder), str(run.id)) if item.run == str(run.id)]
    names = [name for name in ready if re.fullmatch(NAME_PATTERN, name)][:_MOST_KERNELS]
    sizes = pulls.artifact_sizes(run)
    found = []
    for name in names:
        attempts = [artifact for artifact in sizes if re.fullmatch(rf"tree\.{re.escape(name)}\.[0-9]{{1,6}}", artifact)]
        newest = max(attempts, key=lambda artifact: (len(artifact), artifact), default="")
        if newest and sizes[newest] <= _MOST_BYTES:
            found.append(StagedTree(name, str(run.id), newest))
    if not found:
        raise FindingsError(
            f"the run of {commit[:12]} built no kernel that is complete and tested", hint="see its gate"
        )
    return found


def staged_section(owner: str, number: int, commit: str, kernels: Sequence[str], ended: str, link: str) -> str:
    """What the comment says after staging, with the lines that load each kernel."""
    state, what = "is staged", "it"
    if ended != "success":
        state, what = f"is not staged as a whole ({link})", "what is there, if anything is"
    lines = [STAGED, "", f"{commit} {state}. Nobody has merged this code; to load {what}:", "", "```python"]
    lines += ["from kernels import get_kernel"]
    for name in kernels:
        variable = name.replace("-", "_")
        lines += [f'{variable} = get_kernel("{owner}/{name}", revision="pr-{number}", trust_remote_code=True)']
    return "\n".join([*lines, "```", ""])


def staged_before(pulls: PullTalk, number: int, owner: str) -> list[StagedTree]:
    """The kernels of a pull request that kci's own comment says are staged."""
    text = "".join(comment.staged for comment in pulls.own_comments(number))
    named = {name for by, name, of in _LOADED.findall(text) if (by, int(of)) == (owner, number)}
    return [StagedTree(name) for name in sorted(named)[:_MOST_KERNELS]]
