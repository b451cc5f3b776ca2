"""The report: Markdown, or a folder that any web server can show, with pages and badges; it trusts no text of a log.

The pages need no network, and no script to be read. Every text is escaped by the template engine, and a policy in the
page forbids whatever is not its own style and script.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kci.errors import UnsafeError
from kci.utils.atomic import replacing
from kci.utils.shipped import html_environment, integrity, template_environment, template_folder, tidy
from kci.utils.suggest import count, first_of
from kci.utils.walk import case_folded, unsafe_name
from kci.version import __version__
from kci.watch.history import RunFacts
from kci.watch.issue_text import plain, web_link
from kci.watch.leg_grid import CellState, GridCell, KernelCells, LegGrid, Trend

MAX_CELLS, MAX_BYTES = 2000, 1_000_000
"""A page with more is hard to read and slow to open: then every kernel has a page."""

_TEXT_ROOM = 250_000
"""Bytes that the errors and commands of all cells of a page may take, as HTML."""
_CAUSE_ROOM = 40_000
_CAUSES = 40
_NAME_ROOM = 90
_MOST, _LEAST = 2000, 100
"""Bytes for the error of one cell."""


class Look(NamedTuple):
    """How a state is told: by symbol, word and color, so that one of them is enough."""

    key: str
    """The class in the page's style."""
    symbol: str
    word: str
    """Of one leg."""
    many: str
    """Of several."""
    color: str


LOOKS = {
    CellState.FAILS: Look("f", "✗", "fails", "fail", "#a33a00"),
    CellState.FLAKY: Look("l", "≈", "is flaky", "flaky", "#7a5900"),
    CellState.UNKNOWN: Look("u", "?", "is unknown", "unknown", "#57606a"),
    CellState.PASSES: Look("p", "✓", "passes", "pass", "#0b6623"),
}
_TRENDS = {Trend.WORSE: "↘", Trend.BETTER: "↗", Trend.STEADY: ""}
_RECENT = str.maketrans({"p": "✓", "f": "✗", "u": "?", "-": "·"})
_Cells = Iterable[tuple[str, object, str, GridCell]]


def whole_page(grid: LegGrid, title: str) -> str:
    """One page with every cell."""
    return _page(
        grid,
        title,
        ((kernel.kernel, cell.column, kernel.kernel, cell) for kernel in grid.kernels for cell in kernel.cells),
        columns=[{"key": column, "backend": column.backend, "lines": column.parts} for column in grid.columns],
        backends=sorted({column.backend for column in grid.columns}),
        caption="Kernels, and what they are tested with",
    )


def kernel_page(grid: LegGrid, kernel: KernelCells, title: str) -> str:
    """The page of one kernel: toolchains down, systems across; `title` is that of the whole report."""
    return _page(
        msgspec.structs.replace(grid, kernels=(kernel,), causes=()),
        f"{kernel.kernel}: {title}",
        ((", ".join(cell.column.parts[:-1]), cell.column.system, kernel.kernel, cell) for cell in kernel.cells),
        columns=[
            {"key": system, "backend": "", "lines": [system]}
            for system in sorted({cell.column.system for cell in kernel.cells})
        ],
        first="toolchain",
        caption=f"What {kernel.kernel} is tested with",
        home="../index.html",
    )


def index_page(grid: LegGrid, files: Mapping[str, str], title: str) -> str:
    """The page that leads to the kernels' pages; `files` has their addresses, relative to this one."""
    return _page(grid, title, (), files=files)


