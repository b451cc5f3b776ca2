"""Legs of a matrix: a runner and image for each variant, grouping, and splitting into parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from kci.config.discovery import same_names
from kci.config.facts import BACKENDS
from kci.config.values import Grouping, quoted, text_of
from kci.errors import FindingsError
from kci.matrix.catalog.runners import (
    UNKNOWN_BUILD,
    Runners,
    default_runners,
    max_job_minutes,
    pool_of,
    price_of,
)
from kci.matrix.variants import (
    KernelMatrix,
    Kind,
    Matrix,
    Variant,
    digits,
    objects_name,
    upload_name,
)
from kci.plan.durations import Duration, recorded_minutes
from kci.plan.estimates import Size, estimate_minutes, estimates
from kci.plan.hardware_tests import CarriedTree, plan_tests, why_untested
from kci.plan.plan import (
    CatalogName,
    KeptObjects,
    KernelPlan,
    Key,
    Leg,
    Plan,
    SkippedVariant,
    UnplannedVariant,
    caller_count,
    runs_on,
    shard_of,
)
from kci.utils.frozen import Frozen


class Assignment(NamedTuple):
    """A variant with its runner: its leg without setup time.

    `setup`, and `most` of a job there, are minutes.
    """

    variant: Variant
    leg: Leg
    setup: int
    most: int
    parts: int = 1


def whole_leg(kernel: KernelMatrix, placed: Sequence[Assignment], name: str) -> Leg:
    """The leg that builds some variants, one after the other."""
    legs = [item.leg for item in placed]
    whole = replace(
        legs[0],
        path=kernel.path,
        variant=" ".join(leg.variant for leg in legs),
        variants=tuple(leg.variant for leg in legs),
        name=name,
        timeout=min(sum(leg.timeout for leg in legs), placed[0].most),
        measured=all(leg.measured for leg in legs),
        artifact=upload_name(kernel.name, name),
        loads=tuple(dict.fromkeys(torch for leg in legs for torch in leg.loads)),
    )
    return _timed(whole, placed[0].setup, sum(leg.minutes for leg in legs))


def _timed(leg: Leg, setup: int, minutes: int, *, sure: bool = False) -> Leg:
    sure = sure or leg.measured or leg.kind is Kind.NOARCH
    least, most = (minutes, minutes) if sure else estimates().around(minutes)
    return replace(leg, minutes=setup + minutes, at_least=setup + least, at_most=setup + most)


def split_legs(kernel: KernelMatrix, placed: Assignment) -> list[Leg]:
    """The part legs of a variant, and its link leg."""
    whole = whole_leg(kernel, [placed], placed.variant.name)
    names = [f"{whole.name}.part{number}of{placed.parts}" for number in range(1, placed.parts + 1)]
    share = _timed(whole, placed.setup, math.ceil(placed.leg.minutes / placed.parts))
    parts = [
        replace(
            share,
            name=name,
            variants=(),
            artifact=objects_name(whole.kernel, name),
            part=number,
            parts=placed.parts,
        )
        for number, name in enumerate(names, start=1)
    ]
    link = _timed(whole, placed.setup, estimates().link, sure=True)
    return [*parts, replace(link, parts=placed.parts, takes=tuple(names))]


FULL_SHARE = 2
"""A group ends when its estimate passes 1/FULL_SHARE of a job: estimates can be wrong by
that much."""


def group(kernel: KernelMatrix, placed: Sequence[Assignment], grouping: Grouping) -> list[Leg]:
    """The legs of one kernel, whose variants are sorted by name.

    Variants share a leg only on the same runner. A group that passes half of a job's time continues
    in another leg; its timeout is the sum, at most that of a job.
    """
    if grouping is Grouping.VARIANT:
        return [whole_leg(kernel, [item], item.variant.name) for item in placed]
    groups: dict[tuple[object, ...], list[list[Assignment]]] = {}
    for item in placed:
        open_groups = groups.setdefault(_key(item, grouping), [[]])
        last = open_groups[-1]
        minutes = sum(other.leg.minutes for other in last) + item.leg.minutes
        if last and minutes > item.most // FULL_SHARE:
            open_groups.append([item])
        else:
            last.append(item)
    legs = []
    for parts in groups.values():
        label = _label([item for part in parts for item in part], grouping)
        for number, part in enumerate(parts, start=1):
            own = (
                part[0].variant.name
                if len(part) == 1
                else label
                if number == 1
                else f"{label}-{number}"
            )
            legs.append(whole_leg(kernel, part, own))
    return legs


def _key(item: Assignment, grouping: Grouping) -> tuple[object, ...]:
    variant, leg = item.variant, item.leg
    # Limits belong to a leg, so variants of different limits do not share one.
    limits = (leg.runner, leg.max_jobs, leg.cores, leg.builder)
    if variant.kind is Kind.NOARCH:  # copied, not compiled: one leg for all
        return ("noarch", *limits)
    if grouping is Grouping.BACKEND:
        return (variant.backend, variant.system, *limits, bool(leg.image))
    return (variant.system, leg.image or variant.backend, *limits)


def _label(part: Sequence[Assignment], grouping: Grouping) -> str:
    first = part[0].variant
    if first.kind is Kind.NOARCH:
        return "noarch"
    computes = {item.variant.compute for item in part}
    prefix = BACKENDS[first.backend].compute_prefix
    if grouping is Grouping.IMAGE and len(computes) == 1 and first.compute and prefix:
        return f"{prefix}{digits(first.compute)}-{first.system}"
    return f"{'-'.join(sorted({item.variant.backend for item in part}))}-{first.system}"


class PlanOptions(Frozen, kw_only=True):
    """The options of `make_plan`."""

    container: bool | str = True
    grouping: Grouping = Grouping.VARIANT
    split: bool = False
    """True to split by `parts` of kci.toml, in workflows with parts and links."""
    objects: Mapping[Key, KeptObjects] = {}
    """The latest objects of each leg."""
    trees: Mapping[str, CarriedTree] = {}
    """The earlier trees, whose passed tests are not repeated."""
    skip: Mapping[Key, str] = {}
    """The reason to skip a variant."""
    prints: Mapping[Key, str] | None = None
    commit: str | None = None
    tests: Mapping[str, str] = {}
    """A hash of each kernel's tests."""
    marked: Mapping[str, bool | None] = {}
    """True for each kernel with tests that are marked for CI, False if none is, None
    without tests."""
    whole: bool = False
    """True to test all variants of an earlier tree."""
    sizes: Mapping[Key, Size] = {}
    """The objects of each variant, for estimates."""


