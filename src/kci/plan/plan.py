"""The plan, what it is made of, how it is written and read, and its matrices."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kci.config.discovery import FaultyKernel
from kci.config.settings import Ignore
from kci.config.values import NAME_PATTERN, StaleVariants
from kci.errors import rule_error
from kci.matrix.catalog.runners import Pool
from kci.matrix.variants import Kind, parse_variant_name
from kci.utils.bounded_json import read_json, require_schema
from kci.utils.walk import duplicate_names


class RunnerGroup(msgspec.Struct, frozen=True):
    """A runner that is chosen by its group; `runs-on` takes this shape as it takes a list of labels."""

    group: str
    labels: tuple[str, ...] = ()


def _runner_text(runner: tuple[str, ...] | RunnerGroup) -> str:
    if isinstance(runner, tuple):
        return " ".join(runner)
    return " ".join((f"group:{runner.group}", *runner.labels))


class Role(enum.StrEnum):
    """What a leg is for; the value names the matrix of a workflow that it is in."""

    WHOLE = "matrix"
    """It compiles and links: it waits for nothing."""
    PART = "parts"
    """It compiles a share of one variant's objects."""
    LINK = "links"
    """It makes a variant of objects that other legs have compiled, and compiles what is missing."""


class KeptObjects(msgspec.Struct, frozen=True):
    """Where the objects of a leg are."""

    run: str
    """The id of the run."""
    artifact: str


