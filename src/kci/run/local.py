"""`kci run`: builds every variant that this machine can, and merges verified trees.

Unchanged builds are reused.
"""

from __future__ import annotations

import enum
import os
import queue
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from threading import Lock, Semaphore
from typing import Any

import msgspec

from kci.builders.process.machine import Progress, job_count, read_progress
from kci.builders.process.run import Log, ProgramScope, silent
from kci.builders.request import BuildOptions
from kci.builders.toolchains.compilers import outside_files, toolchain_identity
from kci.config.discovery import (
    SuppressedFinding,
    drop_suppressed_in_tree,
    invalid_kernels_error,
    tree_place,
    tree_suppressions,
)
from kci.config.reader import Kernel
from kci.config.sources.card import render_card
from kci.diagnostics import Diagnostic, rules
from kci.errors import KciError, MissingToolError, first_error, without_secrets
from kci.matrix.variants import Kind, ObjectUse, Variant, this_system
from kci.plan.fingerprint import Fingerprints
from kci.plan.inputs.kernel_inputs import active
from kci.plan.inputs.source_tree import SourceTrees
from kci.plan.plan import KernelPlan, Plan
from kci.plan.planning import PlanRequest, plan_run
from kci.plan.workspace import Choice, Workspace
from kci.run.build_leg import LegRequest, check_replaceable, make_variant_dir
from kci.run.load_built import fetching, load_built
from kci.tree.manifest import LegRecord, Loading, Manifest, read_sealed
from kci.tree.merge import merge
from kci.tree.verify import verify_with_suppressions
from kci.utils.atomic import locked, replacing, write_atomic, writing
from kci.utils.bounded_json import read_json
from kci.utils.cache import default_cache, place_digest
from kci.utils.frozen import Frozen

KEPT_BUILDS = 3
"""Kept builds per variant; older ones are removed."""


_LOADED = "loaded.json"
"""Beside a kept build: what became of loading it."""


class KeptBuilds:
    """The kept builds of a workspace. Thread-safe."""

    def __init__(self, workspace: Workspace, options: BuildOptions) -> None:
        self._settings = workspace.settings.settings
        self._options = options
        self._outside = cache(outside_files)
        self._guard, sources = Lock(), SourceTrees()
        self._prints = {
            kernel.build.name: Fingerprints(
                kernel,
                sources.of(kernel.directory),
                self._settings.inputs_of(kernel.build.name),
            )
            for kernel in workspace.kernels
        }

    def place(self, kernel: Kernel, variant: Variant) -> Path:
        """Where a variant is kept: a hash of its inputs and of this machine's compilers names it.

        Raises MissingToolError or FindingsError.
        """
        how, components = self._options, active(kernel.build, variant).values()
        parts = (*components, kernel.build.framework)
        flags = [flag for part in parts for flag in getattr(part, "cxx_flags", None) or ()]
        flags += [flag for part in components for flag in part.device_flags]
        compilers = toolchain_identity(
            variant,
            how.cache,
            builder=how.builder,
            isolation=how.isolation,
            flags=flags,
            outside=self._outside,
        )
        toolchain = f"{compilers}\n{how.builder} {how.unique_id or ''}{' '.join(('', *how.archs))}"
        with self._guard:
            fingerprint = self._fingerprint(kernel, variant, toolchain)
        name = f"{kernel.build.name}-{place_digest(Path(kernel.directory))}"
        return how.cache / "run" / name / fingerprint[:32] / variant.name

    def _fingerprint(self, kernel: Kernel, variant: Variant, toolchain: str) -> str:
        prints, everything = self._prints[kernel.build.name], self._options.builder == "nix"
        return prints.fingerprint(variant, toolchain, everything=everything)

    def read(self, kernel: Kernel, variant: Variant) -> None:
        """Read the sources of a variant: all builds are of these."""
        with suppress(KciError):  # what is wrong with them is said when the variant is built
            self._fingerprint(kernel, variant, "")

    def make(
        self, kernel: Kernel, variant: Variant, place: Path, log: Log, builds: int = 1
    ) -> LegRecord | None:
        """Build and keep a variant; None if another run finishes it first.

        Errors as `make_variant_dir`.
        """
        output, inputs = place.parent, self._prints[kernel.build.name].inputs
        with writing(output), locked(output, log):
            # another run may be reading a build that it finished
            if is_kept(place):
                return None
            request = LegRequest(
                kernel=kernel, variant=variant, output=output, options=self._options
            )
            with fetching(variant, self._options, log):
                leg = make_variant_dir(request, log, builds, inputs)
        # another run may be taking one of the newest builds
        older = [other for other in output.parent.glob(f"*/{variant.name}") if other != place]
        for old in sorted(older, key=_changed, reverse=True)[KEPT_BUILDS - 1 :]:
            with locked(old):
                shutil.rmtree(old, ignore_errors=True)
        return leg

    def load(self, directory: Path, variant: Variant, log: Log) -> Loading:
        """Load a kept build, unless that was done before. Errors as `load_built`."""
        chosen, place = self._settings.plan.load, directory.with_name(_LOADED)
        with suppress(OSError, ValueError):
            known = read_json(place, Loading)
            if known.torch and self._options.isolation:
                return known
        loaded = load_built(directory, variant, chosen, self._options, log)
        write_atomic(place, msgspec.json.encode(loaded))
        return loaded


