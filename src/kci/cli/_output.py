"""How answers and findings are shown: the same way by every command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import click
import msgspec
from msgspec.structs import replace

from kci.diagnostics import Diagnostic, Severity, escape_data, printable, printable_lines, render_github, render_text
from kci.errors import KciError


class Options(NamedTuple):
    """The options that every command takes."""

    quiet: bool = False
    verbose: bool = False
    color: str = "auto"


def options() -> Options:
    """The options of the running command; the defaults outside of a command, and in other threads."""
    context = click.get_current_context(silent=True)
    return context.obj if context is not None and isinstance(context.obj, Options) else Options()


def colored(given: Options) -> bool | None:
    """Whether to color; None to color on a terminal. See https://no-color.org for the variable."""
    if given.color == "never":
        return False
    if given.color == "always":
        return True
    return False if os.environ.get("NO_COLOR") or dumb() else None


def dumb() -> bool:
    """True if the terminal only prints, and knows no escape sequences."""
    return os.environ.get("TERM") == "dumb"


_MARKUP = {"&": "&amp;", "<": "&lt;", "|": "&#124;", "`": "&#96;", "[": "&#91;", "*": "&#42;", "~": "&#126;"}
_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def print_error(error: KciError, *, annotate: bool = True) -> None:
    """Show why a command failed. `annotate` is False for a caller on GitHub that makes an annotation itself."""
    place, rule, annotation = "", "", "" if error.diagnostics else f"::error::{escape_data(error.message)}"
    one = (
        error.diagnostics[0] if len(error.diagnostics) == 1 and error.diagnostics[0].message in error.message else None
    )
    if one and "\n" in error.message:  # what a compiler said, with the source, and the command to repeat
        place, rule, annotation = f"{printable(one.place)}: " if one.path else "", f"[{one.rule}]", render_github(one)
    else:
        print_diagnostics(error.diagnostics, annotate=annotate)
        if one:
            return
    click.echo(f"{place}{click.style(f'error{rule}:', fg='red', bold=True)} {printable_lines(error.message)}", err=True)
    if error.hint:
        click.echo(f"  hint: {printable_lines(error.hint)}", err=True)
    if os.environ.get("GITHUB_ACTIONS") == "true" and annotate and annotation:
        click.echo(annotation, err=True)


def progress_log() -> Callable[[str], None]:
    """Takes lines of progress, and shows them on stderr unless `-q` is set."""
    if options().quiet:
        return lambda _line: None
    return lambda line: click.echo(line, err=True)


def print_diagnostics(diagnostics: Iterable[Diagnostic], *, annotate: bool = True) -> None:
    """Show diagnostics on stderr, with a caret where the file can be read, and as annotations on GitHub."""
    lines = cache(_file_lines)
    for diagnostic in diagnostics:
        if options().quiet and diagnostic.severity is not Severity.ERROR:
            continue
        text = render_text(diagnostic, lines)
        mark = f"{diagnostic.severity.value}[{diagnostic.rule}]"
        styled = click.style(mark, fg=_COLORS[diagnostic.severity], bold=True)
        click.echo(text.replace(mark, styled, 1), err=True)
        if annotate and os.environ.get("GITHUB_ACTIONS") == "true":
            click.echo(render_github(diagnostic), err=True)


MANY = 3
"""Findings with one cause that are shown one by one."""


def one_per_cause(
    found: Sequence[Diagnostic],
    cause: Callable[[Diagnostic], object] = lambda item: (item.rule, item.message),
    lists: str = "-v lists them all",
) -> list[Diagnostic]:
    """Make one finding of many warnings or notes with one cause, in the place of the first.

    `cause` gives what such findings have in common, `lists` is the hint that names the command that lists all.
    """
    by_cause: dict[object, list[Diagnostic]] = {}
    for item in found:
        by_cause.setdefault(cause(item), []).append(item)
    shown = []
    for item in found:
        same = by_cause[cause(item)]
        if item.severity is Severity.ERROR or len(same) <= MANY:
            shown.append(item)
        elif item is same[0]:
            shown.append(_for_all(same, lists))
    return shown


def _for_all(same: Sequence[Diagnostic], lists: str) -> Diagnostic:
    first = same[0]
    files = len({item.path for item in same})
    places = f"{files} files" if files == len(same) else f"{len(same)} places"
    return replace(
        first,
        message=f"{first.message} (in {places}, this is the first)",
        hint="; ".join(part for part in (_hint_for_all(same), lists) if part),
    )


def _hint_for_all(same: Sequence[Diagnostic]) -> str:
    """One command for a directory that has them all, where each hint has the command for one directory."""
    folders = [os.path.dirname(item.path) or "." for item in same]  # noqa: PTH120  - as it was written
    hints = {item.hint.replace(f" {folder}`", " \0`") for item, folder in zip(same, folders, strict=True)}
    if len(hints) != 1:
        return same[0].hint
    try:
        common = os.path.commonpath(folders) or "."
    except ValueError:  # some are absolute
        return same[0].hint
    return hints.pop().replace("\0", common)


