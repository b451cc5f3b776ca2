"""The report as Markdown, for the summary of a run, and the badges of kernels."""

from __future__ import annotations

from typing import Any

from kci.plurals import count
from kci.watch.issue_text import plain
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
    head = [
        " ".join([column.toolkit, *([f"torch {column.torch}"] if column.torch != "-" else []), column.system])
        for column in columns
    ]
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


# --- badges -----------------------------------------------------------------------------------------------------------

_COLORS = {CellState.PASSES: "#0b6623", CellState.FAILS: "#a33a00", CellState.FLAKY: "#7a5900",
           CellState.UNKNOWN: "#57606a"}  # fmt: skip
_LABEL = "kci compat"


def badge_message(kernel: KernelCells) -> str:
    """Such as `28 of 30 pass`, with the symbol of the worst state."""
    return f"{SYMBOLS[kernel.worst]} {kernel.count(CellState.PASSES)} of {len(kernel.cells)} pass"


def shields_badge(kernel: KernelCells) -> dict[str, Any]:
    """What shields.io's endpoint badge reads."""
    return {"schemaVersion": 1, "label": _LABEL, "message": badge_message(kernel), "color": _COLORS[kernel.worst]}


def svg_badge(kernel: KernelCells) -> str:
    """The badge itself. Its text is made of a fixed label, a symbol and two numbers."""
    message = badge_message(kernel)
    left, right = 7 * len(_LABEL) + 10, 7 * len(message) + 10
    width = left + right
    size = f'width="{width}" height="20"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_LABEL}: {message}">'
        f"<title>{_LABEL}: {message}</title>"
        f'<rect {size} rx="3" fill="#24292f"/>'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" fill="{_COLORS[kernel.worst]}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2:g}" y="14" textLength="{left - 10}">{_LABEL}</text>'
        f'<text x="{left + right / 2:g}" y="14" textLength="{right - 10}">{message}</text></g></svg>\n'
    )
