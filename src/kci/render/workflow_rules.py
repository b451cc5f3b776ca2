"""What is wrong with a workflow file, found before it is pushed.

Three lists of rules: what GitHub would refuse, ignore or misread in any file (`_REFUSED`); what goes wrong in any file
with jobs that build a matrix of binaries, as far as actionlint and zizmor do not find it (`_ANY`); and what kci's own
files never do (`_never_ours`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import Annotated, Any, NamedTuple

import msgspec

from kci.catalog.runners import is_hosted, quotas
from kci.diagnostics import Diagnostic, Span, finding
from kci.files.dated_data import Dated, shipped, to_type
from kci.files.portable_names import twins
from kci.render.pins import known_outputs
from kci.render.workflow_yaml import (
    Place,
    contexts,
    expressions,
    functions,
    line_numbers,
    load_workflow,
    places,
    read_outputs,
)

REQUIRED_CHECK = "kci"
"""The job that branch protection requires. Only pull requests and merge groups make one of this name."""

_JOB_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_ILLEGAL_IN_NAME = re.compile(r'[":<>|*?\r\n\\/]')


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


limits = shipped("render/data/limits.toml", GithubLimits)
"""GitHub's limits, as dated data."""


class Problem(NamedTuple):
    """What is wrong, and where in the file."""

    rule: str
    message: str
    where: str = ""
    """As in `jobs.build.steps[1]`; empty for the file as a whole."""


class _JobShape(msgspec.Struct):
    steps: list[dict[str, Any]] = []
    needs: str | list[str] | None = None
    outputs: dict[str, Any] | None = None


class _FileShape(msgspec.Struct):
    """As much of a file's shape as the rules count on."""

    jobs: Annotated[dict[str, _JobShape], msgspec.Meta(min_length=1)]


def check_workflows(files: Mapping[str, str], *, own: str = "") -> list[Diagnostic]:
    """Check workflow files, text by path: KCI410 to KCI418, and KCI430 to KCI449.

    `own` is the repository of kci's actions, for files that kci renders; empty for those that somebody wrote.
    """
    found: list[Diagnostic] = []
    for path, text in files.items():
        problems = list(dict.fromkeys(_problems(text, own)))
        lines = line_numbers(text) if any(problem.where for problem in problems) else {}
        for rule, message, where in problems:
            line = lines.get(where) or lines.get(where.rpartition(".")[0])
            span = Span(line, 1, line, 1) if line else None
            hint = "use `--mode runtime`" if rule == "KCI410" else ""
            found.append(finding(rule, message, hint=hint, path=path, span=span))
    return sorted(found, key=lambda item: (item.path, item.line, item.rule, item.message))


def _problems(text: str, own: str) -> Iterator[Problem]:
    size, most = len(text.encode()), limits().max_file_bytes
    if size > most:
        yield Problem("KCI410", f"{size:,} bytes, and GitHub takes {most:,}")
        return
    try:
        workflow = load_workflow(text)
        to_type(workflow, _FileShape)
    except ValueError as error:
        what = "not a workflow" if isinstance(error, msgspec.ValidationError) else "not valid YAML"
        yield Problem("KCI418", f"{what}: {error}")
        return
    for rule in (*_REFUSED, *(() if own else _ANY)):
        yield from rule(workflow)
    if own:
        yield from _never_ours(workflow, own)


