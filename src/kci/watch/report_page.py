"""The report as a folder that any web server can show: HTML and badges, with no trust in what logs say.

The pages need no network, and no script to be read. Every text is escaped by the template engine, and a policy in the
page forbids whatever is not its own style and script.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kci.errors import UnsafeError
from kci.files.portable_names import folded, unsafe_name
from kci.files.replace import replacing
from kci.files.templates import html_environment, integrity, template_folder
from kci.plurals import count, first_of
from kci.version import __version__
from kci.watch.decide import web_link
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


def whole_page(grid: LegGrid, title: str) -> str:
    """One page with every cell."""
    room = _room(cell for kernel in grid.kernels for cell in kernel.cells)
    numbers = iter(range(grid.size))
    rows, links = [], {}
    for kernel in grid.kernels:
        at: dict[GridColumn, list[dict[str, Any]]] = {}
        for cell in kernel.cells:
            shown = _view(next(numbers), kernel.kernel, cell, room)
            links[f"{shown['kernel']} {shown['variant']}"] = f"#c{shown['id']}"
            at.setdefault(cell.column, []).append(shown)
        rows.append({"label": kernel.kernel, "columns": [at.get(column, []) for column in grid.columns]})
    columns = [{"backend": column.backend, "lines": column.parts} for column in grid.columns]
    return _render(
        grid,
        title,
        rows,
        links,
        columns=columns,
        backends=sorted({column.backend for column in grid.columns}),
        first="kernel",
        search="Kernel",
        heading="All kernels",
        caption="Kernels, and what they are tested with",
    )


def kernel_page(grid: LegGrid, kernel: KernelCells, title: str) -> str:
    """The page of one kernel: toolchains down, systems across; `title` is that of the whole report."""
    room = _room(kernel.cells)
    systems = sorted({cell.column.system for cell in kernel.cells})
    by_row: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for number, cell in enumerate(kernel.cells):
        label = ", ".join(cell.column.parts[:-1])
        shown = _view(number, kernel.kernel, cell, room)
        by_row.setdefault(label, {}).setdefault(cell.column.system, []).append(shown)
    rows = [{"label": label, "columns": [at.get(system, []) for system in systems]} for label, at in by_row.items()]
    part = msgspec.structs.replace(grid, kernels=(kernel,), causes=())
    return _render(
        part,
        f"{kernel.kernel}: {title}",
        rows,
        {},
        columns=[{"backend": "", "lines": [system]} for system in systems],
        backends=[],
        first="toolchain",
        search="Toolchain",
        heading="All toolchains",
        caption=f"What {kernel.kernel} is tested with",
        home="../index.html",
    )


def index_page(grid: LegGrid, files: Mapping[str, str], title: str) -> str:
    """The page that leads to those of the kernels, of which `files` has the addresses relative to this one."""
    order = list(CellState)
    kernels = sorted(grid.kernels, key=lambda kernel: (order.index(kernel.worst), kernel.kernel))
    rows = [
        {"label": kernel.kernel, "file": files[kernel.kernel], "counts": [kernel.count(state) for state in order]}
        for kernel in kernels
    ]
    return _render(grid, title, rows, {}, search="Kernel", heading="All kernels")


def _render(grid: LegGrid, title: str, rows: Sequence[dict[str, Any]], links: Mapping[str, str], **more: Any) -> str:
    style, script = _asset("page.css"), _asset("page.js")
    shown = grid.causes[:_CAUSES]
    cause_room = _CAUSE_ROOM // max(1, len(shown))
    values = {
        "title": title,
        "subtitle": _subtitle(grid),
        "states": [
            _state(state) | {"many": _MANY.get(state, str(state)), "count": grid.count(state)} for state in CellState
        ],
        "causes": [
            {
                "text": cut(cause.cause, min(cause_room, _MOST)),
                "legs": count(len(cause.legs), "leg"),
                "kernels": cut(first_of(cause.kernels, 5), 400),
                "note": "" if cause.is_open else ", not often enough for an issue",
                "first": " ".join(cause.legs[0].split(" ")[:2])[:_NAME_ROOM],
                "link": links.get(" ".join(cause.legs[0].split(" ")[:2]), ""),
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


def _state(state: CellState) -> dict[str, Any]:
    return {"key": _KEYS[state], "symbol": SYMBOLS[state], "word": str(state)}


def _view(number: int, kernel: str, cell: GridCell, room: int) -> dict[str, Any]:
    failure = cell.failure
    return _state(cell.state) | {
        "id": number,
        "kernel": cut(kernel, _NAME_ROOM),
        "word": _WORDS.get(cell.state, str(cell.state)),
        "age": f"{_TRENDS[cell.trend]} {age_of(cell)}".strip(),
        "place": cut(cell.column.label, _NAME_ROOM),
        "variant": cut(cell.variant, _NAME_ROOM),
        "story": story_of(cell),
        "recent": cell.recent.translate(_RECENT) if cell.recent.strip("p") else "",
        "error": cut(failure.excerpt or failure.error, room) if failure else "",
        "log_link": web_link(failure.log) if failure and room > _LEAST else "",
        "replay": cut(failure.replay, max(_LEAST, room // 2)) if failure else "",
    }


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


@cache
def _asset(name: str) -> str:
    return (template_folder() / "report" / name).read_text(encoding="utf-8")


# --- the folder -------------------------------------------------------------------------------------------------------

_MARK = ".kci-report"


def write_site(grid: LegGrid, into: Path, title: str) -> list[Path]:
    """Write the report, in place of an earlier one; returns the pages, relative to the folder.

    Raises:
        UnsafeError: something else than a report is there.
        OSError: it cannot be written.
    """
    if into.exists() and not (into / _MARK).is_file() and (not into.is_dir() or any(into.iterdir())):
        raise UnsafeError(f"{into} is not a report of kci's, and is not replaced", hint="name a new folder")
    stems = file_stems([kernel.kernel for kernel in grid.kernels])
    into.parent.mkdir(parents=True, exist_ok=True)
    with replacing(into) as made:
        folder = made.staging
        (folder / "badges").mkdir(parents=True)
        for name in (_MARK, ".nojekyll"):
            (folder / name).touch()
        pages = _write_pages(grid, folder, stems, title)
        for kernel in grid.kernels:
            badge = folder / "badges" / stems[kernel.kernel]
            badge.with_name(f"{badge.name}.svg").write_text(svg_badge(kernel), encoding="utf-8")
            badge.with_name(f"{badge.name}.json").write_bytes(msgspec.json.encode(shields_badge(kernel)))
        made.commit()
    return pages


def _write_pages(grid: LegGrid, folder: Path, stems: dict[str, str], title: str) -> list[Path]:
    one = whole_page(grid, title).encode() if grid.size <= MAX_CELLS else b""
    if one and len(one) <= MAX_BYTES:
        (folder / "index.html").write_bytes(one)
        return [Path("index.html")]
    (folder / "kernels").mkdir()
    files = {name: f"kernels/{stem}.html" for name, stem in stems.items()}
    (folder / "index.html").write_text(index_page(grid, files, title), encoding="utf-8")
    for kernel in grid.kernels:
        (folder / files[kernel.kernel]).write_text(kernel_page(grid, kernel, title), encoding="utf-8")
    return [Path("index.html"), *(Path(file) for file in files.values())]


def file_stems(names: list[str]) -> dict[str, str]:
    """What the files of each kernel are called: its name, unless some system would refuse it or mix it up."""
    stems: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(names):
        stem = name
        if unsafe_name(f"{name}.html") or folded(stem) in taken or name.startswith("."):
            stem = "kernel-" + hashlib.sha256(name.encode()).hexdigest()[:16]
        taken.add(folded(stem))
        stems[name] = stem
    return stems


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
