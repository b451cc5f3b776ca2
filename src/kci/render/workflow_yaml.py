"""Reading a workflow file as GitHub does: its YAML, and the expressions in its texts.

As in YAML 1.2, `on`, `yes` and `no` are texts, and so is a date; a key that is there twice, or a merge key, makes the
file invalid. GitHub silently evaluates a missing output or context to nothing, so a misspelled one shows only as a job
that does the wrong thing.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

_MOST_NODES = 500_000
"""No file that GitHub takes has more, unless its aliases repeat themselves."""


def load_workflow(text: str) -> Any:
    """Parse a workflow file; ValueError, one line, says where it is not YAML, or not what GitHub takes."""
    import yaml

    try:
        loader = _loader()(text)
        try:
            node = loader.get_single_node()
            if _size(node, {}) > _MOST_NODES:
                raise ValueError("its aliases make it too large")
            return loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None


def _size(node: Any, known: dict[int, int]) -> int:
    """How many nodes there are with every alias written out; one that is inside of itself has no end."""
    import yaml

    if id(node) not in known:
        known[id(node)] = _MOST_NODES + 1  # until it is counted
        below = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            below = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_size(item, known) for item in below)
    return known[id(node)]


def line_numbers(text: str) -> dict[str, int]:
    """The line of everything in a valid file, by its place: `jobs.build.steps[1].run`."""
    import yaml

    found: dict[str, int] = {}

    def walk(node: Any, place: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = f"{place}.{key.value}" if place else str(key.value)
                if inner not in found:
                    found[inner] = key.start_mark.line + 1
                    walk(value, inner)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                found[f"{place}[{index}]"] = value.start_mark.line + 1
                walk(value, f"{place}[{index}]")

    walk(yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), "")
    return found


@cache
def _loader() -> type:
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Strict(base):  # type: ignore[misc, valid-type]
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    raise yaml.YAMLError(f"line {key.start_mark.line + 1}: GitHub knows no merge key `<<`")
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        raise yaml.YAMLError(f"line {key.start_mark.line + 1}: the key `{key.value}` is there twice")
                    seen.add(key.value)
            found: dict[Hashable, Any] = super().construct_mapping(node, deep)
            return found

    other = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "timestamp")}
    kept = {start: [rule for rule in rules if rule[0] not in other]
            for start, rules in base.yaml_implicit_resolvers.items()}  # fmt: skip
    Strict.yaml_implicit_resolvers = kept
    Strict.add_implicit_resolver(
        "tag:yaml.org,2002:bool", re.compile("(?:true|True|TRUE|false|False|FALSE)$"), [*"tTfF"]
    )
    return Strict


_EXPRESSION = re.compile(r"\$\{\{((?:'[^']*+'|\}(?!\})|[^'}])*+)\}\}")
_LITERAL = re.compile(r"'(?:[^']|'')*'")
_CALL = re.compile(r"(?<![\w.-])([A-Za-z_]\w*)\s*\(")
_NAME = re.compile(r"(?<![\w.-])([A-Za-z_][\w-]*)(?![\w-])(?!\s*\()")
_WORDS = {"true", "false", "null", "NaN", "Infinity"}
_STEP = re.compile(r"(?<![\w.-])steps\.([\w-]+)\.([\w-]+)(?:\.([\w-]+))?")
_NEED = re.compile(r"(?<![\w.-])needs\.([\w-]+)\.([\w-]+)(?:\.([\w-]+))?")


class Place(NamedTuple):
    """A string of the workflow and its place."""

    kind: str
    """The key of the context table: `job.if`, `steps.with`, `concurrency`, ..."""
    path: str
    """For people: `jobs.build.steps[1].with.kernel`."""
    text: str
    job: str = ""
    step: int = -1


def places(workflow: Mapping[str, Any]) -> Iterator[Place]:
    """Every string of a parsed workflow that GitHub searches for expressions."""
    for key in ("run-name", "env", "concurrency"):
        yield from _strings(workflow.get(key), key, key)
    for job_id, job in workflow.get("jobs", {}).items():
        for key, value in job.items():
            if key != "steps":
                yield from _of_job(key, value, f"jobs.{job_id}.{key}", job_id)
        for index, step in enumerate(job.get("steps", [])):
            for key, value in step.items():
                yield from _strings(value, f"steps.{key}", f"jobs.{job_id}.steps[{index}].{key}", job_id, index)


def _of_job(key: str, value: Any, path: str, job_id: str) -> Iterator[Place]:
    """A key of a job; in a container, a service and an environment some keys below it read more than others."""
    if key == "services" and isinstance(value, dict):
        for name, service in value.items():
            yield from _of_job("container", service, f"{path}.{name}", job_id)
    elif key in ("container", "environment") and isinstance(value, dict):
        for inner, item in value.items():
            kind = f"job.{key}.{inner}" if inner in ("credentials", "env", "url") else f"job.{key}"
            yield from _strings(item, kind, f"{path}.{inner}", job_id)
    else:
        yield from _strings(value, f"job.{key}", path, job_id)


def _strings(value: Any, kind: str, path: str, job: str = "", step: int = -1) -> Iterator[Place]:
    match value:
        case str():
            yield Place(kind, path, value, job, step)
        case dict():
            for key, item in value.items():
                yield from _strings(item, kind, f"{path}.{key}", job, step)
        case list():
            for index, item in enumerate(value):
                yield from _strings(item, kind, f"{path}[{index}]", job, step)


def expressions(place: Place) -> list[str]:
    """The expressions in a string; an `if` is one as a whole, with or without the braces."""
    found = []
    start = place.text.find("${{")
    while start >= 0 and (match := _EXPRESSION.match(place.text, start)):  # one without an end has no other behind it
        found.append(match[1])
        start = place.text.find("${{", match.end())
    if not found and place.kind in ("job.if", "steps.if"):
        return [place.text]
    return found


def contexts(expression: str) -> set[str]:
    """The names of the contexts that an expression reads."""
    return {name.lower() for name in _NAME.findall(_LITERAL.sub("''", expression)) if name not in _WORDS}


def functions(expression: str) -> set[str]:
    """The names of the functions that an expression calls."""
    return set(_CALL.findall(_LITERAL.sub("''", expression)))


def context_problem(
    place: Place, expression: str, available: Mapping[str, Iterable[str]], limited: Mapping[str, Iterable[str]]
) -> str:
    """What an expression reads or calls that its place does not have; empty when all is well.

    `available` has contexts by kind of place (a kind that is not listed has those of its first word), `limited` the
    functions that only some kinds of place have.
    """
    kind = place.kind if place.kind in available else place.kind.split(".")[0]
    limited = {name.lower(): kinds for name, kinds in limited.items()}
    beyond = sorted(contexts(expression) - set(available.get(kind, ())))
    if beyond:
        return f"`{beyond[0]}` cannot be read in {place.path}"
    for name in sorted(functions(expression)):
        if kind not in limited.get(name.lower(), (kind,)):
            return f"`{name}()` cannot be called in {place.path}"
    return ""


def output_problem(
    place: Place, expression: str, workflow: Mapping[str, Any], known: Mapping[str, Iterable[str]] | None
) -> str:
    """The first output of a step or job in the expression that nothing sets; empty when all is well.

    `known` has the outputs of each action, by its reference without the `@`; None not to judge what steps set.
    """
    code = _LITERAL.sub("''", expression)
    job = workflow["jobs"].get(place.job, {})
    for step_id, what, output in _STEP.findall(code):
        problem = _step_problem(job, place, (step_id, what, output), known)
        if problem:
            return problem
    for job_id, what, output in _NEED.findall(code):
        other = workflow["jobs"].get(job_id)
        if other is None or job_id not in needed(job):
            return f"{place.path} reads job `{job_id}`, which `{place.job}` does not need"
        if "uses" in other and known is None:
            continue  # its outputs are those of the called workflow
        if what != "result" and (what != "outputs" or output not in (other.get("outputs") or {})):
            return f"{place.path} reads `needs.{job_id}.{what}{'.' + output if output else ''}`, which no step sets"
    return ""


def _step_problem(
    job: Mapping[str, Any], place: Place, read: tuple[str, str, str], known: Mapping[str, Iterable[str]] | None
) -> str:
    step_id, what, output = read
    steps = job.get("steps", [])
    before = steps if place.step < 0 else steps[: place.step]
    step = next((step for step in before if step.get("id") == step_id), None)
    if step is None:
        return f"{place.path} reads step `{step_id}`, which no earlier step has as its id"
    if what in ("outcome", "conclusion") or known is None:
        return ""
    set_by_step = known.get(str(step.get("uses", "")).split("@")[0], ())
    if what != "outputs" or (output not in set_by_step and f"{output}=" not in str(step.get("run"))):
        return f"{place.path} reads `steps.{step_id}.{what}{'.' + output if output else ''}`, which no step sets"
    return ""


def needed(job: Mapping[str, Any]) -> list[Any]:
    """The jobs that a job needs; a workflow may name one without a list."""
    needs = job.get("needs") or []
    return needs if isinstance(needs, list) else [needs]