def _file_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8-sig", errors="replace").split("\n")
    except OSError:
        return []


def to_json(answer: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def print_json(**answer: Any) -> None:
    """Print an answer in version 1 of its JSON form."""
    click.echo(to_json({"schema": 1} | answer))


class Layout(msgspec.Struct, frozen=True):
    """How a table that is too wide may shrink; columns are named by their headers."""

    drop: tuple[str, ...] = ()
    """Columns to leave out, the least important first."""
    cut: tuple[str, ...] = ()
    """Columns of names, which are cut in the middle."""
    wrap: str = ""
    """The column of sentences, which goes over several lines."""


_GAP = "  "
_LEAST_NAME = 16
"""What a cut name keeps at least."""
_LEAST_TEXT = 24
"""How narrow a column of sentences gets before other columns go."""


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], layout: Layout | None = None) -> str:
    """A table with aligned columns: as wide as its content in files and pipes, as wide as the terminal on one."""
    lines = lines_of(headers, rows, terminal_width(), layout or Layout())
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]])


def lines_of(headers: Sequence[str], rows: Iterable[Sequence[str]], width: int | None, layout: Layout) -> list[str]:
    """The lines of a table, the headers first. Headers differ.

    `width` is that of the terminal, or None for as wide as the content is. A table that cannot shrink enough stays too
    wide.
    """
    columns = dict(zip(headers, map(list, zip(headers, *rows, strict=True)), strict=True))
    widths = {name: max(map(len, cells)) for name, cells in columns.items()}
    if width is not None:
        _fit(columns, widths, width, layout)
    cells = [[[cell] for cell in column] for column in columns.values()]
    if layout.wrap in columns:
        import textwrap  # most tables start faster without

        across = max(widths[layout.wrap], 8)
        cells[list(columns).index(layout.wrap)] = [
            textwrap.wrap(cell, across, break_on_hyphens=False) or [""] for cell in columns[layout.wrap]
        ]
    return [
        _GAP.join(part.ljust(wide) for part, wide in zip(parts, widths.values(), strict=True)).rstrip()
        for row in zip(*cells, strict=True)
        for parts in zip_longest(*row, fillvalue="")
    ]


def _fit(columns: dict[str, list[str]], widths: dict[str, int], width: int, layout: Layout) -> None:
    """Leave out columns and narrow others until the table fits: sentences first, then the widest name."""

    def excess() -> int:
        return sum(widths.values()) + len(_GAP) * (len(widths) - 1) - width

    sentences = widths.get(layout.wrap, 0)
    least = min(sentences, _LEAST_TEXT)
    widths |= {layout.wrap: least} if sentences else {}
    for name in layout.drop:
        if name in columns and excess() > 0:
            del columns[name], widths[name]
    if layout.wrap in widths:
        widths[layout.wrap] = max(least, min(sentences, least - excess()))
    while excess() > 0:
        able = [name for name in widths if name in layout.cut and widths[name] > _LEAST_NAME]
        if not able:
            break
        widths[max(able, key=lambda name: widths[name])] -= 1
    for name in columns.keys() & set(layout.cut):
        columns[name] = cut_apart(columns[name], widths[name])


def middle(text: str, width: int, share: float = 0.5) -> str:
    """A text of at most this width, without its middle if it is longer; `share` of the rest is its beginning."""
    if len(text) <= width:
        return text
    if width < 3:
        return text[:width]
    head = max(1, int((width - 1) * share))
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def cut_apart(texts: Sequence[str], width: int) -> list[str]:
    """Each text cut to a width, in the way that keeps most of them different."""
    tried = [[middle(text, width, share) for text in texts] for share in (0.5, 0.3, 0.7, 0.15)]
    return max(tried, key=lambda cut: len(set(cut)))


def terminal_width(stream: TextIO | None = None) -> int | None:
    """The width of the terminal that a stream (stdout) leads to; None for files and pipes."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return None
    import shutil  # with all its archive formats, for a terminal only

    return shutil.get_terminal_size().columns


def labelled(variant: str, system: str) -> str:
    """A variant's name with its system, which the name of a noarch variant lacks."""
    return variant if variant.endswith(system) else f"{variant} ({system})"


def paragraph(text: str) -> str:
    """A long line, wrapped on a terminal."""
    width = terminal_width()
    if width is None:
        return text
    import textwrap  # what is no paragraph starts faster without

    return textwrap.fill(text, width, break_on_hyphens=False, break_long_words=False)


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [markdown_row(headers), markdown_row(["---"] * len(headers))]
    return "\n".join(lines + [markdown_row(row) for row in rows])


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is: it becomes no HTML, link, picture or code, and drives no terminal."""
    return "".join(_MARKUP.get(char, char) for char in printable(text))


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a table in Markdown; a cell can have markup, and cannot end its column or the row."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
