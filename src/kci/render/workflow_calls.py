"""Workflows that call each other: what GitHub refuses before a run begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kci.render.github_limits import limits

_LOCAL = "./.github/workflows/"
_LEVELS = {"none": 0, "read": 1, "write": 2}


class Found(NamedTuple):
    """What is wrong, and where in the file."""

    rule: str
    message: str
    where: str
    """As in `jobs.build.steps[1]`."""


def call_problems(path: str, files: Mapping[str, Mapping[str, Any]]) -> Iterator[Found]:
    """KCI432: calls that GitHub refuses.

    Args:
        path: the file whose calls are judged.
        files: every parsed file by path; a call of one that is not among them is judged only if its folder is.
    """
    folder = path.rpartition("/")[0]
    for job_id, job in files[path]["jobs"].items():
        where = f"jobs.{job_id}.uses"
        name = called_locally(job)
        if not name:
            continue
        callee = files.get(f"{folder}/{name}" if folder else name)
        if callee is None:
            yield Found("KCI432", f"there is no workflow {name} beside this one", where)
            continue
        declared = _declared(callee)
        if declared is None:
            yield Found("KCI432", f"{name} has no trigger `workflow_call`", where)
            continue
        yield from _inputs_of(job, declared, name, where)
        yield from _beyond(files[path], job, callee, name, where)
    depth = _depth(path, files, ())
    if depth > limits().max_call_levels:
        yield Found("KCI432", f"{depth} levels of calls, and GitHub takes {limits().max_call_levels}", "")
    unique = _reached(path, files, set())
    if len(unique) > limits().max_called:
        yield Found("KCI432", f"{len(unique)} called workflows, and GitHub takes {limits().max_called}", "")


def called_locally(job: Mapping[str, Any]) -> str:
    """The file of the same repository that a job calls; empty where it calls none."""
    uses = str(job.get("uses", ""))
    return uses.removeprefix(_LOCAL) if uses.startswith(_LOCAL) else ""


def _declared(callee: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The inputs of a called workflow; None where it cannot be called."""
    triggers = callee.get("on")
    if triggers == "workflow_call" or (isinstance(triggers, list) and "workflow_call" in triggers):
        return {}
    if not isinstance(triggers, dict) or "workflow_call" not in triggers:
        return None
    called = triggers["workflow_call"]
    inputs = called.get("inputs") if isinstance(called, dict) else None
    return inputs if isinstance(inputs, dict) else {}


def _inputs_of(job: Mapping[str, Any], declared: Mapping[str, Any], name: str, where: str) -> Iterator[Found]:
    given = job.get("with")
    known = {str(key).lower() for key in declared}
    passed = {str(key).lower() for key in given} if isinstance(given, dict) else set()
    for key in sorted(passed - known):
        yield Found("KCI432", f"{name} has no input `{key}`", where)
    for key, about in declared.items():
        required = isinstance(about, dict) and about.get("required") is True and "default" not in about
        if required and str(key).lower() not in passed:
            yield Found("KCI432", f"{name} requires the input `{key}`", where)


def _beyond(
    caller: Mapping[str, Any], job: Mapping[str, Any], callee: Mapping[str, Any], name: str, where: str
) -> Iterator[Found]:
    allowed = _granted(job.get("permissions", caller.get("permissions")))
    if allowed is None:
        return
    for inner, called in callee["jobs"].items():
        wanted = _granted(called.get("permissions", callee.get("permissions")))
        for scope, level in sorted((wanted or {}).items()):
            if scope != "*" and level > allowed.get(scope, allowed.get("*", 0)):
                message = f"job `{inner}` of {name} asks for more `{scope}` than this job may give"
                yield Found("KCI432", message, where)


def _granted(value: Any) -> dict[str, int] | None:
    """Levels by scope, `*` for all others; None where nothing is said."""
    if isinstance(value, str):
        return {"*": {"read-all": 1, "write-all": 2}.get(value, 0)}
    if isinstance(value, dict):
        return {str(scope): _LEVELS.get(str(level), 0) for scope, level in value.items()}
    return None


def _calls(path: str, files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    folder = path.rpartition("/")[0]
    names = [called_locally(job) for job in files[path]["jobs"].values()]
    paths = [f"{folder}/{name}" if folder else name for name in names if name]
    return [item for item in paths if item in files]


def _depth(path: str, files: Mapping[str, Mapping[str, Any]], above: tuple[str, ...]) -> int:
    """How many levels of workflows there are from here on; a circle is as deep as GitHub looks."""
    if path in above:
        return limits().max_call_levels + 1
    return 1 + max((_depth(item, files, (*above, path)) for item in set(_calls(path, files))), default=0)


def _reached(path: str, files: Mapping[str, Mapping[str, Any]], seen: set[str]) -> set[str]:
    for item in _calls(path, files):
        if item not in seen:
            seen.add(item)
            _reached(item, files, seen)
    return seen
