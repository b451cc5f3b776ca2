"""`kci run --engine` and `kci run --resume`: progress, the question at Ctrl-C, and the closing table."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from kci.cli import options
from kci.cli._findings import print_trees
from kci.cli._output import table
from kci.cli._run_display import LiveTable
from kci.errors import ClientError
from kci.files.full_disk import says_full
from kci.plurals import count
from kci.remote.engine_plan import EngineLeg, EngineRun
from kci.remote.engine_run import Driver, driving
from kci.remote.job import printable
from kci.remote.leg_results import merge_run
from kci.remote.run_state import OPEN, LegPhase, LegProgress
from kci.run.local import TreeResult

_NOTE = 60
_GOOD = (LegPhase.BUILT, LegPhase.PASSED)


def follow(folder: Path, run: EngineRun, on_interrupt: str) -> int:
    """Drive a run to its end, merge, verify, test, and tell; the exit code says the worst of it.

    Args:
        folder: the run's.
        run: what it is.
        on_interrupt: `ask`, `cancel` or `leave`: what becomes of legs that run when the user stops this.

    Raises:
        KeyboardInterrupt: the user stopped it.
        KciError: an engine cannot be used; the run can be resumed.
    """
    resume = f"kci run --resume {run.id}"
    if not options().quiet:
        click.echo(f"run {run.id}: {count(len(run.legs), 'leg')}; if this stops, `{resume}` goes on", err=True)
    display = EngineDisplay(run)
    with driving(folder, run, display.changed, display.say) as driver:
        display.legs = driver.journal.legs
        try:
            with display:
                driver.drive()
                trees = merge_run(driver)
                driver.release_tests(trees)
                driver.drive()
        except KeyboardInterrupt:
            _stopped(driver, on_interrupt, resume)
            raise
        except ClientError as error:
            first = "free space there" if says_full(error.message) else error.hint or "fix this"
            raise ClientError(error.message, hint=f"{first}, then `{resume}` goes on") from error
        return _report(driver, trees)


def _stopped(driver: Driver, on_interrupt: str, resume: str) -> None:
    """Ask what is to become of the legs that have not ended."""
    going = [name for name, leg in driver.journal.legs.items() if leg.phase in (LegPhase.HELD, *OPEN)]
    if on_interrupt == "ask":
        on_interrupt = "leave"
        if going and sys.stdin.isatty() and sys.stderr.isatty():
            question = f"\nstill to end: {count(len(going), 'leg')}. Cancel, or leave running?"
            on_interrupt = click.prompt(question, type=click.Choice(["cancel", "leave"]), default="leave", err=True)
    if on_interrupt == "cancel":
        driver.cancel()
        click.echo(f"{count(len(going), 'leg')} cancelled", err=True)
    elif going:
        click.echo(f"{count(len(going), 'leg')} left running; `{resume}` goes on", err=True)


def _report(driver: Driver, trees: list[TreeResult]) -> int:
    """Print the closing table and what went wrong."""
    rows = []
    for leg in driver.run.legs:
        progress = driver.journal.legs[leg.name]
        place, state = driver.place(leg.name), progress.phase.value
        said = [f"{progress.last.seconds:.0f} s"] if progress.phase in _GOOD else []
        said += [_line(progress.last.reason)] if progress.last.reason else []
        rows.append((leg.job.kernel, leg.job.leg, place.engine, state, str(progress.attempts), ", ".join(said)))
    rows += [(item.kernel, item.variant, "", "untested", "", item.reason[:100]) for item in driver.run.untested]
    rows += [(item.kernel, item.variant, "", "left", "", item.reason[:100]) for item in driver.run.left]
    click.echo(table(("kernel", "leg", "engine", "state", "attempts", "time or reason"), rows))
    code = print_trees(trees)
    failed = driver.journal.of(LegPhase.FAILED)
    for name in failed:
        click.echo(f"\n{click.style(f'{name} failed:', fg='red')} {driver.journal.legs[name].last.reason}", err=True)
    if failed:
        return max(driver.journal.legs[name].last.exit_code or 4 for name in failed)
    if driver.journal.of(LegPhase.CANCELLED):
        return 130
    if not trees:
        click.echo("nothing was built: no engine takes any of the legs", err=True)
        click.echo("  hint: `backends` and `systems` of an engine in kci.toml say what it takes", err=True)
        return 3
    return code


def _line(text: str) -> str:
    return printable(text.partition("\n")[0])[:100]


class EngineDisplay(LiveTable):
    """Takes every change of a leg."""

    def __init__(self, run: EngineRun) -> None:
        super().__init__(options(), 2)
        self.run = run
        self.legs: dict[str, LegProgress] = {}
        self.notes: dict[str, str] = {}

    def say(self, line: str) -> None:
        """A line for people."""
        if not self.options.quiet:
            click.echo(_line(line), err=True)

    def changed(self, leg: EngineLeg, progress: LegProgress, note: str) -> None:
        """A leg has changed."""
        self.notes[leg.name] = _line(note)
        if self.live is None:
            attempt = f" (attempt {progress.attempts})" if progress.attempts > 1 else ""
            self.say(f"{leg.name} on {leg.engine}: {progress.phase}{attempt} {note}".rstrip())

    def shown(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        styles = {"built": "green", "passed": "green", "failed": "red", "cancelled": "dim", "submitted": "bold cyan"}
        ended = 0
        for leg in self.run.legs:
            progress = self.legs[leg.name]
            if progress.phase in _GOOD and len(self.run.legs) > 30:
                ended += 1
                continue
            since = f"{time.time() - progress.last.at:.0f} s" if progress.phase is LegPhase.SUBMITTED else ""
            style = styles.get(progress.phase.value, "")
            note = self.notes.get(leg.name, progress.last.reason)[:_NOTE]
            engine = leg.on(progress.now.engine).engine
            grid.add_row(leg.name, engine, Text(progress.phase.value, style=style), since, Text(note, style="dim"))
        if ended:
            grid.add_row(f"{ended} done")
        return grid
