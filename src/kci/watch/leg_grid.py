"""What a history says about every leg today: kernels x (backend, torch, toolkit, system), for the report.

The state of a leg is its latest known result. A leg that no run among the latest had is left out: the catalog no longer
has it. Which failures are one cause, and which legs are flaky, is what `kci compat decide` says.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import msgspec

from kci.config.settings import Decisions
from kci.matrix.archs import natural
from kci.watch.decide import FLAKY, FailureTracker
from kci.watch.history import Failure, RecordedRun, RunFacts
from kci.watch.issue_text import backend_of

SHOWN_RUNS = 14
"""So many latest runs are shown one by one; a leg that is in none of them is left out."""


class CellState(enum.StrEnum):
    """The state of a leg, the worst first."""

    FAILS = "fails"
    FLAKY = "flaky"
    UNKNOWN = "unknown"
    PASSES = "passes"


class Trend(enum.StrEnum):
    """How a leg is today against how it was in the shown runs: fixed, broken, or as before.

    A flaky leg is both by turns: there the later half of the runs is held against the earlier one.
    """

    WORSE = "worse"
    STEADY = "steady"
    BETTER = "better"


class GridColumn(NamedTuple):
    """With what a leg is tested. A missing version is `-`."""

    backend: str
    torch: str
    compute: str
    system: str

    @property
    def parts(self) -> list[str]:
        """Backend with its version, torch if there is one, and the system, for people."""
        toolkit = self.backend if self.compute == "-" else f"{self.backend} {self.compute}"
        return [toolkit, *([] if self.torch == "-" else [f"torch {self.torch}"]), self.system]

    @property
    def label(self) -> str:
        return ", ".join(self.parts)


class GridCell(msgspec.Struct, frozen=True):
    """One leg today."""

    variant: str
    column: GridColumn
    state: CellState
    trend: Trend
    recent: str
    """The shown runs, oldest first: `p`assed, `f`ailed, `u`nknown, `-` not run."""
    runs: int
    """For how many known results it has been so."""
    days: int | None
    """From the first of them to the last run of the history; None where a run has no readable date."""
    since: RunFacts | None
    """The run of the first of them; None where no result is known."""
    before: RunFacts | None = None
    """The latest run with the other result, before that one."""
    latest: RunFacts | None = None
    """The latest run with a known result."""
    failure: Failure | None = None
    """The latest failure of a leg that fails or is flaky."""

    @property
    def changed(self) -> str:
        """What is new in the run that began it: the commit, the catalog, or neither."""
        if self.since is None or self.before is None:
            return ""
        pairs = [
            (what, getattr(self.before, what), getattr(self.since, what))
            for what in ("commit", "catalog")
            if getattr(self.before, what) != getattr(self.since, what)
        ]
        if not pairs:
            return "neither commit nor catalog changed: a package, an image or a machine did"
        return "; ".join(f"{what} {old[:12] or 'unknown'} to {new[:12] or 'unknown'}" for what, old, new in pairs)


class KernelCells(msgspec.Struct, frozen=True):
    """A kernel's legs, sorted by column and variant."""

    kernel: str
    cells: tuple[GridCell, ...]

    def by_column(self) -> dict[GridColumn, list[GridCell]]:
        return {column: list(cells) for column, cells in groupby(self.cells, key=lambda cell: cell.column)}

    def count(self, state: CellState) -> int:
        return sum(cell.state is state for cell in self.cells)

    @property
    def worst(self) -> CellState:
        states = {cell.state for cell in self.cells}
        return next(state for state in CellState if state in states)


class GridCause(msgspec.Struct, frozen=True):
    """Legs that fail for one reason."""

    cause: str
    is_open: bool
    """True if it failed often enough for an issue."""
    legs: tuple[str, ...]
    kernels: tuple[str, ...]


class LegGrid(msgspec.Struct, frozen=True):
    """A whole history, today."""

    runs: int
    latest: RunFacts | None
    columns: tuple[GridColumn, ...]
    kernels: tuple[KernelCells, ...]
    causes: tuple[GridCause, ...]
    """The one with the most legs first."""

    @property
    def size(self) -> int:
        return sum(len(kernel.cells) for kernel in self.kernels)

    def count(self, state: CellState) -> int:
        return sum(kernel.count(state) for kernel in self.kernels)


_PASSED, _FAILED, _UNKNOWN = 1, 2, 3
_MASK = (1 << 2 * SHOWN_RUNS) - 1


class _LegTrack(msgspec.Struct):
    seen: int
    """The number of the run that `recent` ends with."""
    recent: int = 0
    """Two bits a run, the newest lowest."""
    failing: bool = False
    since: RunFacts | None = None
    before: RunFacts | None = None
    latest: RunFacts | None = None
    results: int = 0
    failure: Failure | None = None

    def saw(self, number: int, code: int) -> None:
        self.recent = (self.recent << 2 * min(number - self.seen, SHOWN_RUNS) | code) & _MASK
        self.seen = number

    def known(self, run: RunFacts, *, failing: bool) -> None:
        if self.latest is None or self.failing is not failing:
            self.before, self.since, self.results, self.failing = self.latest, run, 0, failing
        self.latest = run
        self.results += 1


