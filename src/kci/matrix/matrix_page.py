"""`kci matrix --format html`: every candidate, kept or dropped, with the reason and the line that decided."""

from __future__ import annotations

from collections.abc import Iterator

from kci.matrix.archs import natural
from kci.matrix.table_page import PageRow, PageSection, table_page
from kci.matrix.variants import KernelMatrix, Matrix
from kci.plurals import count

_HEADS = ("candidate", "decision", "backend", "torch", "compute", "system", "archs", "why", "place")
_FILTERS = {"decision": "Decision", "backend": "Backend", "torch": "torch", "system": "System", "arch": "Arch"}


def matrix_page(matrix: Matrix) -> str:
    """The page of a matrix that was computed with `explain`."""
    kept = sum(len(kernel.variants) for kernel in matrix.kernels)
    dropped = sum(len(kernel.dropped) for kernel in matrix.kernels)
    names = ", ".join(kernel.name for kernel in matrix.kernels[:4]) + (" and more" if len(matrix.kernels) > 4 else "")
    sections = [
        PageSection(
            f"{kernel.name} v{kernel.version}",
            _HEADS,
            tuple(_rows(kernel)),
            (f"{kernel.path}: {len(kernel.variants)} kept, {len(kernel.dropped)} dropped",),
        )
        for kernel in matrix.kernels
    ]
    about = f"{count(kept, 'candidate')} kept and {dropped} dropped"
    subtitle = f"{about}, in the tier {matrix.tier} of the catalog {matrix.catalog_name}, as of {matrix.catalog_as_of}."
    return table_page(f"Variants of {names}", subtitle, sections, _FILTERS)


def _rows(kernel: KernelMatrix) -> Iterator[PageRow]:
    for variant, why in zip(kernel.variants, kernel.kept, strict=True):
        archs = sorted(variant.archs or (), key=natural)
        facts = (str(variant.backend), variant.torch or "", variant.compute or "", variant.system)
        yield PageRow(
            (variant.name, "✓ kept", *facts, " ".join(archs), why.reason, _place(why.path, why.line)),
            {**_keys("kept", facts), "arch": " ".join(archs)},
            "kept",
        )
    for item in kernel.dropped:
        facts = (str(item.backend), item.torch or "", item.compute or "", item.system)
        name = " ".join(part for part in (facts[0], facts[2], f"torch {facts[1]}" if facts[1] else "") if part)
        yield PageRow(
            (name, f"✗ {item.rule}", *facts, "", item.reason, _place(item.path, item.line)),
            _keys("dropped", facts),
            "dropped",
        )


def _keys(decision: str, facts: tuple[str, str, str, str]) -> dict[str, str]:
    return {"decision": decision, "backend": facts[0], "torch": facts[1], "system": facts[3]}


def _place(path: str, line: int) -> str:
    return f"{path}:{line}" if path and line else path
