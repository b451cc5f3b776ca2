"""The report as a folder that GitHub Pages or any web server can show: pages and badges."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from kci.errors import UnsafeError
from kci.files.portable_names import folded, unsafe_name
from kci.files.replace import replacing
from kci.watch.leg_grid import LegGrid
from kci.watch.report_page import MAX_BYTES, MAX_CELLS, index_page, kernel_page, whole_page
from kci.watch.report_text import shields_badge, svg_badge

_MARK = ".kci-report"


def write_site(grid: LegGrid, into: Path, title: str) -> list[Path]:
    """Write the report, in place of an earlier one.

    Args:
        grid: what to show.
        into: the folder; it is replaced as a whole.
        title: what the report is about.

    Returns:
        the pages, relative to the folder.

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