def grid_of(history: Iterable[RecordedRun], policy: Decisions) -> LegGrid:
    """What a history says today: its runs, oldest first and each once; the policy says what is flaky."""
    watch, tracks = FailureTracker(policy), dict[str, _LegTrack]()
    number, latest = -1, None
    for number, run in enumerate(history):
        watch.step(run)
        latest = run.facts
        failures = {failure.leg: failure for failure in run.failed}
        for legs, code in ((run.unknown, _UNKNOWN), (run.passed, _PASSED), (failures, _FAILED)):
            for leg in legs:
                track = tracks.get(leg)
                if track is None:
                    track = tracks[leg] = _LegTrack(number - 1)
                track.saw(number, code)
                if code != _UNKNOWN:
                    track.known(latest, failing=code == _FAILED)
                track.failure = failures.get(leg, track.failure)
    shown = {leg: track for leg, track in tracks.items() if number - track.seen < SHOWN_RUNS}
    by_kernel: dict[str, list[GridCell]] = {}
    for leg, track in shown.items():
        cell = _cell(leg, track, number, latest, flaky=track.latest is not None and watch.legs[leg].flaky)
        by_kernel.setdefault(leg.partition(" ")[0], []).append(cell)
    found = [
        KernelCells(name, tuple(sorted(cells, key=lambda cell: (_column_order(cell.column), cell.variant))))
        for name, cells in by_kernel.items()
    ]
    states = list(CellState)
    kernels = tuple(sorted(found, key=lambda kernel: (states.index(kernel.worst), natural(kernel.kernel))))
    columns = {cell.column for kernel in kernels for cell in kernel.cells}
    return LegGrid(number + 1, latest, tuple(sorted(columns, key=_column_order)), kernels, _causes(watch, shown))


def _cell(leg: str, track: _LegTrack, last: int, latest: RunFacts | None, *, flaky: bool) -> GridCell:
    _, variant, system, torch, compute = leg.split(" ")
    state = CellState.FAILS if track.failing else CellState.PASSES
    if flaky or track.latest is None:
        state = CellState.FLAKY if flaky else CellState.UNKNOWN
    recent = track.recent << 2 * min(last - track.seen, SHOWN_RUNS) & _MASK
    codes = [recent >> 2 * place & 3 for place in reversed(range(min(last + 1, SHOWN_RUNS)))]
    return GridCell(
        variant=variant,
        column=GridColumn(backend_of(variant), torch, compute, system),
        state=state,
        trend=_trend(state, codes),
        recent="".join("-pfu"[code] for code in codes),
        runs=track.results,
        days=_days(track.since.at, latest.at) if track.since and latest else None,
        since=track.since,
        before=track.before,
        latest=track.latest,
        failure=track.failure if state in (CellState.FAILS, CellState.FLAKY) else None,
    )


def _causes(watch: FailureTracker, shown: Mapping[str, _LegTrack]) -> tuple[GridCause, ...]:
    """Those with an issue, and those of legs that fail and are in none yet; an error once, whatever has it."""
    said = [(issue.cause, True, issue.pending & shown.keys()) for issue in watch.open.values()]
    told = {leg for _, _, legs in said for leg in legs}
    said += [(watch.legs[leg].cause, False, {leg}) for leg, track in shown.items() if track.failing and leg not in told]
    by_error: dict[str, list[tuple[str, bool, set[str]]]] = {}
    for one in said:
        if one[2]:
            by_error.setdefault(one[0].removeprefix(FLAKY), []).append(one)
    made = []
    for error, same in by_error.items():
        names, legs = {cause for cause, _, _ in same}, {leg for _, _, some in same for leg in some}
        cause = names.pop() if len(names) == 1 else error
        kernels = tuple(sorted({leg.partition(" ")[0] for leg in legs}))
        made.append(GridCause(cause, any(is_open for _, is_open, _ in same), tuple(sorted(legs)), kernels))
    return tuple(sorted(made, key=lambda item: (not item.is_open, -len(item.legs), item.cause)))


def _trend(state: CellState, codes: list[int]) -> Trend:
    known = [code == _FAILED for code in codes if code in (_PASSED, _FAILED)]
    if state is not CellState.FLAKY:
        same = len(set(known)) < 2
        return Trend.STEADY if same else Trend.BETTER if state is CellState.PASSES else Trend.WORSE
    half = len(known) // 2
    if not half:
        return Trend.STEADY
    earlier, later = sum(known[:half]) / half, sum(known[half:]) / (len(known) - half)
    return Trend.STEADY if earlier == later else Trend.WORSE if later > earlier else Trend.BETTER


@lru_cache(maxsize=65536)
def _days(start: str, end: str) -> int | None:
    try:
        return max(0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).days)
    except (ValueError, TypeError):
        return None


def _column_order(column: GridColumn) -> tuple[object, ...]:
    return (column.backend, _number(column.torch), _number(column.compute), column.system, column)


@lru_cache(maxsize=4096)
def _number(version: str) -> tuple[int, ...]:
    """For sorting: 2.9 before 2.14, and what is not a version first."""
    return tuple(int(part) if part.isdecimal() and len(part) < 10 else -1 for part in version.split("."))
