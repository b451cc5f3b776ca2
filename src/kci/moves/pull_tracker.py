"""Carries out what was decided about pull requests, on GitHub through its command line.

It can be done again at any time. A branch is made of one commit on the commit that was looked at; what it is about and
what it holds stands in the text of the pull request, and in the commit, by which kci knows its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from kci.moves.pull_decisions import PREFIX, KnownPull, PullAction, PullActionKind, PullState, WantedPull
from kci.watch.github_api import Account, GitHubApi, read_answer

_MARK = re.compile(r"<!-- kci-pull: ([0-9a-f]{12}) ([0-9a-f]{12})( withdrawn)? -->")
_TRAILER = "kci-content: "
_PAGE = 100


class PullTracker(Protocol):
    """Where pull requests are."""

    def pulls(self, branches: Sequence[str]) -> Iterable[KnownPull]:
        """Those of kci on some branches, and all others of kci that are open."""

    def create(self, wanted: WantedPull) -> None:
        """Open one."""

    def update(self, number: int, wanted: WantedPull) -> None:
        """Give one other files, and another title and text."""

    def withdraw(self, number: int, branch: str, reason: str) -> None:
        """Close one, and remove its branch."""


def carry_out_pulls(actions: Iterable[PullAction], tracker: PullTracker) -> list[str]:
    """Make the pull requests what they should be.

    Args:
        actions: see `kci.moves.pull_decisions.decide_pulls`.
        tracker: where.

    Returns:
        a line for each action.
    """
    done = []
    for action in actions:
        if action.kind is PullActionKind.OPEN and action.wanted is not None:
            tracker.create(action.wanted)
        elif action.kind is PullActionKind.UPDATE and action.wanted is not None:
            tracker.update(action.number, action.wanted)
        elif action.kind is PullActionKind.CLOSE:
            tracker.withdraw(action.number, action.branch, action.reason)
        done.append(pull_line(action))
    return done


def pull_line(action: PullAction) -> str:
    """An action in one line."""
    number = f" #{action.number}" if action.number else ""
    return f"{action.kind} {action.branch}{number}: {action.wanted.title if action.wanted else action.reason}"


class _Head(msgspec.Struct, frozen=True):
    ref: str
    sha: str


class _Pull(msgspec.Struct, frozen=True):
    number: int
    state: str
    head: _Head
    body: str | None = None
    user: Account | None = None
    merged_at: str | None = None


class _Object(msgspec.Struct, frozen=True):
    sha: str = ""


class _Ref(msgspec.Struct, frozen=True):
    ref: str
    object: _Object


class _Commit(msgspec.Struct, frozen=True):
    sha: str
    message: str
    tree: _Object


class GitHubPulls:
    """The pull requests of a repository on GitHub."""

    def __init__(
        self, repository: str, author: str, base: str, commit: str, run: Callable[..., Any] | None = None
    ) -> None:
        """Name the repository.

        Args:
            repository: `owner/name`.
            author: whose pull requests count.
            base: the branch that they are for.
            commit: the commit of it that was looked at.
            run: runs a command, as `subprocess.run` does.
        """
        hint = (
            "the job needs contents: write and pull-requests: write, and Settings > Actions > General has to allow "
            "GitHub Actions to create pull requests"
        )
        self._api = GitHubApi(repository, hint, **({"run": run} if run else {}))
        self._author, self._base, self._commit = author, base, commit
        self._refs: set[str] | None = None

    def pulls(self, branches: Sequence[str]) -> Iterator[KnownPull]:
        """See `PullTracker`."""
        for branch in sorted({*branches, *self._branches()}):
            query = f"state=all&head={self._api.owner}:{quote(branch)}&base={quote(self._base)}"
            found = self._api.get(f"pulls?{query}&sort=created&direction=desc&per_page={_PAGE}", list[_Pull])
            for pull in found:
                mark = _MARK.match(pull.body or "")
                if mark is None or pull.user is None or pull.user.login != self._author or pull.head.ref != branch:
                    continue
                state = PullState.OPEN if pull.state == "open" else PullState.CLOSED
                if state is PullState.CLOSED:
                    state = PullState.MERGED if pull.merged_at else PullState.WITHDRAWN if mark[3] else state
                own = state is not PullState.OPEN or self._is_own(pull.head.sha)
                yield KnownPull(pull.number, branch, state, mark[1], mark[2], own)

    def create(self, wanted: WantedPull) -> None:
        """See `PullTracker`."""
        self._push(wanted)
        self._api.ask("POST", "pulls", title=wanted.title, body=_marked(wanted), head=wanted.branch, base=self._base)

    def update(self, number: int, wanted: WantedPull) -> None:
        """See `PullTracker`."""
        self._push(wanted)
        self._api.ask("PATCH", f"pulls/{number}", title=wanted.title, body=_marked(wanted))

    def withdraw(self, number: int, branch: str, reason: str) -> None:
        """See `PullTracker`."""
        body = self._api.get(f"pulls/{number}", _Pull).body or ""
        mark = _MARK.match(body)
        told = f"<!-- kci-pull: {mark[1]} {mark[2]} withdrawn -->" if mark else ""
        text = f"{told}\nWithdrawn by kci: {reason}.\n\n{body[mark.end() if mark else 0 :].strip()}\n"
        self._api.ask("PATCH", f"pulls/{number}", body=text, state="closed")
        self._api.ask("DELETE", f"git/refs/heads/{branch}")

    def _push(self, wanted: WantedPull) -> None:
        """Make the branch one commit on the commit that was looked at."""
        base = self._api.get(f"git/commits/{self._commit}", _Commit)
        entries = [
            {"path": file.path, "mode": "100755" if file.executable else "100644", "type": "blob", "content": file.text}
            for file in wanted.files
        ]
        tree = self._send("git/trees", base_tree=base.tree.sha, tree=entries)
        message = f"{wanted.title}\n\n{_TRAILER}{wanted.content}\n"
        commit = self._send("git/commits", message=message, tree=tree, parents=[self._commit])
        if wanted.branch in self._branches():
            self._api.ask("PATCH", f"git/refs/heads/{wanted.branch}", sha=commit, force=True)
        else:
            self._api.ask("POST", "git/refs", ref=f"refs/heads/{wanted.branch}", sha=commit)
            self._branches().add(wanted.branch)

    def _branches(self) -> set[str]:
        if self._refs is None:
            found = self._api.get(f"git/matching-refs/heads/{PREFIX}", list[_Ref])
            self._refs = {item.ref.removeprefix("refs/heads/") for item in found}
        return self._refs

    def _is_own(self, sha: str) -> bool:
        return f"\n{_TRAILER}" in self._api.get(f"git/commits/{sha}", _Commit).message

    def _send(self, path: str, **fields: object) -> str:
        return read_answer(self._api.ask("POST", path, **fields), _Object).sha


def _marked(wanted: WantedPull) -> str:
    return f"<!-- kci-pull: {wanted.about} {wanted.content} -->\n{wanted.body}"
