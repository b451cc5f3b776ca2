"""From a matrix to the legs of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kci.catalog.prices import default_prices
from kci.catalog.runners import BuildDefaults, Runner, Runners, default_runners
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.matrix.names import Kind
from kci.matrix.types import KernelMatrix, Matrix, Variant
from kci.plan.durations import NO_DURATIONS, Durations
from kci.plan.grouping import Place, Placed, group
from kci.plan.sharding import assign, shards
from kci.plan.types import Grouping, LeftOut, Leg, Limit, Plan, PlannedKernel, Skipped


class Wishes(msgspec.Struct, frozen=True):
    """How a plan is to be made."""

    container: bool = True
    """False to build on the runners themselves, without an image."""
    grouping: Grouping = Grouping.VARIANT
    limits: Mapping[tuple[str, str], Limit] = {}
    """What heavy kernels ask for, by kernel and backend; an empty backend stands for all of them."""
    shards: int | None = None
    """The number of matrices that the workflow file has; None for as many as are needed."""
    skip: Mapping[tuple[str, str], str] = {}
    """The variants (kernel and name) that need not be built, and why."""
    fingerprints: Mapping[tuple[str, str], str] | None = None
    """What each variant (kernel and name) is made from."""


def make_plan(
    matrix: Matrix,
    runners: Runners | None = None,
    wishes: Wishes | None = None,
    *,
    container: bool = True,
    durations: Durations = NO_DURATIONS,
) -> Plan:
    """Give every variant of a matrix a runner and an image.

    A noarch variant is built once however many systems select it: its content does not depend on the system.

    Args:
        matrix: what to build.
        runners: the machines; by default those that kci ships.
        wishes: how to make the plan.
        container: False for `Wishes.container` of False, where nothing else is wished for.
        durations: what variants took in earlier runs.

    Raises:
        FindingsError: two kernels of the matrix have the same name, so that their artifacts would collide (KCI304), or
            there are more legs than the matrices hold (KCI305).
    """
    runners = runners or default_runners()
    wishes = wishes or Wishes(container=container)
    _refuse_twins(matrix)
    kernels: list[PlannedKernel] = []
    legs: list[Leg] = []
    left_out: list[LeftOut] = []
    skipped: list[Skipped] = []
    for kernel in matrix.kernels:
        placed: list[Placed] = []
        planned: list[str] = []
        for name, variant in each_once(kernel):
            found = _place(kernel.name, variant, runners, wishes, durations)
            if isinstance(found, tuple):
                left_out.append(LeftOut(kernel.name, name, variant.backend, variant.system, *found))
                continue
            planned.append(name)
            if reason := wishes.skip.get((kernel.name, name)):
                skipped.append(Skipped(kernel.name, name, reason))
            else:
                placed.append(Placed(variant, found))
        legs += group(kernel, placed, wishes.grouping)
        prints = wishes.fingerprints
        known = None if prints is None else {name: prints[kernel.name, name] for name in planned}
        kernels.append(PlannedKernel(kernel.name, kernel.path, kernel.version, tuple(planned), known))
    # The longest first, so that no long leg is left to run alone at the end.
    legs.sort(key=lambda leg: (-leg.minutes, leg.kernel, leg.name))
    legs, count = assign(legs, wishes.shards)
    return Plan(
        tier=matrix.tier,
        catalog_name=matrix.catalog_name,
        catalog_as_of=matrix.catalog_as_of,
        kernels=tuple(kernels),
        legs=tuple(legs),
        left_out=tuple(left_out),
        skipped=tuple(skipped),
        shards=shards(legs, count, {name: size for name, size in runners.pool.items() if name not in runners.queued}),
    )


def each_once(kernel: KernelMatrix) -> list[tuple[str, Variant]]:
    """The variants of a kernel by name, sorted; of a noarch variant the row of x86_64-linux where there is one."""
    by_name: dict[str, Variant] = {}
    for variant in sorted(kernel.variants, key=lambda item: (item.system != "x86_64-linux", item.system)):
        by_name.setdefault(variant.name, variant)
    return sorted(by_name.items())


def place(variant: Variant, runners: Runners, *, container: bool) -> dict[str, Any] | tuple[str, str]:
    """Runner, image and times of a variant, or the rule and reason why no job can build it."""
    found = _find(variant, runners)
    if isinstance(found[0], str):
        return found
    runner, build = found
    image = _image(variant, build, container)
    return {"runner": runner.labels, "image": image, "timeout": build.timeout, "minutes": build.setup + build.minutes}


def _find(variant: Variant, runners: Runners) -> tuple[Runner, BuildDefaults] | tuple[str, str]:
    noarch = variant.kind is Kind.NOARCH
    if variant.kind is Kind.TVM_FFI:
        return "KCI303", "kci's builders do not compile tvm-ffi kernels"
    system = "x86_64-linux" if noarch else variant.system
    runner = runners.runner.get(system)
    if runner is None:
        return "KCI301", f"nobody offers a hosted runner for {system}"
    build = runners.build.get("noarch" if noarch else variant.backend)
    if build is None or (not noarch and system not in build.image):
        return "KCI303", f"kci's builders do not compile for {variant.backend} on {system}"
    return runner, build


def _image(variant: Variant, build: BuildDefaults, container: bool) -> str:
    if not container or variant.kind is Kind.NOARCH:
        return ""
    image = build.image.get(variant.system, "")
    if variant.compute:
        image = image.replace("{compute}", ".".join(variant.compute.split(".")[:2]))
    return image


def _place(
    kernel: str, variant: Variant, runners: Runners, wishes: Wishes, durations: Durations
) -> Place | tuple[str, str]:
    found = _find(variant, runners)
    if isinstance(found[0], str):
        return found
    runner, build = found
    limit = _limit(kernel, variant.backend, wishes.limits)
    recorded = durations.minutes(kernel, variant.name, variant.backend)
    minutes, measured = recorded or (limit.minutes or build.minutes, False)
    cores = min(limit.cores or runner.cpus, runner.cpus)
    by_memory = max(1, runner.memory_gb // build.job_gb)
    return Place(
        runner=runner.labels,
        image=_image(variant, build, wishes.container),
        timeout=min(limit.timeout or build.timeout, runner.max_minutes),
        minutes=minutes,
        setup=build.setup,
        measured=measured,
        max_jobs=limit.max_jobs or min(cores, by_memory),
        cores=cores,
        pool=runner.pool,
        rate=runner.rate if runner.rate is not None else default_prices().of(runner.labels),
        max_minutes=runner.max_minutes,
    )


def _limit(kernel: str, backend: str, limits: Mapping[tuple[str, str], Limit]) -> Limit:
    """The kernel's limit for the backend; what that leaves open is the kernel's own."""
    own, every = limits.get((kernel, backend), Limit()), limits.get((kernel, ""), Limit())
    return Limit(
        max_jobs=own.max_jobs or every.max_jobs,
        cores=own.cores or every.cores,
        timeout=own.timeout or every.timeout,
        minutes=own.minutes or every.minutes,
    )


def _refuse_twins(matrix: Matrix) -> None:
    paths: dict[str, list[str]] = {}
    for kernel in matrix.kernels:
        paths.setdefault(kernel.name, []).append(kernel.path)
    problems: list[Diagnostic] = [
        finding(
            "KCI304",
            f"{len(places)} kernels are named {name!r}: {', '.join(places)}",
            path=f"{places[1]}/build.toml",
            hint="give one of them another name, or plan them in separate runs",
        )
        for name, places in sorted(paths.items())
        if len(places) > 1
    ]
    if problems:
        raise FindingsError("kernels of one plan need different names", diagnostics=problems)
