"""`kci run`: every variant that this machine can build, merged into a verified tree per kernel.

A run that was interrupted, or that is asked for again, takes what `kept_builds` has from the same inputs.
"""

from __future__ import annotations

import enum
import os
import queue
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kci.builders.request import BuildOptions
from kci.config.discover import refuse_faulty
from kci.config.reader import Kernel
from kci.config.suppression import SuppressedFinding, apply_to_tree, suppressed_in_trees, tree_place
from kci.diagnostics import Diagnostic, rules
from kci.errors import KciError, MissingToolError, first_error
from kci.files.lock import locked
from kci.inputs.kernel_inputs import active
from kci.matrix.names import Kind, this_system
from kci.matrix.variants import Variant
from kci.processes.jobs import Progress, job_count, read_progress
from kci.processes.process import Log, ProgramScope, silent
from kci.run.kept_builds import KeptBuilds
from kci.toolchains.compiler_cache import ObjectUse
from kci.toolchains.downloads import TransferLine
from kci.tree.artifacts import CiRun
from kci.tree.manifest import Manifest
from kci.tree.merge import merge
from kci.tree.planned import Planned, PlannedKernel
from kci.verify import verify_with_suppressions
from kci.workspace.planning import PlanRequest, plan_run
from kci.workspace.workspace import Choice, Workspace

_Told = TypeVar("_Told")

Work = Callable[[Callable[[_Told], None]], None]
"""Does its work, and tells of it by calling what it is given."""


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
    """Why it was left or failed; what the build says last while it runs."""
    line: str = ""
    """The line that the build has just said."""
    progress: Progress | None = None
    """How far its compilers have come."""
    seconds: float = 0.0
    objects: ObjectUse | None = None
    """How many of its objects were compiled before."""
    directory: Path | None = None
    error: KciError | None = None


_News = tuple[Outcome, dict[str, Any]]


class TreeResult(msgspec.Struct, frozen=True):
    """A kernel's merged tree and what verification says about it."""

    kernel: str
    tree: Path
    manifest: Manifest
    findings: tuple[Diagnostic, ...]
    """Of the merge, and of verification."""
    suppressed: tuple[SuppressedFinding, ...] = ()


class RunResult(msgspec.Struct, frozen=True):
    """Everything that a run did."""

    outcomes: tuple[Outcome, ...]
    trees: tuple[TreeResult, ...]


def outcomes_of(workspace: Workspace, choice: Choice) -> list[Outcome]:
    """Every chosen variant once, those that this machine cannot build already marked as left, with the reason."""
    plan = plan_run(workspace, PlanRequest(choice=choice, container=False)).plan
    if plan.faulty:
        raise refuse_faulty(plan.faulty, len(workspace.kernels))
    left_out = plan.left_out
    # This machine is there already: it needs no runner.
    reasons = {(item.kernel, item.variant): item for item in left_out if item.rule != "KCI301"}
    system = this_system()
    found: list[Outcome] = []
    for kernel in workspace.matrix(choice).kernels:
        for variant in kernel.each_once(system):
            outcome = Outcome(kernel.name, variant)
            if variant.kind is not Kind.NOARCH and variant.system != system:
                article = "an" if variant.system.startswith("aarch64") else "a"
                outcome.state, outcome.note = OutcomeState.LEFT, f"needs {article} {variant.system} machine"
            elif reason := reasons.get((kernel.name, variant.name)):
                outcome.state, outcome.note = OutcomeState.LEFT, f"{reason.rule}: {reason.why}"
            found.append(outcome)
    return found


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
    log: Log = silent,
) -> RunResult:
    """Build, merge and verify. Variants are built at once; a kernel is merged as soon as its last one has ended.

    Args:
        workspace: the kernels.
        outcomes: from `outcomes_of`; their state is kept up to date.
        trees: where each kernel's tree goes.
        options: how to build.
        changed: is called in this thread whenever an outcome changed.
        log: takes what the merges say.

    Raises:
        KeyboardInterrupt: the user stopped it. Trees are as they were before; finished variants are kept for a rerun.
    """
    waiting = [outcome for outcome in outcomes if outcome.state is OutcomeState.WAITING]
    kernels = {kernel.build.name: kernel for kernel in workspace.kernels}
    width = builds_at_once([(kernels[item.kernel], item.variant) for item in waiting], job_count(options.jobs))
    merged: dict[str, TreeResult] = {}
    unfinished = Counter(outcome.kernel for outcome in waiting)

    def finish(name: str) -> None:
        mine = [outcome for outcome in outcomes if outcome.kernel == name]
        built = [outcome.directory for outcome in mine if outcome.directory is not None]
        if built:
            kernel, names = kernels[name], tuple(outcome.variant.name for outcome in mine)
            place = tree_place(workspace.settings, kernel.directory)
            part = PlannedKernel(name, names, kernel.build.general.version, tree=place)
            planned = Planned({name: part}, suppressions=suppressed_in_trees(workspace.settings))
            merged[name] = merged_tree(name, built, trees[name], planned, log)

    def hear(news: _News) -> None:
        outcome, changes = news
        for name, value in changes.items():
            setattr(outcome, name, value)
        changed(outcome)
        if outcome.state not in (OutcomeState.WAITING, OutcomeState.BUILDING):
            unfinished[outcome.kernel] -= 1
            if not unfinished[outcome.kernel]:
                finish(outcome.kernel)

    for kernel in kernels:
        if not unfinished[kernel]:
            finish(kernel)
    rules()  # what threads read at once has to be read before, where `kci.files.dated_data` is not in between
    builds = KeptBuilds(workspace, options)
    at_once([partial(_build, kernels[item.kernel], builds, item, width) for item in waiting], width, hear)
    return RunResult(tuple(outcomes), tuple(merged[kernel] for kernel in kernels if kernel in merged))


