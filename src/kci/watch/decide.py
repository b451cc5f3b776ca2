"""Issues to open, update and close: a pure function of the history.

An issue is about one cause since one change. A failure is a suspect until its leg has the same
cause again, in a second look or the next run. A suspect that passes is a flake; one that comes back
is flaky. An unknown result changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from kci.config.settings import Decisions, Tell
from kci.tree.verify.abi import demangled
from kci.utils.frozen import Frozen
from kci.utils.suggest import first_of
from kci.watch.causes import cause_id, cause_of
from kci.watch.history import Failure, RecordedRun, RunFacts, leg_of
from kci.watch.issue_text import OpenCause, issue_body, plain


class ActionKind(enum.StrEnum):
    """An operation on an issue."""

    OPEN = "open"
    UPDATE = "update"
    CLOSE = "close"


class IssueAction(Frozen):
    """An operation on the issue with this id, which its text contains."""

    kind: ActionKind
    id: str
    title: str
    body: str
    legs: tuple[str, ...]
    """The legs that still fail; for a close, all that failed."""
    tell: tuple[str, ...]
    since: int
    """The run that opened it: a cause that comes back gets a new issue."""
    until: int | None = None
    """The run that closed it."""


class LegState(msgspec.Struct):
    """A leg after some runs, for decisions and the report."""

    cause: str = ""
    """The latest."""
    failures: dict[str, int] = {}
    """Failures since the latest pass, by cause."""
    last: int = -1
    machine: str = ""
    first: int = -1
    passed: int | None = None
    first_seen: int = 0
    flakes: list[int] = []
    """The runs after which it passed without a change."""
    catalog: str = ""
    absent: int = 0
    """Runs of its kernel under another catalog that lacked this leg."""
    flaky: bool = False
    issues: set[str] = set()
    failing: bool = False
    failure: Failure | None = None
    """The latest, also after a pass."""
    latest: RunFacts | None = None
    """The run of the latest known result; None without one."""
    since: RunFacts | None = None
    """The first run of those in a row with the same result."""
    before: RunFacts | None = None
    """The run of the last other result."""
    results: int = 0
    """Known results since then."""

    def add(self, run: RunFacts, *, failing: bool) -> None:
        if not self.latest or self.failing is not failing:
            self.before, self.since, self.results, self.failing = self.latest, run, 0, failing
        self.latest = run
        self.results += 1


FLAKY = "flaky: "
"""The prefix of the cause of an issue about flaky legs."""

_CONFIRMATIONS = 2
"""Failures with one cause that confirm it: on two machines, or in two runs."""

_MAX_RETRIES = 2
"""Legs of a kernel with one cause that get a second look."""

_MAX_MIXED_FAILURES = 4
"""Failures without a pass that open an issue, even with a different cause each time."""

_STAYS_BROKEN = 3
"""Consecutive failed runs after which a flaky leg counts as broken."""

_FLAKY_TURNS = 3
"""Runs in which a cause turns green by itself, in a leg or a kernel, before it counts as flaky."""

_FLAKY_RUNS = 14
"""The number of latest runs in which `_FLAKY_TURNS` counts."""

_EVERYWHERE = 3
"""Kernels in which one cause turns green by itself: then it is an outage that `outages.toml` does
not know yet."""

_REMOVED_AFTER_RUNS = 2
"""Runs under a new catalog without a leg after which the leg counts as removed."""


class FailureTracker(msgspec.Struct):
    """The state of all legs and issues after some runs."""

    policy: Decisions
    runs: list[RunFacts] = []
    legs: dict[str, LegState] = {}
    """The legs with a known result."""
    seen: dict[str, int] = {}
    """The number of the latest run with a leg, known or not."""
    open: dict[str, OpenCause] = {}
    flakes: dict[str, dict[str, list[int]]] = {}
    """The runs in which a cause turned green by itself, by cause and kernel."""
    closed_runs: dict[tuple[str, str], list[int]] = {}
    """The opening runs of closed issues, by cause and kernel."""

    @property
    def number(self) -> int:
        """The index of the latest run; -1 before the first."""
        return len(self.runs) - 1

    def step(self, run: RecordedRun) -> list[IssueAction]:
        """Add the next run; the actions that follow, sorted by id."""
        self.runs.append(run.facts)
        opened = set(self.open)
        failed = {failure.leg: failure for failure in run.failed}
        self.seen |= dict.fromkeys((*run.unknown, *run.passed, *failed), self.number)
        for leg, failure in failed.items():
            state = self._state_of(leg)
            state.failure = failure
            state.add(self.runs[-1], failing=True)
        confirmed = [
            (failure, cause)
            for failure in (*run.earlier, *run.failed)
            if (cause := self._confirmed_cause(failure, still=failure.leg in failed))
        ]
        # Legs with one possible change go first: the others fit several issues.
        for failure, cause in sorted(
            confirmed, key=lambda item: len(self._possible_changes(self.legs[item[0].leg]))
        ):
            self._join(failure, cause)
        open_causes = self._open_causes()
        for failure in run.failed:
            state, kernel = self.legs[failure.leg], leg_of(failure.leg).kernel
            if not state.flaky and (kernel, state.cause) in open_causes:
                self._join(failure, state.cause)
        for leg in run.passed:
            self._record_pass(leg)
        if self.open:
            self._drop_removed_legs(run)
        actions = []
        for key, issue in sorted(self.open.items()):
            kind = ActionKind.UPDATE if key in opened else ActionKind.OPEN
            if not issue.pending and not issue.retired:
                self._close(key, issue)
                kind, issue.changed = ActionKind.CLOSE, key in opened
            if issue.changed:
                actions.append(self._action(kind, key, issue))
                issue.changed = False
        return actions

    def suspects(self, run: RecordedRun) -> list[str]:
        """The legs of an unrecorded run to repeat: two for each new cause of a kernel, of two
        backends if possible.
        """
        looked = {failure.leg for failure in run.earlier}
        open_causes = self._open_causes()
        by_cause: dict[tuple[str, str, bool], dict[str, str]] = {}
        for failure in run.failed:
            leg, state = leg_of(failure.leg), self.legs.get(failure.leg)
            cause = cause_of(failure.error, leg.kernel, leg.variant)
            known = (leg.kernel, cause) in open_causes or (state and cause in state.failures)
            if failure.leg not in looked and not known:
                legs = by_cause.setdefault((leg.kernel, cause, leg.on_hardware), {})
                legs.setdefault(leg.backend, failure.leg)
        return sorted(
            leg for legs in by_cause.values() for leg in list(legs.values())[:_MAX_RETRIES]
        )

    def _confirmed_cause(self, failure: Failure, *, still: bool) -> str:
        leg, state = leg_of(failure.leg), self._state_of(failure.leg)
        if state.last == self.number and failure.machine and failure.machine == state.machine:
            return ""
        cause = state.cause = cause_of(failure.error, leg.kernel, leg.variant)
        state.failures[cause] = state.failures.get(cause, 0) + 1
        if state.first < 0:
            state.first = self.number
        state.last, state.machine = self.number, failure.machine
        # what has shown its other color is no proof against itself
        turned = self.flakes.get(cause, {}).get(leg.kernel, [])
        if not still or (state.results < _STAYS_BROKEN and (state.flaky or self._recent(turned))):
            return ""
        mixed = not state.issues and sum(state.failures.values()) >= _MAX_MIXED_FAILURES
        if not mixed and state.failures[cause] < _CONFIRMATIONS:
            return ""
        state.flaky = False
        return cause

    def _open_causes(self) -> set[tuple[str, str]]:
        issues = (issue for issue in self.open.values() if not issue.flaky)
        return {(kernel, issue.cause) for issue in issues for kernel in issue.kernels}

    def _record_pass(self, leg: str) -> None:
        state = self._state_of(leg)
        if state.failures:
            self._record_recovery(leg, state)
        state.failures.clear()
        state.first, state.passed = -1, self.number
        state.add(self.runs[-1], failing=False)
        if state.flaky and not self._recent(state.flakes):
            state.flaky = False
        for key in state.issues:
            issue = self.open[key]
            if leg in issue.pending and not (issue.flaky and state.flaky):
                issue.pending.discard(leg)
                issue.changed = True
        for issue in self.open.values():
            if issue.retired and (group := leg_of(leg).group) in issue.retired:
                issue.retired.discard(group)
                issue.changed = True

    def _record_recovery(self, leg: str, state: LegState) -> None:
        if any(not self.open[key].flaky for key in state.issues):
            return
        kernel = leg_of(leg).kernel
        kernels = [self.flakes.setdefault(cause, {}) for cause in state.failures]
        for runs in (*(item.setdefault(kernel, []) for item in kernels), state.flakes):
            if state.last not in runs:
                runs.append(state.last)
        own = [
            item[kernel]
            for item in kernels
            if sum(bool(self._recent(it)) for it in item.values()) < _EVERYWHERE
        ]
        if not state.flaky and any(
            len(self._recent(runs)) >= _FLAKY_TURNS for runs in (*own, state.flakes)
        ):
            state.flaky = True
            if not any(self.open[key].flaky for key in state.issues):
                self._join(Failure(leg, state.cause), f"{FLAKY}{state.cause}", flaky=True)

    def _close(self, key: str, issue: OpenCause) -> None:
        del self.open[key]
        for leg in issue.all:
            self.legs[leg].issues.discard(key)
        for kernel in issue.kernels if not issue.flaky else ():
            before = self._recent(self.closed_runs.setdefault((issue.cause, kernel), []))
            if before:
                self.flakes.setdefault(issue.cause, {}).setdefault(kernel, []).append(issue.opened)
            before.append(issue.opened)

    def _recent(self, runs: list[int]) -> list[int]:
        while runs and runs[0] <= self.number - _FLAKY_RUNS:
            runs.pop(0)
        return runs

    def _state_of(self, leg: str) -> LegState:
        state = self.legs.setdefault(leg, LegState(first_seen=self.number))
        state.catalog, state.absent = self.runs[-1].catalog, 0
        return state

    def _possible_changes(self, state: LegState) -> set[str]:
        start = state.first_seen - 1 if state.passed is None else state.passed
        runs = self.runs[max(start, 0) : state.first + 1]
        came = {new.catalog for old, new in pairwise(runs) if new.catalog != old.catalog}
        sure = state.first - start == 1 and state.first_seen > 0
        return came if came and sure else {*came, ""}

    def _join(self, failure: Failure, cause: str, *, flaky: bool = False) -> None:
        kernel, state = leg_of(failure.leg).kernel, self.legs[failure.leg]
        changes = self._possible_changes(state)
        fits = (
            key
            for key, issue in self.open.items()
            if issue.cause == cause
            and issue.flaky is flaky
            and (flaky or kernel in issue.kernels or issue.new_catalog in changes)
        )
        key = next(fits, "")
        if not key:
            new_catalog = "" if flaky else max(changes)
            key = cause_id(f"{new_catalog}: {cause}" if new_catalog else cause)
            new = OpenCause(
                cause, flaky, self.runs[-1], state.before, new_catalog, failure, self.number
            )
            self.open.setdefault(key, new)
        issue = self.open[key]
        issue.changed = issue.changed or failure.leg not in issue.pending
        issue.pending.add(failure.leg)
        issue.all.add(failure.leg)
        state.issues.add(key)

    def _drop_removed_legs(self, run: RecordedRun) -> None:
        known = {*run.passed, *(failure.leg for failure in run.failed)}
        ran = {leg_of(leg).kernel for leg in known}
        for issue in self.open.values():
            for leg in sorted(issue.pending - known - {*run.unknown}):
                state = self.legs[leg]
                if leg_of(leg).kernel in ran and state.catalog != run.catalog:
                    state.absent += 1
                if state.absent >= _REMOVED_AFTER_RUNS:
                    issue.pending.discard(leg)
                    issue.retired.add(leg_of(leg).group)
                    issue.changed = True

    def _action(self, kind: ActionKind, key: str, issue: OpenCause) -> IssueAction:
        closed = kind is ActionKind.CLOSE
        return IssueAction(
            kind,
            key,
            title=f"{first_of(issue.kernels, 3)}: {plain(demangled(issue.cause))}"[:200].rstrip(),
            body=issue_body(key, issue, recovered=closed),
            legs=tuple(sorted(issue.all if closed else issue.pending)),
            tell=people_to_notify(self.policy.tell, issue.all),
            since=issue.since.run,
            until=self.runs[-1].run if closed else None,
        )


def decide(history: Iterable[RecordedRun], watch: FailureTracker) -> list[IssueAction]:
    """The actions after the last run of a history; its runs come oldest first, each once."""
    actions: list[IssueAction] = []
    for run in history:
        actions = watch.step(run)
    return actions


def latest_decisions(history: Iterable[RecordedRun], watch: FailureTracker) -> list[IssueAction]:
    """The latest action for each issue in a history, in order of `since`: idempotent for the issue
    tracker.
    """
    latest = {(action.since, action.id): action for run in history for action in watch.step(run)}
    return [action for _, action in sorted(latest.items())]


def people_to_notify(tell: Sequence[Tell], legs: Iterable[str]) -> tuple[str, ...]:
    """The people whose entry matches one of the legs, sorted."""
    pairs = {leg_of(leg)[:2] for leg in legs}
    told = (entry.who for entry in tell if any(entry.matches(*pair) for pair in pairs))
    return tuple(sorted({who for group in told for who in group}))
