"""How answers and findings are shown: the same way by every command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec
from msgspec.structs import replace

from kci.cli._layout import Layout, lines_of, middle, plain_lines
from kci.cli._options import Options
from kci.diagnostics import Diagnostic, Severity, escape_data, printable, printable_lines, render_github, render_text
from kci.errors import KciError, UsageError

_MARKUP = {"&": "&amp;", "<": "&lt;", "|": "&#124;", "`": "&#96;", "[": "&#91;", "*": "&#42;", "~": "&#126;"}
_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def print_error(error: KciError, *, annotate: bool = True) -> None:
    """Show why a command failed: its diagnostics, or its message and hint.

    Args:
        error: what happened.
        annotate: on GitHub, also as annotations; False where the caller makes one of its own.
    """
    if error.diagnostics:
        print_diagnostics(error.diagnostics, annotate=annotate)
        more = "\n" in error.message  # what a compiler said, and the command to repeat
        if len(error.diagnostics) == 1 and error.diagnostics[0].message in error.message and not more:
            return
    click.echo(f"{click.style('error:', fg='red', bold=True)} {printable_lines(error.message)}", err=True)
    if error.hint:
        click.echo(f"  hint: {printable_lines(error.hint)}", err=True)
    if os.environ.get("GITHUB_ACTIONS") == "true" and annotate and not error.diagnostics:
        click.echo(f"::error::{escape_data(error.message)}", err=True)


def progress_log(options: Options) -> Callable[[str], None]:
    """Takes lines of progress, and shows them on stderr unless kci is to be quiet.

    How far a download is takes one line on a terminal, and elsewhere a line now and then.
    """
    if options.quiet:
        return lambda _line: None
    if terminal_width(sys.stderr) is None or options.plain:
        from kci.toolchains.downloads import SeldomTransfers

        return SeldomTransfers(lambda line: click.echo(line, err=True))
    return _InPlace()


class _InPlace:
    """Writes a line about a download over the one before it. The cursor stands below it, where others may write."""

    def __init__(self) -> None:
        self._over = False

    def __call__(self, line: str) -> None:
        from kci.toolchains.downloads import read_transfer

        told = read_transfer(line) is not None
        if told:
            line = middle(line, (terminal_width(sys.stderr) or 80) - 1)
        click.echo(("\x1b[1A\x1b[2K" if told and self._over else "") + line, err=True, color=True if told else None)
        self._over = told


def print_diagnostics(diagnostics: Iterable[Diagnostic], *, quiet: bool = False, annotate: bool = True) -> None:
    """Show diagnostics on stderr, with a caret where the file can be read, and as annotations on GitHub."""
    lines: dict[str, list[str]] = {}
    for diagnostic in diagnostics:
        if quiet and diagnostic.severity is not Severity.ERROR:
            continue
        text = render_text(diagnostic, None if is_plain() else lambda path, line: source_line(path, line, lines))
        mark = f"{diagnostic.severity.value}[{diagnostic.rule}]"
        styled = click.style(mark, fg=_COLORS[diagnostic.severity], bold=True)
        click.echo(text.replace(mark, styled, 1), err=True)
        if annotate and os.environ.get("GITHUB_ACTIONS") == "true":
            click.echo(render_github(diagnostic), err=True)


MANY = 3
"""Findings of one rule that are shown one by one where they are not the answer."""


def print_grouped(diagnostics: Sequence[Diagnostic], *, quiet: bool = False) -> None:
    """Show what reading found beside an answer: many findings of one rule are one line, since one cause made them."""
    by_rule: dict[str, list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        by_rule.setdefault(diagnostic.rule, []).append(diagnostic)
    for same in by_rule.values():
        if len(same) <= MANY:
            print_diagnostics(same, quiet=quiet)
            continue
        print_diagnostics([_for_all(same, "`kci check -v` lists them all")], quiet=quiet)


def one_per_cause(found: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The same findings, where many that are no errors and say the same are one: it stands where the first does."""
    by_cause: dict[tuple[str, str], list[Diagnostic]] = {}
    for item in found:
        by_cause.setdefault((item.rule, item.message), []).append(item)
    shown = []
    for item in found:
        same = by_cause[item.rule, item.message]
        if item.severity is Severity.ERROR or len(same) <= MANY:
            shown.append(item)
        elif item is same[0]:
            shown.append(_for_all(same, "-v lists them all"))
    return shown


