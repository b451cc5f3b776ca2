"""The Markdown report of a history: the latest known result of each leg, by kernel, toolkit, torch
and system.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from kci.matrix.archs import natural
from kci.utils.frozen import Frozen
from kci.utils.shipped import fill_template
from kci.utils.suggest import count
from kci.watch.decide import FLAKY, FailureTracker, LegState
from kci.watch.history import Failure, RunFacts, leg_of
from kci.watch.issue_text import plain

RECENT_RUNS = 14
"""A leg that is in none of the latest runs is left out."""
SHOWN = 100


class CellState(enum.StrEnum):
    """The state of a leg, worst first."""

    FAILS = "fails"
    FLAKY = "flaky"
    UNKNOWN = "unknown"
    PASSES = "passes"


_SYMBOLS = {
    CellState.FAILS: "✗",
    CellState.FLAKY: "≈",
    CellState.UNKNOWN: "?",
    CellState.PASSES: "✓",
}


class GridColumn(NamedTuple):
    """The environment of a leg; `-` for no version."""

    backend: str
    torch: str
    compute: str
    system: str

    @property
    def label(self) -> str:
        toolkit = self.backend if self.compute == "-" else f"{self.backend} {self.compute}"
        return " ".join(
            [toolkit, *([] if self.torch == "-" else [f"torch {self.torch}"]), self.system]
        )


class GridCell(Frozen):
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
        if not self.since:
            return ""
        return f"{self.days} d" if self.days is not None else count(self.runs, "run")

    @property
    def began(self) -> str:
        if not self.since:
            return "No result is known."
        began = (
            f"Since run {self.since.run} ({self.since.at[:10]}), {count(self.runs, 'result')} in "
            "a row."
        )
        if not self.before:
            return began
        changes = [
            f"{what} {old[:12] or 'unknown'} to {new[:12] or 'unknown'}"
            for what, old, new in reversed(self.since.changes(self.before))
        ]
        new = (
            "; ".join(changes)
            or "neither commit nor catalog changed: a package, an image or a machine did"
        )
        return f"{began} It last differed in run {self.before.run}. New then: {new}."


class KernelCells(Frozen):
    """The legs of a kernel, sorted by column and variant."""

    kernel: str
    cells: tuple[GridCell, ...]

    @property
    def worst(self) -> CellState:
        states = {cell.state for cell in self.cells}
        return next(state for state in CellState if state in states)


class GridCause(Frozen):
    """The legs that fail for one cause."""

    cause: str
    is_open: bool
    legs: tuple[str, ...]
    kernels: tuple[str, ...]


class LegGrid(Frozen):
    """The state of all legs after the last run."""

    latest: RunFacts | None
    columns: tuple[GridColumn, ...]
    kernels: tuple[KernelCells, ...]
    causes: tuple[GridCause, ...]

    def count(self, state: CellState) -> int:
        return sum(cell.state is state for kernel in self.kernels for cell in kernel.cells)


def make_grid(watch: FailureTracker) -> LegGrid:
    """The state of each leg after the runs that `watch` has followed."""
    recent = [leg for leg, seen in watch.seen.items() if watch.number - seen < RECENT_RUNS]
    shown = {leg: watch.legs.get(leg, LegState()) for leg in recent}
    latest = watch.runs[-1] if watch.runs else None
    by_kernel: dict[str, list[GridCell]] = {}
    for leg, state in shown.items():
        by_kernel.setdefault(leg_of(leg).kernel, []).append(_cell(leg, state, latest))
    rows = [
        KernelCells(
            name, tuple(sorted(cells, key=lambda cell: (_column_order(cell.column), cell.variant)))
        )
        for name, cells in by_kernel.items()
    ]
    states = list(CellState)
    kernels = tuple(
        sorted(rows, key=lambda kernel: (states.index(kernel.worst), natural(kernel.kernel)))
    )
    columns = {cell.column for kernel in kernels for cell in kernel.cells}
    return LegGrid(
        latest, tuple(sorted(columns, key=_column_order)), kernels, _causes(watch, shown)
    )


def markdown_report(grid: LegGrid, title: str) -> str:
    """Render the report: a table per backend and the errors of failing legs, with log text
    escaped.
    """
    values = {
        "grid": grid,
        "title": title,
        "symbols": _SYMBOLS,
        "failing": [
            (kernel.kernel, cell)
            for kernel in grid.kernels
            for cell in kernel.cells
            if cell.failure
        ],
        "shown": SHOWN,
        "block": lambda text: "\n".join(f"    {plain(line)}" for line in text.splitlines()[:20]),
        "text": lambda text: plain(text).translate(_MARKUP),
        "plain": plain,
        "count": count,
    }
    return fill_template("report.md.j2", values)


_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;"} | {char: f"\\{char}" for char in "\\|[]*_#!"})
"""Escapes for HTML, table borders and links."""


def _cell(key: str, state: LegState, latest: RunFacts | None) -> GridCell:
    leg = leg_of(key)
    shown = CellState.PASSES if state.latest else CellState.UNKNOWN
    shown = CellState.FAILS if state.failing else shown
    shown = CellState.FLAKY if state.flaky else shown
    return GridCell(
        variant=leg.variant,
        column=GridColumn(leg.backend, leg.torch, leg.compute, leg.system),
        state=shown,
        runs=state.results,
        days=_days(state.since.at, latest.at) if state.since and latest else None,
        since=state.since,
        before=state.before,
        failure=state.failure if state.failing or state.flaky else None,
    )


def _causes(watch: FailureTracker, shown: Mapping[str, LegState]) -> tuple[GridCause, ...]:
    opened = [
        (issue.cause, leg) for issue in watch.open.values() for leg in issue.pending & shown.keys()
    ]
    listed = {leg for _, leg in opened}
    others = [
        (state.cause, leg) for leg, state in shown.items() if state.failing and leg not in listed
    ]
    by_error: dict[str, list[tuple[str, str]]] = {}
    for entry in (*opened, *others):
        by_error.setdefault(entry[0].removeprefix(FLAKY), []).append(entry)
    merged = []
    for error, same in by_error.items():
        names, legs = map(set, zip(*same, strict=True))
        cause = names.pop() if len(names) == 1 else error
        kernels = tuple(sorted({leg_of(leg).kernel for leg in legs}))
        merged.append(GridCause(cause, bool(legs & listed), tuple(sorted(legs)), kernels))
    return tuple(sorted(merged, key=lambda item: (not item.is_open, -len(item.legs), item.cause)))


@lru_cache(maxsize=65536)
def _days(start: str, end: str) -> int | None:
    try:
        return max(0, (datetime.fromisoformat(end) - datetime.fromisoformat(start)).days)
    except (ValueError, TypeError):
        return None


def _column_order(column: GridColumn) -> tuple[object, ...]:
    return (
        column.backend,
        natural(column.torch.strip("-")),
        natural(column.compute.strip("-")),
        column.system,
        column,
    )
