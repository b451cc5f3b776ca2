"""What GitHub would refuse, ignore or silently misread in a workflow file, found before it is pushed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kci.diagnostics import Diagnostic, finding
from kci.files.dated_data import Dated, load_dated
from kci.files.portable_names import twins
from kci.render.pins import shipped_pins
from kci.render.workflow_yaml import context_problem, expressions, load_workflow, needed, output_problem, places

OWN_OUTPUTS = {
    "kci/build": ("artifact", "digest", "variant-dir"),
    "kci/build/decide": ("report",),
    "kci/build/gate": ("failed", "has-releases", "releases"),
    "kci/build/merge": ("complete", "manifest", "tar", "tree"),
    "kci/build/publish": ("commit", "url"),
    "kci/build/test": ("passed", "report"),
    "kci/build/plan": (
        "callers",
        "carries",
        "has-tree",
        "has-work",
        "kernel",
        "matrix",
        "parallel",
        "plan",
        "tests",
        "tree-run",
    ),
    "kci/build/propose": ("changed",),
    "kci/build/record": ("new",),
}
"""The outputs of kci's own actions; a test holds them against the action files."""

REQUIRED_CHECK = "kci"
"""The job that branch protection requires. Only pull requests and merge groups make one of this name."""

_JOB_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class GithubLimits(Dated, frozen=True):
    """`data/limits.toml`."""

    max_file_bytes: int
    max_expression: int
    max_matrix: int
    max_job_id: int
    growth: float
    call_keys: tuple[str, ...]
    contexts: dict[str, tuple[str, ...]]
    functions: dict[str, tuple[str, ...]]


@cache
def limits() -> GithubLimits:
    """GitHub's limits, as dated data."""
    return load_dated(Path(__file__).parent / "data" / "limits.toml", GithubLimits)


def check_files(files: Mapping[str, str]) -> list[Diagnostic]:
    """Every problem of the rendered files, in the order of their paths."""
    return [problem for path in sorted(files) for problem in check_workflow(files[path], path)]


def check_workflow(text: str, path: str) -> list[Diagnostic]:
    """Check one workflow file: KCI410 to KCI418; empty when GitHub will take it."""
    workflow = read_workflow(text, path)
    if isinstance(workflow, Diagnostic):
        return [workflow]
    checks = (_house, refused_jobs, refused_matrices, refused_expressions, _house_expressions)
    return [finding(rule, message, path=path) for check in checks for rule, message in check(workflow)]


def read_workflow(text: str, path: str) -> Mapping[str, Any] | Diagnostic:
    """A parsed workflow file, or why it cannot be one: KCI410 or KCI418."""
    size = len(text.encode())
    if size > limits().max_file_bytes:
        message = f"{size:,} bytes, and GitHub takes {limits().max_file_bytes:,}"
        return finding("KCI410", message, path=path, hint="use `--mode runtime`")
    try:
        workflow: Mapping[str, Any] = load_workflow(text)
        problem = _shape_problem(workflow)
    except ValueError as error:
        problem = f"not valid YAML: {error}"
    return finding("KCI418", problem, path=path) if problem else workflow


def _shape_problem(workflow: Any) -> str:
    jobs = workflow.get("jobs") if isinstance(workflow, dict) else None
    if not isinstance(jobs, dict) or not jobs:
        return "there are no jobs"
    for job_id, job in jobs.items():
        steps = job.get("steps", []) if isinstance(job, dict) else None
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            return f"job `{job_id}` is not a table with a list of steps"
        if not all(isinstance(need, str) for need in (job_id, *needed(job))):
            return f"job `{job_id}`: the id of a job, here or in `needs`, is no text"
        if not isinstance(job.get("outputs") or {}, dict):
            return f"the outputs of job `{job_id}` are not a table"
    return ""