def make_plan(
    matrix: Matrix,
    runners: Runners | None = None,
    options: PlanOptions | None = None,
    *,
    durations: Iterable[Duration] = (),
) -> Plan:
    """Plan the variants of a matrix, noarch ones once for all systems; FindingsError (KCI304) for
    equal names.
    """
    runners, options = runners or default_runners(), options or PlanOptions()
    if problems := same_names((kernel.name, kernel.path) for kernel in matrix.kernels):
        raise FindingsError("kernels of one plan need different names", diagnostics=problems)
    recorded = recorded_minutes(durations)
    kernels: list[KernelPlan] = []
    legs: list[Leg] = []
    left_out: list[UnplannedVariant] = []
    skipped: list[SkippedVariant] = []
    for kernel in matrix.kernels:
        placed: dict[Key, Assignment] = {}
        elsewhere: list[UnplannedVariant] = []
        for variant in kernel.each_once():
            key = kernel.name, variant.name
            item = assign_runner(variant, runners, options, kernel.name, recorded.get(key))
            if isinstance(item, Assignment):
                placed[key] = item
            else:
                elsewhere.append(item)
        built = [item for key, item in placed.items() if key not in options.skip]
        legs += group(kernel, [item for item in built if item.parts == 1], options.grouping)
        legs += [leg for item in built if item.parts > 1 for leg in split_legs(kernel, item)]
        skipped += [
            SkippedVariant(*key, options.skip[key]) for key in placed if key in options.skip
        ]
        left_out += elsewhere
        prints = options.prints
        kernels.append(
            KernelPlan(
                kernel.name,
                kernel.path,
                kernel.version,
                tuple(name for _, name in placed),
                None if prints is None else {key[1]: prints[key] for key in placed},
                elsewhere=tuple(item.variant for item in elsewhere),
            )
        )
    callers, nothing = caller_count(len(kernels)), KeptObjects("", "")
    for index, leg in enumerate(legs):
        # The link leg has all objects of a variant, so that changed parts find theirs.
        name = leg.name if leg.part is None else leg.variant
        kept = options.objects.get((leg.kernel, name), nothing)
        legs[index] = replace(
            leg,
            objects_run=kept.run,
            objects_from=kept.artifact,
            shard=shard_of(leg.kernel, callers),
        )
    legs.sort(key=lambda leg: (-leg.minutes, leg.kernel, leg.name))
    carried = {item.kernel for item in skipped if options.whole}
    untested = {
        item.name: why_untested(item.planned, runners, options.marked.get(item.name))
        for item in kernels
    }
    loads = {
        str(item.backend) for kernel in matrix.kernels for item in kernel.variants if item.loads
    }
    return Plan(
        schema=1,
        tier=matrix.tier,
        catalog=CatalogName(matrix.catalog_name, matrix.catalog_as_of),
        kernels=tuple(kernels),
        legs=tuple(legs),
        left_out=tuple(left_out),
        skipped=tuple(skipped),
        commit=options.commit,
        loads=tuple(sorted(loads)),
        tests=plan_tests(
            kernels, legs, runners, options.tests, options.trees, carried, options.marked
        ),
        untested={name: why for name, why in untested.items() if why},
    )


