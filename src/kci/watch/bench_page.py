"""The page of benchmarks: for each kernel and machine the curve of every workload, out of a history. No script.

A curve is made of medians at different times, and says nothing by itself about one build against another: what was
measured side by side has a verdict, and is marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kci.files.templates import html_environment, integrity, template_folder
from kci.version import __version__
from kci.watch.bench_history import BenchRecord, Verdict, WorkloadRecord

WIDTH, HEIGHT = 640, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 8, 10, 8
_MOST = 60
"""So many latest records a curve has."""

_SHOWN = 300
"""So many curves a page has."""

_LOOKS = {Verdict.SLOWER: ("f", "▲"), Verdict.FASTER: ("p", "▼"), Verdict.SAME: ("p", "="), Verdict.UNCLEAR: ("u", "?")}


class Point(NamedTuple):
    """A record in a curve, and where it is drawn."""

    record: BenchRecord
    workload: WorkloadRecord
    x: float
    y: float
    low: float
    high: float
    """Where the quartiles are; up is less."""


class Curve(NamedTuple):
    """One workload of a kernel on one machine, the oldest record first."""

    kernel: str
    machine: str
    workload: str
    points: Sequence[Point]

    @property
    def line(self) -> str:
        return " ".join(f"{point.x:g},{point.y:g}" for point in self.points)

    @property
    def band(self) -> str:
        there = [f"{point.x:g},{point.high:g}" for point in self.points]
        return " ".join(there + [f"{point.x:g},{point.low:g}" for point in reversed(self.points)])

    @property
    def most(self) -> float:
        return max(point.workload.timing.q3_ms for point in self.points)


def curves_of(records: Sequence[BenchRecord]) -> list[Curve]:
    """The curves of records, which are sorted by time: by kernel, machine and workload."""
    found: dict[tuple[str, str, str], list[tuple[BenchRecord, WorkloadRecord]]] = {}
    for record in records:
        machine = f"{record.device}, {record.machine_info.backend}"
        for workload in record.results:
            found.setdefault((record.kci.kernel, machine, workload.workload), []).append((record, workload))
    return [Curve(*key, _points(values[-_MOST:])) for key, values in sorted(found.items())]


def _points(values: Sequence[tuple[BenchRecord, WorkloadRecord]]) -> list[Point]:
    most = max(workload.timing.q3_ms for _, workload in values)
    most = max(most, *(workload.kci.median_ms for _, workload in values))
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(values) - 1)

    def height(time: float) -> float:
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - time / most), 1)

    return [
        Point(record, item, round(_LEFT + number * step, 1), height(item.kci.median_ms),
              height(item.timing.q1_ms), height(item.timing.q3_ms))
        for number, (record, item) in enumerate(values)
    ]  # fmt: skip


def bench_page(records: Sequence[BenchRecord], title: str) -> str:
    """The page, complete in itself; records are sorted by time."""
    folder = template_folder() / "report"
    style = "".join((folder / name).read_text(encoding="utf-8") for name in ("page.css", "benchmarks.css"))
    curves = curves_of(records)
    values = {
        "title": title,
        "curves": curves[:_SHOWN],
        "left_out": max(0, len(curves) - _SHOWN),
        "records": len(records),
        "width": WIDTH,
        "height": HEIGHT,
        "looks": _LOOKS,
        "style": style,
        "style_hash": integrity(style),
        "version": __version__,
    }
    return html_environment().get_template("report/benchmarks.html.j2").render(values)
