"""What another catalog would change for the kernels of a workspace: variants that come and go, time and cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from kci.catalog.rows import Catalog
from kci.config.discover import FaultyKernel
from kci.config.reader import Kernel
from kci.errors import FindingsError
from kci.matrix.diff import KernelDiff, diff_matrices
from kci.plan.budget import estimate
from kci.plan.plan import Estimate, Leg
from kci.workspace.migrating import KernelMigrations, migrations_of
from kci.workspace.planning import PlanRequest, plan_run
from kci.workspace.workspace import Choice, Workspace


class Impact(msgspec.Struct, frozen=True):
    """What a change of the catalog leads to in the release tier."""

    kernels: tuple[KernelDiff, ...]
    to_build: Estimate | None
    """What it takes to build what is new or different; None if nothing is."""
    faulty: tuple[FaultyKernel, ...] = ()
    """Kernels that differ and that could not be planned; what they take is not in the estimate."""
    migrations: tuple[KernelMigrations, ...] = ()
    """Kernels whose build.toml has to change."""


def impact(workspace: Workspace, proposed: Catalog) -> Impact:
    """Compare the matrices of two catalogs.

    Args:
        workspace: the kernels, with the catalog in force.
        proposed: the other one; the overlays of kci.toml hold for it too.

    Raises:
        FindingsError: a build.toml cannot be read any more.
    """
    after = msgspec.structs.replace(workspace, catalog=proposed)
    diffs = diff_matrices(workspace.matrix().kernels, after.matrix().kernels)
    names = {item.name for diff in diffs for item in diff.added}
    names |= {item.name for diff in diffs for item in diff.changed}
    if not names:
        return Impact(tuple(diffs), None, migrations=tuple(migrations_of(workspace, proposed)))
    different = {diff.name for diff in diffs if diff.added or diff.changed}
    kernels = [kernel for kernel in after.kernels if kernel.build.name in different]
    migrations = tuple(migrations_of(workspace, proposed))
    request = PlanRequest(choice=Choice(only=tuple(sorted(names))), allow_empty=True)
    legs: list[Leg] = []
    faulty: list[FaultyKernel] = []
    for batch in batched(kernels):
        try:
            plan = plan_run(after.of(batch), request).plan
        except FindingsError as error:  # none of them can be planned
            faulty += [FaultyKernel(kernel.directory, kernel.build.name, error.message, ()) for kernel in batch]
        else:
            legs += plan.legs
            faulty += plan.faulty
            left = {item.kernel: item for item in plan.left_out if item.path}
            faulty += [FaultyKernel(item.path, item.kernel, item.why, ()) for item in left.values()]
    return Impact(tuple(diffs), estimate(legs) if legs else None, tuple(faulty), migrations)


def batched(kernels: Sequence[Kernel]) -> Iterator[Sequence[Kernel]]:
    """Kernels in portions whose legs fit into one run; all of a large repository would be too many to start at once."""
    for start in range(0, len(kernels), _AT_ONCE):
        yield kernels[start : start + _AT_ONCE]


_AT_ONCE = 200
