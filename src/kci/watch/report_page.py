"""The report as HTML: pages that need no network, no script to be read, and no trust in what logs say.

Every text is escaped by the template engine, and a policy in the page forbids whatever is not its own style and script.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from kci.files.templates import html_environment, integrity, template_folder
from kci.plurals import count
from kci.version import __version__
from kci.watch.issue_text import web_link
from kci.watch.leg_grid import CellState, GridCell, GridColumn, KernelCells, LegGrid, RunFacts, Trend

MAX_CELLS, MAX_BYTES = 2000, 1_000_000
"""A page with more is hard to read and slow to open: then every kernel has a page."""

_TEXT_ROOM = 250_000
"""Bytes that the errors and commands of all cells of a page may take, as HTML."""
_CAUSE_ROOM = 40_000
_CAUSES = 40
_NAME_ROOM = 90
_MOST, _LEAST = 2000, 100
"""Bytes for the error of one cell."""

SYMBOLS = {CellState.PASSES: "✓", CellState.FAILS: "✗", CellState.FLAKY: "≈", CellState.UNKNOWN: "?"}
"""A state is told by its symbol, word and color, so that one of them is enough."""

_KEYS = {CellState.PASSES: "p", CellState.FAILS: "f", CellState.FLAKY: "l", CellState.UNKNOWN: "u"}
_WORDS = {CellState.FLAKY: "is flaky", CellState.UNKNOWN: "is unknown"}
_MANY = {CellState.FAILS: "fail", CellState.PASSES: "pass"}
_TRENDS = {Trend.WORSE: "↘", Trend.BETTER: "↗", Trend.STEADY: ""}
_RECENT = str.maketrans({"p": "✓", "f": "✗", "u": "?", "-": "·"})


class _CellView(msgspec.Struct, frozen=True):
    """A cell as the template shows it."""

    id: int
    kernel: str
    key: str
    symbol: str
    word: str
    age: str
    place: str
    variant: str
    story: str
    recent: str
    error: str
    log_link: str
    replay: str


class _RowView(msgspec.Struct, frozen=True):
    label: str
    columns: tuple[tuple[_CellView, ...], ...] = ()
    file: str = ""
    counts: tuple[int, ...] = ()


def whole_page(grid: LegGrid, title: str) -> str:
    """One page with every cell.

    Args:
        grid: what to show.
        title: what it is about.
    """
    room = _room(cell for kernel in grid.kernels for cell in kernel.cells)
    numbers = iter(range(grid.size))
    rows = []
    for kernel in grid.kernels:
        at: dict[GridColumn, list[_CellView]] = {}
        for cell in kernel.cells:
            at.setdefault(cell.column, []).append(_view(next(numbers), kernel.kernel, cell, room))
        rows.append(_RowView(kernel.kernel, tuple(tuple(at.get(column, ())) for column in grid.columns)))
    columns = [
        {"backend": column.backend, "lines": [column.toolkit, *_torch(column), column.system]}
        for column in grid.columns
    ]
    first = {cell.kernel + " " + cell.variant: cell.id for row in rows for cells in row.columns for cell in cells}
    return _render(
        grid,
        title,
        rows,
        columns=columns,
        backends=sorted({column.backend for column in grid.columns}),
        first="kernel",
        search="Kernel",
        heading="All kernels",
        caption="Kernels, and what they are tested with",
        link=lambda leg: f"#c{first[leg]}" if leg in first else "",
    )


def kernel_page(grid: LegGrid, kernel: KernelCells, title: str) -> str:
    """The page of one kernel: toolchains down, systems across.

    Args:
        grid: what it is part of.
        kernel: the kernel.
        title: what the whole report is about.
    """
    room = _room(kernel.cells)
    systems = sorted({cell.column.system for cell in kernel.cells})
    by_row: dict[str, dict[str, list[_CellView]]] = {}
    for number, cell in enumerate(kernel.cells):
        label = ", ".join([cell.column.toolkit, *_torch(cell.column)])
        shown = _view(number, kernel.kernel, cell, room)
        by_row.setdefault(label, {}).setdefault(cell.column.system, []).append(shown)
    rows = [_RowView(label, tuple(tuple(at.get(system, ())) for system in systems)) for label, at in by_row.items()]
    part = msgspec.structs.replace(grid, kernels=(kernel,), causes=())
    return _render(
        part,
        f"{kernel.kernel}: {title}",
        rows,
        columns=[{"backend": "", "lines": [system]} for system in systems],
        backends=[],
        first="toolchain",
        search="Toolchain",
        heading="All toolchains",
        caption=f"What {kernel.kernel} is tested with",
        home="../index.html",
    )


def index_page(grid: LegGrid, files: Mapping[str, str], title: str) -> str:
    """The page that leads to those of the kernels.

    Args:
        grid: what to show.
        files: the page of each kernel, relative to this one.
        title: what it is about.
    """
    order = list(CellState)
    kernels = sorted(grid.kernels, key=lambda kernel: (order.index(kernel.worst), kernel.kernel))
    rows = [
        _RowView(kernel.kernel, file=files[kernel.kernel], counts=tuple(kernel.count(state) for state in order))
        for kernel in kernels
    ]
    return _render(grid, title, rows, search="Kernel", heading="All kernels", link=lambda _: "")


def _render(grid: LegGrid, title: str, rows: Sequence[_RowView], **more: Any) -> str:
    style, script = _asset("page.css"), _asset("page.js")
    link = more.pop("link", None)
    shown = grid.causes[:_CAUSES]
    cause_room = _CAUSE_ROOM // max(1, len(shown))
    values = {
        "title": title,
        "subtitle": _subtitle(grid),
        "states": [
            {
                "key": _KEYS[state],
                "symbol": SYMBOLS[state],
                "word": str(state),
                "many": _MANY.get(state, str(state)),
                "count": grid.count(state),
            }
            for state in CellState
        ],
        "causes": [
            {
                "text": cut(cause.cause, min(cause_room, _MOST)),
                "legs": count(len(cause.legs), "leg"),
                "kernels": cut(_some(cause.kernels), 400),
                "note": "" if cause.is_open else ", not often enough for an issue",
                "first": " ".join(cause.legs[0].split(" ")[:2])[:_NAME_ROOM],
                "link": link(" ".join(cause.legs[0].split(" ")[:2])) if link else "",
            }
            for cause in shown
        ],
        "more_causes": len(grid.causes) - len(shown),
        "rows": rows,
        "style": style,
        "script": script,
        "style_hash": integrity(style),
        "script_hash": integrity(script),
        "version": __version__,
        "runs": grid.runs,
        "home": "",
        "columns": [],
        "backends": None,
    }
    return html_environment().get_template("report/page.html.j2").render(values | more)


def _subtitle(grid: LegGrid) -> str:
    if grid.latest is None:
        return "No run is recorded yet."
    catalog = f", catalog {cut(grid.latest.catalog, 100)}" if grid.latest.catalog else ""
    kernels = count(len(grid.kernels), "kernel")
    return f"After run {grid.latest.run} of {cut(grid.latest.at, 40)}{catalog}: {grid.size} legs of {kernels}."


def _view(number: int, kernel: str, cell: GridCell, room: int) -> _CellView:
    failure = cell.failure
    return _CellView(
        id=number,
        kernel=cut(kernel, _NAME_ROOM),
        key=_KEYS[cell.state],
        symbol=SYMBOLS[cell.state],
        word=_WORDS.get(cell.state, str(cell.state)),
        age=f"{_TRENDS[cell.trend]} {age_of(cell)}".strip(),
        place=cut(cell.column.label, _NAME_ROOM),
        variant=cut(cell.variant, _NAME_ROOM),
        story=story_of(cell),
        recent=cell.recent.translate(_RECENT) if cell.recent.strip("p") else "",
        error=cut(failure.excerpt or failure.error, room) if failure else "",
        log_link=web_link(failure.log) if failure and room > _LEAST else "",
        replay=cut(failure.replay, max(_LEAST, room // 2)) if failure else "",
    )


def age_of(cell: GridCell) -> str:
    """For how long it has been so, in days or else in results."""
    if cell.since is None:
        return ""
    return f"{cell.days} d" if cell.days is not None else f"{count(cell.runs, 'run')}"


def story_of(cell: GridCell) -> str:
    """Since when a leg is as it is, and what was new then."""
    if cell.since is None:
        return "No result is known."
    other = "passed" if cell.failure is not None and cell.state is CellState.FAILS else "was different"
    began = f"Since {_run(cell.since)}, {count(cell.runs, 'result')} in a row"
    if cell.before is not None:
        began += f"; it {other} last in {_run(cell.before)}"
    changed = f" New then: {cut(cell.changed, 200)}." if cell.failure is not None and cell.changed else ""
    behind = ""
    if cell.latest is not None and cell.recent.endswith(("u", "-")):
        behind = f" The latest known result is of {_run(cell.latest)}."
    return f"{began}.{changed}{behind}"


def _run(facts: RunFacts) -> str:
    return f"run {facts.run} ({cut(facts.at[:10], 40)})"


def _torch(column: GridColumn) -> list[str]:
    return [] if column.torch == "-" else [f"torch {column.torch}"]


def _room(cells: Any) -> int:
    failing = sum(cell.failure is not None for cell in cells)
    return max(_LEAST, min(_MOST, _TEXT_ROOM // max(1, failing) * 2 // 3))


def cut(text: str, room: int) -> str:
    """The beginning of a text that takes at most so many bytes as HTML."""
    if 6 * len(text) <= room:
        return text
    taken = 0
    for number, char in enumerate(text):
        taken += len(html.escape(char).encode())
        if taken > room - 3:
            return text[:number] + "…"
    return text


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


@cache
def _asset(name: str) -> str:
    return (template_folder() / "report" / name).read_text(encoding="utf-8")
