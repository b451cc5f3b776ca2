"""`kci run`: the whole job on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kci.builders.cache import default_cache
from kci.cli import Command, Options
from kci.cli._engine_run import follow
from kci.cli._output import print_diagnostics, table
from kci.cli._workspace import opened, selection_options, take_choice
from kci.diagnostics import Severity
from kci.errors import UsageError
from kci.run import local
from kci.run.engine_plan import EngineRequest, open_run, prepare_run
from kci.run.one_variant import BuildOptions


@click.command("run", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@selection_options
@click.option("--into", type=click.Path(path_type=Path), help="The tree; one folder per kernel if there are several.")
@click.option("--jobs", type=click.IntRange(1), help="Compilers that may run in parallel.")
@click.option("--no-isolation", is_flag=True, help="Compile against the torch of this Python, not one of kci's own.")
@click.option("--cache", type=click.Path(path_type=Path), envvar="KCI_CACHE", help="Where kci keeps its environments.")
@click.option("--engine", metavar="NAME", help="Build elsewhere: local, slurm, ssh, hf-jobs, one of kci.toml, or auto.")
@click.option("--resume", metavar="RUN", help="Go on with a run that was begun with --engine.")
@click.option("--max-cost", type=click.FloatRange(0), help="With --engine: refuse a run, or a restart, above this.")
@click.option(
    "--on-interrupt",
    type=click.Choice(["ask", "cancel", "leave"]),
    default="ask",
    show_default=True,
    help="With --engine: what Ctrl-C does to legs that run; without a terminal `ask` leaves them.",
)
@click.pass_obj
def command(
    options: Options,
    /,
    kernels: tuple[str, ...],
    into: Path | None,
    jobs: int | None,
    no_isolation: bool,
    cache: Path | None,
    engine: str | None,
    resume: str | None,
    max_cost: float | None,
    on_interrupt: str,
    **selection: Any,
) -> int:
    """Build every variant of each KERNEL that this machine can build, merge them into a tree, and verify it.

    The tree is `build/` in the kernel's directory unless --into names another place. What needs another machine is
    left, with the reason. A rerun takes over what an interrupted one has finished.

    With --engine the legs run elsewhere, as docs/engines.md tells.
    """
    if resume is not None:
        return follow(*open_run(cache or default_cache(), resume), options, on_interrupt)
    workspace = opened(options, kernels, selection["catalog"])
    if engine is not None:
        wanted = EngineRequest(choice=take_choice(selection), engine=engine, into=into, jobs=jobs, max_cost=max_cost)
        return follow(*prepare_run(workspace, wanted, cache or default_cache()), options, on_interrupt)
    if max_cost is not None:
        raise UsageError("--max-cost is for --engine: what is built here costs nothing")
    outcomes = local.outcomes_of(workspace, take_choice(selection))
    how = BuildOptions(
        cache or default_cache(), isolation=not no_isolation, jobs=jobs, mirrors=workspace.settings.settings.mirrors
    )
    with _display(outcomes, options) as changed:
        result = local.run_here(workspace, outcomes, local.tree_places(workspace, into), how, changed)
    return _report(result, options)


def _report(result: local.RunResult, options: Options) -> int:
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
        print_diagnostics(tree.findings, quiet=options.quiet)
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

    def __init__(self, outcomes: list[local.Outcome], options: Options) -> None:
        self.outcomes = outcomes
        self.options = options
        self.live: Any = None
        self.started: dict[str, float] = {}
        self.said: dict[str, str] = {}

    def __enter__(self) -> Callable[[local.Outcome], None]:
        if self.options.quiet:
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
        if self.said.get(key) != line or (self.options.verbose and outcome.note):
            click.echo(f"{line} {outcome.note}" if self.options.verbose else line, err=True)
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
