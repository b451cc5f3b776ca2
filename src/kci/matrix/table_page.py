"""A page with tables that can be filtered, and that of `kci matrix --format html`: every candidate, and what decided.

It is one file of HTML that loads nothing, and can be read without its script.

Every text is escaped by the template engine, and a policy in the page forbids everything but its own style and script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kci.files.templates import html_environment, integrity, template_folder
from kci.matrix.archs import natural
from kci.matrix.variants import KernelMatrix, Matrix
from kci.plurals import count
from kci.version import __version__


class PageRow(msgspec.Struct, frozen=True):
    """One row of a table."""

    cells: tuple[str, ...]
    keys: Mapping[str, str]
    """What it can be filtered by; several values of one key have a blank between them."""
    mark: str = ""
    """A class of the style sheet."""
    span: tuple[float, float] | None = None
    """Where a bar begins, and how long it is, in hundredths."""


class PageSection(msgspec.Struct, frozen=True):
    """One table with its title."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[PageRow, ...]
    lines: tuple[str, ...] = ()


def table_page(title: str, subtitle: str, sections: Sequence[PageSection], filters: Mapping[str, str]) -> str:
    """The page. `filters` are keys of the rows, and what they are called; one with a single value is left out."""
    choices = []
    for key, label in filters.items():
        values = {value for section in sections for row in section.rows for value in row.keys.get(key, "").split()}
        if len(values) > 1:
            choices.append({"key": key, "label": label, "options": sorted(values, key=natural)})
    folder = template_folder()
    style = "".join((folder / place / "page.css").read_text(encoding="utf-8") for place in ("report", "picture"))
    script = (folder / "picture" / "page.js").read_text(encoding="utf-8")
    template = html_environment().get_template("picture/page.html.j2")
    return template.render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        choices=choices,
        style=style,
        style_hash=integrity(style),
        script=script,
        script_hash=integrity(script),
        footer=f"Written by kci {__version__}.",
    )


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
