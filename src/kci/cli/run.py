"""`kci run`: the whole job on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kci.builders.request import BuildOptions
from kci.cli import PATH, Command, options
from kci.cli._findings import print_trees
from kci.cli._output import Layout, table
from kci.cli._run_display import ENDED_WELL, EngineDisplay, RunDisplay, first_line
from kci.cli._workspace import CACHE, ISOLATION, JOBS, KERNELS, opened, selection_options, take_choice
from kci.diagnostics import Severity
from kci.errors import ClientError, KciError, UsageError
from kci.files.full_disk import says_full
from kci.matrix.names import this_system
from kci.plurals import count
from kci.remote.engine_plan import EngineRequest, EngineRun, open_run, prepare_run
from kci.remote.engine_run import Driver, driving
from kci.remote.leg_results import merge_run
from kci.remote.run_state import OPEN, LegPhase
from kci.run import local
from kci.toolchains.crossing import is_crossed
from kci.toolchains.launcher import ObjectUse


@click.command("run", cls=Command)
@KERNELS
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
        return _follow(*open_run(cache, resume), on_interrupt)
    workspace = opened(kernels, selection["catalog"])
    if engine is not None:
        wanted = EngineRequest(
            choice=take_choice(selection), engine=engine, into=into, jobs=jobs, max_cost=max_cost, test=test,
            allow_empty=allow_empty,
        )  # fmt: skip
        return _follow(*prepare_run(workspace, wanted, cache), on_interrupt)
    if max_cost is not None:
        raise UsageError("--max-cost needs --engine: a build on this machine costs nothing")
    if test:
        raise UsageError("--test needs --engine", hint="to test what this machine built: kci test")
    outcomes = local.outcomes_of(workspace, take_choice(selection))
    how = BuildOptions(cache, isolation=isolation, jobs=jobs)
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
        if took and is_crossed(outcome.variant) and verified:
            took += f", built on {this_system()}"
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
        click.echo("  hint: `kci render` writes workflows that build them; --engine uses machines of yours", err=True)
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


def _follow(folder: Path, run: EngineRun, on_interrupt: str) -> int:
    """Drive a run on engines to its end, merge, verify, test, and report."""
    resume = f"kci run --resume {run.id}"
    if not options().quiet:
        click.echo(f"run {run.id}: {count(len(run.legs), 'leg')}; if this stops, `{resume}` goes on", err=True)
    display = EngineDisplay(run)
    with driving(folder, run, display.changed, display.say) as driver:
        display.legs = driver.journal.legs
        try:
            with display:
                driver.drive()
                trees = merge_run(driver, display.say)
                driver.release_tests(trees)
                driver.drive()
        except KeyboardInterrupt:
            _stopped(driver, on_interrupt, resume)
            raise
        except ClientError as error:
            first = "free space there" if says_full(error.message) else error.hint or "fix this"
            raise ClientError(error.message, hint=f"{first}, then `{resume}` goes on") from error
        return _report_engines(driver, trees)


def _stopped(driver: Driver, on_interrupt: str, resume: str) -> None:
    """Ask what happens to the legs that have not ended."""
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


def _report_engines(driver: Driver, trees: list[local.TreeResult]) -> int:
    """Print the closing table and what went wrong."""
    rows = []
    for leg in driver.run.legs:
        progress = driver.journal.legs[leg.name]
        place, state = driver.place(leg.name), progress.phase.value
        said = [f"{progress.last.seconds:.0f} s"] if progress.phase in ENDED_WELL else []
        said += [first_line(progress.last.reason)] if progress.last.reason else []
        rows.append((leg.job.kernel, leg.job.leg, place.engine, state, str(progress.attempts), ", ".join(said)))
    rows += [(item.kernel, item.variant, "", "untested", "", item.reason[:100]) for item in driver.run.untested]
    rows += [(item.kernel, item.variant, "", "left", "", item.reason[:100]) for item in driver.run.left]
    click.echo(table(("kernel", "leg", "engine", "state", "attempts", "time or reason"), rows))
    code = print_trees(trees)
    # What others have compiled in place of a part makes good for it.
    failed = [name for name in driver.journal.of(LegPhase.FAILED) if not driver.linked(name)]
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
