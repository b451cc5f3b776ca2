"""The page of `kci matrix --format html`: torch across, compute versions down, and in each cell the systems and archs.

Why a candidate is kept or dropped is said once for all that it holds for; a cell opens it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kci.matrix.archs import natural
from kci.matrix.names import Kind
from kci.matrix.reasons import places
from kci.matrix.table_page import About, Chip, PageSection, table_page
from kci.matrix.variants import KernelMatrix, Matrix, Variant
from kci.plurals import count

_FILTERS = {"decision": "Decision", "backend": "Backend", "torch": "torch", "system": "System", "arch": "Arch"}
_ANY = "any"


class _Shown(NamedTuple):
    row: str
    torch: str
    system: str
    backend: str
    rule: str
    """Empty for one that is kept."""
    reason: str
    place: tuple[str, int]
    name: str
    what: str
    archs: tuple[str, ...]


def matrix_page(matrix: Matrix) -> str:
    """The page of a matrix that was computed with `explain`."""
    kernels = [(kernel, list(_candidates(kernel))) for kernel in matrix.kernels]
    torches = sorted({item.torch for _, items in kernels for item in items}, key=natural)
    sections = [_section(kernel, items, torches) for kernel, items in kernels]
    kept = sum(len(kernel.variants) for kernel in matrix.kernels)
    dropped = sum(len(kernel.dropped) for kernel in matrix.kernels)
    names = ", ".join(kernel.name for kernel in matrix.kernels[:4]) + (" and more" if len(matrix.kernels) > 4 else "")
    about = f"{count(kept, 'candidate')} kept and {dropped} dropped"
    subtitle = f"{about}, in the tier {matrix.tier} of the catalog {matrix.catalog_name}, as of {matrix.catalog_as_of}."
    return table_page(f"Variants of {names}", subtitle, sections, _FILTERS)


def _candidates(kernel: KernelMatrix) -> Iterator[_Shown]:
    for variant, why in zip(kernel.variants, kernel.kept, strict=True):
        backend, place = str(variant.backend), (why.path, why.line)
        row, torch = f"{backend} {variant.compute or ''}".strip(), variant.torch or _ANY
        archs = tuple(sorted(variant.archs or (), key=natural))
        yield _Shown(row, torch, variant.system, backend, "", why.reason, place, variant.name, _what(variant), archs)
    for item in kernel.dropped:
        backend, torch = str(item.backend), item.torch or _ANY
        row = f"{backend} {item.compute or ''}".strip()
        name = " ".join(part for part in (row, f"torch {item.torch}" if item.torch else "", item.system) if part)
        yield _Shown(row, torch, item.system, backend, item.rule, item.reason, (item.path, item.line), name, "", ())


def _what(variant: Variant) -> str:
    match variant.kind:
        case Kind.STABLE_ABI:
            return f"stable ABI {variant.stable_abi}"
        case Kind.TVM_FFI:
            return f"tvm-ffi {variant.tvm_ffi}"
        case Kind.NOARCH:
            return "Python only"
        case _:
            return ""


def _section(kernel: KernelMatrix, items: Sequence[_Shown], torches: Sequence[str]) -> PageSection:
    by_reason: dict[tuple[str, str], list[_Shown]] = {}
    for item in items:
        by_reason.setdefault((item.rule, item.reason), []).append(item)
    numbers = {reason: number for number, reason in enumerate(by_reason)}
    cells: dict[tuple[str, str], dict[tuple[str, str, str, tuple[str, ...]], list[_Shown]]] = {}
    for item in items:
        cell = cells.setdefault((item.row, item.torch), {})
        cell.setdefault((item.rule, item.reason, item.what, item.archs), []).append(item)
    kept = {item.row for item in items if not item.rule}
    rows = sorted({item.row for item in items}, key=lambda row: (row not in kept, natural(row)))
    grid = tuple(
        (
            row,
            tuple(
                tuple(
                    _chip(same, numbers[rule, reason])
                    for (rule, reason, _, _), same in cells.get((row, at), {}).items()
                )
                for at in torches
            ),
        )
        for row in rows
    )
    heads = ("compute", *(f"torch {torch}" if torch != _ANY else "any torch" for torch in torches))
    line = f"{kernel.path}: {len(kernel.variants)} kept, {len(kernel.dropped)} dropped"
    abouts = tuple(
        About(
            f"{f'✗ {rule}' if rule else '✓ kept'}: {count(len(same), 'candidate')}",
            (reason, places(item.place for item in same)),
            tuple(dict.fromkeys(item.name for item in same)),
        )
        for (rule, reason), same in by_reason.items()
    )
    return PageSection(f"{kernel.name} v{kernel.version}", heads, lines=(line,), grid=grid, abouts=abouts)


def _chip(same: Sequence[_Shown], number: int) -> Chip:
    first = same[0]
    decision = "dropped" if first.rule else "kept"
    systems = [item.system for item in same if item.system]
    text = " ".join(part for part in ("✗" if first.rule else "✓", first.what, ", ".join(systems)) if part)
    keys = {"decision": decision, "backend": first.backend, "torch": first.torch}
    keys |= {"system": " ".join(systems), "arch": " ".join(first.archs)}
    return Chip(
        text, first.rule or " ".join(first.archs), number, {key: keys[key] for key in keys if keys[key]}, decision
    )
