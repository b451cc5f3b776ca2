"""What goes wrong in jobs that build a matrix of binaries, in any workflow file, whoever wrote it.

Only what actionlint and zizmor do not find: matrices that are empty, artifacts that overwrite each other, GPUs and time
that a hosted runner does not have. Syntax, calls, schedules, pins, permissions and injection are theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from kci.catalog.runners import is_hosted, quotas
from kci.diagnostics import Diagnostic, Span, finding
from kci.render.github_limits import read_workflow, refused_expressions, refused_jobs, refused_matrices
from kci.render.workflow_yaml import expressions, line_numbers, places

_ILLEGAL_IN_NAME = re.compile(r'[":<>|*?\r\n\\/]')


class Found(NamedTuple):
    """What is wrong, and where in the file."""

    rule: str
    message: str
    where: str
    """As in `jobs.build.steps[1]`."""


class Workflow(NamedTuple):
    """A parsed file."""

    data: Mapping[str, Any]

    @property
    def triggers(self) -> Mapping[str, Any]:
        match self.data.get("on"):
            case str() as value:
                return {value: None}
            case list() as value:
                return {str(item): None for item in value}
            case dict() as value:
                return {str(key): item for key, item in value.items()}
        return {}

    def jobs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for job_id, job in self.data["jobs"].items():
            yield f"jobs.{job_id}", job

    def steps(self, action: str = "") -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        """Every step that uses an action, or every step: its place, its job, itself."""
        for where, job in self.jobs():
            for index, step in enumerate(job.get("steps", [])):
                if str(step.get("uses", "")).split("@")[0].startswith(action):
                    yield f"{where}.steps[{index}]", job, step


def check_any(files: Mapping[str, str]) -> list[Diagnostic]:
    """Check workflow files, text by path."""
    found: list[Diagnostic] = []
    parsed: dict[str, Mapping[str, Any]] = {}
    for path in sorted(files):
        workflow = read_workflow(files[path], path)
        if isinstance(workflow, Diagnostic):
            found.append(workflow)
        else:
            parsed[path] = workflow
    for path, data in parsed.items():
        lines = line_numbers(files[path])
        said = [item for rule in _RULES for item in rule(Workflow(data))]
        for item in [*refused_jobs(data), *refused_matrices(data), *refused_expressions(data)]:
            said.append(Found(item[0], item[1], _where(item[1])))
        for rule, message, where in dict.fromkeys(said):
            line = lines.get(where) or lines.get(where.rpartition(".")[0])
            span = Span(line, 1, line, 1) if line else None
            found.append(finding(rule, message, path=path, span=span))
    return sorted(found, key=lambda item: (item.path, item.line, item.rule, item.message))


def _where(message: str) -> str:
    """The place that a message of the checks of rendered files is about."""
    named = re.search(r"\bjobs\.[\w-]+(?:\.[\w-]+(?:\[\d+\])?)*", message)
    job = re.search(r"job `([\w-]+)`", message)
    return named[0] if named else f"jobs.{job[1]}" if job else ""


def matrix_may_be_empty(workflow: Workflow) -> Iterator[Found]:
    """KCI430: a matrix that another job computes, without a condition."""
    for where, job in workflow.jobs():
        strategy = job.get("strategy")
        matrix = strategy.get("matrix") if isinstance(strategy, dict) else None
        values = [matrix, *matrix.values()] if isinstance(matrix, dict) else [matrix]
        computed = any(isinstance(value, str) and "needs." in value and "${{" in value for value in values)
        if computed and "if" not in job:
            yield Found("KCI430", "a run fails when this matrix is empty; give the job an `if`", f"{where}.strategy")


def secret_in_output(workflow: Workflow) -> Iterator[Found]:
    """KCI431: an output of a job that holds a secret."""
    for place in places(workflow.data):
        if place.kind == "job.outputs" and any(re.search(r"\bsecrets\.", text) for text in expressions(place)):
            yield Found("KCI431", "GitHub leaves out an output that holds a secret", place.path)


def artifact_names(workflow: Workflow) -> Iterator[Found]:
    """KCI433 and KCI434: an artifact's name that is refused, or one that every job of a matrix uploads."""
    for where, job, step in workflow.steps("actions/upload-artifact"):
        name = _inputs(step).get("name", "artifact")
        if not isinstance(name, str):
            continue
        if illegal := _ILLEGAL_IN_NAME.search(re.sub(r"\$\{\{.*?\}\}", "", name)):
            yield Found("KCI433", f"GitHub refuses {illegal[0]!r} in an artifact's name", f"{where}.with.name")
        strategy = job.get("strategy")
        matrix = strategy.get("matrix") if isinstance(strategy, dict) else None
        several = isinstance(matrix, dict) and any(isinstance(axis, list) and len(axis) > 1 for axis in matrix.values())
        if several and "${{" not in name and "if" not in step and "overwrite" not in _inputs(step):
            message = f"every job of the matrix uploads an artifact named {name!r}; all but the first one fail"
            yield Found("KCI434", message, where)


