"""`kci run`: plan, build, merge and verify on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import click

from kci.builders.request import BuildOptions
from kci.builders.toolchains.downloads import duration, explains_wait
from kci.cli import (
    Options,
    at_interrupt,
    file_option,
    is_dumb_terminal,
    kci_command,
    options,
    repeated,
    use_color,
)
from kci.cli._answers import print_trees
from kci.cli._output import Layout, answer, say, shorten, table
from kci.cli._workspace import (
    ISOLATION,
    JOBS,
    KERNELS,
    load_workspace,
    selection_options,
    take_choice,
)
from kci.diagnostics import Severity
from kci.errors import KciError
from kci.matrix.variants import ObjectUse
from kci.run import local
from kci.run.local import Outcome, OutcomeState
from kci.utils.suggest import count


@kci_command("run")
@KERNELS
@selection_options
@file_option(
    "--into",
    "PATH",
    "The tree to write (default: KERNEL/build); with several kernels, a folder of trees.",
)
@JOBS
@ISOLATION
@repeated(
    "--arch",
    "archs",
    "ARCH",
    "Compile only for this GPU, such as 9.0a: faster, but not for publishing; nothing is merged.",
)
def command(
    kernels: tuple[str, ...],
    into: Path | None,
    archs: tuple[str, ...],
    jobs: int | None,
    isolation: bool,
    **selection: Any,
) -> int:
    """Build and load every variant of each KERNEL that this machine can build, merge them into a
    tree, and verify it.

    The tree is `build/` in the kernel's directory unless --into names another place. A variant that
    needs another machine is skipped, and the table says why. A variant whose torch cannot be
    installed is built and not loaded: that is not an error here, but it cannot be published. A
    rerun reuses what an interrupted run has finished.

    Examples:
        # build every variant that this machine can build, merge, verify
        kci run
        # build only some variants
        kci run --where 'torch == newest' --backend cpu
    """
    workspace = load_workspace(kernels, selection["catalog"], names=selection["names"])
    outcomes = local.outcomes_of(workspace, take_choice(selection))
    how = BuildOptions(isolation=isolation, jobs=jobs, archs=archs)
    try:
        with RunDisplay(outcomes, options()) as display:
            places = local.tree_places(workspace, into)
            result = local.run_here(workspace, outcomes, places, how, display.changed, display.say)
    except KeyboardInterrupt:
        say("the same command continues: kci keeps finished downloads and objects")
        raise
    return _report(result, places if archs else {})


_LAYOUT = Layout(drop=("merged", "kernel"), cut=("kernel", "variant"), wrap="time or reason")


def _report(result: local.RunResult, unmerged: Mapping[str, Path] = {}) -> int:
    merged = {
        (tree.kernel, entry.variant): tree
        for tree in result.trees
        for entry in tree.manifest.present
    }
    rows = []
    for outcome in result.outcomes:
        name, state = outcome.variant.name, outcome.state
        tree = merged.get((outcome.kernel, name))
        verified = ""
        if state in (OutcomeState.BUILT, OutcomeState.REUSED) and tree:
            errors = sum(
                item.severity is Severity.ERROR
                for item in tree.findings
                if f"/{name}/" in f"/{item.path}/"
            )
            verified = count(errors, "error") if errors else "yes"
        took = f"{outcome.seconds:.0f} s" if state is OutcomeState.BUILT else outcome.note
        took += f", {outcome.objects}" if outcome.objects and outcome.objects.found else ""
        loaded = outcome.loaded
        took += f", {loaded}" if loaded and loaded.reason else ""
        word = "" if not loaded else "yes" if loaded.torch else "not loaded"
        rows.append((outcome.kernel, name, state, "yes" if verified else "", verified, word, took))
    headers = ("kernel", "variant", "state", "merged", "verified", "loaded", "time or reason")
    answer(table(headers, rows, _LAYOUT))
    used = [outcome.objects for outcome in result.outcomes if outcome.objects]
    if len(used) > 1 and any(item.found for item in used):
        answer(str(sum(used, ObjectUse(0, 0))))
    code = print_trees(result.trees)
    if failed := _print_errors(result, OutcomeState.FAILED, "red"):
        return max(error.exit_code for error in failed)
    made = (
        [unmerged[item.kernel] / item.variant.name for item in result.outcomes if item.directory]
        if unmerged
        else []
    )
    for directory in made:
        answer(str(directory))
    if not result.trees and not made:
        lacking = _print_errors(result, OutcomeState.LEFT, "yellow")
        lacks = "nothing was built: the table says what each variant lacks"
        say(lacks if lacking else "nothing was built: every variant needs another machine")
        say(
            "  hint: `kci render` writes workflows that build them; with `--ci snakemake` for "
            "your cluster"
        )
        return 3
    return code


def _print_errors(result: local.RunResult, state: OutcomeState, color: str) -> list[KciError]:
    ended = [
        (outcome, outcome.error)
        for outcome in result.outcomes
        if outcome.state is state and outcome.error
    ]
    errors = {error.message: error for _, error in ended}
    for message, error in errors.items():
        same = [outcome for outcome, its in ended if its.message == message]
        kernels = ", ".join(dict.fromkeys(outcome.kernel for outcome in same))
        who = (
            f"{kernels} {same[0].variant.name}"
            if len(same) == 1
            else f"{count(len(same), 'variant')} of {kernels}"
        )
        say(f"\n{click.style(f'{who} {state}:', fg=color)} {message}")
        if error.hint:
            say(f"  hint: {error.hint}")
    return list(errors.values())


_STYLES = {
    "built": "green",
    "reused": "green",
    "failed": "red",
    "left": "dim",
    "building": "bold cyan",
}
_MARKS = {"waiting": "·", "failed": "✗", "left": "✗"}
_STAYS = ("note: ", "warning: ", "waiting for another kci")
"""Lines that stay on the screen; others make way for the next one."""
_RUNNING = (OutcomeState.WAITING, OutcomeState.BUILDING)


class RunDisplay:
    """The progress on stderr: a live table on a terminal; elsewhere lines, which wait for the end
    of their variant.
    """

    def __init__(self, outcomes: list[Outcome], flags: Options) -> None:
        self.options = flags
        self.live: Any = None
        self._outcomes = outcomes
        self._started: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._held: dict[str, list[str]] = {}
        self._compiling: set[str] = set()

    def __enter__(self) -> Self:
        if self.options.quiet or is_dumb_terminal() or not sys.stderr.isatty():
            return self
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, no_color=use_color(self.options) is False)
        self.live = Live(console=console, get_renderable=self.shown, refresh_per_second=8)
        self.live.start()
        at_interrupt.append(self.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for key in list(self._held):
            self._print_held_lines(key)

    def stop(self) -> None:
        if self.live:
            live, self.live = self.live, None
            at_interrupt.remove(self.stop)
            live.stop()

    def say(self, line: str) -> None:
        if not self.options.quiet:
            say(line)

    def changed(self, outcome: Outcome) -> None:
        key = f"{outcome.kernel} {outcome.variant.name}"
        if outcome.state is OutcomeState.BUILDING:
            self._started.setdefault(key, time.monotonic())
        if self.live and outcome.line.startswith(_STAYS) and outcome.line not in self._said:
            self._said[outcome.line] = key
            self.live.console.print(outcome.line, markup=False, highlight=False)
        if self.live or self.options.quiet:
            return
        line = f"{key}: {outcome.state}"
        if outcome.state is OutcomeState.BUILT:
            line += f" in {outcome.seconds:.0f} s"
        if self._said.get(key) != line:
            if outcome.state not in _RUNNING:
                self._print_held_lines(key)
            say(line)
            self._said[key] = line
        elif outcome.progress and key not in self._compiling:
            self._compiling.add(key)
            say(f"  compiling {key}: {count(outcome.progress.total, 'step')}")
        elif explains_wait(outcome.line):
            say(f"  {outcome.line}")
        elif self.options.verbose:
            self._held.setdefault(key, []).append(outcome.line)

    def _print_held_lines(self, key: str) -> None:
        for line in self._held.pop(key, ()):
            say(f"  {line}")

    def shown(self) -> Any:
        import shutil

        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        width = (
            shutil.get_terminal_size().columns
        )  # rich replaces stderr, so it asks for the terminal
        several = len({outcome.kernel for outcome in self._outcomes}) > 1 and width >= 80
        room = 28 if width < 80 else 40 if width < 100 else 60
        notes = max(0, width - room - 50 - (20 if several else 0))
        grid = Table.grid(padding=(0, 2))
        elsewhere = 0
        for outcome in self._outcomes:
            if outcome.state is OutcomeState.LEFT and not outcome.error:
                elsewhere += 1
                continue
            building = outcome.state is OutcomeState.BUILDING
            begun = self._started.get(f"{outcome.kernel} {outcome.variant.name}", time.monotonic())
            seconds = time.monotonic() - begun if building else outcome.seconds
            grid.add_row(
                Spinner("dots") if building else Text(_MARKS.get(outcome.state, "✓")),
                *([shorten(outcome.kernel, 18)] if several else []),
                shorten(outcome.variant.name, room),
                Text(outcome.state, style=_STYLES.get(outcome.state, "")),
                f"{seconds:.0f} s" if seconds else "",
                progress_text(outcome) if building else "",
                Text(shorten(outcome.note, notes), style="dim") if notes > 12 else "",
            )
        if elsewhere:
            grid.add_row(
                "",
                *([""] if several else []),
                Text(f"{elsewhere} left for other machines", style="dim"),
            )
        return grid


def progress_text(outcome: Outcome) -> str:
    """`12/40, 3 min left`; empty before the compilers start."""
    progress = outcome.progress
    if not progress:
        return ""
    done, left = f"{progress.done}/{progress.total}", progress.seconds_left
    return (
        done
        if left is None or progress.done == progress.total
        else f"{done}, {duration(left)} left"
    )
