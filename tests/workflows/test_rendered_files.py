"""What GitHub refuses, ignores or misreads in a workflow file, held against every file that kci
renders.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, read_yaml
from kci.workflows.render import REUSABLE_FILES
from workflows.cases import CASES, OTHERS, REUSABLE, Case

FILES = [
    pytest.param(case, path, id=f"{case.name}-{Path(path).stem}")
    for case in (*CASES, *OTHERS, REUSABLE)
    for path in case.files()
]
CALLED = next(iter(REUSABLE_FILES))
MAX_BYTES, MAX_EXPRESSION, MAX_JOB_ID = 500_000, 21_000, 100
CALL_KEYS = {"concurrency", "if", "name", "needs", "permissions"}
CALL_KEYS |= {"secrets", "strategy", "uses", "with"}
"""What a job that calls a workflow may have."""
OUTPUT = re.compile(r"\b(steps|needs)\.([\w-]+)\.(?:outputs\.)?([\w-]+)")


def texts(value: Any) -> Iterator[str]:
    """Every text in a part of a file."""
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from texts(item)
        case list():
            for item in value:
                yield from texts(item)


def outputs_of(step: dict[str, Any], own: str) -> set[str] | None:
    """What a step sets; None for an action of somebody else."""
    reference = step.get("uses", "").partition("@")[0]
    if reference.startswith(own):
        file = ROOT / reference.removeprefix(own).strip("/") / "action.yml"
        return set(read_yaml(file.read_text(encoding="utf-8")).get("outputs", ()))
    return None if reference else set(re.findall(r"([\w-]+)=", step["run"]))


@pytest.fixture
def workflow(case: Case, path: str) -> dict[str, Any]:
    found: dict[str, Any] = read_yaml(case.files()[path])
    return found


@pytest.mark.parametrize(("case", "path"), FILES)
def test_nothing_is_too_long_and_every_job_has_its_rights_a_limit_and_a_name(
    case: Case, path: str, workflow: dict[str, Any]
) -> None:
    assert len(case.files()[path].encode()) < MAX_BYTES
    assert max((len(text) for text in texts(workflow) if "${{" in text), default=0) < MAX_EXPRESSION
    assert workflow["permissions"] == {}
    # The one job of a short file has the name of its id, in front of those of the called jobs.
    jobs = workflow["jobs"]
    given = [job["name"].lower() for job in jobs.values() if "name" in job or not case.inputs.short]
    names = [name for name in given if "${{" not in name]
    assert len({*names, "kci"}) == len(names) + 1, "the required check is made in one place"
    for name, job in jobs.items():
        assert re.fullmatch(rf"[A-Za-z_][\w-]{{,{MAX_JOB_ID - 1}}}", name)
        assert "permissions" in job
        assert set(job) <= CALL_KEYS if "uses" in job else job["timeout-minutes"]
        ids = [step["id"].lower() for step in job.get("steps", ()) if "id" in step]
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("case", "path"), FILES)
def test_what_is_read_is_set(case: Case, path: str, workflow: dict[str, Any]) -> None:
    """GitHub evaluates an output that nobody sets to nothing."""
    own = case.pins["kci/build"].repository or "kci/build"
    for name, job in workflow["jobs"].items():
        needs = [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])
        assert set(needs) < set(workflow["jobs"])
        steps = {step["id"]: outputs_of(step, own) for step in job.get("steps", ()) if "id" in step}
        evaluated = [text for text in texts(job) if "${{" in text or text == job.get("if")]
        for of, source, read in OUTPUT.findall("\n".join(evaluated)):
            if of == "needs":
                assert source in needs, f"{name} reads {source}"
                outputs = workflow["jobs"][source].get("outputs", ())
                if case.inputs.short:  # it calls the reusable workflow
                    called = read_yaml(REUSABLE.files()[CALLED])[True]
                    outputs = called["workflow_call"]["outputs"]
                known = {"result", *outputs}
            else:
                known = steps[source] or {read}
            allowed = {*known, "outcome", "conclusion"}
            assert read in allowed, f"{name} reads {of}.{source}.{read}"
