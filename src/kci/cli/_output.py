"""Output of all commands: options, findings, tables, Markdown."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from kci.diagnostics import (
    Diagnostic,
    Severity,
    escape_data,
    printable,
    printable_lines,
    render_github,
    render_text,
)
from kci.errors import KciError, without_secrets
from kci.utils.frozen import Frozen


class Options(NamedTuple):
    """The common options."""

    quiet: bool = False
    verbose: bool = False
    color: str = "auto"


def options() -> Options:
    """The options of the running command; defaults outside of one, and in other threads."""
    context = click.get_current_context(silent=True)
    return (context and context.obj) or Options()


def use_color(flags: Options) -> bool | None:
    """True for colors, None for colors on a terminal only; follows https://no-color.org."""
    if flags.color != "auto":
        return flags.color == "always"
    return False if os.environ.get("NO_COLOR") or is_dumb_terminal() else None


def is_dumb_terminal() -> bool:
    """True if the terminal has no escape sequences."""
    return os.environ.get("TERM") == "dumb"


def answer(text: object, *, nl: bool = True) -> None:
    """Print on stdout, which has the answer and nothing else."""
    click.echo(text, nl=nl)


def say(text: str) -> None:
    """Print on stderr what is no part of the answer."""
    click.echo(text, err=True)


_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;"} | {char: f"&#{ord(char)};" for char in "|`[*~"})
_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def print_error(error: KciError, *, annotate: bool = True) -> None:
    """Print a KciError with its findings; `annotate` False omits annotations on GitHub."""
    found, message = error.diagnostics, printable_lines(error.message)
    one = found[0] if len(found) == 1 and found[0].message in error.message else None
    if one and "\n" in error.message:  # a compiler's output, which shows the line itself
        whole = replace(one, message=error.message, hint=error.hint)
        _print_finding(render_text(whole), one, annotate=annotate)
        return
    print_diagnostics(found, annotate=annotate)
    if not one:
        say(f"{click.style('error:', fg='red', bold=True)} {message}")
        if error.hint:
            say(f"  hint: {printable_lines(error.hint)}")
        if annotate and not found and _on_github():
            say(f"::error::{escape_data(error.message)}")


def progress_log() -> Callable[[str], None]:
    """A function that prints progress lines on stderr, unless `-q` is set."""
    if options().quiet:
        return lambda _line: None
    return lambda line: say(without_secrets(line))


def slow_progress() -> Callable[[int, int], None]:
    """A function that says how far a check is, every two seconds: `checked 12 of 52 kernels`."""
    log, said = progress_log(), time.monotonic()

    def say(number: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= 2:
            said = time.monotonic()
            log(f"checked {number} of {total} kernels")

    return say


def print_diagnostics(diagnostics: Iterable[Diagnostic], *, annotate: bool = True) -> None:
    """Print diagnostics with their source lines on stderr, and as annotations on GitHub."""
    lines = cache(_file_lines)
    for diagnostic in diagnostics:
        if diagnostic.severity is Severity.ERROR or not options().quiet:
            _print_finding(render_text(diagnostic, lines), diagnostic, annotate=annotate)


def _print_finding(text: str, diagnostic: Diagnostic, *, annotate: bool) -> None:
    mark = f"{diagnostic.severity}[{diagnostic.rule}]"
    styled = click.style(mark, fg=_COLORS[diagnostic.severity], bold=True)
    say(text.replace(mark, styled, 1))
    if annotate and _on_github():
        say(render_github(diagnostic))


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def print_kernel_findings(findings: Sequence[Diagnostic]) -> None:
    """Print what `kci check` finds too: a rule that many files meet once."""
    lists = "`kci check -v` lists them all"
    print_diagnostics(one_per_cause(findings, lambda item: item.rule, lists))


MANY = 3
"""The findings with one cause that are shown one by one."""


def one_per_cause(
    findings: Sequence[Diagnostic],
    cause: Callable[[Diagnostic], object] = lambda item: (item.rule, item.message),
    lists: str = "-v lists them all",
) -> list[Diagnostic]:
    """Merge more than `MANY` warnings or notes of an equal `cause` into the first; `lists` is
    appended to its hint.
    """
    by_cause: dict[object, list[Diagnostic]] = {}
    for item in findings:
        by_cause.setdefault(cause(item), []).append(item)
    shown = []
    for item in findings:
        same = by_cause[cause(item)]
        if item.severity is Severity.ERROR or len(same) <= MANY:
            shown.append(item)
        elif item is same[0]:
            shown.append(_for_all(same, lists))
    return shown


def _for_all(same: Sequence[Diagnostic], lists: str) -> Diagnostic:
    first, folders = same[0], [os.path.dirname(item.path) or "." for item in same]  # noqa: PTH120  - as it was written
    files = len({item.path for item in same})
    places = f"{files} files" if files == len(same) else f"{len(same)} places"
    message, hint = f"{first.message} (in {places}, this is the first)", first.hint
    with suppress(ValueError):  # absolute and relative paths have no common folder
        hint = hint.replace(f" {folders[0]}`", f" {os.path.commonpath(folders) or '.'}`")
    return replace(first, message=message, hint="; ".join(filter(None, (hint, lists))))


def _file_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8-sig", errors="replace").split("\n")
    except OSError:
        return []


def to_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def print_json(**fields: Any) -> None:
    """Print an answer in version 1 of its JSON form."""
    click.echo(to_json({"schema": 1} | fields))


class Layout(Frozen):
    """The shrinking of a table that is too wide; columns are named by their headers."""

    drop: tuple[str, ...] = ()
    """Columns to drop, the least important first."""
    cut: tuple[str, ...] = ()
    """Columns of names to shorten in the middle."""
    wrap: str = ""
    """The column of sentences to wrap."""


_GAP = "  "
_LEAST_NAME = 16
_LEAST_TEXT = 24
"""The width of the wrapped column at which others are dropped."""


def table(headers: Sequence[str], rows: Iterable[Iterable[object]], layout: Layout) -> str:
    """A table as text, fitted to the terminal; its natural width in files and pipes."""
    lines = table_lines(headers, rows, terminal_width(), layout)
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]])


