"""How answers and findings are shown: the same way by every command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TextIO

import click
from msgspec.structs import replace

from kci.cli import Options
from kci.cli._layout import Layout, lines_of, middle, plain_lines
from kci.diagnostics import Diagnostic, Severity, render_github, render_text
from kci.errors import KciError, UsageError

_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


def print_error(error: KciError, *, annotate: bool = True) -> None:
    """Show why a command failed: its diagnostics, or its message and hint.

    Args:
        error: what happened.
        annotate: on GitHub, also as annotations; False where the caller makes one of its own.
    """
    if error.diagnostics:
        print_diagnostics(error.diagnostics, annotate=annotate)
        if len(error.diagnostics) == 1 and error.diagnostics[0].message in error.message:
            return
    click.echo(f"{click.style('error:', fg='red', bold=True)} {error.message}", err=True)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)
    if os.environ.get("GITHUB_ACTIONS") == "true" and annotate and not error.diagnostics:
        message = error.message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        click.echo(f"::error::{message}", err=True)


def progress_log(options: Options) -> Callable[[str], None]:
    """Takes lines of progress, and shows them on stderr unless kci is to be quiet.

    How far a download is takes one line on a terminal, and elsewhere a line now and then.
    """
    if options.quiet:
        return lambda _line: None
    if terminal_width(sys.stderr) is None or options.plain:
        from kci.builders.transfer import SeldomTransfers

        return SeldomTransfers(lambda line: click.echo(line, err=True))
    return _InPlace()


class _InPlace:
    """Writes a line about a download over the one before it. The cursor stands below it, where others may write."""

    def __init__(self) -> None:
        self._over = False

    def __call__(self, line: str) -> None:
        from kci.builders.transfer import read_transfer

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
        first = same[0]
        message = f"{first.message} (this file and {len(same) - 1} more)"
        hint = f"{first.hint}; `kci check` lists them all" if first.hint else "`kci check` lists them all"
        print_diagnostics([replace(first, message=message, hint=hint)], quiet=quiet)


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
    import msgspec

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


def paragraph(text: str) -> str:
    """A long line over several, where it is shown on a terminal."""
    width = terminal_width()
    if width is None:
        return text
    import textwrap

    return textwrap.fill(text, width, break_on_hyphens=False, break_long_words=False)


def is_plain() -> bool:
    """Whether `--plain` was given."""
    context = click.get_current_context(silent=True)
    return context is not None and isinstance(context.obj, Options) and context.obj.plain


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A GitHub Markdown table; cells are escaped."""
    lines = [_markdown_row(headers), _markdown_row(["---"] * len(headers))]
    return "\n".join(lines + [_markdown_row(row) for row in rows])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
