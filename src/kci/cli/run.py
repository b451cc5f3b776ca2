"""`kci run`: the whole job on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kci.build.request import BuildOptions
from kci.build.toolchains.compilers import ObjectUse
from kci.cli import PATH, Command, options
from kci.cli._findings import print_trees
from kci.cli._output import Layout, table
from kci.cli._run_display import RunDisplay
from kci.cli._workspace import ISOLATION, JOBS, KERNELS, opened, selection_options, take_choice
from kci.diagnostics import Severity
from kci.errors import KciError
from kci.run import local
from kci.utils.suggest import count


@click.command("run", cls=Command)
@KERNELS
@selection_options
@click.option(
    "--into", type=PATH, help="The tree to write (default: KERNEL/build); with several kernels, a folder of trees."
)
@JOBS
@ISOLATION
def command(
    kernels: tuple[str, ...],
    into: Path | None,
    jobs: int | None,
    isolation: bool,
    **selection: Any,
) -> int:
    """Build every variant of each KERNEL that this machine can build, merge them into a tree, and verify it.

    The tree is `build/` in the kernel's directory unless --into names another place. A variant that needs another
    machine is skipped, and the table says why. A rerun reuses what an interrupted run has finished.

    Examples:
        # build every variant that this machine can build, merge, verify
        kci run
        # build only some variants
        kci run --where 'torch == newest' --backend cpu
    """
    workspace = opened(kernels, selection["catalog"])
    outcomes = local.outcomes_of(workspace, take_choice(selection))
    how = BuildOptions(isolation=isolation, jobs=jobs)
    try:
        with RunDisplay(outcomes, options()) as display:
            places = local.tree_places(workspace, into)
            result = local.run_here(workspace, outcomes, places, how, display.changed, display.say)
    except KeyboardInterrupt:
        click.echo("the same command goes on: what was downloaded and compiled to its end is kept", err=True)
        raise
    return _report(result)


_LAYOUT = Layout(drop=("merged", "kernel"), cut=("kernel", "variant"), wrap="time or reason")


def _report(result: local.RunResult) -> int:
    """Print the closing table and what went wrong, and give the exit code of the worst failure."""
    merged = {(tree.kernel, entry.variant): tree for tree in result.trees for entry in tree.manifest.present}
    rows = []
    for outcome in result.outcomes:
        name, state = outcome.variant.name, outcome.state
        tree = merged.get((outcome.kernel, name))
        verified = ""
        if state in (local.OutcomeState.BUILT, local.OutcomeState.REUSED) and tree is not None:
            errors = sum(item.severity is Severity.ERROR for item in tree.findings if f"/{name}/" in f"/{item.path}/")
            verified = count(errors, "error") if errors else "yes"
        took = f"{outcome.seconds:.0f} s" if state is local.OutcomeState.BUILT else outcome.note
        took += f", {outcome.objects}" if outcome.objects and outcome.objects.found else ""
        rows.append((outcome.kernel, name, state.value, "yes" if verified else "", verified, took))
    click.echo(table(("kernel", "variant", "state", "merged", "verified", "time or reason"), rows, _LAYOUT))
    used = [outcome.objects for outcome in result.outcomes if outcome.objects]
    if len(used) > 1 and any(item.found for item in used):
        click.echo(str(sum(used, ObjectUse(0, 0))))
    code = print_trees(result.trees)
    if failed := _say_errors(result, local.OutcomeState.FAILED, "red"):
        return max(error.exit_code for error in failed)
    if not result.trees:
        lacking = _say_errors(result, local.OutcomeState.LEFT, "yellow")
        lacks = "nothing was built: the table says what each variant lacks"
        click.echo(lacks if lacking else "nothing was built: every variant needs another machine", err=True)
        click.echo(
            "  hint: `kci render` writes workflows that build them; with `--ci snakemake` for a cluster of yours",
            err=True,
        )
        return 3
    return code


def _say_errors(result: local.RunResult, state: local.OutcomeState, color: str) -> list[KciError]:
    """Say why variants failed or were left: once what the machine or its cache does to several."""
    ended = [(outcome, outcome.error) for outcome in result.outcomes if outcome.state is state and outcome.error]
    errors = {error.message: error for _, error in ended}
    for message, error in errors.items():
        same = [outcome for outcome, its in ended if its.message == message]
        kernels = ", ".join(dict.fromkeys(outcome.kernel for outcome in same))
        who = f"{kernels} {same[0].variant.name}" if len(same) == 1 else f"{count(len(same), 'variant')} of {kernels}"
        click.echo(f"\n{click.style(f'{who} {state}:', fg=color)} {message}", err=True)
        if error.hint:
            click.echo(f"  hint: {error.hint}", err=True)
    return list(errors.values())