def _page(grid: LegGrid, title: str, cells: _Cells, **more: object) -> str:
    """A page; each cell comes with the label of its row, the key of its column, and its kernel."""
    rows: dict[str, dict[object, list[tuple[int, str, GridCell]]]] = {}
    links: dict[str, int] = {}
    failing = 0
    for number, (label, column, kernel, cell) in enumerate(cells):
        rows.setdefault(label, {}).setdefault(column, []).append((number, kernel, cell))
        links[f"{kernel} {cell.variant}"] = number
        failing += cell.failure is not None
    style, script = _asset("page.css"), _asset("page.js")
    values = {
        "grid": grid,
        "title": title,
        "rows": rows,
        "links": links,
        "looks": LOOKS,
        "trends": _TRENDS,
        "recent": _RECENT,
        "names": _NAME_ROOM,
        "room": max(_LEAST, min(_MOST, _TEXT_ROOM // max(1, failing) * 2 // 3)),
        "least": _LEAST,
        "causes": _CAUSES,
        "cause_room": min(_CAUSE_ROOM // max(1, min(len(grid.causes), _CAUSES)), _MOST),
        "style": style,
        "script": script,
        "style_hash": integrity(style),
        "script_hash": integrity(script),
        "version": __version__,
        "first": "kernel",
        "home": "",
        "caption": "",
        "columns": [],
        "backends": [],
        "files": {},
        **_HELPERS,
    }
    return html_environment().get_template("report/page.html.j2").render(values | more)


def cell_age(cell: GridCell) -> str:
    """For how long it has been so, in days or else in results."""
    if cell.since is None:
        return ""
    return f"{cell.days} d" if cell.days is not None else f"{count(cell.runs, 'run')}"


def cell_history(cell: GridCell) -> str:
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
            badge.with_name(f"{badge.name}.json").write_bytes(msgspec.json.encode(badge_of(kernel)))
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
        if unsafe_name(f"{name}.html") or case_folded(stem) in taken or name.startswith("."):
            stem = "kernel-" + hashlib.sha256(name.encode()).hexdigest()[:16]
        taken.add(case_folded(stem))
        stems[name] = stem
    return stems


# --- badges -----------------------------------------------------------------------------------------------------------

_LABEL = "kci compat"


def badge_of(kernel: KernelCells) -> dict[str, Any]:
    """What shields.io's endpoint badge reads: `28 of 30 pass`, with the symbol of the worst state."""
    look = LOOKS[kernel.worst]
    message = f"{look.symbol} {kernel.count(CellState.PASSES)} of {len(kernel.cells)} pass"
    return {"schemaVersion": 1, "label": _LABEL, "message": message, "color": look.color}


def svg_badge(kernel: KernelCells) -> str:
    """The badge itself. Its text is made of a fixed label, a symbol and two numbers."""
    badge = badge_of(kernel)
    message, color = badge["message"], badge["color"]
    left, right = 7 * len(_LABEL) + 10, 7 * len(message) + 10
    width = left + right
    size = f'width="{width}" height="20"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_LABEL}: {message}">'
        f"<title>{_LABEL}: {message}</title>"
        f'<rect {size} rx="3" fill="#24292f"/>'
        f'<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" fill="{color}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2:g}" y="14" textLength="{left - 10}">{_LABEL}</text>'
        f'<text x="{left + right / 2:g}" y="14" textLength="{right - 10}">{message}</text></g></svg>\n'
    )


# --- Markdown ---------------------------------------------------------------------------------------------------------


_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;"} | {char: f"\\{char}" for char in "\\|[]*_#!"})
"""What would be HTML, a table's border or a link."""


def markdown_report(grid: LegGrid, title: str) -> str:
    """The whole report, for the summary of a run: a table for each backend, and the first 100 failing legs."""
    values = {
        "grid": grid,
        "title": title,
        "looks": LOOKS,
        "failing": [(kernel.kernel, cell) for kernel in grid.kernels for cell in kernel.cells if cell.failure],
        "shown": 100,
        # Indented, so that nothing in a block of code can end it.
        "block": lambda text: "\n".join(f"    {plain(line)}" for line in text.splitlines()[:20]),
        "text": lambda text: plain(text).translate(_MARKUP),
        "plain": plain,
        **_HELPERS,
    }
    return tidy(template_environment().get_template("report/page.md.j2").render(values))


_HELPERS = {
    "age_of": cell_age,
    "count": count,
    "cut": cut,
    "first_of": first_of,
    "story_of": cell_history,
    "web_link": web_link,
}
