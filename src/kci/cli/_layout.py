"""Tables that fit: reasons wrapped, columns left out by how little they are missed, names cut in the middle."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

GAP = "  "
_LEAST_NAME = 16
"""What a cut name keeps at least."""
_LEAST_TEXT = 24
"""How narrow a column of sentences gets before other columns go."""


class Layout(msgspec.Struct, frozen=True):
    """What may happen to the columns of a table where it is too wide; columns are named by their headers."""

    drop: tuple[str, ...] = ()
    """Columns to leave out, the least important first."""
    cut: tuple[str, ...] = ()
    """Columns of names, which are cut in the middle."""
    wrap: str = ""
    """The column of sentences, which goes over several lines."""


def middle(text: str, width: int, share: float = 0.5) -> str:
    """A text of at most this width, with something left out of it.

    Args:
        text: what to cut.
        width: how much is left.
        share: how much of that is the beginning.
    """
    if len(text) <= width:
        return text
    if width < 3:
        return text[:width]
    head = max(1, int((width - 1) * share))
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def cut_apart(texts: Sequence[str], width: int) -> list[str]:
    """Each text cut to a width, in the way in which most of those that differ still do."""
    tried = [[middle(text, width, share) for text in texts] for share in (0.5, 0.3, 0.7, 0.15)]
    return max(tried, key=lambda cut: len(set(cut)))


def lines_of(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, layout: Layout) -> list[str]:
    """The lines of a table, the headers first.

    Args:
        headers: one for each column.
        rows: the cells.
        width: how wide the terminal is; None for as wide as the content is.
        layout: what may happen where that is too wide. What cannot be made to fit stays too wide.
    """
    kept = list(range(len(headers)))
    dropping = [headers.index(name) for name in layout.drop if name in headers]
    while True:
        table = [[row[column] for column in kept] for row in (headers, *rows)]
        names = [headers[column] for column in kept]
        widths = [max(len(row[place]) for row in table) for place in range(len(kept))]
        if width is None or not dropping or _total(_least(widths, names, layout)) <= width:
            break
        kept.remove(dropping.pop(0))
    if width is not None:
        _shrink(widths, names, width, layout)
        for place, name in enumerate(names):
            if name in layout.cut:
                for row, cell in zip(table, cut_apart([row[place] for row in table], widths[place]), strict=True):
                    row[place] = cell
    return [line for row in table for line in _lines(row, widths, names, layout)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _least(widths: Sequence[int], names: Sequence[str], layout: Layout) -> list[int]:
    """How narrow the columns can be made without cutting a name."""
    return [
        min(width, _LEAST_TEXT) if name == layout.wrap else width for name, width in zip(names, widths, strict=True)
    ]


def _shrink(widths: list[int], names: Sequence[str], width: int, layout: Layout) -> None:
    """Narrow columns until the table fits: sentences first, then the widest name."""
    for place, name in enumerate(names):
        if name == layout.wrap:
            least = min(widths[place], _LEAST_TEXT)
            widths[place] = max(least, widths[place] - max(0, _total(widths) - width))
    while _total(widths) > width:
        able = [place for place, name in enumerate(names) if name in layout.cut and widths[place] > _LEAST_NAME]
        if not able:
            return
        widths[max(able, key=lambda place: widths[place])] -= 1


def _lines(row: Sequence[str], widths: Sequence[int], names: Sequence[str], layout: Layout) -> list[str]:
    cells = [[cell] for cell in row]
    if layout.wrap in names:
        import textwrap  # most tables start faster without

        place = names.index(layout.wrap)
        cells[place] = textwrap.wrap(row[place], max(widths[place], 8), break_on_hyphens=False) or [""]
    lines = []
    for number in range(max(len(cell) for cell in cells)):
        parts = [cell[number] if number < len(cell) else "" for cell in cells]
        lines.append(GAP.join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())
    return lines


def plain_lines(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table for those who hear it: each row in one line that says what every value is."""
    return [
        ", ".join(f"{header} {cell}" for header, cell in zip(headers, row, strict=True) if cell and cell != "-")
        for row in rows
    ]