def is_kept(place: Path) -> bool:
    """True if a build is there whose files are as they were."""
    with suppress(OSError, KciError):
        read_sealed(place)
        return True
    return False


def _changed(path: Path) -> float:
    # 0 if another run removed it
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


Task = Callable[[Callable[[Any], None]], None]
"""Sends events to a callback while it runs."""


class OutcomeState(enum.StrEnum):
    """The state of a variant in a run."""

    WAITING = "waiting"
    BUILDING = "building"
    BUILT = "built"
    REUSED = "reused"
    LEFT = "left"
    FAILED = "failed"


class Outcome(msgspec.Struct):
    """The live state of one variant in a run."""

    kernel: str
    variant: Variant
    state: OutcomeState = OutcomeState.WAITING
    note: str = ""
    """Reason of a skip or failure, or the build's last message."""
    line: str = ""
    """The last output line."""
    progress: Progress | None = None
    seconds: float = 0.0
    objects: ObjectUse | None = None
    directory: Path | None = None
    loaded: Loading | None = None
    error: KciError | None = None
    elsewhere: bool = False
    """True if no job of a plan builds it, so that a tree is complete without it."""

    @property
    def key(self) -> str:
        return f"{self.kernel} {self.variant.name}"


_Update = tuple[Outcome, dict[str, Any]]


class TreeResult(Frozen):
    """A merged tree and its findings."""

    kernel: str
    tree: Path
    manifest: Manifest
    findings: tuple[Diagnostic, ...]
    """Findings of merge and verification."""
    suppressed: tuple[SuppressedFinding, ...] = ()


class RunResult(Frozen):
    """The results of a run."""

    outcomes: tuple[Outcome, ...]
    trees: tuple[TreeResult, ...]


def outcomes_of(workspace: Workspace, choice: Choice) -> list[Outcome]:
    """List the chosen variants; those that cannot be built here are skipped, with the reason."""
    plan = plan_run(
        workspace, PlanRequest(choice=choice, container=False, digests=default_cache() / "inputs")
    ).plan
    if plan.faulty:
        raise invalid_kernels_error(plan.faulty, len(workspace.kernels))
    # a local build needs no runner
    reasons = {(item.kernel, item.variant): item for item in plan.left_out if item.rule != "KCI301"}
    system = this_system()
    elsewhere = {(kernel.name, name) for kernel in plan.kernels for name in kernel.elsewhere}
    outcomes: list[Outcome] = []
    for kernel in workspace.matrix(choice).kernels:
        for variant in kernel.each_once(system):
            outcome = Outcome(
                kernel.name, variant, elsewhere=(kernel.name, variant.name) in elsewhere
            )
            if variant.kind is not Kind.NOARCH and variant.system != system:
                outcome.state, outcome.note = OutcomeState.LEFT, f"needs {variant.system}"
            elif reason := reasons.get((kernel.name, variant.name)):
                outcome.state, outcome.note = OutcomeState.LEFT, f"{reason.rule}: {reason.why}"
            outcomes.append(outcome)
    return outcomes


def tree_places(workspace: Workspace, into: Path | None) -> dict[str, Path]:
    """Map kernels to trees: `build/` in the kernel's directory, or `into`, with a folder each if
    there are several.
    """
    kernels = {kernel.build.name: kernel for kernel in workspace.kernels}
    if not into:
        return {name: Path(kernel.directory) / "build" for name, kernel in kernels.items()}
    return {name: into if len(workspace.kernels) == 1 else into / name for name in kernels}


def run_here(
    workspace: Workspace,
    outcomes: Sequence[Outcome],
    trees: Mapping[str, Path],
    options: BuildOptions,
    changed: Callable[[Outcome], None],
    log: Log = silent,
) -> RunResult:
    """Build in parallel, merge each kernel after its last build, and verify.

    With `archs` nothing is merged.

    `changed` is called in this thread for each updated outcome. On KeyboardInterrupt old trees
    stay, and finished builds are kept.
    """
    for outcome in outcomes if options.archs else ():
        if outcome.state is OutcomeState.WAITING and outcome.variant.archs is None:
            outcome.state, outcome.note = OutcomeState.LEFT, "it has no archs to choose from"
    waiting = [outcome for outcome in outcomes if outcome.state is OutcomeState.WAITING]
    kernels = {kernel.build.name: kernel for kernel in workspace.kernels}
    width = builds_at_once(
        [(kernels[item.kernel], item.variant) for item in waiting], job_count(options.jobs)
    )
    merged: dict[str, TreeResult] = {}
    unfinished = Counter(outcome.kernel for outcome in waiting)

    def finish(name: str) -> None:
        mine = [outcome for outcome in outcomes if outcome.kernel == name]
        built = [outcome.directory for outcome in mine if outcome.directory]
        if built and options.archs:
            for directory in built:
                target = trees[name] / directory.name
                with replacing(target, log) as replacement:
                    check_replaceable(target, name)
                    shutil.copytree(directory, replacement.staging)
                    replacement.commit()
        elif built:
            merged[name] = merged_tree(workspace, kernels[name], mine, trees[name], log)

    def on_update(update: _Update) -> None:
        outcome, changes = update
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
    rules()  # loaded before threads use it: it is not thread-safe
    builds = KeptBuilds(workspace, options)
    for item in waiting:
        builds.read(kernels[item.kernel], item.variant)
    # one more is loaded, which takes one core
    compiling = Semaphore(width)
    run_in_parallel(
        [partial(_build, kernels[item.kernel], builds, item, width, compiling) for item in waiting],
        width + 1,
        on_update,
    )
    return RunResult(
        tuple(outcomes), tuple(merged[kernel] for kernel in kernels if kernel in merged)
    )


