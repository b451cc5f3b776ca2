"""How `kci run` shows its progress on stderr: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from kci.cli import Options, at_interrupt, colored
from kci.cli._output import middle
from kci.run.local import Outcome, OutcomeState
from kci.toolchains.downloads import SeldomTransfers, duration, read_transfer

_STYLES = {"built": "green", "reused": "green", "failed": "red", "left": "dim", "building": "bold cyan"}
_MARKS = {"waiting": "·", "failed": "✗"}
_RUNNING = (OutcomeState.WAITING, OutcomeState.BUILDING)


def live_table(options: Options, shown: Callable[[], Any], per_second: int) -> Any:
    """A table on stderr that follows what it shows, already started; None where lines are to be written instead."""
    if options.quiet or options.plain or not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, no_color=colored(options) is False)
    live = Live(console=console, get_renderable=shown, refresh_per_second=per_second)
    live.start()
    return live


class RunDisplay:
    """Takes every change of an outcome.

    Off a terminal a variant's lines are held back until it has ended, so that those of variants that are built at once
    do not run into each other.
    """

    def __init__(self, outcomes: list[Outcome], options: Options) -> None:
        self._outcomes = outcomes
        self._options = options
        self._live: Any = None
        self._started: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._held: dict[str, list[str]] = {}
        self._seldom = SeldomTransfers(lambda line: click.echo(f"  {line}", err=True))

    def __enter__(self) -> Callable[[Outcome], None]:
        """Begin, and return what is to be called with an outcome that has changed."""
        if self._options.quiet:
            return lambda _outcome: None
        self._live = live_table(self._options, self._table, 8)
        if self._live is not None:
            at_interrupt.append(self._stop)
        return self._changed

    def __exit__(self, *_: object) -> None:
        self._stop()
        for key in list(self._held):  # what was stopped
            self._let_go(key)

    def _stop(self) -> None:
        """Nothing moves any more: at the end, or as soon as Ctrl-C is pressed."""
        if self._live is not None:
            live, self._live = self._live, None
            at_interrupt.remove(self._stop)
            live.stop()

    def _changed(self, outcome: Outcome) -> None:
        key = f"{outcome.kernel} {outcome.variant.name}"
        if outcome.state is OutcomeState.BUILDING:
            self._started.setdefault(key, time.monotonic())
        if self._live is not None:
            return
        line = f"{key}: {outcome.state.value}"
        if outcome.state is OutcomeState.BUILT:
            line += f" in {outcome.seconds:.0f} s"
        if self._said.get(key) != line:
            if outcome.state not in _RUNNING:
                self._let_go(key)
            click.echo(line, err=True)
            self._said[key] = line
        elif read_transfer(outcome.line):
            self._seldom(outcome.line)
        elif self._options.verbose:
            self._held.setdefault(key, []).append(outcome.line)

    def _let_go(self, key: str) -> None:
        for line in self._held.pop(key, ()):
            click.echo(f"  {line}", err=True)

    def _table(self) -> Any:
        import shutil  # with all its archive formats, for a terminal only

        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        width = shutil.get_terminal_size().columns  # of the terminal that it is for: rich stands in for the stream
        several = len({outcome.kernel for outcome in self._outcomes}) > 1 and width >= 80
        room = 28 if width < 80 else 40 if width < 100 else 60
        notes = max(0, width - room - 50 - (20 if several else 0))
        grid = Table.grid(padding=(0, 2))
        left = 0
        for outcome in self._outcomes:
            if outcome.state is OutcomeState.LEFT:
                left += 1
                continue
            building = outcome.state is OutcomeState.BUILDING
            begun = self._started.get(f"{outcome.kernel} {outcome.variant.name}", time.monotonic())
            seconds = time.monotonic() - begun if building else outcome.seconds
            grid.add_row(
                Spinner("dots") if building else Text(_MARKS.get(outcome.state.value, "✓")),
                *([middle(outcome.kernel, 18)] if several else []),
                middle(outcome.variant.name, room),
                Text(outcome.state.value, style=_STYLES.get(outcome.state.value, "")),
                f"{seconds:.0f} s" if seconds else "",
                progress_text(outcome, rate=width >= 100) if building else "",
                Text(middle(outcome.note, notes), style="dim") if notes > 12 else "",
            )
        if left:
            grid.add_row("", *([""] if several else []), Text(f"{left} left for other machines", style="dim"))
        return grid


def progress_text(outcome: Outcome, *, rate: bool = True) -> str:
    """How far the download or the compilers are, and how long the rest takes."""
    if download := read_transfer(outcome.line):
        parts = (download.amount, download.rate if rate else "", f"{download.left} left" if download.left else "")
        return ", ".join(part for part in parts if part)
    progress = outcome.progress
    if progress is None:
        return ""
    left = "" if progress.left is None or progress.done == progress.total else f", {duration(progress.left)} left"
    return f"{progress.done}/{progress.total}{left}"
