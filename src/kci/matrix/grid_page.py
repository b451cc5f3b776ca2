"""The page of `kci matrix --format html`: torch across, compute versions down, and in each cell the systems and archs.

Why a candidate is kept or dropped is said once for all that it holds for; a cell opens it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kci.matrix.archs import natural
from kci.matrix.variants import Dropped, Kept, KernelMatrix, Kind, Matrix, Variant
from kci.utils.shipped import html_environment, integrity, template_folder
from kci.utils.suggest import count
from kci.version import __version__


class DroppedGroup(msgspec.Struct, frozen=True):
    """Candidates of one backend that were dropped for one reason."""

    rule: str
    reason: str
    candidates: tuple[Dropped, ...]
    whole: bool
    """True if these are all candidates of the backend."""

    @property
    def what(self) -> str:
        """The candidates in a few words: `cuda 12.6, 13.0; torch 2.12, 2.13; x86_64-linux`."""
        if self.whole:
            count = len(self.candidates)
            return "every row" if count > 1 else "the only row" if self.candidates[0].system else "no row"
        computes = _listed(item.compute for item in self.candidates)
        backend = self.candidates[0].backend
        torches = _listed(item.torch for item in self.candidates)
        parts = [f"{backend} {computes}".strip(), f"torch {torches}", _listed(item.system for item in self.candidates)]
        return "; ".join(part for part in parts if part)

    @property
    def where(self) -> str:
        """The places that decided: `build.toml:9`, or `catalog/2026-08-20.toml:27, 57`."""
        return places((item.path, item.line) for item in self.candidates)


class BackendReasons(msgspec.Struct, frozen=True):
    """All that was decided about one backend."""

    backend: str
    kept: tuple[Kept, ...]
    dropped: tuple[DroppedGroup, ...]

    @property
    def title(self) -> str:
        """`cuda: 6 kept, 3 dropped`."""
        dropped = sum(len(group.candidates) for group in self.dropped)
        return f"{self.backend}: {len(self.kept)} kept, {dropped} dropped"


def by_backend(kernel: KernelMatrix) -> list[BackendReasons]:
    """The decisions about a kernel (which has to be computed with `explain`), sorted: backends with variants first."""
    kept: dict[str, list[Kept]] = {}
    for variant, reason in zip(kernel.variants, kernel.kept, strict=True):
        kept.setdefault(str(variant.backend), []).append(reason)
    dropped: dict[str, list[Dropped]] = {}
    for item in kernel.dropped:
        dropped.setdefault(str(item.backend), []).append(item)
    backends = sorted({*kept, *dropped}, key=lambda backend: (backend not in kept, backend))
    return [
        BackendReasons(backend, tuple(kept.get(backend, ())), _groups(dropped.get(backend, ()), backend not in kept))
        for backend in backends
    ]


def _groups(dropped: Sequence[Dropped], nothing_kept: bool) -> tuple[DroppedGroup, ...]:
    found: dict[tuple[str, str], list[Dropped]] = {}
    for item in dropped:
        found.setdefault((item.rule, item.reason), []).append(item)
    whole = nothing_kept and len(found) == 1
    return tuple(DroppedGroup(*key, tuple(items), whole) for key, items in sorted(found.items()))


def places(of: Iterable[tuple[str, int]]) -> str:
    """Files with their lines, each file once; what the command line decided has no place."""
    lines: dict[str, set[int]] = {}
    for path, line in of:
        if path:
            lines.setdefault(path, set()).add(line)
    return ", ".join(
        f"{path}:{', '.join(str(line) for line in sorted(numbers))}" if numbers - {0} else path
        for path, numbers in sorted(lines.items())
    )


def _listed(texts: Iterable[str | None]) -> str:
    return ", ".join(sorted({text for text in texts if text}, key=natural))


class Chip(msgspec.Struct, frozen=True):
    """One thing that a cell of a grid has."""

    text: str
    note: str
    """What stands beside it."""
    about: int
    """The number of what it opens."""
    keys: Mapping[str, str]
    """What it can be filtered by; several values of one key have a blank between them."""
    mark: str = ""
    """A class of the style sheet."""


class About(msgspec.Struct, frozen=True):
    """What a chip opens: said once, for however many chips."""

    title: str
    lines: tuple[str, ...]
    items: tuple[str, ...]


class PageSection(msgspec.Struct, frozen=True):
    """One grid with its title; its cells have chips."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[str, ...]
    grid: tuple[tuple[str, tuple[tuple[Chip, ...], ...]], ...]
    """Rows: a label, and the chips of each cell."""
    abouts: tuple[About, ...] = ()

    @property
    def keys(self) -> list[Mapping[str, str]]:
        """What its chips can be filtered by."""
        return [chip.keys for _, row in self.grid for cell in row for chip in cell]


MOST_OPEN = 8
"""Of so many sections each is open from the beginning."""


def table_page(title: str, subtitle: str, sections: Sequence[PageSection], filters: Mapping[str, str]) -> str:
    """The page. `filters` are keys of the chips, and what they are called; one with a single value is left out."""
    choices = []
    for key, label in filters.items():
        values = {value for section in sections for keys in section.keys for value in keys.get(key, "").split()}
        if len(values) > 1:
            choices.append({"key": key, "label": label, "options": sorted(values, key=natural)})
    folder = template_folder()
    style = "".join((folder / place / "page.css").read_text(encoding="utf-8") for place in ("report", "picture"))
    style += _labels(sections)
    script = (folder / "picture" / "page.js").read_text(encoding="utf-8")
    template = html_environment().get_template("picture/page.html.j2")
    return template.render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        choices=choices,
        folded=len(sections) > MOST_OPEN,
        style=style,
        style_hash=integrity(style),
        script=script,
        script_hash=integrity(script),
        footer=f"Written by kci {__version__}.",
    )


_PLAIN = re.compile(r"[\w .-]{1,40}")


def _labels(sections: Sequence[PageSection]) -> str:
    """On a narrow screen, what stands before each cell: the heads, once for all sections that have the same."""
    rules = []
    for heads in dict.fromkeys(section.heads for section in sections):
        ids = [at for at, section in enumerate(sections, 1) if section.heads == heads]
        where = ".stack" if len(ids) == len(sections) else f"#t{ids[0]}"
        for at, head in enumerate(heads[1:], 2):
            if _PLAIN.fullmatch(head):
                rules.append(f'{where} td:nth-child({at})::before{{content:"{head} "}}')
    return f"@media (max-width:40rem){{{''.join(rules)}}}\n" if rules else ""


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
