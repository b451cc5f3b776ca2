"""A page with grids that can be filtered; on a narrow screen each row is a card.

It is one file of HTML that loads nothing, and can be read without its script.

Every text is escaped by the template engine, and a policy in the page forbids everything but its own style and script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from kci.files.templates import html_environment, integrity, template_folder
from kci.matrix.archs import natural
from kci.version import __version__


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