def artifacts_merged(workflow: Workflow) -> Iterator[Found]:
    """KCI435: artifacts that are unpacked over each other."""
    for where, _, step in workflow.steps("actions/download-artifact"):
        if str(_inputs(step).get("merge-multiple", "")).lower() == "true":
            yield Found("KCI435", "files of one path in two artifacts are mixed up, silently", where)
    for where, _, _ in workflow.steps("actions/upload-artifact/merge"):
        yield Found("KCI435", "files of one path in two artifacts are mixed up, silently", where)


def container_options(workflow: Workflow) -> Iterator[Found]:
    """KCI441: options of a container that its runner cannot meet."""
    for where, job in workflow.jobs():
        container = job.get("container")
        options = str(container.get("options", "")) if isinstance(container, dict) else ""
        if "--gpus" in options and is_hosted(job.get("runs-on")):
            yield Found("KCI441", "a hosted runner has no GPU, so docker refuses `--gpus`", f"{where}.container")
        if number := re.search(r"--group-add[ =](\d+)", options):
            message = f"group {number[1]} is another one on every host; a step can ask `stat -c %g /dev/dri/renderD128`"
            yield Found("KCI441", message, f"{where}.container")


def time_limits(workflow: Workflow) -> Iterator[Found]:
    """KCI448: a job with a time limit that is never reached."""
    for where, job in workflow.jobs():
        limit, most = job.get("timeout-minutes"), quotas().max_minutes
        if isinstance(limit, int) and limit > most and is_hosted(job.get("runs-on")):
            yield Found(
                "KCI448", f"GitHub ends a job on a hosted runner after {most} minutes", f"{where}.timeout-minutes"
            )


def same_concurrency(workflow: Workflow) -> Iterator[Found]:
    """KCI440: a called workflow whose group is its caller's, which it then cancels or waits for."""
    if "workflow_call" not in workflow.triggers:
        return
    group = workflow.data.get("concurrency")
    text = str(group.get("group", "") if isinstance(group, dict) else group or "")
    if "github.workflow" in text and "inputs." not in text and "workflow_ref" not in text:
        message = "in a called workflow `github.workflow` is the caller's name, so both have one group"
        yield Found("KCI440", message, "concurrency")


def stale_base(workflow: Workflow) -> Iterator[Found]:
    """KCI449: a pull request that is compared with what its base was once."""
    for where, _, step in workflow.steps("kci/build/plan"):
        if "pull_request.base.sha" in str(_inputs(step).get("affected-base", "")):
            message = "it is as old as the last push to the pull request: what was merged since counts as its change"
            yield Found("KCI449", message, f"{where}.with.affected-base")


def _inputs(step: Mapping[str, Any]) -> Mapping[str, Any]:
    given = step.get("with")
    return given if isinstance(given, dict) else {}


_RULES: tuple[Callable[[Workflow], Iterator[Found]], ...] = (
    matrix_may_be_empty,
    secret_in_output,
    artifact_names,
    artifacts_merged,
    container_options,
    time_limits,
    same_concurrency,
    stale_base,
)
