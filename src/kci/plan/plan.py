"""The plan of a run: its types, JSON form, and distribution over caller jobs and matrices."""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kci.config.discovery import FaultyKernel
from kci.config.settings import Ignore
from kci.config.values import NAME_PATTERN, StaleVariants
from kci.diagnostics import Diagnostic
from kci.matrix.catalog.runners import Pool, Runner
from kci.matrix.variants import Kind, parse_variant_name
from kci.utils.bounded_json import read_json, reading, require_schema
from kci.utils.frozen import Frozen
from kci.utils.walk import duplicate_names

Key = tuple[str, str]
"""A kernel, and the name of its variant or leg."""


class RunnerGroup(Frozen):
    """A runner group; `runs-on` accepts this shape."""

    group: str
    labels: tuple[str, ...] = ()


RunsOn = tuple[str, ...] | RunnerGroup
"""The labels of a runner, or its group."""


def runs_on(runner: Runner) -> RunsOn:
    """The labels or the group of a runner."""
    return RunnerGroup(runner.group, runner.labels) if runner.group else runner.labels


def _runner_text(runner: RunsOn) -> str:
    return " ".join(
        runner if isinstance(runner, tuple) else (f"group:{runner.group}", *runner.labels)
    )


class Role(enum.StrEnum):
    """The purpose of a leg; the value names its matrix in the workflow."""

    WHOLE = "matrix"
    PART = "parts"
    """Compiles a share of a variant's objects."""
    LINK = "links"
    """Links the objects of part legs, and compiles missing ones."""


class KeptObjects(Frozen):
    """The artifact with the objects of a leg."""

    run: str
    artifact: str


