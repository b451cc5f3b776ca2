"""`kci run`: the whole job on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kci.cli import Command, Options
from kci.cli._kernels import selected_matrix, selection_options
from kci.cli._output import print_diagnostics, table
from kci.diagnostics import Severity
from kci.errors import UsageError
from kci.matrix.names import this_system
from kci.run import local
from kci.run.make_variant import BuildOptions

if TYPE_CHECKING:
    from kci.config.reader import Kernel


@click.command("run", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@selection_options
@click.option("--into", type=click.Path(path_type=Path), help="The tree; one folder per kernel if there are several.")
@click.option("--jobs", type=click.IntRange(1), help="Compilers that may run side by side.")
@click.option("--no-isolation", is_flag=True, help="Compile against the torch of this Python, not one of kci's own.")
@click.option("--cache", type=click.Path(path_type=Path), envvar="KCI_CACHE", help="Where kci keeps its environments.")
@click.pass_obj
def command(
    state: Options,
    /,
    kernels: tuple[str, ...],
    into: Path | None,
    jobs: int | None,
    no_isolation: bool,
    cache: Path | None,
    **selection: Any,
) -> int:
    """Build every variant of each KERNEL that this machine can build, merge them into a tree, and verify it.

    The tree is `build/` in the kernel's directory unless --into names another place. What needs another machine is
    left, with the reason. A rerun takes over what an interrupted one has finished.
    """
    from kci.builders.cache import default_cache

    matrix, read = selected_matrix(state, kernels, **selection)
    outcomes = local.outcomes_of(matrix, this_system())
    if not outcomes:
        raise UsageError("no variant is selected", hint="`kci matrix --explain` says why")
    options = BuildOptions(cache or default_cache(), isolation=not no_isolation, jobs=jobs)
    with _display(outcomes, state) as changed:
        result = local.run_here(read, outcomes, _trees(read, into), options, changed)
    return _report(result, state)


def _trees(kernels: list[Kernel], into: Path | None) -> dict[str, Path]:
    if into is None:
        return {kernel.build.name: Path(kernel.directory) / "build" for kernel in kernels}
    if len(kernels) == 1:
        return {kernels[0].build.name: into}
    return {kernel.build.name: into / kernel.build.name for kernel in kernels}


def _report(result: local.RunResult, state: Options) -> int:
    """Print the closing table and what went wrong; the exit code says the worst of it."""
    merged = {(tree.kernel, entry.variant): tree for tree in result.trees for entry in tree.manifest.present}
    rows = []
    for outcome in result.outcomes:
        tree = merged.get((outcome.kernel, outcome.variant.name))
        in_tree = outcome.state in (local.OutcomeState.BUILT, local.OutcomeState.REUSED) and tree is not None
        took = f"{outcome.seconds:.0f} s" if outcome.state is local.OutcomeState.BUILT else ""
        rows.append(
            (
                outcome.kernel,
                outcome.variant.name,
                outcome.state.value,
                "yes" if in_tree else "",
                _verified(tree, outcome.variant.name) if in_tree and tree else "",
                took or outcome.note[:100],
            )
        )
    click.echo(table(("kernel", "variant", "state", "merged", "verified", "time or reason"), rows))
    for tree in result.trees:
        click.echo(f"{tree.kernel}: {len(tree.manifest.present)} variants in {tree.tree}")
        print_diagnostics(tree.findings, quiet=state.quiet)
    failed = [outcome for outcome in result.outcomes if outcome.state is local.OutcomeState.FAILED]
    for outcome in failed:
        message = outcome.error.message if outcome.error else outcome.note
        click.echo(f"\n{click.style(f'{outcome.kernel} {outcome.variant.name} failed:', fg='red')} {message}", err=True)
    if failed:
        return max(outcome.error.exit_code if outcome.error else 4 for outcome in failed)
    if not result.trees:
        lacking = [outcome.error for outcome in result.outcomes if outcome.error is not None]
        for error in {item.message: item for item in lacking}.values():
            click.echo(f"{click.style('left:', fg='yellow')} {error.message}\n  hint: {error.hint}", err=True)
        click.echo("nothing was built: every variant needs another machine", err=True)
        return 3
    errors = any(item.severity is Severity.ERROR for tree in result.trees for item in tree.findings)
    return 1 if errors else 0


def _verified(tree: local.TreeResult, variant: str) -> str:
    mine = [item for item in tree.findings if f"/{variant}/" in f"/{item.path}/"]
    errors = sum(item.severity is Severity.ERROR for item in mine)
    return f"{errors} errors" if errors else "yes"


class _display:  # noqa: N801  - used as a context manager
    """Progress on stderr: a live table on a terminal, a line per change of state elsewhere."""

    def __init__(self, outcomes: list[local.Outcome], state: Options) -> None:
        self.outcomes = outcomes
        self.state = state
        self.live: Any = None
        self.started: dict[str, float] = {}
        self.said: dict[str, str] = {}

    def __enter__(self) -> Callable[[local.Outcome], None]:
        if self.state.quiet:
            return lambda _outcome: None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(stderr=True), get_renderable=self._table, refresh_per_second=8)
            self.live.start()
        return self._changed

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def _changed(self, outcome: local.Outcome) -> None:
        key = f"{outcome.kernel} {outcome.variant.name}"
        self.started.setdefault(key, time.monotonic())
        if self.live is not None:
            return
        line = f"{key}: {outcome.state.value}"
        if outcome.state is local.OutcomeState.BUILT:
            line += f" in {outcome.seconds:.0f} s"
        if self.said.get(key) != line or (self.state.verbose and outcome.note):
            click.echo(f"{line} {outcome.note}" if self.state.verbose else line, err=True)
            self.said[key] = line

    def _table(self) -> Any:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        styles = {"built": "green", "reused": "green", "failed": "red", "left": "dim", "building": "bold cyan"}
        left = 0
        for outcome in self.outcomes:
            if outcome.state is local.OutcomeState.LEFT:
                left += 1
                continue
            key = f"{outcome.kernel} {outcome.variant.name}"
            building = outcome.state is local.OutcomeState.BUILDING
            mark = Spinner("dots") if building else Text({"waiting": "·", "failed": "✗"}.get(outcome.state.value, "✓"))
            seconds = time.monotonic() - self.started[key] if building else outcome.seconds
            grid.add_row(
                mark,
                outcome.kernel,
                outcome.variant.name,
                Text(outcome.state.value, style=styles.get(outcome.state.value, "")),
                f"{seconds:.0f} s" if seconds else "",
                Text(outcome.note[:60], style="dim"),
            )
        if left:
            grid.add_row("", "", Text(f"{left} left for other machines", style="dim"))
        return grid
