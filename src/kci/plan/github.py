"""The plan as a GitHub workflow takes it: JSON for `fromJSON`, within GitHub's limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from kci.diagnostics import Diagnostic, Severity, finding
from kci.errors import FindingsError, UsageError
from kci.plan.budget import Estimate
from kci.plan.grouping import twins
from kci.plan.plan import Leg, Plan, TestLeg
from kci.plan.sharding import MAX_MATRIX, MAX_SHARDS, shard_count

MAX_OUTPUT_UNITS = 1024 * 1024 // 2
"""UTF-16 code units that the outputs of one job may have: GitHub's limit is 1 MB, counted in UTF-16."""

MANY_JOBS = 500
"""Jobs from which on GitHub's page of a run is hard to use; one of 1,350 jobs was not shown at all."""

MAX_ARTIFACT_NAME = 255
"""Characters of an artifact's name; it becomes the name of a file when it is downloaded."""

SMALLER = 'group legs with `group = "image"` or `"backend"` under `[plan]` in kci.toml, or build a smaller tier'
"""The way out of a plan with too many legs."""

LEG_KEYS = ("kernel", "path", "name", "variant", "backend", "system", "runner", "image", "timeout", "artifact")
"""What a job of the matrix gets to know, beside the tier; each is `matrix.<key>` in the workflow."""

TEST_KEYS = ("kernel", "path", "name", "backend", "variants", "runner", "timeout", "run")
"""What a job that tests gets to know."""

LIMIT_KEYS = ("max_jobs", "cores", "disk")
"""Keys that a job has only where there is such a limit or need."""


def as_json(plan: Plan, estimate: Estimate | None = None) -> dict[str, Any]:
    """The documented JSON form (schema 1)."""
    answer: dict[str, Any] = {
        "schema": 1,
        "tier": plan.tier,
        "catalog": {"name": plan.catalog_name, "as_of": plan.catalog_as_of},
        "commit": plan.commit,
        "has_work": bool(plan.legs),
        "kernels": plan.kernels,
        "legs": plan.legs,
        "left_out": plan.left_out,
        "skipped": plan.skipped,
        "shards": plan.shards,
        "suppressions": plan.suppressions,
        "faulty": plan.faulty,
        "tests": plan.tests,
        "leave_out": plan.leave_out,
    }
    return answer | ({"estimate": estimate} if estimate is not None else {})


def github_matrix(plan: Plan, shard: int | None = None) -> str:
    """One line for `fromJSON`: the legs of a shard as the `include` of a workflow's matrix.

    Args:
        plan: the plan.
        shard: which of its matrices; None for the only one.

    Raises:
        UsageError: there is no such shard.
        FindingsError: more legs than one matrix may have (KCI305), more text than the outputs of a job (KCI306), or
            two artifacts of one name (KCI307).
    """
    refuse_errors(check_limits(plan))
    if shard is None and len(plan.shards) > 1:
        message = f"{len(plan.legs)} legs, and GitHub allows {MAX_MATRIX} jobs in one matrix"
        hint = f"print each of the {len(plan.shards)} matrices with --shard 0 to {len(plan.shards) - 1}"
        raise FindingsError(message, hint=hint, diagnostics=[finding("KCI305", message, hint=hint)])
    if shard is not None and not 0 <= shard < max(1, len(plan.shards)):
        raise UsageError(f"there is no shard {shard}", hint=f"the plan has {max(1, len(plan.shards))}, counted from 0")
    return _matrix(plan.tier, [leg for leg in plan.legs if leg.shard == (shard or 0)])


def check_limits(plan: Plan) -> list[Diagnostic]:
    """What GitHub would refuse: KCI305, KCI306, KCI307; and more jobs than a page can show, a warning (KCI308)."""
    found = [*artifact_problems(plan), *_output_problems(plan)]
    for shard in plan.shards:
        if shard.legs > MAX_MATRIX:
            most = max(Counter(leg.kernel for leg in plan.legs if leg.shard == shard.index).values())
            message = f"matrix {shard.index} has {shard.legs} legs, and GitHub allows {MAX_MATRIX}"
            needed = shard_count(Counter(leg.kernel for leg in plan.legs))
            hint = (
                f"plan {needed} matrices: `--shards {needed}`"
                if most <= MAX_MATRIX and needed < MAX_SHARDS
                else SMALLER
            )
            found.append(finding("KCI305", message, hint=hint))
    if len(plan.legs) > MANY_JOBS:
        hint = "group them with `--group image`, or build a smaller tier on every push"
        found.append(finding("KCI308", f"{len(plan.legs)} jobs; GitHub's page of the run becomes unusable", hint=hint))
    return found


def refuse_errors(found: Iterable[Diagnostic]) -> None:
    """Raise the errors among what was found.

    Raises:
        FindingsError: there is one.
    """
    problems = [item for item in found if item.severity is Severity.ERROR]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise FindingsError(problems[0].message + more, hint=problems[0].hint, diagnostics=problems)


def leg_entry(tier: str, leg: Leg) -> dict[str, Any]:
    """What a job of the matrix gets to know about its leg."""
    entry = {key: getattr(leg, key) for key in LEG_KEYS} | {"tier": tier}
    return entry | {key: value for key in LIMIT_KEYS if (value := getattr(leg, key)) is not None}


def tests_matrix(tests: Iterable[TestLeg]) -> dict[str, Any]:
    """The jobs that test as a workflow's matrix."""
    return {"include": [{key: getattr(test, key) for key in TEST_KEYS} for test in tests]}


def _matrix(tier: str, legs: list[Leg]) -> str:
    return msgspec.json.encode({"include": [leg_entry(tier, leg) for leg in legs]}).decode()


def artifact_problems(plan: Plan) -> list[Diagnostic]:
    """Artifacts that GitHub would refuse because of their names: KCI307."""
    names = [leg.artifact for leg in plan.legs]
    hint = "rename one of the kernels"
    problems = [finding("KCI307", f"two legs have an artifact named {name}", hint=hint) for name in twins(names)]
    long = [name for name in names if len(name) > MAX_ARTIFACT_NAME]
    return problems + [finding("KCI307", f"the artifact's name is too long: {name[:60]}…", hint=hint) for name in long]


def _output_problems(plan: Plan) -> list[Diagnostic]:
    """All matrices of a plan are outputs of one job, and the limit is for them together."""
    units = sum(
        output_units(_matrix(plan.tier, [leg for leg in plan.legs if leg.shard == shard.index]))
        for shard in plan.shards
    )
    if units <= MAX_OUTPUT_UNITS:
        return []
    message = f"the matrices have {units} UTF-16 units, and GitHub allows {MAX_OUTPUT_UNITS} in a job's outputs"
    hint = "plan fewer kernels at a time, group with `--group image`, or narrow with --tier, --backend or --only"
    return [finding("KCI306", message, hint=hint)]


def output_units(text: str) -> int:
    """How much of the limit of a job's outputs a text takes."""
    return len(text.encode("utf-16-le")) // 2
