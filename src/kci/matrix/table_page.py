"""A page with tables that can be filtered: one file of HTML that loads nothing, and can be read without its script.

Every text is escaped by the template engine, and a policy in the page forbids whatever is not its own style and script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kci.files.templates import html_environment, integrity, template_folder
from kci.matrix.archs import natural
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
    """The page.

    Args:
        title: of the page.
        subtitle: what it is about, in one line.
        sections: the tables.
        filters: keys of the rows, and what they are called; a filter with one value only is left out.
    """
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
