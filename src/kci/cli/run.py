"""`kci run`: the whole job on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kci.builders.request import BuildOptions
from kci.cli import PATH, Command, completed, options
from kci.cli._engine_run import follow
from kci.cli._findings import print_trees
from kci.cli._output import Layout, table
from kci.cli._run_display import RunDisplay
from kci.cli._workspace import CACHE, ISOLATION, JOBS, opened, selection_options, take_choice
from kci.diagnostics import Severity
from kci.errors import UsageError
from kci.plurals import count
from kci.remote.engine_plan import EngineRequest, open_run, prepare_run
from kci.run import local


@click.command("run", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@selection_options
@click.option(
    "--into", type=PATH, help="The tree to write (default: KERNEL/build); with several kernels, a folder of trees."
)
@JOBS
@ISOLATION
@CACHE
@click.option(
    "--engine",
    metavar="NAME",
    shell_complete=completed("engines"),
    help="Build on an engine: local, slurm, ssh, hf-jobs, an engine from kci.toml, or auto.",
)
@click.option("--resume", metavar="RUN", help="Continue a run that was started with --engine.")
@click.option(
    "--test", is_flag=True, help="With --engine: test the merged trees on the engines that have the hardware."
)
@click.option("--allow-empty", is_flag=True, help="With --test: exit 0 if there is nothing to test, or no test ran.")
@click.option(
    "--max-cost", type=click.FloatRange(0), help="With --engine: refuse a run or a restart whose estimate is higher."
)
@click.option(
    "--on-interrupt",
    type=click.Choice(["ask", "cancel", "leave"]),
    default="ask",
    show_default=True,
    help="With --engine: what Ctrl-C does with running legs. Without a terminal, `ask` leaves them running.",
)
def command(
    kernels: tuple[str, ...],
    into: Path | None,
    jobs: int | None,
    isolation: bool,
    cache: Path,
    engine: str | None,
    resume: str | None,
    test: bool,
    allow_empty: bool,
    max_cost: float | None,
    on_interrupt: str,
    **selection: Any,
) -> int:
    """Build every variant of each KERNEL that this machine can build, merge them into a tree, and verify it.

    The tree is `build/` in the kernel's directory unless --into names another place. A variant that needs another
    machine is skipped, and the table says why. A rerun reuses what an interrupted run has finished.

    With --engine the legs run on a cluster, a host or a service: see docs/engines.md.

    Examples:
        # build every variant that this machine can build, merge, verify
        kci run
        # build only some variants
        kci run --where 'torch == newest' --backend cpu
        # build on a cluster, a host or a service from kci.toml
        kci run --engine cluster
    """
    if resume is not None:
        return follow(*open_run(cache, resume), on_interrupt)
    workspace = opened(kernels, selection["catalog"])
    if engine is not None:
        wanted = EngineRequest(
            choice=take_choice(selection), engine=engine, into=into, jobs=jobs, max_cost=max_cost, test=test,
            allow_empty=allow_empty,
        )  # fmt: skip
        return follow(*prepare_run(workspace, wanted, cache), on_interrupt)
    if max_cost is not None:
        raise UsageError("--max-cost needs --engine: a build on this machine costs nothing")
    if test:
        raise UsageError("--test needs --engine", hint="to test what this machine built: kci test")
    outcomes = local.outcomes_of(workspace, take_choice(selection))
    how = BuildOptions(cache, isolation=isolation, jobs=jobs)
    with RunDisplay(outcomes, options()) as display:
        result = local.run_here(workspace, outcomes, local.tree_places(workspace, into), how, display.changed)
    return _report(result)


_LAYOUT = Layout(drop=("merged", "kernel"), cut=("kernel", "variant"), wrap="time or reason")


def _report(result: local.RunResult) -> int:
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
                took or outcome.note,
            )
        )
    click.echo(table(("kernel", "variant", "state", "merged", "verified", "time or reason"), rows, _LAYOUT))
    code = print_trees(result.trees)
    failed = [outcome for outcome in result.outcomes if outcome.state is local.OutcomeState.FAILED]
    for outcome in failed:
        message = outcome.error.message if outcome.error else outcome.note
        click.echo(f"\n{click.style(f'{outcome.kernel} {outcome.variant.name} failed:', fg='red')} {message}", err=True)
        if outcome.error and outcome.error.hint:
            click.echo(f"  hint: {outcome.error.hint}", err=True)
    if failed:
        return max(outcome.error.exit_code if outcome.error else 4 for outcome in failed)
    if not result.trees:
        lacking = [outcome.error for outcome in result.outcomes if outcome.error is not None]
        for error in {item.message: item for item in lacking}.values():
            hint = f"\n  hint: {error.hint}" if error.hint else ""
            click.echo(f"{click.style('left:', fg='yellow')} {error.message}{hint}", err=True)
        click.echo("nothing was built: every variant needs another machine", err=True)
        click.echo("  hint: `kci render` writes workflows that build them; --engine uses machines of yours", err=True)
        return 3
    return code


def _verified(tree: local.TreeResult, variant: str) -> str:
    mine = [item for item in tree.findings if f"/{variant}/" in f"/{item.path}/"]
    errors = sum(item.severity is Severity.ERROR for item in mine)
    return count(errors, "error") if errors else "yes"
