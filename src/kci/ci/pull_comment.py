"""What the comment of a pull request says: kernels, variants, sizes, tests, and how to repeat what failed.

The records are written by jobs that run the pull request's own code, so nothing of them is believed to be harmless: all
text stands in a code span on one line, where GitHub makes no link, no mention and no HTML of it, and a command is made
here, of names that have the form of one.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from kci.ci.gate import GateRow, judge
from kci.ci.pull_talk import PullRequestState, WorkflowRun
from kci.ci.run_records import TestRecord
from kci.ci.tree_index import NO_PLAN, RunUploads, read_uploads
from kci.errors import FindingsError
from kci.matrix.names import is_variant_name
from kci.plurals import count
from kci.watch.issue_text import plain

_ROWS, _FAILURES, _TEXT = 150, 20, 300
_PATH = re.compile(r"(?!.*\.\.)[A-Za-z0-9_.][A-Za-z0-9_./-]{0,200}", re.ASCII)

_ENDINGS = {
    "success": "ended well",
    "failure": "failed",
    "cancelled": "was cancelled",
    "timed_out": "ran out of time",
    "action_required": "waits for somebody to approve it",
}


def comment_of(pull: PullRequestState, run: WorkflowRun, records: Path, left: Sequence[str], repository: str) -> str:
    """The comment, from the records of a run in a folder; `left` names those that were too large to read."""
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    link = f"[Run {run.id}]({server}/{repository}/actions/runs/{run.id}/attempts/{run.run_attempt})"
    ended = _ENDINGS.get(run.conclusion or "", "ended in another way")
    lines = [f"<!-- kci-pull-request: run {run.id} attempt {run.run_attempt} -->"]
    try:
        uploads, wrong = read_uploads(records), ""
        rows = judge(uploads)
    except (FindingsError, ValueError) as error:
        uploads, wrong, rows = RunUploads(), str(error).replace(str(records), ""), []
    lines += [f"### kci: {_headline(run, uploads, rows, bool(wrong or left))}", ""]
    lines += [f"{link} of {run.head_sha} {ended}."]
    if pull.from_fork(repository):
        lines += ["The commit is from a fork, and what follows comes from jobs that the fork's commit can change."]
    if wrong:
        lines += ["", f"Its records cannot be read: {code(wrong)}"]
    if left:
        lines += ["", f"{count(len(left), 'record')} left unread, being too large or damaged: {code(', '.join(left))}"]
    plan = uploads.plan
    for number, what in ((len(plan.skipped), "need not be built"), (len(plan.left_out), "left out")):
        if number:
            lines += ["", f"{count(number, 'variant')} {what}; the run's summary says why."]
    lines += [*_variants(uploads, rows), *_tests(uploads), *_failures(pull, uploads, rows)]
    return "\n".join(lines) + "\n"


def _headline(run: WorkflowRun, uploads: RunUploads, rows: Sequence[GateRow], unread: bool) -> str:
    kernels = {leg.kernel for leg in uploads.plan.legs}
    if rows:
        where = count(len({row.kernel for row in rows}), "kernel")
        return f"{len(rows)} of what was planned did not happen, in {where}"
    if uploads.plan == NO_PLAN or unread:
        return "what the run came to is not known"
    if run.conclusion != "success":
        return "the run did not end well"
    return (
        f"all that was planned is there, in {count(len(kernels), 'kernel')}" if kernels else "nothing had to be built"
    )


def _variants(uploads: RunUploads, rows: Sequence[GateRow]) -> Iterator[str]:
    failed = {(row.kernel, row.variant) for row in rows}
    planned = sorted({(leg.kernel, name) for leg in uploads.plan.legs for name in leg.variants})
    if planned:
        yield from ("", "| kernel | variant | size | state |", "|---|---|---|---|")
    for kernel, name in planned[:_ROWS]:
        record = uploads.records.get(kernel)
        size = record.sizes.get(name) if record else None
        state = "**missing**" if (kernel, name) in failed or record is None else "built"
        yield f"| {code(kernel)} | {code(name)} | {'' if size is None else _size(size)} | {state} |"
    if len(planned) > _ROWS:
        yield from ("", f"And {count(len(planned) - _ROWS, 'variant')} more.")


def _tests(uploads: RunUploads) -> Iterator[str]:
    tests, lacking = uploads.plan.tests, uploads.untested()
    if tests:
        yield from ("", "| tested kernel | on | result |", "|---|---|---|")
    for test in tests[:_ROWS]:
        key = (test.kernel, test.name)
        record = uploads.tests.get(key)
        state = "**failed**" if key in lacking else _counts(record) if record else "**did not run**"
        yield f"| {code(test.kernel)} | {code(test.name)} | {state} |"


def _counts(record: TestRecord) -> str:
    passed, skipped = (sum(getattr(item, key) for item in record.variants) for key in ("passed", "skipped"))
    told = f"passed: {passed:,} tests" if 0 < passed < 10**9 else "passed"
    return told + (f", {skipped:,} skipped" if 0 < skipped < 10**9 else "")


def _failures(pull: PullRequestState, uploads: RunUploads, rows: Sequence[GateRow]) -> Iterator[str]:
    if not rows:
        return
    yield from ("", "<details><summary>What did not happen, and how to see it on your own machine</summary>", "")
    paths = {test.kernel: test.path for test in uploads.plan.tests}
    paths |= {leg.kernel: leg.path for leg in uploads.plan.legs}
    for row in rows[:_FAILURES]:
        yield f"- {code(row.kernel)} {code(row.variant) if row.variant else ''} {code(row.error)}"
        if replay := _replay(row, paths.get(row.kernel, "")):
            yield from ("", f"      gh pr checkout {pull.number} && {replay}", "")
    if len(rows) > _FAILURES:
        yield f"- and {len(rows) - _FAILURES} more"
    yield from ("", "</details>")


def _replay(row: GateRow, path: str) -> str:
    """The command that shows a failure elsewhere, of names that have the form of one; the record's own is not shown."""
    if not _PATH.fullmatch(path):
        return ""
    words = ["kci", "check"]
    if is_variant_name(row.variant):
        words = ["kci", "build", f"--variant={row.variant}", "--container=auto"]
    elif " / test " in row.job:
        words = ["kci", "test"]
    return shlex.join([*words, "--", path])


def code(text: str) -> str:
    """Text that is not trusted, as Markdown shows it and makes nothing of it."""
    return f"`{plain(text).replace('|', '¦')[:_TEXT].strip() or ' '}`"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 50_000 else f"{size / 1e3:,.1f} kB"