def _jobs(workflow: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((f"jobs.{job_id}", job) for job_id, job in workflow["jobs"].items())


def _uses(workflow: Mapping[str, Any], action: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Every step that uses an action: its place, its job, itself; `with` is always a table."""
    for where, job in _jobs(workflow):
        for index, step in enumerate(job.get("steps", [])):
            if str(step.get("uses", "")).split("@")[0].startswith(action):
                given = step.get("with")
                yield f"{where}.steps[{index}]", job, {**step, "with": given if isinstance(given, dict) else {}}


def _matrix(job: Mapping[str, Any]) -> Any:
    strategy = job.get("strategy")
    return strategy.get("matrix") if isinstance(strategy, dict) else None


def _needed(job: Mapping[str, Any]) -> list[str]:
    needs = job.get("needs") or []
    return needs if isinstance(needs, list) else [needs]


# --- what GitHub refuses ----------------------------------------------------------------------------------------------


def _refused_jobs(workflow: Mapping[str, Any]) -> Iterator[Problem]:
    jobs = workflow["jobs"]
    for job_id, job in jobs.items():
        where = f"jobs.{job_id}"
        if not _JOB_ID.fullmatch(job_id) or len(job_id) > limits().max_job_id:
            yield Problem("KCI412", f"`{job_id}` cannot be the id of a job", where)
        for key in job:
            if "uses" in job and key not in limits().call_keys:
                yield Problem("KCI412", f"job `{job_id}` calls a workflow, and so cannot have `{key}`", where)
        for name in twins([str(step["id"]).lower() for step in job.get("steps", []) if "id" in step]):
            yield Problem("KCI412", f"job `{job_id}` has two steps with the id `{name}`", where)
        for need in _needed(job):
            if need not in jobs:
                yield Problem("KCI413", f"job `{job_id}` needs `{need}`, which does not exist", where)
    try:
        TopologicalSorter({job_id: _needed(job) for job_id, job in jobs.items()}).prepare()
    except CycleError as error:
        yield Problem("KCI413", f"jobs need each other: {', '.join(sorted(set(error.args[1])))}")


def _refused_matrices(workflow: Mapping[str, Any]) -> Iterator[Problem]:
    """A matrix in the file that is empty or too large."""
    for where, job in _jobs(workflow):
        matrix = _matrix(job)
        if isinstance(matrix, dict) and not any(isinstance(value, str) for value in matrix.values()):
            axes = [len(axis) for key, axis in matrix.items() if key not in _NO_AXES and isinstance(axis, list)]
            include = matrix.get("include")
            size, most = prod(axes) if axes else 0, limits().max_matrix
            size = max(size, len(include) if isinstance(include, list) else 0)
            if not 1 <= size <= most:
                name = where.removeprefix("jobs.")
                yield Problem("KCI416", f"the matrix of job `{name}` has {size} jobs; 1 to {most} are possible", where)


_NO_AXES = ("include", "exclude")


_Known = Mapping[str, Iterable[str]] | None


def _refused_expressions(workflow: Mapping[str, Any], known: _Known = None) -> Iterator[Problem]:
    """Expressions that are too long or read what does not exist there.

    `known` has the outputs of each action, by its reference without the `@`. Without it, no output of a step is judged.
    """
    for place in places(workflow):
        found = expressions(place)
        if found and len(place.text) > limits().max_expression:
            message = f"{place.path} has {len(place.text):,} characters, and an expression in it"
            yield Problem("KCI411", message, place.path)
        for expression in found:
            if problem := _unreadable(place, expression):
                yield Problem("KCI415", problem, place.path)
            for of, name, what, output in read_outputs(expression):
                unset = _unset_job if of == "needs" else _unset_step
                if problem := unset(workflow, place, name, what, output, known):
                    yield Problem("KCI414", f"{place.path} reads {problem}", place.path)


def _unreadable(place: Place, expression: str) -> str:
    """What an expression reads or calls that its place does not have."""
    kind = place.kind if place.kind in limits().contexts else place.kind.split(".")[0]
    if beyond := contexts(expression) - set(limits().contexts.get(kind, ())):
        return f"`{min(beyond)}` cannot be read in {place.path}"
    limited = {name.lower(): kinds for name, kinds in limits().functions.items()}
    called = [name for name in functions(expression) if kind not in limited.get(name.lower(), (kind,))]
    return f"`{min(called)}()` cannot be called in {place.path}" if called else ""


def _unset_step(workflow: Mapping[str, Any], place: Place, name: str, what: str, output: str, known: _Known) -> str:
    steps = workflow["jobs"].get(place.job, {}).get("steps", [])
    before = steps if place.step < 0 else steps[: place.step]
    step = next((step for step in before if step.get("id") == name), None)
    if step is None:
        return f"step `{name}`, which no earlier step has as its id"
    if what in ("outcome", "conclusion") or known is None:
        return ""
    set_by_step = known.get(str(step.get("uses", "")).split("@")[0], ())
    if what == "outputs" and (output in set_by_step or f"{output}=" in str(step.get("run"))):
        return ""
    return f"`{'.'.join(filter(None, ('steps', name, what, output)))}`, which no step sets"


def _unset_job(workflow: Mapping[str, Any], place: Place, name: str, what: str, output: str, known: _Known) -> str:
    jobs = workflow["jobs"]
    if name not in jobs or name not in _needed(jobs.get(place.job, {})):
        return f"job `{name}`, which `{place.job}` does not need"
    if "uses" in jobs[name] and known is None:
        return ""  # its outputs are those of the called workflow
    if what == "result" or (what == "outputs" and output in (jobs[name].get("outputs") or {})):
        return ""
    return f"`{'.'.join(filter(None, ('needs', name, what, output)))}`, which no step sets"


# --- what goes wrong in any file --------------------------------------------------------------------------------------


def _matrix_may_be_empty(workflow: Mapping[str, Any]) -> Iterator[Problem]:
    for where, job in _jobs(workflow):
        matrix = _matrix(job)
        values = [matrix, *matrix.values()] if isinstance(matrix, dict) else [matrix]
        computed = any(isinstance(value, str) and "needs." in value and "${{" in value for value in values)
        if computed and "if" not in job:
            message = "a run fails when this matrix is empty; give the job an `if`"
            yield Problem("KCI430", message, f"{where}.strategy")


def _secret_in_output(workflow: Mapping[str, Any]) -> Iterator[Problem]:
    for place in places(workflow):
        if place.kind == "job.outputs" and any(re.search(r"\bsecrets\.", text) for text in expressions(place)):
            yield Problem("KCI431", "GitHub leaves out an output that holds a secret", place.path)


def _artifact_names(workflow: Mapping[str, Any]) -> Iterator[Problem]:
    """An artifact's name that is refused, or one that every job of a matrix uploads."""
    for where, job, step in _uses(workflow, "actions/upload-artifact"):
        name = step["with"].get("name", "artifact")
        if not isinstance(name, str):
            continue
        if illegal := _ILLEGAL_IN_NAME.search(re.sub(r"\$\{\{.*?\}\}", "", name)):
            yield Problem("KCI433", f"GitHub refuses {illegal[0]!r} in an artifact's name", f"{where}.with.name")
        matrix = _matrix(job)
        several = isinstance(matrix, dict) and any(isinstance(axis, list) and len(axis) > 1 for axis in matrix.values())
        if several and "${{" not in name and "if" not in step and "overwrite" not in step["with"]:
            message = f"every job of the matrix uploads an artifact named {name!r}; all but the first one fail"
            yield Problem("KCI434", message, where)


def _artifacts_merged(workflow: Mapping[str, Any]) -> Iterator[Problem]:
    downloads = _uses(workflow, "actions/download-artifact")
    mixing = [where for where, _, step in downloads if str(step["with"].get("merge-multiple")).lower() == "true"]
    for where in [*mixing, *(where for where, _, _ in _uses(workflow, "actions/upload-artifact/merge"))]:
        yield Problem("KCI435", "files of one path in two artifacts are mixed up, silently", where)


def _runner_limits(workflow: Mapping[str, Any]) -> Iterator[Problem]:
    """What a container or a time limit asks of a runner that cannot meet it."""
    for where, job in _jobs(workflow):
        container, hosted = job.get("container"), is_hosted(job.get("runs-on"))
        options = str(container.get("options", "")) if isinstance(container, dict) else ""
        if "--gpus" in options and hosted:
            yield Problem("KCI441", "a hosted runner has no GPU, so docker refuses `--gpus`", f"{where}.container")
        if number := re.search(r"--group-add[ =](\d+)", options):
            message = f"group {number[1]} is another one on every host; a step can ask `stat -c %g /dev/dri/renderD128`"
            yield Problem("KCI441", message, f"{where}.container")
        limit, most = job.get("timeout-minutes"), quotas().max_minutes
        if isinstance(limit, int) and limit > most and hosted:
            message = f"GitHub ends a job on a hosted runner after {most} minutes"
            yield Problem("KCI448", message, f"{where}.timeout-minutes")


def _same_concurrency(workflow: Mapping[str, Any]) -> Iterator[Problem]:
    """A called workflow whose group is its caller's, which it then cancels or waits for."""
    triggers, group = workflow.get("on"), workflow.get("concurrency")
    text = str(group.get("group", "") if isinstance(group, dict) else group or "")
    called = "workflow_call" in triggers if isinstance(triggers, str | list | dict) else False
    if called and "github.workflow" in text and "inputs." not in text and "workflow_ref" not in text:
        message = "in a called workflow `github.workflow` is the caller's name, so both have one group"
        yield Problem("KCI440", message, "concurrency")


def _stale_base(workflow: Mapping[str, Any]) -> Iterator[Problem]:
    for where, _, step in _uses(workflow, ""):
        if "pull_request.base.sha" in str(step["with"].get("affected-base", "")):
            message = "it is as old as the last push to the pull request: what was merged since counts as its change"
            yield Problem("KCI449", message, f"{where}.with.affected-base")


# --- what kci's own files never do ------------------------------------------------------------------------------------


def _never_ours(workflow: Mapping[str, Any], repository: str) -> Iterator[Problem]:
    if workflow.get("permissions") != {}:
        yield Problem("KCI412", "the workflow does not remove all permissions at the top")
    names = {REQUIRED_CHECK: REQUIRED_CHECK}
    for job_id, job in workflow["jobs"].items():
        name, where = str(job.get("name", job_id)), f"jobs.{job_id}"
        if "${{" not in name and names.setdefault(name.lower(), job_id) != job_id:
            message = f"the jobs `{names[name.lower()]}` and `{job_id}` have the same name: {name}"
            yield Problem("KCI412", message, where)
        for key in ("permissions",) if "uses" in job else ("timeout-minutes", "permissions"):
            if key not in job:
                yield Problem("KCI412", f"job `{job_id}` has no `{key}`", where)
    for place in places(workflow):
        if place.kind == "steps.run" and (found := expressions(place)):
            shown = found[0] if len(found[0]) <= 60 else found[0][:57] + "..."
            yield Problem("KCI417", f"{place.path} holds `${{{{{shown}}}}}`; pass it through `env`", place.path)
    yield from _refused_expressions(workflow, known_outputs(repository))


_Rules = tuple[Callable[[Mapping[str, Any]], Iterator[Problem]], ...]
_REFUSED: _Rules = (_refused_jobs, _refused_matrices)
_ANY: _Rules = (
    _refused_expressions,
    _matrix_may_be_empty,
    _secret_in_output,
    _artifact_names,
    _artifacts_merged,
    _runner_limits,
    _same_concurrency,
    _stale_base,
)
