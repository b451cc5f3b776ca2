"""From a matrix to the legs of a run."""

from __future__ import annotations

from typing import Any

import msgspec

from kci.catalog.runners import Runners, default_runners
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.matrix.names import Kind
from kci.matrix.types import Matrix, Variant

MAX_MATRIX = 256
"""Jobs that one matrix of a GitHub workflow may have; the run fails beyond."""

MAX_OUTPUT_UNITS = 1024 * 1024 // 2
"""UTF-16 code units that one output of a job may have: GitHub's limit is 1 MB."""


class RunnerGroup(msgspec.Struct, frozen=True):
    """A runner that is chosen by its group; `runs-on` takes this shape as it takes a list of labels."""

    group: str
    labels: tuple[str, ...] = ()


class Leg(msgspec.Struct, frozen=True):
    """One job: a variant and where and how it is built."""

    kernel: str
    path: str
    variant: str
    kind: Kind
    backend: str
    system: str
    runner: tuple[str, ...] | RunnerGroup
    image: str
    """The container image to build in; empty for none."""
    timeout: int
    """Minutes."""
    minutes: int
    """What it takes, roughly."""
    artifact: str
    """The name under which the leg hands over its result."""
    max_jobs: int | None = None
    """How many compilers run side by side; None leaves it to the machine."""
    cores: int | None = None
    """How many threads each of them may use."""


class LeftOut(msgspec.Struct, frozen=True):
    """A variant that no job builds, and why."""

    kernel: str
    variant: str
    backend: str
    system: str
    rule: str
    reason: str


class PlannedKernel(msgspec.Struct, frozen=True):
    """A kernel of the plan and the variants that its tree must have."""

    name: str
    path: str
    version: int
    planned: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """The legs of a run, sorted by kernel and variant."""

    tier: str
    catalog_name: str
    catalog_as_of: str
    kernels: tuple[PlannedKernel, ...]
    legs: tuple[Leg, ...]
    left_out: tuple[LeftOut, ...]


def make_plan(matrix: Matrix, runners: Runners | None = None, *, container: bool = True) -> Plan:
    """Give every variant of a matrix a runner and an image.

    A noarch variant is one leg however many systems select it: its content does not depend on the system.

    Args:
        matrix: what to build.
        runners: the machines; by default those that kci ships.
        container: False to build on the runners themselves, without an image.

    Raises:
        FindingsError: two kernels of the matrix have the same name, so that their artifacts would collide (KCI304).
    """
    runners = runners or default_runners()
    _refuse_twins(matrix)
    kernels: list[PlannedKernel] = []
    legs: list[Leg] = []
    left_out: list[LeftOut] = []
    for kernel in matrix.kernels:
        by_name: dict[str, Variant] = {}
        for variant in sorted(kernel.variants, key=lambda item: (item.system != "x86_64-linux", item.system)):
            by_name.setdefault(variant.name, variant)
        planned = []
        for name, variant in sorted(by_name.items()):
            placed = place(variant, runners, container=container, kernel=kernel.name)
            if isinstance(placed, tuple):
                left_out.append(LeftOut(kernel.name, name, variant.backend, variant.system, *placed))
                continue
            planned.append(name)
            legs.append(
                Leg(
                    kernel=kernel.name,
                    path=kernel.path,
                    variant=name,
                    kind=variant.kind,
                    backend=variant.backend,
                    system=variant.system,
                    artifact=f"kci-{kernel.name}-{name}",
                    **placed,
                )
            )
        kernels.append(PlannedKernel(kernel.name, kernel.path, kernel.version, tuple(planned)))
    return Plan(matrix.tier, matrix.catalog_name, matrix.catalog_as_of, tuple(kernels), tuple(legs), tuple(left_out))


def place(variant: Variant, runners: Runners, *, container: bool, kernel: str = "") -> dict[str, Any] | tuple[str, str]:
    """Runner, image, times and limits of a variant, or the rule and reason why no job can build it."""
    noarch = variant.kind is Kind.NOARCH
    if variant.kind is Kind.TVM_FFI:
        return "KCI303", "kci's builders do not compile tvm-ffi kernels"
    system = "x86_64-linux" if noarch else variant.system
    runner = runners.machine("noarch" if noarch else variant.backend, system)
    if runner is None:
        return "KCI301", f"no runner is known for {system}"
    build = runners.build.get("noarch" if noarch else variant.backend)
    if build is None or (not noarch and system not in build.image):
        return "KCI303", f"kci's builders do not compile for {variant.backend} on {system}"
    image = build.image.get(system, "") if container and not noarch else ""
    if variant.compute:
        image = image.replace("{compute}", ".".join(variant.compute.split(".")[:2]))
    limit = runners.limit(kernel, variant.backend)
    return {
        "runner": RunnerGroup(runner.group, runner.labels) if runner.group else runner.labels,
        "image": image,
        "timeout": limit.timeout or build.timeout,
        "minutes": build.minutes,
        "max_jobs": limit.max_jobs,
        "cores": limit.cores,
    }


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


def as_json(plan: Plan) -> dict[str, Any]:
    """The documented JSON form (schema 1)."""
    return {
        "schema": 1,
        "tier": plan.tier,
        "catalog": {"name": plan.catalog_name, "as_of": plan.catalog_as_of},
        "kernels": plan.kernels,
        "legs": plan.legs,
        "left_out": plan.left_out,
    }


def github_matrix(plan: Plan) -> str:
    """One line for `fromJSON`: the legs as the `include` of a workflow's matrix.

    Raises:
        FindingsError: more legs than one matrix may have (KCI305), or more text than a job's output (KCI306).
    """
    if len(plan.legs) > MAX_MATRIX:
        message = f"{len(plan.legs)} legs, and GitHub allows {MAX_MATRIX} jobs in one matrix"
        hint = "plan fewer kernels at a time, or narrow with --tier, --backend, --system or --only"
        raise FindingsError(message, hint=hint, diagnostics=[finding("KCI305", message, hint=hint)])
    keys = ("kernel", "path", "variant", "backend", "system", "runner", "image", "timeout", "artifact")
    limits = ("max_jobs", "cores")
    include = [
        {key: getattr(leg, key) for key in keys + limits if key in keys or getattr(leg, key) is not None}
        for leg in plan.legs
    ]
    text = msgspec.json.encode({"include": include}).decode()
    units = len(text.encode("utf-16-le")) // 2
    if units > MAX_OUTPUT_UNITS:
        message = f"the matrix has {units} UTF-16 units, and GitHub allows {MAX_OUTPUT_UNITS} in a job's output"
        raise FindingsError(message, diagnostics=[finding("KCI306", message)])
    return text
