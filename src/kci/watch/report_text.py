"""The report as Markdown, for the summary of a run."""

from __future__ import annotations

from kci.plurals import count
from kci.watch.decide import plain
from kci.watch.leg_grid import CellState, GridCell, GridColumn, KernelCells, LegGrid
from kci.watch.report_page import SYMBOLS, age_of, story_of

SHOWN = 100
"""Failing legs that are told one by one."""


def markdown_report(grid: LegGrid, title: str) -> str:
    """The whole report, a table for each backend."""
    counts = ", ".join(f"{SYMBOLS[state]} {grid.count(state)} {state}" for state in CellState)
    lines = [f"# {_text(title)}", "", counts, ""]
    if grid.latest is not None:
        lines += [f"After run {grid.latest.run} of {_text(grid.latest.at)}.", ""]
    if grid.causes:
        lines += ["## What fails", ""]
        lines += [f"- {_code(item.cause)}: {count(len(item.legs), 'leg')} in {_text(', '.join(item.kernels[:5]))}"
                  for item in grid.causes[:SHOWN]]  # fmt: skip
        lines.append("")
    for backend in sorted({column.backend for column in grid.columns}):
        lines += _table(grid, [column for column in grid.columns if column.backend == backend])
    return "\n".join([*lines, *_failures(grid)]).rstrip("\n") + "\n"


def _table(grid: LegGrid, columns: list[GridColumn]) -> list[str]:
    head = [" ".join(column.parts) for column in columns]
    lines = [_row(["kernel", *head]), _row(["---"] * (len(head) + 1))]
    for kernel in grid.kernels:
        at: dict[GridColumn, list[str]] = {}
        for cell in kernel.cells:
            at.setdefault(cell.column, []).append(f"{SYMBOLS[cell.state]} {age_of(cell)}".strip())
        if any(column in at for column in columns):
            lines.append(_row([kernel.kernel, *(", ".join(at.get(column, ())) for column in columns)]))
    return [f"## {_text(columns[0].backend)}", "", *lines, ""]


def _failures(grid: LegGrid) -> list[str]:
    bad: list[tuple[KernelCells, GridCell]] = [
        (kernel, cell) for kernel in grid.kernels for cell in kernel.cells if cell.failure is not None
    ]
    lines = ["## Failing legs", ""] if bad else []
    for kernel, cell in bad[:SHOWN]:
        assert cell.failure is not None  # noqa: S101  - chosen above
        lines += [f"### {_text(kernel.kernel)} with {_text(cell.column.label)}", "", _text(story_of(cell)), ""]
        lines += [*_indented(cell.failure.excerpt or cell.failure.error), ""]
        if cell.failure.replay:
            lines += ["The same on your machine:", "", *_indented(cell.failure.replay), ""]
    if len(bad) > SHOWN:
        lines += [f"And {len(bad) - SHOWN} more.", ""]
    return lines


def _indented(text: str) -> list[str]:
    """A block of code: indented, so that nothing in it can end it."""
    return [f"    {plain(line)}" for line in text.splitlines()[:20]]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(_text(cell) for cell in cells) + " |"


def _code(text: str) -> str:
    return f"`{plain(text)}`"


def _text(text: str) -> str:
    """Text that is neither HTML nor a table's border nor a link."""
    safe = plain(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join("\\" + char if char in "\\|[]*_#!" else char for char in safe)
