"""`kci run`: every variant that this machine can build, merged into a verified tree per kernel.

A run that was interrupted, or that is asked for again, takes what `kept_builds` has from the same inputs.
"""

from __future__ import annotations

import enum
import os
import queue
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import msgspec

from kci.build.process.machine import Progress, job_count, read_progress
from kci.build.process.run import Log, ProgramScope, silent
from kci.build.request import BuildOptions
from kci.build.toolchains.compilers import ObjectUse, toolchain_identity
from kci.config.discovery import SuppressedFinding, apply_to_tree, refuse_faulty, suppressed_in_trees, tree_place
from kci.config.reader import Kernel
from kci.diagnostics import Diagnostic, rules
from kci.errors import KciError, MissingToolError, first_error
from kci.matrix.variants import Kind, Variant, this_system
from kci.plan.fingerprint import Fingerprints
from kci.plan.inputs.kernel_inputs import active
from kci.plan.inputs.source_tree import SourceTrees
from kci.plan.plan import KernelPlan, Plan
from kci.plan.planning import PlanRequest, plan_run
from kci.plan.workspace import Choice, Workspace
from kci.run.build_leg import make_variant_dir
from kci.tree.manifest import Manifest, read_sealed
from kci.tree.merge import merge
from kci.tree.verify import verify_with_suppressions
from kci.utils.atomic import locked, writing
from kci.utils.cache import place_digest

KEPT_BUILDS = 3
"""How many builds of one variant stay in the cache; older ones go when a new one is made."""


class KeptVariant(msgspec.Struct, frozen=True):
    """A variant that a run takes."""

    directory: Path
    seconds: float | None = None
    """How long its build took; None for one that was there."""
    objects: ObjectUse | None = None
    """What its build had to compile."""


class KeptBuilds:
    """The kept builds of a workspace; a kernel's files are read when it is first asked for, by one thread at a time."""

    def __init__(self, workspace: Workspace, options: BuildOptions) -> None:
        self._settings = workspace.settings.settings
        self._options = options
        self._sources = SourceTrees()
        self._prints: dict[str, Fingerprints] = {}
        self._guard = Lock()

    def fingerprint(self, kernel: Kernel, variant: Variant) -> str:
        """What a build now would be made from; this machine's compilers stand in place of a leg's image.

        Raises:
            MissingToolError: this machine has no compiler, torch or toolkit for the variant.
            FindingsError: a file cannot be read.
        """
        how, name = self._options, kernel.build.name
        compilers = toolchain_identity(variant, how.cache, builder=how.builder, isolation=how.isolation)
        toolchain = f"{compilers}\n{how.builder} {how.unique_id or ''}"
        with self._guard:
            if name not in self._prints:
                tree = self._sources.of(kernel.directory)
                self._prints[name] = Fingerprints(kernel, tree, self._settings.inputs_of(name))
            return self._prints[name].fingerprint(variant, toolchain, everything=how.builder == "nix")

    def find(self, kernel: Kernel, variant: Variant, made_from: str) -> KeptVariant | None:
        """A kept build that is what a build would give now."""
        same = self._output(kernel, made_from) / variant.name
        return KeptVariant(same) if _digest(same) else None

    def make(self, kernel: Kernel, variant: Variant, made_from: str, log: Log, builds: int = 1) -> KeptVariant:
        """Build a variant and keep it; the oldest of its builds goes. What another run makes meanwhile is taken.

        Raises:
            KciError: as `make_variant_dir`.
        """
        output = self._output(kernel, made_from)
        with writing(output), locked(output, log):
            # A build that another run has finished may be read by it now, and is not replaced.
            if kept := self.find(kernel, variant, made_from):
                return kept
            leg = make_variant_dir(kernel, variant, output, self._options, log, builds)
        self._forget_old(kernel, variant.name, output)
        return KeptVariant(output / variant.name, seconds=leg.seconds or 0.0, objects=leg.objects)

    def _place(self, kernel: Kernel) -> Path:
        return self._options.cache / "run" / f"{kernel.build.name}-{place_digest(Path(kernel.directory))}"

    def _output(self, kernel: Kernel, made_from: str) -> Path:
        return self._place(kernel) / f"{made_from[:16]}-{sha256(made_from.encode()).hexdigest()[:16]}"

    def _forget_old(self, kernel: Kernel, variant: str, keep: Path) -> None:
        """Remove all but the newest builds of a variant. Another run may be taking one that is among the newest."""
        made = [entry for entry in self._place(kernel).glob(f"*/{variant}") if entry.parent != keep]
        made.sort(key=_changed, reverse=True)
        for old in made[KEPT_BUILDS - 1 :]:
            with locked(old):
                shutil.rmtree(old, ignore_errors=True)


def _changed(path: Path) -> float:
    """When a file was changed last; 0 if another run has removed it meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _digest(directory: Path) -> str:
    """The digest of a variant whose files are as its metadata says; empty for another directory."""
    try:
        return read_sealed(directory).digest
    except (OSError, KciError):
        return ""


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
    plan = plan_run(workspace, PlanRequest(choice=choice, container=False, sources=True)).plan
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
            part = KernelPlan(name, kernel.directory, kernel.build.general.version, names, tree=place)
            planned = Plan(1, "", (part,), suppressions=suppressed_in_trees(workspace.settings))
            merged[name] = merged_tree(built, trees[name], planned, log)

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
    rules()  # what threads read at once has to be read before, where `kci.utils.shipped` is not in between
    builds = KeptBuilds(workspace, options)
    run_in_parallel([partial(_build, kernels[item.kernel], builds, item, width) for item in waiting], width, hear)
    return RunResult(tuple(outcomes), tuple(merged[kernel] for kernel in kernels if kernel in merged))


def builds_at_once(waiting: Sequence[tuple[Kernel, Variant]], jobs: int) -> int:
    """How many variants are built at once: as many as leave each a job for every source, and one at least."""
    most = max(
        (sum(len(part.src) for part in active(kernel.build, variant).values()) for kernel, variant in waiting),
        default=0,
    )
    return max(1, min(len(waiting), jobs // max(1, most)))


def run_in_parallel(works: Sequence[Work[_Told]], width: int, hear: Callable[[_Told], None]) -> None:
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


def merged_tree(sources: Sequence[Path], tree: Path, planned: Plan, log: Log) -> TreeResult:
    """Merge what was built of a kernel into its tree, and verify that; what is missing in it is no finding.

    What kci.toml suppresses in the tree in the kernel's directory holds for this one, wherever it is made. `log` is
    told at once that this waits for another kci, and what a dead one had left.
    """
    said: list[Diagnostic] = []
    log = cache(log)  # two locks of one tree: who waits for both says it once
    (manifest,) = merge(sources, tree, planned, allow_partial=True, log=log, report=said.append)
    with locked(Path(os.path.realpath(tree)), log):  # another run may be about to replace it
        verified = verify_with_suppressions(tree)
    suppressed, (kernel,) = list(verified.suppressed), planned.kernels
    found = apply_to_tree(verified.diagnostics, planned.suppressions, str(tree), kernel.tree, suppressed.append)
    findings = (item for item in found if item.rule != "KCI721")
    return TreeResult(kernel.name, tree, manifest, (*said, *findings), tuple(suppressed))


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
        now(note=progress.what if progress else line, line=line, **({"progress": progress} if progress else {}))

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