def _house(workflow: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What GitHub takes, and kci's own files never do."""
    if workflow.get("permissions") != {}:
        yield "KCI412", "the workflow does not remove all permissions at the top"
    names = {REQUIRED_CHECK: REQUIRED_CHECK}
    for job_id, job in workflow["jobs"].items():
        name = str(job.get("name", job_id))
        if "${{" not in name and names.setdefault(name.lower(), job_id) != job_id:
            yield "KCI412", f"the jobs `{names[name.lower()]}` and `{job_id}` have the same name: {name}"
        required = ("permissions",) if "uses" in job else ("timeout-minutes", "permissions")
        yield from (("KCI412", f"job `{job_id}` has no `{key}`") for key in required if key not in job)


def refused_jobs(workflow: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Jobs that GitHub refuses: KCI412 and KCI413."""
    for job_id, job in workflow["jobs"].items():
        if not _JOB_ID.fullmatch(str(job_id)) or len(str(job_id)) > limits().max_job_id:
            yield "KCI412", f"`{job_id}` cannot be the id of a job"
        yield from (
            ("KCI412", f"job `{job_id}` calls a workflow, and so cannot have `{key}`")
            for key in job
            if "uses" in job and key not in limits().call_keys
        )
        ids = [str(step["id"]).lower() for step in job.get("steps", []) if "id" in step]
        yield from (("KCI412", f"job `{job_id}` has two steps with the id `{name}`") for name in twins(ids))
        for need in needed(job):
            if need not in workflow["jobs"]:
                yield "KCI413", f"job `{job_id}` needs `{need}`, which does not exist"
    if circle := _circle(workflow["jobs"]):
        yield "KCI413", f"jobs need each other: {', '.join(circle)}"


def _circle(jobs: Mapping[str, Any]) -> list[str]:
    """The jobs that can never start, because they wait for each other."""
    waiting = {job_id: {need for need in needed(job) if need in jobs} for job_id, job in jobs.items()}
    while ready := [job_id for job_id, needs in waiting.items() if not needs & waiting.keys()]:
        for job_id in ready:
            del waiting[job_id]
    return sorted(waiting)


def refused_matrices(workflow: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A matrix in the file that is empty or too large: KCI416."""
    for job_id, job in workflow["jobs"].items():
        strategy = job.get("strategy") or {}
        matrix = strategy.get("matrix") if isinstance(strategy, dict) else None
        if isinstance(matrix, dict) and not any(isinstance(value, str) for value in matrix.values()):
            count = _matrix_size(matrix)
            if not 1 <= count <= limits().max_matrix:
                yield (
                    "KCI416",
                    f"the matrix of job `{job_id}` has {count} jobs; 1 to {limits().max_matrix} are possible",
                )


def _matrix_size(matrix: Mapping[str, Any]) -> int:
    axes = [value for key, value in matrix.items() if key not in ("include", "exclude") and isinstance(value, list)]
    product = 1 if axes else 0
    for axis in axes:
        product *= len(axis)
    include = matrix.get("include", [])
    return max(product, len(include) if isinstance(include, list) else 0)


def refused_expressions(workflow: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Expressions that are too long or read what does not exist there: KCI411, KCI414 and KCI415.

    Which outputs a script or somebody's action sets is unknown, so a step's are not judged.
    """
    for place in places(workflow):
        found = expressions(place)
        if found and len(place.text) > limits().max_expression:
            yield "KCI411", f"{place.path} has {len(place.text):,} characters, and an expression in it"
        for expression in found:
            if problem := context_problem(place, expression, limits().contexts, limits().functions):
                yield "KCI415", problem
            if problem := output_problem(place, expression, workflow, None):
                yield "KCI414", problem


def _house_expressions(workflow: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is known of kci's own files beyond that: every output of their steps, and no expression in a script."""
    known = {name: pin.outputs for name, pin in shipped_pins().items() if pin.outputs} | OWN_OUTPUTS
    for place in places(workflow):
        found = expressions(place)
        if found and place.kind == "steps.run":
            yield "KCI417", f"{place.path} holds `${{{{{_short(found[0])}}}}}`; pass it through `env`"
        for expression in found:
            general = output_problem(place, expression, workflow, None)
            if not general and (problem := output_problem(place, expression, workflow, known)):
                yield "KCI414", problem


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