def builds_at_once(waiting: Sequence[tuple[Kernel, Variant]], jobs: int) -> int:
    """How many variants are built at once: as many as leave each a job for every source, and one at least."""
    most = max(
        (sum(len(part.src) for part in active(kernel.build, variant).values()) for kernel, variant in waiting),
        default=0,
    )
    return max(1, min(len(waiting), jobs // max(1, most)))


def at_once(works: Sequence[Work[_Told]], width: int, hear: Callable[[_Told], None]) -> None:
    """Do all the work, and return when it is done.

    Whatever ends this, Ctrl-C above all, ends the programs that were started, and waits for the threads.

    Args:
        works: what to do.
        width: how many at once.
        hear: is called in this thread with everything that they tell.

    Raises:
        BaseException: what one of them, or `hear`, raised.
    """
    scope = ProgramScope()
    told: queue.SimpleQueue[tuple[_Told] | Future[None]] = queue.SimpleQueue()

    def tell(item: _Told) -> None:
        scope.require_running()
        told.put((item,))

    def do(work: Work[_Told]) -> None:
        with scope.entered():
            work(tell)

    with ThreadPoolExecutor(max(1, width)) as pool:
        try:
            for work in works:
                pool.submit(do, work).add_done_callback(told.put)
            ended = 0
            while ended < len(works):
                item = told.get()
                if isinstance(item, Future):
                    item.result()
                    ended += 1
                else:
                    hear(item[0])
        except BaseException:
            scope.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def merged_tree(
    kernel: str, sources: Sequence[Path], tree: Path, planned: Planned, log: Log, run: CiRun | None = None
) -> TreeResult:
    """Merge what was built of a kernel into its tree, and verify that; what is missing in it is no finding.

    What kci.toml suppresses in the tree in the kernel's directory holds for this one, wherever it is made. `log` is
    told at once that this waits for another kci, and what a dead one had left.
    """
    said: list[Diagnostic] = []
    log = cache(log)  # two locks of one tree: who waits for both says it once
    (manifest,) = merge(sources, tree, planned, allow_partial=True, run=run, log=log, report=said.append)
    with locked(Path(os.path.realpath(tree)), log):  # another run may be about to replace it
        verified = verify_with_suppressions(tree)
    suppressed, place = list(verified.suppressed), planned.kernels[kernel].tree
    found = apply_to_tree(verified.diagnostics, planned.suppressions, str(tree), place, suppressed.append)
    findings = (item for item in found if item.rule != "KCI721")
    return TreeResult(kernel, tree, manifest, (*said, *findings), tuple(suppressed))


def _build(
    kernel: Kernel,
    builds: KeptBuilds,
    outcome: Outcome,
    width: int,
    tell: Callable[[_News], None],
) -> None:
    """Build one variant, or take what was made from the same inputs; what happens is told as the outcome's state."""

    def now(**changes: object) -> None:
        tell((outcome, changes))

    def log(line: str) -> None:
        progress = read_progress(line)
        about = progress or (line if isinstance(line, TransferLine) else None)
        now(note=about.what if about else line, line=line, **({"progress": progress} if progress else {}))

    variant = outcome.variant
    try:
        made_from = builds.fingerprint(kernel, variant)
        kept = builds.find(kernel, variant, made_from)
        if kept is None:
            now(state=OutcomeState.BUILDING)
            kept = builds.make(kernel, variant, made_from, log, width)
        state = OutcomeState.REUSED if kept.seconds is None else OutcomeState.BUILT
        now(state=state, directory=kept.directory, seconds=kept.seconds or 0.0, objects=kept.objects)
    except MissingToolError as error:
        now(state=OutcomeState.LEFT, note=first_error(error), error=error)
    except KciError as error:
        now(state=OutcomeState.FAILED, note=first_error(error), error=error)