def stop_after(timeout: int) -> int:
    """The minutes after which a build stops itself, so that a job with this timeout can upload what
    is done.
    """
    return max(1, timeout - max(2, timeout // 20))


class Leg(Frozen):
    """A job that builds one or several variants of a kernel."""

    kernel: str
    path: str
    variant: str
    """A variant name, or several separated by spaces."""
    variants: tuple[str, ...]
    """The variants that it makes; none for a part leg."""
    name: str
    """Unique in its kernel: the name of a variant, group or part."""
    kind: Kind
    backend: str
    system: str
    runner: RunsOn
    image: str
    timeout: int
    """Minutes."""
    minutes: int
    measured: bool
    """True if `minutes` is recorded for all its variants."""
    pool: Pool
    rate: float | None
    """The price of a minute; None if unknown."""
    currency: str
    artifact: str
    max_jobs: int | None = None
    """Compilers in parallel; None for the machine's default."""
    cores: int | None = None
    disk: int | None = None
    """Gigabytes of free disk that the image needs; None if each runner has them."""
    shard: int = 0
    loads: tuple[str, ...] = ()
    """The torch versions to load with; see `Variant.loads`."""
    part: int | None = None
    """Its share of the objects, from 1; None for a leg that makes variants."""
    parts: int | None = None
    takes: tuple[str, ...] = ()
    """The part legs whose objects a link leg takes."""
    objects_run: str = ""
    objects_from: str = ""
    builder: str | None = None
    """`nix` for the nix builder; None for the default."""
    at_least: int | None = None
    """The best case in minutes."""
    at_most: int | None = None
    """The likely worst case in minutes."""
    threads: int = 4
    """Compilers that its machine has cores and memory for."""
    memory_gb: int = 16

    @property
    def ends(self) -> tuple[int, int]:
        """The least and most minutes."""
        return self.at_least or self.minutes, self.at_most or self.minutes

    @property
    def takes_text(self) -> str:
        least, most = self.ends
        return f"{least} min" if least == most else f"{least} to {most} min"

    @property
    def runner_text(self) -> str:
        return _runner_text(self.runner)

    @property
    def stop_after(self) -> int:
        return stop_after(self.timeout)

    @property
    def role(self) -> Role:
        if self.part is not None:
            return Role.PART
        return Role.WHOLE if self.parts is None else Role.LINK


class TestLeg(Frozen):
    """A job that tests a kernel's tree on hardware."""

    __test__ = False

    kernel: str
    path: str
    name: str
    backend: str
    system: str
    variants: tuple[str, ...]
    """It tests those that its machine can load."""
    runner: RunsOn
    timeout: int
    """Minutes."""
    inputs: str = ""
    """A hash of the tests and labels; empty in a plan without."""
    run: str = ""
    """The earlier run with the tree; empty for the tree of this run."""

    @property
    def runner_text(self) -> str:
        return _runner_text(self.runner)


class UnplannedVariant(Frozen):
    """A variant that no job builds."""

    kernel: str
    variant: str
    backend: str
    system: str
    rule: str
    reason: str
    path: str = ""
    """The file with the fault of its backend; empty without one."""
    line: int = 0

    @property
    def why(self) -> str:
        return f"{self.reason} [{self.path}:{self.line}]" if self.path else self.reason


class SkippedVariant(Frozen):
    """A published variant that need not be built."""

    kernel: str
    variant: str
    reason: str


class KernelPlan(Frozen):
    """A kernel and the variants that its tree must have, skipped ones included."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    path: str
    version: Annotated[int, Meta(ge=0)]
    planned: tuple[str, ...]
    fingerprints: dict[str, Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]] | None = None
    tree: Annotated[str, Meta(max_length=4096)] = ""
    """The tree's path relative to kci.toml, for `suppressions`."""
    elsewhere: tuple[str, ...] = ()
    """Variants without a builder here; merging accepts them."""


class CatalogName(Frozen):
    """The edition of the catalog."""

    name: str
    as_of: str


class Plan(Frozen, omit_defaults=True):
    """The legs of a run, longest first; merging and the gate compare with it. Keys may be added."""

    schema: int
    tier: str
    kernels: tuple[KernelPlan, ...]
    legs: tuple[Leg, ...] = ()
    left_out: tuple[UnplannedVariant, ...] = ()
    skipped: tuple[SkippedVariant, ...] = ()
    catalog: CatalogName = CatalogName("", "")
    commit: str | None = None
    """None outside of git, with uncommitted changes, or with several repositories."""
    suppressions: tuple[Ignore, ...] = ()
    """Suppressions of kci.toml for trees: merge jobs have no kci.toml."""
    faulty: tuple[FaultyKernel, ...] = ()
    tests: tuple[TestLeg, ...] = ()
    untested: dict[str, str] = {}
    """The kernels with tests that no job runs, and why."""
    leave_out: StaleVariants | None = None
    """The policy for published variants that it leaves out; None without publishing."""
    attempt: Annotated[int, Meta(ge=1)] = 1
    loads: tuple[str, ...] = ()
    """The backends whose variants are loaded by whoever builds them."""

    def __post_init__(self) -> None:
        require_schema(self.schema, 1)

    @property
    def faults(self) -> list[Diagnostic]:
        """The findings about kernels that are not planned."""
        return [item for kernel in self.faulty for item in kernel.diagnostics]

    @property
    def untested_sentence(self) -> str:
        named = {
            why: [name for name, its in self.untested.items() if its == why]
            for why in self.untested.values()
        }
        return "; ".join(f"{why} ({', '.join(names)})" for why, names in sorted(named.items()))

    def kernel(self, name: str) -> KernelPlan | None:
        return next((kernel for kernel in self.kernels if kernel.name == name), None)

    def as_json(self) -> dict[str, Any]:
        """The documented JSON form (schema 1) for `msgspec.json.encode`, with all keys and
        `has_work`.
        """
        return msgspec.structs.asdict(self) | {"has_work": bool(self.legs)}

    def tree_plan(self) -> Plan:
        """The plan without legs: what the merged tree must have.

        Skipped variants stay planned, since merging carries them over; fingerprints stay for the
        next run.
        """
        expected = {(leg.kernel, name) for leg in self.legs for name in leg.variants}
        expected |= {(item.kernel, item.variant) for item in self.skipped}
        kernels = []
        for kernel in self.kernels:
            planned = tuple(name for name in kernel.planned if (kernel.name, name) in expected)
            prints = {
                name: text for name, text in (kernel.fingerprints or {}).items() if name in planned
            }
            if planned:
                kernels.append(
                    msgspec.structs.replace(kernel, planned=planned, fingerprints=prints or None)
                )
        return Plan(
            1,
            self.tier,
            tuple(kernels),
            commit=self.commit,
            suppressions=self.suppressions,
            loads=self.loads,
        )


_MAX_BYTES = 64 * 1024 * 1024


def read_plan(path: Path) -> Plan:
    """Read a plan's JSON, ignoring unknown keys; FindingsError (KCI611) for any other file."""
    with reading(path, "a plan", "kci plan --format json makes one"):
        plan = read_json(path, Plan, _MAX_BYTES)
        if repeated := duplicate_names(kernel.name for kernel in plan.kernels):
            raise ValueError(f"it names the kernel {repeated[0]} twice")
        for kernel in plan.kernels:
            for variant in (*kernel.planned, *kernel.elsewhere):
                parse_variant_name(variant)
    return plan


MAX_MATRIX = 256
"""GitHub's limit of jobs in a matrix ("Actions limits")."""

SLACK = 200
"""Kernels per caller job: hashes then keep each below 256."""


def caller_count(kernels: int) -> int:
    """The number of caller jobs for this many kernels."""
    return max(1, -(-kernels // SLACK))


def shard_of(kernel: str, count: int) -> int:
    """The caller job of a kernel, by rendezvous hashing."""
    return max(
        range(count), key=lambda index: hashlib.sha256(f"{index}\0{kernel}".encode()).digest()
    )


def allowances(legs: Iterable[tuple[str, Leg]]) -> dict[tuple[str, bool], int]:
    """The `max-parallel` of each group's whole legs, and of its part legs (True), where there is a
    limit.

    `max-parallel` limits one matrix, so each pool's size is split over the matrices by their legs.
    Pools without a size, or that GitHub queues itself, do not limit. Link legs take the place of
    parts.
    """
    sizes, allowed = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    by_pool: dict[Pool, Counter[tuple[str, bool]]] = {}
    for group, leg in legs:
        by_pool.setdefault(leg.pool, Counter())[group, leg.role is not Role.WHOLE] += 1
    for pool, here in by_pool.items():
        names = sorted(here)
        many = [here[name] for name in names]
        share = many if pool.size is None or pool.queued else split(pool.size, many)
        allowed.update(dict(zip(names, share, strict=True)))
        sizes.update(here)
    return {name: most for name, most in allowed.items() if most < sizes[name]}


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Split a number by weights, with at least 1 and at most the weight for each positive
    weight.
    """
    least = [min(1, weight) for weight in weights]
    beyond = sum(weights) - sum(least)
    rest = min(beyond, max(0, total - sum(least)))
    shares = [
        divmod(rest * (weight - one), max(1, beyond))
        for weight, one in zip(weights, least, strict=True)
    ]
    parts = [one + share for one, (share, _) in zip(least, shares, strict=True)]
    # Largest remainder first; ties by position.
    order = sorted(range(len(weights)), key=lambda index: -shares[index][1])
    for index in order[: sum(least) + rest - sum(parts)]:
        parts[index] += 1
    return parts
