"""The plan as a document for other programs: its shape, and the JSON Schema of that."""

from __future__ import annotations

from typing import Any

import msgspec

from kci.config.discover import FaultyKernel
from kci.config.schema import answer_schema
from kci.config.settings import Ignore
from kci.config.values import LeaveOut
from kci.plan.budget import Estimate
from kci.plan.plan import KernelPlan, LeftOut, Leg, Plan, Shard, Skipped, TestLeg


class CatalogName(msgspec.Struct, frozen=True):
    """The edition of the catalog that the matrix was computed from."""

    name: str
    as_of: str


class PlanDocument(msgspec.Struct, frozen=True):
    """What `kci plan --format json` prints, and `kci merge --plan` reads. More keys may be added."""

    schema: int
    """1; another number means another shape."""
    tier: str
    catalog: CatalogName
    commit: str | None
    has_work: bool
    """Whether there is a leg: an empty matrix fails a run."""
    kernels: tuple[KernelPlan, ...]
    legs: tuple[Leg, ...]
    left_out: tuple[LeftOut, ...]
    skipped: tuple[Skipped, ...]
    shards: tuple[Shard, ...]
    suppressions: tuple[Ignore, ...] = ()
    """What kci.toml suppresses of the findings about trees; a `path` is a pattern, relative to kci.toml."""
    faulty: tuple[FaultyKernel, ...] = ()
    """Kernels that are not planned, because `kci check` finds an error in them."""
    tests: tuple[TestLeg, ...] = ()
    """The jobs that test what was merged."""
    leave_out: LeaveOut | None = None
    """What a release does about variants that it leaves out and that are published; null where none is published."""
    estimate: Estimate | None = None


def plan_schema() -> dict[str, Any]:
    """The JSON Schema of a plan."""
    return answer_schema(PlanDocument, "The plan of a run: its legs, and what is left out")


def promised(plan: Plan) -> dict[str, Any]:
    """The plan without its legs: what the merged tree must have. Kernels without a variant in it are left out.

    What is published already is still planned: merging carries it over. The fingerprints let merging record what each
    variant was made from, for the next run to compare with.
    """
    built = {(leg.kernel, name) for leg in plan.legs for name in leg.variants}
    there = {(item.kernel, item.variant) for item in plan.skipped}
    kernels = []
    for kernel in plan.kernels:
        planned = [name for name in kernel.planned if (kernel.name, name) in built | there]
        if not planned:
            continue
        entry: dict[str, Any] = {"name": kernel.name, "path": kernel.path, "version": kernel.version}
        entry |= {"tree": kernel.tree} if kernel.tree else {}
        prints = {name: text for name, text in (kernel.fingerprints or {}).items() if name in planned}
        kernels.append(entry | {"planned": planned} | ({"fingerprints": prints} if prints else {}))
    compact: dict[str, Any] = {"schema": 1, "tier": plan.tier, "kernels": kernels}
    if plan.suppressions:
        compact["suppressions"] = msgspec.to_builtins(plan.suppressions)
    return compact | ({"commit": plan.commit} if plan.commit else {})
