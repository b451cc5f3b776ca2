"""`kci plan`: the jobs of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from kci.cli import file_option, flag, format_option, kci_command, option, refuse_idle
from kci.cli._answers import plan_tables, touches_table
from kci.cli._output import (
    answer,
    as_markdown,
    options,
    print_diagnostics,
    print_json,
    say,
    slow_progress,
)
from kci.cli._workspace import (
    ALLOW_EMPTY,
    KERNELS,
    SYSTEM,
    open_selection,
    selection_options,
)
from kci.diagnostics import errors_in
from kci.plan.budget import estimate
from kci.plan.check import NoSoundKernelError
from kci.plan.plan import Plan
from kci.plan.planning import PlannedRun, PlanRequest, plan_run
from kci.utils.cache import default_cache


@kci_command
@KERNELS
@selection_options
@SYSTEM
@ALLOW_EMPTY
@option("--affected", "BASE", "Plan only variants that changes since this branch or commit affect.")
@file_option(
    "--trees",
    "FILE",
    "Build and test only what the trees of earlier runs lack; the file is from `kci gate --trees`.",
)
@flag("--fingerprints", "Add the hash of each variant's inputs, which `kci merge --plan` records.")
@file_option("--durations", "FILE", "Measured build times, from `kci merge --durations`.")
@click.option("--max-jobs", type=click.IntRange(0), help="Fail if there are more legs.")
@click.option("--max-cost", type=click.FloatRange(0), help="Fail if the estimate is higher.")
@format_option("table", "json", "github", "markdown")
def command(
    kernels: tuple[str, ...],
    affected: str | None,
    trees: Path | None,
    fingerprints: bool,
    output: str,
    **selection: Any,
) -> int:
    """List the legs of a run over each KERNEL with runner, image, timeout and time, and the
    variants without a leg.

    Exit 1 if there are no variants to plan, or if the plan exceeds a limit of GitHub, --max-jobs or
    --max-cost. A kernel in which `kci check` finds an error is not planned. If the error concerns
    some backends only, the plan leaves these out; that is an error if you selected one of them, or
    if no backend is left.

    Examples:
        # list the jobs of a pull request
        kci plan --affected main
        # fail if a run would cost more
        kci plan --max-cost 20
    """
    if output != "json":
        refuse_idle(f"with --format {output}", fingerprints=fingerprints)
    request = PlanRequest(
        affected=affected,
        fingerprints=fingerprints or trees is not None,
        digests=default_cache() / "inputs",
        split=output != "github",
        **{name: selection[name] for name in ("durations", "max_jobs", "max_cost", "allow_empty")},
    )
    if trees:
        from kci.run.gate import read_index, today  # it loads half of kci

        request = replace(request, **read_index(trees, say).unexpired(today()).for_plan())
    workspace, choice = open_selection(kernels, selection, set_aside=True)
    request = replace(request, choice=choice)
    try:
        planned = plan_run(workspace, request, slow_progress())
    except NoSoundKernelError as error:
        if output == "json":
            plan = Plan(1, choice.tier, (), faulty=error.faulty)
            print_json(**PlannedRun(plan, estimate(()), None, ()).as_json())
        raise
    if output == "github":
        planned.require_runnable()
    print_diagnostics(planned.diagnostics)
    print_diagnostics(planned.plan.faults)
    match output:
        case "markdown":
            answer(as_markdown(plan_tables(planned)))
        case "json":
            print_json(**planned.as_json())
        case "github":
            if planned.touches is not None and options().verbose:
                say(touches_table(planned.touches).text())
            answer(planned.github_matrix())
        case _:
            answer("\n\n".join(one.text() for one in plan_tables(planned, short=True)))
    return int(bool(planned.plan.faulty or errors_in(planned.diagnostics)))