def stop_after(timeout: int) -> int:
    """Minutes after which a build ends itself, so that a job of so many minutes can still hand back what is done."""
    return max(1, timeout - max(2, timeout // 20))


class Leg(msgspec.Struct, frozen=True):
    """One job: one variant, or several of one kernel, and where and how they are built."""

    kernel: str
    path: str
    variant: str
    """What the build is told: the variant's name, or several names separated by spaces."""
    variants: tuple[str, ...]
    """What it makes; a part leg makes none."""
    name: str
    """What tells the leg from others of its kernel: the variant's name, or the group's, or that of a part."""
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
    measured: bool
    """True if `minutes` comes from recorded durations of all its variants."""
    pool: Pool
    """The machines that it is taken from."""
    rate: float | None
    """The price of a minute on its runner; None if unknown."""
    currency: str
    artifact: str
    """The name of the artifact that the leg uploads."""
    max_jobs: int | None = None
    """How many compilers run in parallel; None leaves it to the machine."""
    cores: int | None = None
    """How many threads each of them may use."""
    disk: int | None = None
    """The gigabytes of free disk that the image needs, where not every runner has them."""
    shard: int = 0
    """Which of the caller jobs of a rendered workflow its kernel is in."""
    loads: tuple[str, ...] = ()
    """The torch versions with which what it builds is loaded and tested; see `Variant.loads`."""
    part: int | None = None
    """The share of its variant's objects that it compiles, from 1 on; None for a leg that makes variants."""
    parts: int | None = None
    """How many shares there are."""
    takes: tuple[str, ...] = ()
    """The part legs of the kernel whose objects a link leg takes, by name."""
    objects_run: str = ""
    """The earlier run whose objects it starts with; empty for none."""
    objects_from: str = ""
    """The artifact of that run that has them."""
    builder: str | None = None
    """`nix` where the nix builder makes it; None for the builder that fits."""
    at_least: int | None = None
    """The minutes that it takes in the best case; None if `minutes` was recorded."""
    at_most: int | None = None
    """The minutes that it takes in the worst case that is likely; None if `minutes` was recorded."""

    @property
    def ends(self) -> tuple[int, int]:
        """The minutes that it takes at least and at most."""
        return self.at_least or self.minutes, self.at_most or self.minutes

    @property
    def takes_text(self) -> str:
        """What it takes, for a person to read: `12 min`, or `4 to 30 min` where that is an estimate."""
        least, most = self.ends
        return f"{least} min" if least == most else f"{least} to {most} min"

    @property
    def runner_text(self) -> str:
        return _runner_text(self.runner)

    @property
    def stop_after(self) -> int:
        """Minutes after which its build ends itself; see `kci.plan.plan.stop_after`."""
        return stop_after(self.timeout)

    @property
    def role(self) -> Role:
        if self.part is not None:
            return Role.PART
        return Role.WHOLE if self.parts is None else Role.LINK


class TestLeg(msgspec.Struct, frozen=True):
    """One job that tests a kernel's tree on a machine with the hardware."""

    __test__ = False  # pytest would take it for a test

    kernel: str
    path: str
    name: str
    """Backend and system, which tell it from others of its kernel."""
    backend: str
    system: str
    variants: tuple[str, ...]
    """Those of which the machine tests the ones that it can load."""
    runner: tuple[str, ...] | RunnerGroup
    timeout: int
    """Minutes."""
    inputs: str = ""
    """A hash of what it runs and where: the kernel's tests, and the labels; empty if the plan was made without."""
    run: str = ""
    """The earlier run whose tree it tests; empty for the tree that this run merges."""

    @property
    def runner_text(self) -> str:
        return _runner_text(self.runner)


class Unplanned(msgspec.Struct, frozen=True):
    """A variant that no job builds, and why."""

    kernel: str
    variant: str
    backend: str
    system: str
    rule: str
    reason: str
    path: str = ""
    """The file in which its backend is at fault; empty if it is not."""
    line: int = 0

    @property
    def why(self) -> str:
        return f"{self.reason} [{self.path}:{self.line}]" if self.path else self.reason


class Skipped(msgspec.Struct, frozen=True):
    """A variant that need not be built, because it is published already, and why that is known."""

    kernel: str
    variant: str
    reason: str


class KernelPlan(msgspec.Struct, frozen=True):
    """A kernel of the plan and the variants that its tree must have, those that are skipped among them."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    path: str
    version: Annotated[int, Meta(ge=0)]
    planned: tuple[str, ...]
    fingerprints: dict[str, Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]] | None = None
    """What each planned variant is made from; None if the plan was made without."""
    tree: Annotated[str, Meta(max_length=4096)] = ""
    """Where its tree lies in the repository, relative to kci.toml: what `suppressions` call its files."""
    elsewhere: tuple[str, ...] = ()
    """Variants that nothing builds here; merging takes them from whoever uploads them."""


class CatalogName(msgspec.Struct, frozen=True):
    """The edition of the catalog that the matrix was computed from."""

    name: str
    as_of: str


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The legs of a run, the longest first; what merging and the gate hold the run against. More keys may be added."""

    schema: int
    """1; another number means another shape."""
    tier: str
    kernels: tuple[KernelPlan, ...]
    legs: tuple[Leg, ...] = ()
    left_out: tuple[Unplanned, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    catalog: CatalogName = CatalogName("", "")
    commit: str | None = None
    """The commit that was planned; None outside of git, with uncommitted changes, or with several repositories."""
    suppressions: tuple[Ignore, ...] = ()
    """What kci.toml suppresses of the findings about trees: whoever merges has no kci.toml."""
    faulty: tuple[FaultyKernel, ...] = ()
    """The kernels that are not planned because `kci check` finds an error in them."""
    tests: tuple[TestLeg, ...] = ()
    """The jobs that test what was merged."""
    leave_out: StaleVariants | None = None
    """What a release does about variants that it leaves out and that are published; None where none is published."""
    attempt: Annotated[int, Meta(ge=1)] = 1
    """The attempt of the CI run that made it."""

    def __post_init__(self) -> None:
        require_schema(self.schema, 1)

    def kernel(self, name: str) -> KernelPlan | None:
        return next((kernel for kernel in self.kernels if kernel.name == name), None)

    def as_json(self) -> dict[str, Any]:
        """The documented JSON form (schema 1), for `msgspec.json.encode`: with every key, and whether there is work."""
        return msgspec.structs.asdict(self) | {"has_work": bool(self.legs)}

    def promised(self) -> Plan:
        """The plan without its legs: what the merged tree must have. Kernels without a variant in it are left out.

        What is published already is still planned: merging carries it over. The fingerprints let merging record what
        each variant was made from, for the next run to compare with.
        """
        there = {(leg.kernel, name) for leg in self.legs for name in leg.variants}
        there |= {(item.kernel, item.variant) for item in self.skipped}
        kernels = []
        for kernel in self.kernels:
            planned = tuple(name for name in kernel.planned if (kernel.name, name) in there)
            prints = {name: text for name, text in (kernel.fingerprints or {}).items() if name in planned}
            if planned:
                kernels.append(msgspec.structs.replace(kernel, planned=planned, fingerprints=prints or None))
        return Plan(1, self.tier, tuple(kernels), commit=self.commit, suppressions=self.suppressions)


_MAX_BYTES = 64 * 1024 * 1024


def read_plan(path: Path) -> Plan:
    """Read a plan's JSON; unrelated keys are ignored.

    Raises FindingsError: it cannot be read, or this kci does not know its format.
    """
    try:
        plan = read_json(path, Plan, _MAX_BYTES)
        if repeated := duplicate_names(kernel.name for kernel in plan.kernels):
            raise ValueError(f"it names the kernel {repeated[0]} twice")
        for kernel in plan.kernels:
            for variant in (*kernel.planned, *kernel.elsewhere):
                parse_variant_name(variant)
    except OSError as error:
        message = f"cannot read the plan {path}: {error.strerror}"
    except ValueError as error:
        message = f"{path} is not a plan: {error}"
    else:
        return plan
    raise rule_error("KCI611", message, hint="kci plan --format json makes one", path=str(path))


MAX_MATRIX = 256
"""Jobs that one matrix of a GitHub workflow may have; the run fails beyond (GitHub docs, "Actions limits")."""

SLACK = 200
"""Kernels of a caller job that a workflow file aims at: as hashes spread them, no matrix then has more than 256."""


def caller_count(kernels: int) -> int:
    """How many caller jobs a repository of so many kernels needs."""
    return max(1, -(-kernels // SLACK))


def shard_of(kernel: str, count: int) -> int:
    """The caller job of a kernel among `count`: the one whose hash with its name is the highest."""
    return max(range(count), key=lambda index: hashlib.sha256(f"{index}\0{kernel}".encode()).digest())


def allowances(legs: Sequence[Leg], groups: Sequence[int], count: int) -> list[tuple[int | None, int | None]]:
    """How many legs of each of `count` groups may run at once; None where nothing holds them back.

    `max-parallel` bounds one matrix only, so the budget of all pools is split: each pool by how many of its legs are in
    which matrix, at least one where there are any, the rest by the largest remainders. Legs of a pool whose size is not
    known, or whose jobs GitHub holds back itself, bring their own number, so that they are never held back here.

    First of the legs that make whole variants, then of part legs; link legs run after those, and take their place.
    """
    matrices = [2 * group + (leg.role is not Role.WHOLE) for leg, group in zip(legs, groups, strict=True)]
    allowed, sizes = [0] * 2 * count, [0] * 2 * count
    by_pool: dict[Pool, list[int]] = {}
    for leg, matrix in zip(legs, matrices, strict=True):
        by_pool.setdefault(leg.pool, [0] * 2 * count)[matrix] += 1
        sizes[matrix] += 1
    for pool, here in sorted(by_pool.items(), key=lambda item: item[0].name):
        share = here if pool.size is None or pool.queued else split(pool.size, here)
        allowed = [total + more for total, more in zip(allowed, share, strict=True)]
    found = [most if 0 < most < size else None for most, size in zip(allowed, sizes, strict=True)]
    return list(zip(found[::2], found[1::2], strict=True))


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Split a number by weights: nothing for a weight of 0, at least 1 for every other, never more than the weight."""
    beyond = [max(0, weight - 1) for weight in weights]
    rest = min(sum(beyond), max(0, total - sum(weight > 0 for weight in weights)))
    whole = max(1, sum(beyond))
    parts = [min(1, weight) + rest * more // whole for weight, more in zip(weights, beyond, strict=True)]
    # Biggest remainder first; ties by position, so that the result is the same everywhere.
    order = sorted(range(len(weights)), key=lambda index: (-(rest * beyond[index] % whole), index))
    for index in order[: rest - sum(rest * more // whole for more in beyond)]:
        parts[index] += 1
    return parts
