"""What a plan is made of."""

from __future__ import annotations

import msgspec

from kci.config.discover import FaultyKernel
from kci.config.settings import Ignore
from kci.config.values import LeaveOut
from kci.matrix.names import Kind
from kci.plan.pools import Pool


class RunnerGroup(msgspec.Struct, frozen=True):
    """A runner that is chosen by its group; `runs-on` takes this shape as it takes a list of labels."""

    group: str
    labels: tuple[str, ...] = ()


def _runner_text(runner: tuple[str, ...] | RunnerGroup) -> str:
    if isinstance(runner, tuple):
        return " ".join(runner)
    return " ".join((f"group:{runner.group}", *runner.labels))


class Leg(msgspec.Struct, frozen=True):
    """One job: one variant, or several of one kernel, and where and how they are built."""

    kernel: str
    path: str
    variant: str
    """What the build is told: the variant's name, or several names separated by spaces."""
    variants: tuple[str, ...]
    name: str
    """What tells the leg from others of its kernel: the variant's name, or the group's."""
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
    """Whether `minutes` comes from recorded durations of all its variants."""
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
    """Which of the workflow's matrices its kernel is in."""
    loads: tuple[str, ...] = ()
    """The torch versions with which what it builds is loaded and tested; see `Variant.loads`."""

    @property
    def runner_text(self) -> str:
        """The labels of the runner, and its group, for people."""
        return _runner_text(self.runner)


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
        """The labels of the runner, and its group, for people."""
        return _runner_text(self.runner)


class LeftOut(msgspec.Struct, frozen=True):
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
        """The reason, and the place that decided it."""
        return f"{self.reason} [{self.path}:{self.line}]" if self.path else self.reason


class Skipped(msgspec.Struct, frozen=True):
    """A variant that need not be built, because it is published already, and why that is known."""

    kernel: str
    variant: str
    reason: str


class KernelPlan(msgspec.Struct, frozen=True):
    """A kernel of the plan and the variants that its tree must have, those that are skipped among them."""

    name: str
    path: str
    version: int
    planned: tuple[str, ...]
    fingerprints: dict[str, str] | None = None
    """What each planned variant is made from; None if the plan was made without."""
    tree: str = ""
    """Where its tree lies in the repository, relative to kci.toml: what `suppressions` call its files."""


class Shard(msgspec.Struct, frozen=True):
    """One matrix of the workflow."""

    index: int
    legs: int
    max_parallel: int | None
    """How many of its legs may run at once, so that all shards together stay within the pools; None for no limit."""


class Plan(msgspec.Struct, frozen=True):
    """The legs of a run, the longest first."""

    tier: str
    catalog_name: str
    catalog_as_of: str
    kernels: tuple[KernelPlan, ...]
    legs: tuple[Leg, ...]
    left_out: tuple[LeftOut, ...]
    skipped: tuple[Skipped, ...] = ()
    shards: tuple[Shard, ...] = ()
    commit: str | None = None
    """The commit that was planned; None outside of git, with uncommitted changes, or with several repositories."""
    suppressions: tuple[Ignore, ...] = ()
    """What kci.toml suppresses of the findings about trees: whoever merges has no kci.toml."""
    faulty: tuple[FaultyKernel, ...] = ()
    """The kernels that are not planned because `kci check` finds an error in them."""
    tests: tuple[TestLeg, ...] = ()
    """The jobs that test what was merged."""
    leave_out: LeaveOut | None = None
    """What a release does about variants that it leaves out and that are published; None where none is published."""
