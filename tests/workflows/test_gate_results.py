"""The gate, where up to two jobs before it end badly: it always runs, and is green only if all did
their part.

act runs no job after a called workflow that failed, so here GitHub's own libraries decide which
jobs run.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import read_yaml
from github_library import results_of_runs
from kci.plan.plan import Plan
from kci.run.gate import RunUploads, job_problem, missing_results, read_results
from kci.run.records import KernelRecord
from kci.tree.manifest import Manifest
from planning import leg
from workflows.cases import GOLDEN

pytestmark = [pytest.mark.network, pytest.mark.programs]

ENDINGS = ("success", "failure", "cancelled")
AT_ONCE = 2
"""What one job hides another one can. With every combination a workflow of eight jobs takes three
minutes."""
GATED = [file for file in sorted(GOLDEN.glob("*/*.yml")) if "/gate@" in file.read_text()]


def outputs(*, work: bool, releases: bool) -> dict[str, dict[str, str]]:
    """What jobs say to later ones."""
    one = '{"include": [{"name": "x"}]}'
    plan = {"has-work": str(work).lower(), "callers": f"[{one}, {one}]" if work else "[]"}
    return {"plan": plan, "ready": {"has-releases": str(releases).lower(), "releases": one}}


def every_run(jobs: list[str]) -> list[dict[str, Any]]:
    """Runs in which up to two jobs end badly, with something and nothing to do, cancelled at each
    moment or never.
    """
    contexts = {"github": {"event_name": "push"}, "inputs": {}, "vars": {}}
    bools, moments = (True, False), (None, *range(len(jobs) + 1))
    return [
        {
            "endings": dict(zip(jobs, endings, strict=True)), "begun": begun, "contexts": contexts,
            "outputs": outputs(work=work, releases=releases),
        }
        for endings in itertools.product(ENDINGS, repeat=len(jobs))
        if len(jobs) - endings.count("success") <= AT_ONCE
        for work, releases, begun in itertools.product(bools, bools, moments)
    ]  # fmt: skip


def whole(kernel: str) -> Manifest:
    return Manifest(kernel, 1, (), (), (), complete=True)


def is_green(said: str, run: dict[str, Any], results: dict[str, str]) -> bool:
    """The gate's verdict, with records as good as jobs that ended so can have left them."""
    read = read_results(said)
    if read["plan"] != "success":
        return False
    plan, ready = run["outputs"]["plan"], run["outputs"]["ready"]
    merging = [job for job in results if job.startswith("kernels")]
    legs = tuple(leg("torch-cpu", job) for job in merging) if plan["has-work"] == "true" else ()
    records = {
        job: KernelRecord(job, 1, complete=True, present=("torch-cpu",), manifest=whole(job))
        for job in merging
        if results[job] != "skipped"
    }
    rows = missing_results(RunUploads(Plan(1, "release", (), legs), records))
    return not rows and not job_problem(read, int(ready["has-releases"] == "true"))


@pytest.mark.parametrize("file", GATED, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_it_runs_always_and_is_green_only_if_every_job_did_its_part(file: Path) -> None:
    jobs = read_yaml(file.read_text(encoding="utf-8"))["jobs"]
    (gate,) = jobs.keys() & {"kci", "status"}
    (step,) = [step for step in jobs[gate]["steps"] if "/gate@" in step.get("uses", "")]
    others = [name for name in jobs if name not in (gate, "again")]  # a run of its own
    assert set(jobs[gate]["needs"]) == set(others), "a job that it does not need can fail unseen"
    runs = every_run(others)
    found = results_of_runs(file, runs)
    wanted = {
        json.dumps(run["outputs"]): results
        for run, results in zip(runs, found, strict=True)
        if {*run["endings"].values()} == {"success"} and run["begun"] is None
    }
    green = 0
    for run, results in zip(runs, found, strict=True):
        due = wanted[json.dumps(run["outputs"])]
        assert results[gate] == "success", "it was skipped, which GitHub takes for success"
        told = step["with"]["results"]
        for job, result in results.items():
            told = told.replace(f"${{{{ needs.{job}.result }}}}", result)
        verdict = is_green(told, run, results)
        left = {name for name in others if results[name] != due[name]}
        # Whoever cancels a run can leave out a job of the repository's own that waits for others,
        # and looking for what is ready where nothing is.
        fine = {"lint"} if run["outputs"]["ready"]["has-releases"] == "true" else {"lint", "ready"}
        cancelled = run["begun"] is not None and left <= fine
        assert verdict is (results == due) or cancelled, (run, results)
        green += verdict
    assert 0 < green < len(runs) / 2