def _for_all(same: Sequence[Diagnostic], lists: str) -> Diagnostic:
    """The first of several findings with their number, and the command that lists them."""
    first = same[0]
    files = len({item.path for item in same})
    places = f"{files} files" if files == len(same) else f"{len(same)} places"
    return replace(
        first,
        message=f"{first.message} (in {places}, this is the first)",
        hint="; ".join(part for part in (_hint_for_all(same), lists) if part),
    )


def _hint_for_all(same: Sequence[Diagnostic]) -> str:
    """A command for each one's directory is one for the directory that has them all."""
    folders = [os.path.dirname(item.path) or "." for item in same]  # noqa: PTH120  - as it was written
    hints = {item.hint.replace(f" {folder}`", " \0`") for item, folder in zip(same, folders, strict=True)}
    if len(hints) != 1:
        return same[0].hint
    try:
        common = os.path.commonpath(folders) or "."
    except ValueError:  # some are absolute
        return same[0].hint
    return hints.pop().replace("\0", common)


def day_of(text: str, option: str) -> date:
    """The day that an option names.

    Raises:
        UsageError: it names none.
    """
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option}: {text!r} is not a date", hint="such as 2026-08-20") from None


def source_line(path: str, line: int, cache: dict[str, list[str]]) -> str | None:
    """A line of a file, where the file can be read; files that were read are kept in the cache."""
    if path not in cache:
        try:
            cache[path] = Path(path).read_text(encoding="utf-8-sig", errors="replace").split("\n")
        except OSError:
            cache[path] = []
    lines = cache[path]
    return lines[line - 1].rstrip("\r") if line <= len(lines) else None


def to_json(answer: Any) -> str:
    """An answer as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], layout: Layout | None = None) -> str:
    """A table with aligned columns: as wide as its content in files and pipes, as wide as the terminal on one.

    With `--plain`, each row is one line that names every value.
    """
    cells = list(rows)
    if is_plain():
        return "\n".join(plain_lines(headers, cells))
    lines = lines_of(headers, cells, terminal_width(), layout or Layout())
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]])


def terminal_width(stream: TextIO | None = None) -> int | None:
    """How wide the terminal is that a stream (stdout) leads to; None for files and pipes."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return None
    import shutil  # with all its archive formats, for a terminal only

    return shutil.get_terminal_size().columns


def labelled(variant: str, system: str) -> str:
    """A variant's name with its system, which the name of a noarch variant lacks."""
    return variant if variant.endswith(system) else f"{variant} ({system})"


def paragraph(text: str) -> str:
    """A long line over several, where it is shown on a terminal."""
    width = terminal_width()
    if width is None:
        return text
    import textwrap  # what is no paragraph starts faster without

    return textwrap.fill(text, width, break_on_hyphens=False, break_long_words=False)


def is_plain() -> bool:
    """Whether `--plain` was given."""
    context = click.get_current_context(silent=True)
    return context is not None and isinstance(context.obj, Options) and context.obj.plain


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A GitHub Markdown table; cells are escaped."""
    lines = [markdown_row(headers), markdown_row(["---"] * len(headers))]
    return "\n".join(lines + [markdown_row(row) for row in rows])


def markdown_text(text: str) -> str:
    """Text that is shown as it is in Markdown: it becomes no HTML, link, picture or code, and drives no terminal."""
    return "".join(_MARKUP.get(char, char) for char in printable(text))


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a table in Markdown; a cell can have markup, and cannot end its column or the row."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
