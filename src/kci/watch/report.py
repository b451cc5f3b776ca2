"""The Markdown report of a history: the latest known result of each leg, by kernel, toolkit, torch and system."""

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
from kci.utils.shipped import template_environment, tidy
from kci.utils.suggest import count
from kci.watch.decide import FLAKY, FailureTracker
from kci.watch.history import Failure, RecordedRun, RunFacts
from kci.watch.issue_text import backend_of, plain

RECENT_RUNS = 14
"""A leg that is in none of the latest runs is left out."""
SHOWN = 100


class CellState(enum.StrEnum):
    """The state of a leg, worst first."""

    FAILS = "fails"
    FLAKY = "flaky"
    UNKNOWN = "unknown"
    PASSES = "passes"


_SYMBOLS = {CellState.FAILS: "✗", CellState.FLAKY: "≈", CellState.UNKNOWN: "?", CellState.PASSES: "✓"}


class GridColumn(NamedTuple):
    """The environment of a leg; `-` for no version."""

    backend: str
    torch: str
    compute: str
    system: str

    @property
    def label(self) -> str:
        toolkit = self.backend if self.compute == "-" else f"{self.backend} {self.compute}"
        return " ".join([toolkit, *([] if self.torch == "-" else [f"torch {self.torch}"]), self.system])


class GridCell(msgspec.Struct, frozen=True):
    """The state of one leg."""

    variant: str
    column: GridColumn
    state: CellState
    runs: int
    """Consecutive known results with this state."""
    days: int | None
    """Days from the first of them to the last run; None without a readable date."""
    since: RunFacts | None
    """The run of the first of them; None without a known result."""
    before: RunFacts | None = None
    failure: Failure | None = None

    @property
    def age(self) -> str:
        if self.since is None:
            return ""
        return f"{self.days} d" if self.days is not None else count(self.runs, "run")

    @property
    def began(self) -> str:
        if self.since is None:
            return "No result is known."
        began = f"Since run {self.since.run} ({self.since.at[:10]}), {count(self.runs, 'result')} in a row."
        if self.before is None:
            return began
        changes = [
            f"{what} {old[:12] or 'unknown'} to {new[:12] or 'unknown'}"
            for what in ("commit", "catalog")
            if (old := getattr(self.before, what)) != (new := getattr(self.since, what))
        ]
        new = "; ".join(changes) or "neither commit nor catalog changed: a package, an image or a machine did"
        return f"{began} It was different last in run {self.before.run}. New then: {new}."


class KernelCells(msgspec.Struct, frozen=True):
    """The legs of a kernel, sorted by column and variant."""

    kernel: str
    cells: tuple[GridCell, ...]

    def by_column(self) -> dict[GridColumn, list[GridCell]]:
        return {column: list(cells) for column, cells in groupby(self.cells, key=lambda cell: cell.column)}

    @property
    def worst(self) -> CellState:
        states = {cell.state for cell in self.cells}
        return next(state for state in CellState if state in states)


class GridCause(msgspec.Struct, frozen=True):
    """The legs that fail for one cause."""

    cause: str
    is_open: bool
    legs: tuple[str, ...]
    kernels: tuple[str, ...]


class LegGrid(msgspec.Struct, frozen=True):
    """The state of all legs after the last run."""

    latest: RunFacts | None
    columns: tuple[GridColumn, ...]
    kernels: tuple[KernelCells, ...]
    causes: tuple[GridCause, ...]

    def count(self, state: CellState) -> int:
        return sum(cell.state is state for kernel in self.kernels for cell in kernel.cells)


class _LegTrack(msgspec.Struct):
    seen: int = 0
    failing: bool = False
    since: RunFacts | None = None
    before: RunFacts | None = None
    latest: RunFacts | None = None
    results: int = 0
    failure: Failure | None = None

    def add(self, run: RunFacts, *, failing: bool) -> None:
        if self.latest is None or self.failing is not failing:
            self.before, self.since, self.results, self.failing = self.latest, run, 0, failing
        self.latest = run
        self.results += 1


