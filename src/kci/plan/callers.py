"""The plan for a workflow in which every kernel is a unit of its own, within GitHub's limits.

A caller job has one entry for each of its kernels and starts the reusable workflow for it; there the kernel's legs are
one matrix, and its tree is merged. So a kernel's state depends on that kernel only, and no matrix has more than one
kernel's legs. A kernel stays with its caller as long as the number of callers is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kci.diagnostics import Diagnostic, finding
from kci.plan.github import (
    MANY_JOBS,
    MAX_OUTPUT_UNITS,
    SMALLER,
    artifact_problems,
    leg_entry,
    output_units,
    tests_matrix,
)
from kci.plan.plan import Leg, Plan
from kci.plan.plan_json import promised
from kci.plan.sharding import MAX_MATRIX, allowances, shard_of

MAX_JOBS = 1000
"""Jobs from which on a run is refused: one of 1,350 was not shown by GitHub at all, and its artifacts, which an API
lists up to 1,000, could not all be fetched by a second attempt."""

SLACK = 200
"""Kernels of a caller job that a workflow file aims at: as hashes spread them, no matrix then has more than 256."""

OWN_JOBS = 2
"""The jobs beside those of the kernels: the plan and the gate."""


def caller_count(kernels: int) -> int:
    """How many caller jobs a repository of so many kernels needs."""
    return max(1, -(-kernels // SLACK))


def run_jobs(kernels: int, legs: int) -> int:
    """The jobs of a run that builds so many legs of so many kernels; each kernel has one job that merges."""
    return legs + kernels + OWN_JOBS


def work_of(plan: Plan, count: int, trees: Mapping[str, str] | None = None) -> str:
    """One line for `fromJSON`: a list with the matrix of each caller job.

    An entry of it has the `kernel`, and the `work` that the reusable workflow is told: the `matrix` of its build job,
    how many of its legs may run at once (`parallel`), the part of the plan that merging is held against (`plan`), the
    matrix of the jobs that test (`tests`), and the run with the tree from which variants are carried over (`tree_run`).

    Args:
        plan: the plan.
        count: the number of caller jobs in the workflow file.
        trees: the runs that have published trees, by kernel.
    """
    return msgspec.json.encode(_work(plan, count, trees or {})).decode()


def check_callers(plan: Plan, count: int) -> list[Diagnostic]:
    """What GitHub would refuse: KCI305, KCI306, KCI307; and more jobs than a page can show, a warning (KCI308)."""
    found = artifact_problems(plan)
    work = _work(plan, count, {})
    for caller in work:
        sizes = {entry["kernel"]: len(entry["work"]["matrix"]["include"]) for entry in caller["include"]}
        found += [
            finding("KCI305", f"{name} has {size} legs, and GitHub allows {MAX_MATRIX} in a matrix", hint=SMALLER)
            for name, size in sizes.items()
            if size > MAX_MATRIX
        ]
        if len(sizes) > MAX_MATRIX:
            message = f"a caller job has {len(sizes)} kernels, and GitHub allows {MAX_MATRIX} in a matrix"
            found.append(finding("KCI305", message, hint="run `kci render`: it writes more caller jobs"))
    units = output_units(msgspec.json.encode(work).decode())
    if units > MAX_OUTPUT_UNITS:
        message = f"the plan has {units} UTF-16 units, and GitHub allows {MAX_OUTPUT_UNITS} in a job's outputs"
        found.append(finding("KCI306", message, hint=SMALLER))
    jobs = run_jobs(len({leg.kernel for leg in plan.legs}), len(plan.legs) + len(plan.tests))
    if jobs > MAX_JOBS:
        found.append(finding("KCI305", f"{jobs} jobs; kci starts no run of more than {MAX_JOBS}", hint=SMALLER))
    elif jobs > MANY_JOBS:
        found.append(finding("KCI308", f"{jobs} jobs; GitHub's page of a run gets unusable", hint=SMALLER))
    return found


def _work(plan: Plan, count: int, trees: Mapping[str, str]) -> list[dict[str, Any]]:
    by_kernel: dict[str, list[Leg]] = {}
    for leg in plan.legs:
        by_kernel.setdefault(leg.kernel, []).append(leg)
    # A kernel without a build is there if a tree of an earlier run is to be tested.
    names = sorted(by_kernel.keys() | {test.kernel for test in plan.tests if test.run})
    carried = {item.kernel for item in plan.skipped}
    index = {name: number for number, name in enumerate(names)}
    most = allowances(plan.legs, [index[leg.kernel] for leg in plan.legs], len(names))
    promise = promised(plan)
    parts = {entry["name"]: promise | {"kernels": [entry]} for entry in promise["kernels"]}
    found: list[dict[str, Any]] = [{"include": []} for _ in range(count)]
    for name in names:
        work = {
            "matrix": {"include": [leg_entry(plan.tier, leg) for leg in by_kernel.get(name, ())]},
            "parallel": most[index[name]] or MAX_MATRIX,
            "plan": parts[name],
            "tests": tests_matrix(test for test in plan.tests if test.kernel == name),
            "tree_run": trees.get(name, "") if name in carried else "",
        }
        found[shard_of(name, count)]["include"].append({"kernel": name, "work": work})
    return found
