"""The plan of a run from a workspace, and its findings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kci.config.discovery import tree_place, tree_suppressions
from kci.config.values import Tier
from kci.diagnostics import Diagnostic
from kci.matrix.variants import Matrix
from kci.plan.affected import Touch, changes_since, clean_commit, only_affected, touched_by
from kci.plan.budget import Estimate, check_budget, check_time, estimate
from kci.plan.check import Progress, no_progress, split_faulty, split_without_component
from kci.plan.durations import read_durations
from kci.plan.estimates import sizes
from kci.plan.fingerprint import Fingerprints, fingerprints, unchanged_variants
from kci.plan.github_limits import check_limits, github_matrix, refuse_errors
from kci.plan.inputs.kernel_inputs import KernelInputs
from kci.plan.inputs.source_tree import SourceTrees
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.plan import Key, Plan
from kci.plan.workspace import Choice, Workspace
from kci.utils.frozen import Frozen


class PlanRequest(PlanOptions, kw_only=True):
    """The options of `plan_run`, which sets `skip` and the fields after it."""

    choice: Choice = Choice()
    affected: str | None = None
    published: Mapping[Key, str] = {}
    """Fingerprints of published variants, which are skipped if equal; see `read_published`."""
    fingerprints: bool = False
    callers: int | None = None
    """The number of caller jobs; None for one common matrix."""
    part_jobs: int | None = None
    """The number of jobs with a matrix of parts; None for as many as needed."""
    digests: Path | None = None
    durations: Path | None = None
    max_jobs: int | None = None
    max_cost: float | None = None
    allow_empty: bool = False


class PlannedRun(Frozen):
    """A plan, its estimate and findings."""

    plan: Plan
    estimate: Estimate
    touches: tuple[Touch, ...] | None
    """The effect of each changed file; None without `affected`."""
    diagnostics: tuple[Diagnostic, ...]
    """Limits of GitHub that the plan exceeds or approaches."""

    def require_runnable(self) -> None:
        """Raise FindingsError if the plan exceeds a limit of GitHub."""
        refuse_errors(self.diagnostics)

    def with_plan(self, plan: Plan) -> PlannedRun:
        """The same run with a part of its plan."""
        return replace(self, plan=plan, estimate=estimate(plan.legs))

    def as_json(self) -> dict[str, Any]:
        """The documented JSON form (schema 1), for `msgspec.json.encode`."""
        answer = self.plan.as_json() | {"estimate": self.estimate}
        return answer | ({"affected": self.touches} if self.touches is not None else {})

    def github_matrix(self) -> str:
        return github_matrix(self.plan)


def plan_run(
    workspace: Workspace, request: PlanRequest, progress: Progress = no_progress
) -> PlannedRun:
    """Plan a run; faulty kernels are listed and not planned (of a change, only touched ones).

    `progress` hears how many kernels were checked, and of how many: the first check of many takes
    seconds. UsageError for an unknown name in the choice; FindingsError if all kernels are faulty,
    nothing is selected, names collide, a file is unreadable, or the budget is exceeded.
    """
    trees = SourceTrees(request.digests)
    try:
        workspace, faulty = split_faulty(workspace, request.choice, trees, progress)
    finally:
        trees.save()
    whole = workspace.matrix(request.choice)
    if not request.allow_empty:
        workspace.require_variants(whole, request.choice)
    matrix, bare = split_without_component(workspace, whole)
    roots = {trees.of(kernel.directory).root for kernel in workspace.kernels}
    commit = clean_commit(Path(roots.pop())) if len(roots) == 1 else None
    request = replace(_complete(request, workspace, matrix), commit=commit)
    touches: list[Touch] | None = None
    if request.affected is not None:
        changes = changes_since(Path(workspace.kernels[0].directory), request.affected)
        matrix, touches = only_affected(
            workspace, matrix, request.choice, changes, container=request.container
        )
        names = {item.path: item.kernel for item in faulty}
        names |= {kernel.directory: kernel.build.name for kernel in workspace.kernels if bare}
        touched = touched_by(changes, names, workspace)
        faulty = tuple(item for item in faulty if item.path in touched)
        bare = [item for item in bare if item.kernel in {names[path] for path in touched}]
    if request.fingerprints or request.published:
        again = {touch.kernel for touch in touches or () if touch.tests}
        request = _with_fingerprints(request, workspace, matrix, trees, again)
    trees.save()
    took = read_durations(request.durations) if request.durations else ()
    plan = make_plan(matrix, workspace.runners, request, durations=took)
    settings, released = workspace.settings, request.choice.tier not in (Tier.PR, Tier.COMPAT)
    plan = replace(
        _with_suppressions(plan, workspace),
        faulty=faulty,
        left_out=(*plan.left_out, *bare),
        leave_out=settings.settings.publish.leave_out if settings.publishes and released else None,
    )
    totals = estimate(plan.legs)
    problems = check_budget(totals, request.max_jobs, request.max_cost)
    problems += check_limits(plan, request.callers, request.part_jobs)
    problems += check_time(plan.legs, workspace.runners)
    return PlannedRun(
        plan, totals, tuple(touches) if touches is not None else None, tuple(problems)
    )


def plan_everything(workspace: Workspace, tier: str, *, split: bool = False) -> Plan:
    """All legs of a tier, for kernels that pass `require_readable`."""
    matrix, _ = split_without_component(workspace, workspace.matrix(Choice(tier=tier)))
    return make_plan(
        matrix, workspace.runners, _complete(PlanRequest(split=split), workspace, matrix)
    )


def _complete(request: PlanRequest, workspace: Workspace, matrix: Matrix) -> PlanRequest:
    grouping, trees, kernels = (
        workspace.settings.settings.plan.group,
        SourceTrees(),
        workspace.kernels,
    )
    inputs = [
        KernelInputs(kernel.build, Path(kernel.directory), trees.of(kernel.directory))
        for kernel in kernels
    ]
    marked = {item.build.name: item.marked for item in inputs}
    return replace(request, grouping=grouping, sizes=sizes(kernels, matrix), marked=marked)


def _with_suppressions(plan: Plan, workspace: Workspace) -> Plan:
    entries = tree_suppressions(workspace.settings)
    if not entries:
        return plan
    places = {
        kernel.build.name: tree_place(workspace.settings, kernel.directory)
        for kernel in workspace.kernels
    }
    kernels = tuple(replace(kernel, tree=places[kernel.name]) for kernel in plan.kernels)
    return replace(plan, kernels=kernels, suppressions=entries)


def current_variants(
    workspace: Workspace, matrix: Matrix, published: Mapping[Key, str]
) -> frozenset[Key]:
    """The published variants of a matrix with an unchanged fingerprint, by kernel and
    variant name.
    """
    request = PlanRequest(published=published)
    return frozenset(_with_fingerprints(request, workspace, matrix, SourceTrees()).skip)


def _with_fingerprints(
    request: PlanRequest,
    workspace: Workspace,
    matrix: Matrix,
    trees: SourceTrees,
    tested: Collection[str] = (),
) -> PlanRequest:
    kernels = {kernel.directory: kernel for kernel in workspace.kernels}
    declared = workspace.settings.settings.inputs_of
    sources = {
        item.name: Fingerprints(kernels[item.path], trees.of(item.path), declared(item.name))
        for item in matrix.kernels
    }
    runners, container = workspace.runners, request.container
    prints = fingerprints(sources, matrix, runners, container)
    unchanged = unchanged_variants(prints, request.published)
    lacking = prints.keys() - unchanged.keys()
    if lacking and request.published and request.affected is not None:
        # The release tier may build a variant of this name with another torch.
        names = {name for name, _ in lacking}
        others = workspace.with_kernels(
            [kernel for kernel in workspace.kernels if kernel.build.name in names]
        ).matrix(replace(request.choice, tier=str(Tier.RELEASE)))
        released = fingerprints(sources, others, runners, container)
        also = unchanged_variants(
            {key: released[key] for key in lacking & released.keys()}, request.published
        )
        unchanged, prints = unchanged | also, prints | {key: released[key] for key in also}
    tests = {name: source.tests() for name, source in sources.items()}
    # What is tested again is in the tree of an earlier run, or is built.
    carried = {(name, variant) for name, tree in request.trees.items() for variant in tree.digests}
    skip = {key: why for key, why in unchanged.items() if key[0] not in tested or key in carried}
    return replace(request, prints=prints, skip=skip, tests=tests, whole=request.affected is None)
