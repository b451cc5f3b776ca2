"""`kci run`: every variant that this machine can build, merged into a verified tree per kernel.

A run that was interrupted, or that is asked for again, takes what `kept_builds` has from the same inputs.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from kci.builders.toolchain_identity import toolchain_identity
from kci.config.discover import refuse_faulty
from kci.diagnostics import Diagnostic
from kci.errors import KciError, MissingToolError
from kci.matrix.names import Kind, this_system
from kci.matrix.variants import KernelMatrix, Variant
from kci.plan.fingerprint import Fingerprints
from kci.plan.inputs import SourceTrees
from kci.run.kept_builds import KeptBuilds
from kci.run.one_variant import BuildOptions
from kci.tree.manifest import Manifest
from kci.tree.merge import merge
from kci.tree.planned import Planned, PlannedKernel
from kci.verify import verify
from kci.workspace.choice import Choice
from kci.workspace.planning import PlanRequest, plan_run
from kci.workspace.workspace import Workspace


class OutcomeState(enum.StrEnum):
    """What became of a variant in a run."""

    WAITING = "waiting"
    BUILDING = "building"
    BUILT = "built"
    REUSED = "reused"
    LEFT = "left"
    FAILED = "failed"


class Outcome(msgspec.Struct):
    """One variant of a run, as it stands now."""

    kernel: str
    variant: Variant
    state: OutcomeState = OutcomeState.WAITING
    note: str = ""
    """Why it was left or failed; the last line of the build while it runs."""
    seconds: float = 0.0
    directory: Path | None = None
    error: KciError | None = None


class TreeResult(msgspec.Struct, frozen=True):
    """A kernel's merged tree and what verification says about it."""

    kernel: str
    tree: Path
    manifest: Manifest
    findings: tuple[Diagnostic, ...]


class RunResult(msgspec.Struct, frozen=True):
    """Everything that a run did."""

    outcomes: tuple[Outcome, ...]
    trees: tuple[TreeResult, ...]


def outcomes_of(workspace: Workspace, choice: Choice) -> list[Outcome]:
    """Every chosen variant once, those that this machine cannot build already marked as left, with the reason.

    Raises:
        KciError: as `plan_run`: what cannot be planned cannot be run here either.
    """
    plan = plan_run(workspace, PlanRequest(choice=choice, container=False)).plan
    if plan.faulty:
        raise refuse_faulty(plan.faulty, len(workspace.kernels))
    left_out = plan.left_out
    # This machine is there already: it needs no runner.
    reasons = {(item.kernel, item.variant): item for item in left_out if item.rule != "KCI301"}
    system = this_system()
    found: list[Outcome] = []
    for kernel in workspace.matrix(choice).kernels:
        for variant in _each_once(kernel, system):
            outcome = Outcome(kernel.name, variant)
            if variant.kind is not Kind.NOARCH and variant.system != system:
                outcome.state, outcome.note = OutcomeState.LEFT, f"needs {_article(variant.system)} machine"
            elif reason := reasons.get((kernel.name, variant.name)):
                outcome.state, outcome.note = OutcomeState.LEFT, f"{reason.rule}: {reason.reason}"
            found.append(outcome)
    return found


def _article(system: str) -> str:
    return f"an {system}" if system.startswith("aarch64") else f"a {system}"


def _each_once(kernel: KernelMatrix, system: str) -> list[Variant]:
    """A noarch name that several systems select is one variant; this machine's own row is taken where there is one."""
    by_name: dict[str, Variant] = {}
    for variant in sorted(kernel.variants, key=lambda item: item.system != system):
        by_name.setdefault(variant.name, variant)
    return [by_name[name] for name in sorted(by_name)]


def tree_places(workspace: Workspace, into: Path | None) -> dict[str, Path]:
    """Where each kernel's tree goes: `build/` in its directory, or `into`; several kernels have a folder each in it."""
    if into is None:
        return {kernel.build.name: Path(kernel.directory) / "build" for kernel in workspace.kernels}
    if len(workspace.kernels) == 1:
        return {workspace.kernels[0].build.name: into}
    return {kernel.build.name: into / kernel.build.name for kernel in workspace.kernels}


def run_here(
    workspace: Workspace,
    outcomes: Sequence[Outcome],
    trees: Mapping[str, Path],
    options: BuildOptions,
    changed: Callable[[Outcome], None],
) -> RunResult:
    """Build, merge and verify.

    Args:
        workspace: the kernels.
        outcomes: what to build, from `outcomes_of`; their state is kept up to date.
        trees: where each kernel's tree goes.
        options: how to build.
        changed: called whenever an outcome changed, for a display.

    Raises:
        KeyboardInterrupt: the user stopped it. Trees are as they were before; finished variants are kept for a rerun.
    """
    merged: list[TreeResult] = []
    sources = SourceTrees()
    for kernel in workspace.kernels:
        mine = [outcome for outcome in outcomes if outcome.kernel == kernel.build.name]
        files = Fingerprints(
            kernel, sources.of(kernel.directory), workspace.settings.settings.inputs_of(kernel.build.name)
        )
        kept = KeptBuilds(kernel, files, options)
        for outcome in mine:
            if outcome.state is OutcomeState.WAITING:
                _build(kept, outcome, options, changed)
        directories = [outcome.directory for outcome in mine if outcome.directory is not None]
        if directories:
            tree = trees[kernel.build.name]
            names = tuple(outcome.variant.name for outcome in mine)
            version = kernel.build.general.version
            planned = Planned({kernel.build.name: PlannedKernel(kernel.build.name, names, version)})
            manifest = merge(directories, tree, planned, allow_partial=True)[0]
            # What is missing was left for other machines, which the outcomes say already.
            findings = tuple(item for item in verify(tree) if item.rule != "KCI721")
            merged.append(TreeResult(kernel.build.name, tree, manifest, findings))
    return RunResult(tuple(outcomes), tuple(merged))


def _build(kept: KeptBuilds, outcome: Outcome, options: BuildOptions, changed: Callable[[Outcome], None]) -> None:
    """Build one variant, or take what was made from the same inputs; whatever happens becomes the outcome's state."""

    def log(line: str) -> None:
        outcome.note = line
        changed(outcome)

    try:
        made_from = kept.fingerprint(outcome.variant, _toolchain(outcome.variant, options))
        if found := kept.find(outcome.variant, made_from):
            outcome.state, (outcome.directory, outcome.note) = OutcomeState.REUSED, found
        else:
            outcome.state = OutcomeState.BUILDING
            changed(outcome)
            built = kept.make(outcome.variant, made_from, log)
            outcome.state, outcome.directory, outcome.note = OutcomeState.BUILT, built.directory, ""
            outcome.seconds = built.leg.seconds or 0.0
    except MissingToolError as error:
        outcome.state, outcome.note, outcome.error = OutcomeState.LEFT, error.message, error
    except KciError as error:
        outcome.state, outcome.note, outcome.error = OutcomeState.FAILED, error.message.splitlines()[0], error
    changed(outcome)


def _toolchain(variant: Variant, options: BuildOptions) -> str:
    """What this machine adds to the inputs, in place of a leg's image.

    Raises:
        MissingToolError: it has no compiler, torch or toolkit for the variant.
    """
    compilers = toolchain_identity(variant, options.cache, builder=options.builder, isolation=options.isolation)
    return f"{compilers}\n{options.builder} {options.unique_id or ''}"