def make_grid(history: Iterable[RecordedRun], policy: Decisions) -> LegGrid:
    """The state of each leg; `history` has its runs oldest first, each once, and the policy defines flaky."""
    watch, tracks = FailureTracker(policy), dict[str, _LegTrack]()
    number, latest = -1, None
    for number, run in enumerate(history):
        watch.step(run)
        latest = run.facts
        failures = {failure.leg: failure for failure in run.failed}
        for leg in (*run.unknown, *run.passed, *failures):
            track = tracks.setdefault(leg, _LegTrack())
            track.seen = number
            track.failure = failures.get(leg, track.failure)
        for legs, failing in ((run.passed, False), (failures, True)):
            for leg in legs:
                tracks[leg].add(latest, failing=failing)
    shown = {leg: track for leg, track in tracks.items() if number - track.seen < RECENT_RUNS}
    by_kernel: dict[str, list[GridCell]] = {}
    for leg, track in shown.items():
        cell = _cell(leg, track, latest, flaky=track.latest is not None and watch.legs[leg].flaky)
        by_kernel.setdefault(leg.partition(" ")[0], []).append(cell)
    rows = [
        KernelCells(name, tuple(sorted(cells, key=lambda cell: (_column_order(cell.column), cell.variant))))
        for name, cells in by_kernel.items()
    ]
    states = list(CellState)
    kernels = tuple(sorted(rows, key=lambda kernel: (states.index(kernel.worst), natural(kernel.kernel))))
    columns = {cell.column for kernel in kernels for cell in kernel.cells}
    return LegGrid(latest, tuple(sorted(columns, key=_column_order)), kernels, _causes(watch, shown))


def markdown_report(grid: LegGrid, title: str) -> str:
    """Render the report: a table per backend and the errors of failing legs, with log text escaped."""
    values = {
        "grid": grid,
        "title": title,
        "symbols": _SYMBOLS,
        "failing": [(kernel.kernel, cell) for kernel in grid.kernels for cell in kernel.cells if cell.failure],
        "shown": SHOWN,
        "block": lambda text: "\n".join(f"    {plain(line)}" for line in text.splitlines()[:20]),
        "text": lambda text: plain(text).translate(_MARKUP),
        "plain": plain,
        "count": count,
    }
    return tidy(template_environment().get_template("report.md.j2").render(values))


_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;"} | {char: f"\\{char}" for char in "\\|[]*_#!"})
"""Escapes for HTML, table borders and links."""


def _cell(leg: str, track: _LegTrack, latest: RunFacts | None, *, flaky: bool) -> GridCell:
    _, variant, system, torch, compute = leg.split(" ")
    state = CellState.FAILS if track.failing else CellState.PASSES
    if flaky or track.latest is None:
        state = CellState.FLAKY if flaky else CellState.UNKNOWN
    return GridCell(
        variant=variant,
        column=GridColumn(backend_of(variant), torch, compute, system),
        state=state,
        runs=track.results,
        days=_days(track.since.at, latest.at) if track.since and latest else None,
        since=track.since,
        before=track.before,
        failure=track.failure if state in (CellState.FAILS, CellState.FLAKY) else None,
    )


def _causes(watch: FailureTracker, shown: Mapping[str, _LegTrack]) -> tuple[GridCause, ...]:
    causes = [(issue.cause, True, issue.pending & shown.keys()) for issue in watch.open.values()]
    listed = {leg for _, _, legs in causes for leg in legs}
    causes += [
        (watch.legs[leg].cause, False, {leg}) for leg, track in shown.items() if track.failing and leg not in listed
    ]
    by_error: dict[str, list[tuple[str, bool, set[str]]]] = {}
    for entry in causes:
        if entry[2]:
            by_error.setdefault(entry[0].removeprefix(FLAKY), []).append(entry)
    merged = []
    for error, same in by_error.items():
        names, legs = {cause for cause, _, _ in same}, {leg for _, _, some in same for leg in some}
        cause = names.pop() if len(names) == 1 else error
        kernels = tuple(sorted({leg.partition(" ")[0] for leg in legs}))
        merged.append(GridCause(cause, any(is_open for _, is_open, _ in same), tuple(sorted(legs)), kernels))
    return tuple(sorted(merged, key=lambda item: (not item.is_open, -len(item.legs), item.cause)))


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
    return tuple(int(part) if part.isdecimal() and len(part) < 10 else -1 for part in version.split("."))
