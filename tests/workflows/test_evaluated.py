"""Matrices of many kernels, evaluated with GitHub's own library: every leg is in one matrix, and
none is too large.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runner import ended, kci
from conftest import read_yaml
from github_library import evaluate
from kci import PlanRequest, open_workspace, plan_run
from kci.plan.github_limits import MAX_JOBS, caller_matrices
from many_kernels import make_repository
from workflows.cases import GOLDEN

pytestmark = [pytest.mark.network, pytest.mark.programs]

RELEASE, KERNEL = ".github/workflows/kci.yml", ".github/workflows/kci-kernel.yml"


@pytest.mark.parametrize(
    ("count", "settings", "callers"),
    [(3, "", 1), (75, '[plan]\ngroup = "backend"\n', 1), (300, '[plan]\ngroup = "backend"\n', 2)],
)
def test_every_leg_is_in_the_matrix_of_its_kernel(
    tmp_path: Path, count: int, settings: str, callers: int
) -> None:
    make_repository(tmp_path, count)
    (tmp_path / "kci.toml").write_text(settings)
    ended(kci("render", "--output", tmp_path, tmp_path), 0)
    release = read_yaml((tmp_path / RELEASE).read_text())["jobs"]
    calling = {name: job for name, job in release.items() if "uses" in job}
    assert len(calling) == callers
    inner = read_yaml((tmp_path / KERNEL).read_text())["jobs"]["build"]["strategy"]

    request = PlanRequest(callers=callers, fingerprints=False)
    planned = plan_run(open_workspace([tmp_path]), request)
    outputs = {"has-work": "true", "callers": caller_matrices(planned.plan, callers, {})}
    needs = {"needs": {"plan": {"outputs": outputs}}}
    asked = [(job["if"], job["strategy"]["matrix"]) for job in calling.values()]
    said = evaluate(*((expression, needs) for both in asked for expression in both))
    assert all(said[::2])
    entries = [entry for matrix in said[1::2] for entry in matrix["include"]]
    first = next(iter(calling.values()))
    works = evaluate(*((first["with"]["work"], {"matrix": entry}) for entry in entries))
    given = [{"inputs": {"work": work}} for work in works]
    told = evaluate(*((inner[key], one) for one in given for key in ("matrix", "max-parallel")))
    found, parallel = told[::2], told[1::2]
    assert all(1 <= len(matrix["include"]) <= 256 for matrix in [*said[1::2], *found])
    assert all(isinstance(number, int) and number >= 1 for number in parallel)
    legs = [(leg["kernel"], leg["name"]) for matrix in found for leg in matrix["include"]]
    assert sorted(legs) == sorted((leg.kernel, leg.name) for leg in planned.plan.legs)
    assert len(legs) + len(entries) + 2 <= MAX_JOBS


def test_only_runs_on_the_default_branch_are_recorded() -> None:
    jobs = read_yaml((GOLDEN / "several" / "kci-compat.yml").read_text())["jobs"]
    condition = jobs["record"]["if"].replace("!cancelled() && ", "")
    needs = {"plan": {"outputs": {"has-work": "true"}}}
    event = {"repository": {"default_branch": "main"}}
    runs = [
        {"event_name": "schedule", "ref_name": "main", "event": {"schedule": "5 3 * * 1"}},
        {"event_name": "workflow_dispatch", "ref_name": "main", "event": event},
        {"event_name": "workflow_dispatch", "ref_name": "topic", "event": event},
    ]
    asked = [(condition, {"github": run, "needs": needs}) for run in runs]
    assert evaluate(*asked) == [True, True, False]
    assert "needs.record.result == 'success'" in jobs["report"]["if"]
