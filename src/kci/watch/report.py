"""The Markdown report of a history: the latest known result of each leg, by kernel, toolkit, torch
and system.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
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


_SYMBOLS = dict(zip(CellState, "✗≈?✓", strict=True))
_RANKS = list(CellState)


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
    """One leg, in its environment."""

    variant: str
    column: GridColumn
    leg: LegState
    days: int | None
    """Days from the first of the results in a row to the last run; None without a readable
    date."""

    @property
    def state(self) -> CellState:
        if self.leg.flaky:
            return CellState.FLAKY
        if self.leg.failing:
            return CellState.FAILS
        return CellState.PASSES if self.leg.latest else CellState.UNKNOWN

    @property
    def failure(self) -> Failure | None:
        return self.leg.failure if self.leg.failing or self.leg.flaky else None

    @property
    def age(self) -> str:
        return "" if self.days is None else f"{self.days} d"

    @property
    def began(self) -> str:
        """The first of the results in a row, as far as known."""
        since, before = self.leg.since, self.leg.before
        if not since:
            return ""
        results = count(self.leg.results, "result")
        began = f"Since run {since.run} ({since.at[:10]}), {results} in a row."
        if not before:
            return began
        changes = [
            f"{what} {old[:12] or 'unknown'} to {new[:12] or 'unknown'}"
            for what, old, new in reversed(since.changes(before))
        ]
        new = (
            "; ".join(changes)
            or "neither commit nor catalog changed: a package, an image or a machine did"
        )
        return f"{began} It last differed in run {before.run}. New then: {new}."


class GridCause(Frozen):
    """The legs that fail for one cause."""

    cause: str
    is_open: bool
    legs: int
    kernels: tuple[str, ...]


class LegGrid(Frozen):
    """The state of all legs after the last run."""

    latest: RunFacts | None
    columns: list[GridColumn]
    kernels: dict[str, list[GridCell]]
    """Sorted by state and name; the legs of each by column and variant."""
    causes: list[GridCause]


def make_grid(watch: FailureTracker) -> LegGrid:
    """The state of each leg after the runs that `watch` has followed."""
    shown = {
        leg: watch.legs.get(leg, LegState())
        for leg, seen in watch.seen.items()
        if watch.number - seen < RECENT_RUNS
    }
    latest = watch.runs[-1] if watch.runs else None
    by_kernel: dict[str, list[GridCell]] = {}
    for key, state in shown.items():
        leg = leg_of(key)
        column = GridColumn(leg.backend, leg.torch, leg.compute, leg.system)
        cell = GridCell(leg.variant, column, state, _days(state.since, latest))
        by_kernel.setdefault(leg.kernel, []).append(cell)
    kernels = {
        name: sorted(cells, key=lambda cell: (_column_order(cell.column), cell.variant))
        for name, cells in by_kernel.items()
    }
    ordered = sorted(
        kernels,
        key=lambda name: (min(_RANKS.index(cell.state) for cell in kernels[name]), natural(name)),
    )
    columns = {cell.column for cells in kernels.values() for cell in cells}
    return LegGrid(
        latest,
        sorted(columns, key=_column_order),
        {name: kernels[name] for name in ordered},
        _causes(watch, shown),
    )


def markdown_report(grid: LegGrid, title: str) -> str:
    """Render the report: a table per backend and the errors of failing legs, with log text
    escaped.
    """
    cells = [(kernel, cell) for kernel, own in grid.kernels.items() for cell in own]
    values = {
        "grid": grid,
        "title": title,
        "symbols": _SYMBOLS,
        "counts": Counter(cell.state for _, cell in cells),
        "failing": [(kernel, cell) for kernel, cell in cells if cell.failure],
        "shown": SHOWN,
        "block": lambda text: "\n".join(f"    {plain(line)}" for line in text.splitlines()[:20]),
        "text": lambda text: plain(text).translate(_MARKUP),
        "plain": plain,
        "count": count,
    }
    return fill_template("report.md.j2", values)


_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;"} | {char: f"\\{char}" for char in "\\|[]*_#!"})
"""Escapes for HTML, table borders and links."""


def _causes(watch: FailureTracker, shown: Mapping[str, LegState]) -> list[GridCause]:
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
        merged.append(GridCause(cause, bool(legs & listed), len(legs), kernels))
    return sorted(merged, key=lambda item: (not item.is_open, -item.legs, item.cause))


def _days(since: RunFacts | None, latest: RunFacts | None) -> int | None:
    if since and latest:
        with suppress(ValueError, TypeError):
            start, end = (datetime.fromisoformat(run.at) for run in (since, latest))
            return max(0, (end - start).days)
    return None


def _column_order(column: GridColumn) -> tuple[object, ...]:
    torch, compute = (natural(version.strip("-")) for version in (column.torch, column.compute))
    return column.backend, torch, compute, column
