"""Which kernels of a CI run can be published: those whose tree is complete and tested, in this run or before."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kci.ci.run_records import KernelRecord, RunPlan, TestRecord
from kci.ci.tree_index import TreeIndex, untested


class Releasable(msgspec.Struct, frozen=True):
    """A kernel with a tree that can be published."""

    kernel: str
    path: str
    run: str
    """The run whose artifacts have the tree."""


def releasable(
    plan: RunPlan,
    records: Mapping[str, KernelRecord],
    tests: Mapping[tuple[str, str], TestRecord],
    index: TreeIndex,
    run: str,
) -> list[Releasable]:
    """The kernels that can be published, by name. One that failed stops no other.

    Args:
        plan: what was to be done.
        records: what became of each kernel in this run.
        tests: what came of the tests of this run.
        index: where the trees of earlier runs are, for kernels that have not changed since.
        run: the id of this run.
    """
    built = {leg.kernel for leg in plan.legs}
    skipped = {item.kernel for item in plan.skipped}
    faulty = {item.kernel for item in plan.faulty}
    # What is declared and not in the plan has passed on the very tree in an earlier run.
    failed = {name for name, _ in untested(plan, records, tests, index)}
    found = []
    for kernel in plan.kernels:
        record, place = records.get(kernel.name), index.trees.get(kernel.name)
        if kernel.name in faulty:
            continue
        if kernel.name in built:
            good = record is not None and record.attempt >= plan.attempt and record.complete
            if good and kernel.name not in failed:
                found.append(Releasable(kernel.name, kernel.path, run))
        elif (
            kernel.name not in failed
            and kernel.name in skipped
            and place is not None
            and place.manifest.version == kernel.version
        ):
            found.append(Releasable(kernel.name, kernel.path, place.run))
    return sorted(found, key=lambda item: item.kernel)