def builds_at_once(waiting: Sequence[tuple[Kernel, Variant]], jobs: int) -> int:
    """Number of parallel builds that leaves each a job per source; at least one."""
    components = [active(kernel.build, variant).values() for kernel, variant in waiting]
    most = max([1, *(sum(len(part.src) for part in parts) for parts in components)])
    return max(1, min(len(waiting), jobs // most))


def run_in_parallel(tasks: Sequence[Task], width: int, on_event: Callable[[Any], None]) -> None:
    """Run tasks in `width` threads; `on_event` gets in this thread what they send to a callback.

    An exception ends all programs.
    """
    scope = ProgramScope()
    events: queue.SimpleQueue[tuple[Any] | Future[None]] = queue.SimpleQueue()

    def emit(item: Any) -> None:
        scope.require_running()
        events.put((item,))

    def perform(task: Task) -> None:
        with scope.entered():
            task(emit)

    with ThreadPoolExecutor(max(1, width)) as pool:
        try:
            for task in tasks:
                pool.submit(perform, task).add_done_callback(events.put)
            ended = 0
            while ended < len(tasks):
                item = events.get()
                if isinstance(item, Future):
                    item.result()
                    ended += 1
                else:
                    on_event(item[0])
        except BaseException:
            scope.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def merged_tree(
    workspace: Workspace, kernel: Kernel, outcomes: Sequence[Outcome], tree: Path, log: Log
) -> TreeResult:
    """Merge what was built of a kernel and verify the tree.

    The suppressions of `build/` apply wherever the tree is.
    """
    settings = workspace.settings
    backends = {str(item.variant.backend) for item in outcomes if item.variant.loads}
    part = KernelPlan(
        kernel.build.name,
        kernel.directory,
        kernel.build.general.version,
        tuple(item.variant.name for item in outcomes if not item.elsewhere),
        tree=tree_place(settings, kernel.directory),
        elsewhere=tuple(item.variant.name for item in outcomes if item.elsewhere),
    )
    rules_of, loads = tree_suppressions(settings), tuple(sorted(backends))
    findings: list[Diagnostic] = []
    log = cache(log)  # two locks of one tree report a wait once
    (manifest,) = merge(
        [item.directory for item in outcomes if item.directory],
        tree,
        Plan(1, "", (part,), suppressions=rules_of, loads=loads),
        allow_partial=True,
        card=render_card(kernel).text,
        log=log,
        report=findings.append,
        loaded={item.variant.name: item.loaded for item in outcomes if item.loaded},
    )
    with locked(Path(os.path.realpath(tree)), log):  # another run may replace it
        verified = verify_with_suppressions(tree)
    suppressed, found = list(verified.suppressed), verified.diagnostics
    left = drop_suppressed_in_tree(found, rules_of, str(tree), part.tree, suppressed.append)
    findings += (item for item in left if item.rule != "KCI721")
    return TreeResult(part.name, tree, manifest, tuple(findings), tuple(suppressed))


def _build(
    kernel: Kernel,
    builds: KeptBuilds,
    outcome: Outcome,
    width: int,
    compiling: Semaphore,
    emit: Callable[[_Update], None],
) -> None:
    def update(**changes: object) -> None:
        emit((outcome, changes))

    def log(said: str) -> None:
        line = without_secrets(said)
        progress = read_progress(line)
        update(
            note=progress.command if progress else line,
            line=line,
            **({"progress": progress} if progress else {}),
        )

    variant = outcome.variant
    try:
        with compiling:
            place = builds.place(kernel, variant)
            leg = None
            if not is_kept(place):
                update(state=OutcomeState.BUILDING)
                leg = builds.make(kernel, variant, place, log, width)
        update(
            loaded=builds.load(place, variant, log),
            state=OutcomeState.BUILT if leg else OutcomeState.REUSED,
            directory=place,
            seconds=(leg and leg.seconds) or 0.0,
            objects=leg and leg.objects,
        )
    except MissingToolError as error:
        update(state=OutcomeState.LEFT, note=first_error(error), error=error)
    except KciError as error:
        update(state=OutcomeState.FAILED, note=first_error(error), error=error)