def table_lines(
    headers: Sequence[str], rows: Iterable[Iterable[object]], width: int | None, layout: Layout
) -> list[str]:
    """The lines of a table, header first; `width` None is no limit.

    A table that cannot shrink enough is wider.
    """
    columns = {cells[0]: [*map(str, cells)] for cells in zip(headers, *rows, strict=True)}
    widths = {name: max(map(len, cells)) for name, cells in columns.items()}
    if width is not None:
        _fit(widths, width, layout)
    cells = []
    for name, room in widths.items():
        texts = columns[name]
        if name == layout.wrap:
            import textwrap

            wrap = textwrap.TextWrapper(max(room, 8), break_on_hyphens=False).wrap
            cells.append([wrap(text) or [""] for text in texts])
        else:
            cells.append([[text] for text in (_cut(texts, room) if name in layout.cut else texts)])
    lines = (line for row in zip(*cells, strict=True) for line in zip_longest(*row, fillvalue=""))
    return [_GAP.join(map(str.ljust, line, widths.values())).rstrip() for line in lines]


def _fit(widths: dict[str, int], width: int, layout: Layout) -> None:
    # shrink the columns, or remove them
    def excess() -> int:
        return sum(widths.values()) + len(_GAP) * (len(widths) - 1) - width

    sentences = widths.get(layout.wrap, 0)
    least = min(sentences, _LEAST_TEXT)
    widths |= {layout.wrap: least} if sentences else {}
    for name in layout.drop:
        if name in widths and excess() > 0:
            del widths[name]
    if layout.wrap in widths:
        widths[layout.wrap] = max(least, min(sentences, least - excess()))
    able = [name for name in widths if name in layout.cut]
    while excess() > 0 and (able := [name for name in able if widths[name] > _LEAST_NAME]):
        widths[max(able, key=lambda name: widths[name])] -= 1


def _cut(texts: Sequence[str], width: int) -> list[str]:
    # without their middle, cut where most of them stay different
    def shortened(share: float) -> list[str]:
        head = max(1, int((width - 1) * share))
        tail = width - 1 - head
        return [
            text if len(text) <= width else f"{text[:head]}…{text[len(text) - tail :]}"
            for text in texts
        ]

    return max(map(shortened, (0.5, 0.3, 0.7, 0.15)), key=lambda shown: len(set(shown)))


def terminal_width() -> int | None:
    """The width of the terminal behind stdout; None for files and pipes."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def paragraph(text: str) -> str:
    """A text, wrapped on a terminal."""
    width = terminal_width()
    if width is None:
        return text
    import textwrap

    return textwrap.fill(text, width, break_on_hyphens=False, break_long_words=False)


class AnswerTable(Frozen):
    """A table for a terminal and for Markdown."""

    title: str
    headers: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    layout: Layout = Layout()
    below: str = ""

    def text(self) -> str:
        shown = table(self.headers, self.rows, self.layout) if self.rows or not self.below else ""
        return f"{shown}\n{paragraph(self.below)}".lstrip("\n") if self.below else shown

    def markdown_head(self) -> list[str]:
        sentence = [markdown_text(self.below), ""] if self.below else []
        headers = [self.headers, ["---"] * len(self.headers)] if self.rows else []
        return [f"### {markdown_text(self.title)}", "", *sentence, *map(_markdown_row, headers)]

    def markdown_rows(self) -> list[str]:
        return [_markdown_row(markdown_text(str(cell)) for cell in row) for row in self.rows]


def as_markdown(tables: Iterable[AnswerTable]) -> str:
    return "\n\n".join(
        "\n".join([*one.markdown_head(), *one.markdown_rows()]).rstrip() for one in tables
    )


def markdown_text(text: str) -> str:
    """A text with Markdown and HTML characters escaped."""
    return printable(text).translate(_MARKUP)


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
