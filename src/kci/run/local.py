"""`kci run`: every variant that this machine can build, merged into a verified tree per kernel.

Each variant is built in a place of its own under the cache, beside a note of what it was made from. A run that was
interrupted, or that is asked for again, takes over the variants whose note still holds.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kci import __version__
from kci.config.reader import Kernel
from kci.diagnostics import Diagnostic
from kci.errors import BuildFailedError, KciError, MissingToolError
from kci.matrix.names import Kind
from kci.matrix.variants import KernelMatrix, Matrix, Variant
from kci.plan.legs import make_plan
from kci.run.make_variant import BuildOptions, make_variant_dir
from kci.tree.identity import content_hash, unique_id
from kci.tree.leg_record import read_sealed
from kci.tree.manifest import Manifest
from kci.tree.merge import merge
from kci.tree.planned import Planned, PlannedKernel
from kci.verify import verify


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


def outcomes_of(matrix: Matrix, system: str) -> list[Outcome]:
    """Every variant of the matrix once, those for other machines already marked as left."""
    reasons = {(item.kernel, item.variant): f"{item.rule}: {item.reason}" for item in make_plan(matrix).left_out}
    found: list[Outcome] = []
    for kernel in matrix.kernels:
        for variant in _each_once(kernel, system):
            outcome = Outcome(kernel.name, variant)
            if variant.kind is not Kind.NOARCH and variant.system != system:
                outcome.state, outcome.note = OutcomeState.LEFT, f"needs {_article(variant.system)} machine"
            elif reason := reasons.get((kernel.name, variant.name)):
                outcome.state, outcome.note = OutcomeState.LEFT, reason
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


def run_here(
    kernels: Sequence[Kernel],
    outcomes: Sequence[Outcome],
    trees: dict[str, Path],
    options: BuildOptions,
    changed: Callable[[Outcome], None],
) -> RunResult:
    """Build, merge and verify.

    Args:
        kernels: the kernels of the matrix.
        outcomes: what to build; their state is kept up to date.
        trees: where each kernel's tree goes.
        options: how to build.
        changed: called whenever an outcome changed, for a display.

    Raises:
        KeyboardInterrupt: the user stopped it. Trees are as they were before; finished variants are kept for a rerun.
    """
    merged: list[TreeResult] = []
    for kernel in kernels:
        mine = [outcome for outcome in outcomes if outcome.kernel == kernel.build.name]
        for outcome in mine:
            if outcome.state is OutcomeState.WAITING:
                _build(kernel, outcome, options, changed)
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


def _build(kernel: Kernel, outcome: Outcome, options: BuildOptions, changed: Callable[[Outcome], None]) -> None:
    place = options.cache / "run" / _place_name(kernel)
    note = place / f"{outcome.variant.name}.made-from"
    made_from = fingerprint(kernel, outcome.variant, options)
    if _still_holds(place / outcome.variant.name, note, made_from):
        outcome.state, outcome.directory = OutcomeState.REUSED, place / outcome.variant.name
        changed(outcome)
        return
    outcome.state = OutcomeState.BUILDING
    changed(outcome)

    def log(line: str) -> None:
        outcome.note = line
        changed(outcome)

    try:
        note.unlink(missing_ok=True)
        built = make_variant_dir(kernel, outcome.variant, place, options, log)
        note.write_text(made_from, encoding="ascii")
        outcome.state, outcome.directory, outcome.note = OutcomeState.BUILT, built.directory, ""
        outcome.seconds = built.leg.seconds or 0.0
    except MissingToolError as error:
        outcome.state, outcome.note, outcome.error = OutcomeState.LEFT, error.message, error
    except (BuildFailedError, KciError) as error:
        outcome.state, outcome.note, outcome.error = OutcomeState.FAILED, error.message.splitlines()[0], error
    changed(outcome)


def fingerprint(kernel: Kernel, variant: Variant, options: BuildOptions) -> str:
    """What decides a variant's bytes here: every file of the kernel, the variant's row, the id, and kci itself."""
    total = hashlib.sha256(content_hash(Path(kernel.directory)))
    unique = options.unique_id or unique_id(Path(kernel.directory))
    for part in (msgspec.json.encode(variant), unique, options.builder, str(options.isolation), __version__):
        total.update(part if isinstance(part, bytes) else part.encode())
        total.update(b"\0")
    return total.hexdigest()


def _still_holds(directory: Path, note: Path, made_from: str) -> bool:
    try:
        if note.read_text(encoding="ascii") != made_from:
            return False
        read_sealed(directory)
    except (OSError, UnicodeDecodeError, KciError):
        return False
    return True


def _place_name(kernel: Kernel) -> str:
    """A folder name of its own for each kernel directory on this machine."""
    where = hashlib.sha256(str(Path(kernel.directory).resolve()).encode()).hexdigest()[:12]
    return f"{kernel.build.name}-{where}"
