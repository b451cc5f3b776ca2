"""The plan as a document for other programs: its shape, and the JSON Schema of that."""

from __future__ import annotations

from typing import Any

import msgspec

from kci.config.schema import answer_schema
from kci.plan.budget import Estimate
from kci.plan.plan import KernelPlan, LeftOut, Leg, Shard, Skipped


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
    estimate: Estimate | None = None


def plan_schema() -> dict[str, Any]:
    """The JSON Schema of a plan."""
    return answer_schema(PlanDocument, "The plan of a run: its legs, and what is left out")
