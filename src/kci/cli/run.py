"""`kci run`: plan, build, merge and verify on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import click

from kci.builders.process.machine import Progress
from kci.builders.request import BuildOptions
from kci.builders.toolchains.downloads import duration, explains_wait
from kci.cli import at_interrupt, file_option, kci_command, repeated
from kci.cli._answers import print_suppressed
from kci.cli._output import (
    Layout,
    Options,
    answer,
    is_dumb_terminal,
    options,
    print_diagnostics,
    progress_log,
    say,
    table,
    use_color,
)
from kci.cli._workspace import (
    ISOLATION,
    JOBS,
    KERNELS,
    open_selection,
    selection_options,
)
from kci.diagnostics import errors_in
from kci.errors import KciError
from kci.matrix.variants import ObjectUse
from kci.run import local
from kci.run.local import Outcome, OutcomeState
from kci.utils.suggest import count


@kci_command
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
    workspace, choice = open_selection(kernels, selection)
    outcomes = local.outcomes_of(workspace, choice)
    how = BuildOptions(isolation=isolation, jobs=jobs, archs=archs)
    try:
        with RunDisplay(outcomes, options()) as display:
            places = local.tree_places(workspace, into)
            log = progress_log()
            result = local.run_here(workspace, outcomes, places, how, display.changed, log)
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
        name, state, loaded = outcome.variant.name, outcome.state, outcome.loaded
        done_here = state in (OutcomeState.BUILT, OutcomeState.REUSED)
        tree = merged.get((outcome.kernel, name)) if done_here else None
        verified = ""
        if tree:
            its = (item for item in tree.findings if f"/{name}/" in f"/{item.path}/")
            errors = errors_in(its)
            verified = count(len(errors), "error") if errors else "yes"
        took = [f"{outcome.seconds:.0f} s"] if state is OutcomeState.BUILT else []
        took += [] if done_here else [outcome.note]
        took += [str(outcome.objects)] if outcome.objects and outcome.objects.found else []
        took += [str(loaded)] if loaded and loaded.reason else []
        word = "" if not loaded else "yes" if loaded.torch else "not loaded"
        done = ("yes" if tree else "", verified, word, ", ".join(took))
        rows.append((outcome.kernel, name, state, *done))
    headers = ("kernel", "variant", "state", "merged", "verified", "loaded", "time or reason")
    answer(table(headers, rows, _LAYOUT))
    used = [outcome.objects for outcome in result.outcomes if outcome.objects]
    if len(used) > 1 and any(item.found for item in used):
        answer(sum(used, ObjectUse(0, 0)))
    for tree in result.trees:
        missing = f", {len(tree.manifest.missing)} missing" if tree.manifest.missing else ""
        hidden = f" ({len(tree.suppressed)} suppressed)" if tree.suppressed else ""
        present = count(len(tree.manifest.present), "variant")
        answer(f"{tree.kernel}: {present} in {tree.tree}{missing}{hidden}")
        print_suppressed(tree.suppressed if options().verbose else ())
        print_diagnostics(tree.findings)
    if failed := _print_errors(result, OutcomeState.FAILED, "red"):
        return max(error.exit_code for error in failed)
    made = [item for item in result.outcomes if item.directory and item.kernel in unmerged]
    for item in made:
        answer(unmerged[item.kernel] / item.variant.name)
    if result.trees or made:
        return int(any(errors_in(tree.findings) for tree in result.trees))
    lacking = _print_errors(result, OutcomeState.LEFT, "yellow")
    why = (
        "the table says what each variant lacks"
        if lacking
        else "every variant needs another machine"
    )
    say(f"nothing was built: {why}")
    hint = "`kci render` writes workflows that build them; with `--ci snakemake` for your cluster"
    say(f"  hint: {hint}")
    return 3


def _print_errors(result: local.RunResult, state: OutcomeState, color: str) -> list[KciError]:
    errors: dict[str, KciError] = {}
    ended: dict[str, list[Outcome]] = {}
    for outcome in result.outcomes:
        if outcome.state is state and (error := outcome.error):
            errors[error.message] = error
            ended.setdefault(error.message, []).append(outcome)
    for message, error in errors.items():
        one, *others = same = ended[message]
        kernels = ", ".join(dict.fromkeys(outcome.kernel for outcome in same))
        who = f"{count(len(same), 'variant')} of {kernels}" if others else one.key
        say(f"\n{click.style(f'{who} {state}:', fg=color)} {message}")
        if error.hint:
            say(f"  hint: {error.hint}")
    return list(errors.values())


_LOOKS = {
    "waiting": ("·", ""),
    "building": ("", "bold cyan"),
    "built": ("✓", "green"),
    "reused": ("✓", "green"),
    "failed": ("✗", "red"),
    "left": ("✗", "dim"),
}
"""The mark of each state, and its style."""
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
        self._said: set[str] = set()
        self._held: dict[str, list[str]] = {}

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

    def _is_new(self, said: str) -> bool:
        known = said in self._said
        self._said.add(said)
        return not known

    def changed(self, outcome: Outcome) -> None:
        key, line = outcome.key, outcome.line
        if outcome.state is OutcomeState.BUILDING:
            self._started.setdefault(key, time.monotonic())
        if self.live and line.startswith(_STAYS) and self._is_new(line):
            self.live.console.print(line, markup=False, highlight=False)
        if self.live or self.options.quiet:
            return
        took = f" in {outcome.seconds:.0f} s" if outcome.state is OutcomeState.BUILT else ""
        if self._is_new(state := f"{key}: {outcome.state}{took}"):
            if outcome.state not in _RUNNING:
                self._print_held_lines(key)
            say(state)
        elif outcome.progress and self._is_new(f"compiling {key}"):
            say(f"  compiling {key}: {count(outcome.progress.total, 'step')}")
        elif explains_wait(line):
            say(f"  {line}")
        elif self.options.verbose:
            self._held.setdefault(key, []).append(line)

    def _print_held_lines(self, key: str) -> None:
        for line in self._held.pop(key, ()):
            say(f"  {line}")

    def shown(self) -> Any:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        several = len({outcome.kernel for outcome in self._outcomes}) > 1
        grid = Table.grid(padding=(0, 2))
        for _ in range(4):
            grid.add_column(no_wrap=True)
        elsewhere = 0
        for outcome in self._outcomes:
            if outcome.state is OutcomeState.LEFT and not outcome.error:
                elsewhere += 1
                continue
            building = outcome.state is OutcomeState.BUILDING
            begun = self._started.get(outcome.key, time.monotonic())
            seconds = time.monotonic() - begun if building else outcome.seconds
            mark, style = _LOOKS[outcome.state]
            progress = progress_text(outcome.progress) if building and outcome.progress else ""
            note = f"{progress}  {outcome.note}".strip()
            grid.add_row(
                Spinner("dots") if building else mark,
                outcome.key if several else outcome.variant.name,
                Text(outcome.state, style=style),
                f"{seconds:.0f} s" if seconds else "",
                Text(note, style="dim", no_wrap=True, overflow="ellipsis"),
            )
        if elsewhere:
            grid.add_row("", Text(f"{elsewhere} left for other machines", style="dim"))
        return grid


def progress_text(progress: Progress) -> str:
    """`12/40, 3 min left`."""
    done, left = f"{progress.done}/{progress.total}", progress.seconds_left
    if left is None or progress.done == progress.total:
        return done
    return f"{done}, {duration(left)} left"
