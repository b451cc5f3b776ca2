"""Which issues to open, update and close, and what they say: a pure function of the history.

One cause is one issue, however many kernels and legs have it. A leg joins after a number of failures in a row; an issue
is closed when every leg in it has passed. An unknown result (an outage, a skipped leg) changes nothing. A leg that
keeps going back and forth is named as flaky instead of being opened and closed again and again.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence

import msgspec

from kci.config.settings import Decisions, Tell
from kci.diagnostics import printable
from kci.plurals import count, first_of
from kci.watch.causes import cause_id, cause_of
from kci.watch.history import HARDWARE, Failure, RecordedRun


class ActionKind(enum.StrEnum):
    """What to do about an issue."""

    OPEN = "open"
    UPDATE = "update"
    CLOSE = "close"


class IssueAction(msgspec.Struct, frozen=True):
    """One thing to do. The issue is found by its id, which stands in its text."""

    kind: ActionKind
    id: str
    title: str
    body: str
    flaky: bool
    legs: tuple[str, ...]
    """The legs that still fail; for a close, all that did."""
    tell: tuple[str, ...]
    since: int
    """The run in which it was opened: a cause that comes back is another issue."""


class OpenCause(msgspec.Struct):
    """An issue that is open."""

    cause: str
    flaky: bool
    since: RecordedRun
    failure: Failure
    pending: set[str]
    """Legs that have not passed yet."""
    all: set[str]
    retired: set[str]
    """Groups (kernel and backend) of legs that the catalog no longer has; a pass of the group is theirs."""
    changed: bool = False


class _LegState(msgspec.Struct):
    fails: int = 0
    """Failures in a row, whatever the cause."""
    cause: str = ""
    same: int = 0
    recent: int = 0
    """The latest known outcomes as bits, the newest lowest; 1 is a failure."""
    known: int = 0
    catalog: str = ""
    absent: int = 0
    """Runs of its kernel under another catalog in which it was not there."""
    flaky: bool = False
    issues: set[str] = msgspec.field(default_factory=set)


FLAKY = "flaky: "
"""How the cause of an issue about flaky legs begins."""

_GONE_AFTER = 2
"""So many runs under a new catalog without a leg mean that it is gone, and not that a file was lost."""


class WatchState:
    """The state after some runs. `step` takes the next one; `decide` is a fold over all."""

    def __init__(self, policy: Decisions) -> None:
        self.policy = policy
        self.needed = max(policy.failures, 1)
        self.turns = max(policy.flaky_turns, 2)
        self.window = min(max(policy.flaky_runs, 3), 365)
        self.legs: dict[str, _LegState] = {}
        self.open: dict[str, OpenCause] = {}

    def step(self, run: RecordedRun) -> list[IssueAction]:
        """Take the next run: what to do after it, sorted by id."""
        closed: list[IssueAction] = []
        opened = set(self.open)
        for leg in run.passed:
            self._passed(leg, run)
        for failure in run.failed:
            self._failed(failure, run)
        if self.open:
            self._retire(run)
        for key in sorted(self.open):
            issue = self.open[key]
            if not issue.pending and not issue.retired:
                closed.append(self._action(ActionKind.CLOSE, key, issue))
                del self.open[key]
                for leg in issue.all:
                    self.legs[leg].issues.discard(key)
        changed = [(key, issue) for key, issue in sorted(self.open.items()) if issue.changed or key not in opened]
        actions = [
            self._action(ActionKind.UPDATE if key in opened else ActionKind.OPEN, key, issue) for key, issue in changed
        ]
        for _, issue in changed:
            issue.changed = False
        return sorted(actions + [item for item in closed if item.id in opened], key=lambda item: item.id)

    # --- the outcomes ---

    def _passed(self, leg: str, run: RecordedRun) -> None:
        state = self._seen(leg, run, failed=False)
        state.fails = state.same = 0
        if state.flaky and self._turns(state) == 0:
            state.flaky = False
        for key in state.issues:
            issue = self.open[key]
            if leg in issue.pending and not (issue.flaky and state.flaky):
                issue.pending.discard(leg)
                issue.changed = True
        if any(issue.retired for issue in self.open.values()):
            group = _group(leg)
            for issue in self.open.values():
                if group in issue.retired:
                    issue.retired.discard(group)
                    issue.changed = True

    def _failed(self, failure: Failure, run: RecordedRun) -> None:
        leg = failure.leg
        state = self._seen(leg, run, failed=True)
        kernel, variant = leg.split(" ", 2)[:2]
        cause = cause_of(failure.error, kernel, variant)
        state.same = state.same + 1 if cause == state.cause else 1
        state.cause = cause
        state.fails += 1
        if not state.flaky and self._turns(state) >= self.turns:
            state.flaky = True
        needed = self.needed
        if state.flaky and state.fails < 2 * needed:
            if not any(self.open[key].flaky for key in state.issues):  # or it has one, whatever it says this time
                self._join(failure, run, state, f"{FLAKY}{cause}", flaky=True)
            return
        state.flaky = False
        in_other = any(not self.open[key].flaky for key in state.issues)
        if (state.same if in_other else state.fails) >= needed:
            self._join(failure, run, state, cause, flaky=False)

    def _seen(self, leg: str, run: RecordedRun, *, failed: bool) -> _LegState:
        state = self.legs.get(leg)
        if state is None:
            state = self.legs[leg] = _LegState()
        state.recent = (state.recent << 1 | failed) & ((1 << self.window) - 1)
        state.known = min(state.known + 1, self.window)
        state.catalog, state.absent = run.catalog, 0
        return state

    def _turns(self, state: _LegState) -> int:
        if state.known < 2:
            return 0
        return ((state.recent ^ state.recent >> 1) & ((1 << state.known - 1) - 1)).bit_count()

    def _join(self, failure: Failure, run: RecordedRun, state: _LegState, cause: str, *, flaky: bool) -> None:
        key = cause_id(cause)
        issue = self.open.get(key)
        if issue is None:
            issue = self.open[key] = OpenCause(cause, flaky, run, failure, set(), set(), set())
        if failure.leg not in issue.pending:
            issue.changed = True
        issue.pending.add(failure.leg)
        issue.all.add(failure.leg)
        state.issues.add(key)

    def _retire(self, run: RecordedRun) -> None:
        """Note the failing legs that the catalog no longer has: their kernel ran without them under another one."""
        ran = {leg.partition(" ")[0] for leg in run.passed} | {item.leg.partition(" ")[0] for item in run.failed}
        present = {*run.passed, *run.unknown, *(failure.leg for failure in run.failed)}
        for issue in self.open.values():
            for leg in sorted(issue.pending - present):
                state = self.legs[leg]
                if leg.partition(" ")[0] in ran and state.catalog != run.catalog:
                    state.absent += 1
                if state.absent >= _GONE_AFTER:
                    issue.pending.discard(leg)
                    issue.retired.add(_group(leg))
                    issue.changed = True

    def _action(self, kind: ActionKind, key: str, issue: OpenCause) -> IssueAction:
        legs = tuple(sorted(issue.all if kind is ActionKind.CLOSE else issue.pending))
        kernels = sorted({leg.partition(" ")[0] for leg in issue.all})
        title = f"{first_of(kernels, 3)}: {plain(issue.cause)}"[:200].rstrip()  # as GitHub keeps it
        body = _issue_body(key, issue, legs, recovered=kind is ActionKind.CLOSE)
        tell = whom(self.policy.tell, issue.all)
        return IssueAction(kind, key, title, body, issue.flaky, legs, tell, issue.since.run)


def decide(history: Iterable[RecordedRun], policy: Decisions) -> list[IssueAction]:
    """What to do after the last run of a history, whose runs come oldest first and each once."""
    watch = WatchState(policy)
    actions: list[IssueAction] = []
    for run in history:
        actions = watch.step(run)
    return actions


def standing(history: Iterable[RecordedRun], policy: Decisions) -> list[IssueAction]:
    """The latest decision about each issue that a history has ever led to, in the order in which they began.

    Who carries these out need not know which of them were carried out before.
    """
    watch = WatchState(policy)
    latest: dict[tuple[int, str], IssueAction] = {}
    for run in history:
        for action in watch.step(run):
            latest[action.since, action.id] = action
    return [action for _, action in sorted(latest.items())]


def whom(tell: Sequence[Tell], legs: Iterable[str]) -> tuple[str, ...]:
    """The people to notify about some legs: everyone whose entry matches one of them, sorted."""
    named = [leg.split(" ", 2)[:2] for leg in legs]
    return tuple(sorted({who for entry in tell for who in entry.who if any(entry.matches(*pair) for pair in named)}))


def _group(leg: str) -> str:
    """Kernel, backend and system: what a leg of the next torch or toolkit has in common with this one."""
    kernel, variant, system = leg.split(" ")[:3]
    compute = variant.removesuffix(f"-{system.removesuffix(HARDWARE)}").rpartition("-")[2]
    return f"{kernel} {compute.rstrip('0123456789')} {system}"


# --- what an issue says -----------------------------------------------------------------------------------------------

SHOWN = 50
"""Legs that an issue lists one by one."""

_LINK = re.compile(r"https?://[\w.~:/?#!$&*+,;=%-]{1,490}", re.ASCII)


def mark(key: str, since: int) -> str:
    """The invisible line by which an issue is found again: the cause, and the run in which it began."""
    return f"<!-- kci-cause: {key} since run {since} -->"


def _issue_body(key: str, issue: OpenCause, legs: Sequence[str], *, recovered: bool) -> str:
    since, failure = issue.since, issue.failure
    head = "Every leg below passes again." if recovered else "Scheduled runs fail with this error:"
    lines = [mark(key, since.run), "", head, "", f"    {plain(failure.error)}", ""]
    told = f"First seen in run {since.run} ({plain(since.at)})"
    told += f", catalog {plain(since.catalog)}" if since.catalog else ""
    lines.append(told + (f", commit {plain(since.commit)[:12]}." if since.commit else "."))
    if log := web_link(failure.log):
        lines.append(f"Log: {log}")
    if failure.replay:
        lines += ["", "To see it on your own machine:", "", f"    {plain(failure.replay)}"]
    lines += ["", f"{count(len(legs), 'leg')}:", ""]
    lines += [f"- `{plain(leg)}`" for leg in legs[:SHOWN]]
    if len(legs) > SHOWN:
        lines.append(f"- and {len(legs) - SHOWN} more")
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Text from a log on one line, which cannot end the comment, mention people or close a code span."""
    return printable(text, " ").replace("`", "'").replace("-->", "-- >").replace("@", "@\u200b")[:2000]


def web_link(text: str) -> str:
    """An address that a browser may follow, and that is no other markup; empty for anything else."""
    return text if _LINK.fullmatch(text) else ""
