"""`kci plan`: the jobs of a run."""

from __future__ import annotations

from typing import Any

import click

from kci.cli import Command, State
from kci.cli._kernels import runners_for, selected_matrix, selection_options
from kci.cli._output import table, to_json
from kci.plan.legs import Leg, Plan, as_json, github_matrix, make_plan


@click.command("plan", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@selection_options
@click.option("--container", type=click.Choice(["auto", "none"]), default="auto", help="Build in images, or without.")
@click.option("--format", "output", type=click.Choice(["table", "json", "github"]), default="table")
@click.pass_obj
def command(state: State, /, kernels: tuple[str, ...], container: str, output: str, **selection: Any) -> None:
    """The legs of a run over each KERNEL: runner, image, timeout; and what no job can build."""
    matrix, read = selected_matrix(state, kernels, **selection)
    plan = make_plan(matrix, runners_for(read), container=container == "auto")
    match output:
        case "json":
            click.echo(to_json(as_json(plan)))
        case "github":
            click.echo(github_matrix(plan))
        case _:
            click.echo(_table(plan))


def _table(plan: Plan) -> str:
    legs = [
        (leg.kernel, leg.variant, _runner(leg), leg.image or "-", f"{leg.timeout} min", f"~{leg.minutes} min")
        for leg in plan.legs
    ]
    total = sum(leg.minutes for leg in plan.legs)
    parts = [
        table(("kernel", "variant", "runner", "image", "timeout", "takes"), legs),
        f"{len(plan.legs)} legs, about {total} machine minutes",
    ]
    if plan.left_out:
        left = [(item.kernel, item.variant, item.rule, item.reason) for item in plan.left_out]
        parts += ["", table(("left out", "variant", "rule", "reason"), left)]
    return "\n".join(parts)


def _runner(leg: Leg) -> str:
    if isinstance(leg.runner, tuple):
        return " ".join(leg.runner)
    return " ".join((f"group:{leg.runner.group}", *leg.runner.labels))
