"""How large the runs of a repository are, counted before anything is pushed: what no run gets past is refused here."""

from __future__ import annotations

import math

import msgspec

from kci.config.values import Tier
from kci.diagnostics import Diagnostic, Severity, finding
from kci.plan.budget import check_time
from kci.plan.callers import MAX_JOBS, caller_count, check_callers, run_jobs
from kci.plan.github import MANY_JOBS, check_limits
from kci.plan.plan import Plan
from kci.plan.sharding import MAX_MATRIX
from kci.render.github_limits import limits
from kci.workspace.planning import plan_everything
from kci.workspace.workspace import Workspace


class Bounds(msgspec.Struct, frozen=True):
    """What there is to say about the size of the runs."""

    refused: list[Diagnostic]
    warnings: list[Diagnostic]
    plans: dict[str, Plan] = {}
    """Everything that a run of each tier can build."""


def grown(count: int) -> int:
    """A number of kernels, legs or jobs after the growth that a workflow file must have room for."""
    return math.ceil(count * limits().growth)


def check_bounds(workspace: Workspace) -> Bounds:
    """Count the largest run of each kind: everything that a push, a pull request or a schedule may build at once.

    Returns:
        what no run would get past (KCI419), and what will get there as the repository grows (KCI420) or may end too
        late (KCI335).
    """
    settings = workspace.settings.settings
    tiers = {str(Tier.RELEASE): "a push", settings.pull_request.tier: "a pull request",
             settings.schedule.tier: "the scheduled run"}  # fmt: skip
    refused: list[Diagnostic] = []
    warnings: list[Diagnostic] = []
    plans = {tier: plan_everything(workspace, tier) for tier in tiers}
    for tier, when in tiers.items():
        found = _of_run(workspace, plans[tier], f"{when} of everything (tier {tier})")
        refused += found.refused
        warnings += found.warnings
    legs = {(leg.kernel, leg.name): leg for plan in plans.values() for leg in plan.legs}
    return Bounds(refused, warnings + check_time(legs.values()), plans)


def _of_run(workspace: Workspace, plan: Plan, what: str) -> Bounds:
    several = len(workspace.kernels) > 1
    # With room for growth: callers are counted for the kernels of tomorrow, so that none of them moves then.
    count = caller_count(grown(len(workspace.kernels)))
    problems = check_callers(plan, count) if several else check_limits(plan)
    refused = [
        finding("KCI419", f"{what}: {item.message}", hint=item.hint)
        for item in problems
        if item.severity is Severity.ERROR
    ]
    if refused:
        return Bounds(refused, [])
    return Bounds([], [finding("KCI420", f"{what}: {text}", hint=_HINT) for text in _tight(plan, several)])


_HINT = 'group legs: `group = "image"` or `"backend"` under `[plan]` in kci.toml'


def _tight(plan: Plan, several: bool) -> list[str]:
    """What is near a limit."""
    legs: dict[str, int] = {}
    for leg in plan.legs:
        legs[leg.kernel] = legs.get(leg.kernel, 0) + 1
    told = [
        f"{name} has {count} legs, and {MAX_MATRIX} are possible"
        for name, count in sorted(legs.items())
        if grown(count) > MAX_MATRIX
    ]
    jobs = run_jobs(len(legs) if several else 1, len(plan.legs))
    if jobs > MANY_JOBS:
        told.append(f"{jobs} jobs; GitHub's page is hard to use from {MANY_JOBS} on, and {MAX_JOBS} are refused")
    elif grown(jobs) > MAX_JOBS:
        told.append(f"{jobs} jobs, and {MAX_JOBS} are possible")
    return told