NIX = "nix"
_CPUS, _MEMORY_GB = 4, 16
"""Of a machine without numbers in kci.toml: as GitHub's runners."""


def assign_runner(
    variant: Variant,
    runners: Runners,
    options: PlanOptions,
    kernel: str = "",
    recorded: int | None = None,
) -> Assignment | UnplannedVariant:
    """The leg of a variant, or the reason for none; `recorded` are minutes, if known."""
    size = options.sizes.get((kernel, variant.name))
    noarch = variant.kind is Kind.NOARCH
    machines = "noarch" if noarch else variant.backend
    unplanned = partial(UnplannedVariant, kernel, variant.name, variant.backend, variant.system)
    if variant.kind is Kind.TVM_FFI and not BACKENDS[variant.backend].tvm_ffi:
        return unplanned(
            "KCI303", f"kci's builders do not compile tvm-ffi kernels for {variant.backend}"
        )
    system = "x86_64-linux" if noarch else variant.system
    runner = runners.machine(machines, system)
    if runner is None:
        return unplanned("KCI301", f"no runner is known for {system}")
    build = runners.build.get(machines)
    compiled = build is not None and (noarch or system in build.image)
    foreign = size.foreign if size is not None and compiled else ""
    compiled = compiled and not foreign
    if not compiled and (
        system.endswith("-windows") or runners.nix.isdisjoint((system, variant.backend))
    ):
        return unplanned("KCI303", _not_compiled(variant.backend, system, foreign))
    build = build or UNKNOWN_BUILD
    image = (
        build.image_for(system, text_of(variant.compute))
        if options.container and compiled and not noarch
        else ""
    )
    limit = runners.limit(kernel, variant.backend)
    cpus, memory = runner.cpus or _CPUS, runner.memory_gb or _MEMORY_GB

    def compilers(cutlass: bool = False) -> int:
        fitting = memory * 2**30 // runners.compiler_memory(variant.backend, cutlass=cutlass)
        return max(1, min(limit.max_jobs or cpus, cpus, fitting))

    guess = (
        estimate_minutes(size, variant.backend, compilers)
        if size is not None and not noarch
        else None
    )
    rate, currency = price_of(runner) or (None, "")
    leg = Leg(
        kernel=kernel,
        path="",
        variant=variant.name,
        variants=(variant.name,),
        name=variant.name,
        kind=variant.kind,
        backend=variant.backend,
        system=variant.system,
        runner=runs_on(runner),
        image=image,
        timeout=limit.timeout_minutes or build.timeout,
        minutes=recorded or guess or build.minutes,
        measured=recorded is not None,
        pool=pool_of(runner),
        rate=rate,
        currency=currency,
        artifact="",
        max_jobs=limit.max_jobs,
        cores=limit.cores if BACKENDS[variant.backend].compiler == "nvcc" and not noarch else None,
        disk=build.disk or None if image else None,
        loads=variant.loads,
        builder=None if compiled else NIX,
        threads=compilers(),
        memory_gb=memory,
    )
    parts = 1
    if size is not None and compiled and options.split:
        parts = min(limit.parts or 1, max(1, size.objects))
    return Assignment(variant, leg, build.setup, max_job_minutes(runner), parts)


def _not_compiled(backend: str, system: str, foreign: str) -> str:
    if foreign:
        reason = f"kci has no compiler for {quoted(foreign[-60:])}"
        return f'{reason}; [nix] of kci.toml leaves {backend} to Nix: `backends = ["{backend}"]`'
    if system.endswith("-windows"):
        return (
            f"kci's builders do not compile for {backend} on {system}, and Nix does not run there"
        )
    if system.endswith("-linux"):
        reason = (
            f"kci knows no image that compiles for {backend} on {system}; [images] of kci.toml "
            "can name it"
        )
        return f'{reason}, or [nix] leave it to Nix: `backends = ["{backend}"]`'
    reason = f"kci's builders do not compile for {backend} on {system}"
    return f'{reason}; [nix] of kci.toml leaves it to Nix: `systems = ["{system}"]`'


def image_of(variant: Variant, runners: Runners) -> str:
    """The image in which a variant's leg builds; empty for none."""
    placed = assign_runner(variant, runners, PlanOptions())
    return placed.leg.image if isinstance(placed, Assignment) else ""


def toolchain_of(variant: Variant, runners: Runners, container: bool | str) -> str:
    """The toolchain of a variant's leg, for its fingerprint: an image, `nix`, or empty.

    A text in place of `container` is what the repository variable KCI_CONTAINER replaces all images
    with.
    """
    placed = assign_runner(variant, runners, PlanOptions(container=container))
    if not isinstance(placed, Assignment) or variant.kind is Kind.NOARCH:
        return ""
    return placed.leg.builder or (container if isinstance(container, str) else placed.leg.image)
