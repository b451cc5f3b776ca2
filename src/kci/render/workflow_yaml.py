"""Reading a workflow file as GitHub does: its YAML, and the expressions in its texts.

As in YAML 1.2, `on`, `yes` and `no` are texts, and so is a date; a key that is there twice, or a merge key, makes the
file invalid. GitHub silently evaluates a missing output or context to nothing, so a misspelled one shows only as a job
that does the wrong thing.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

_MOST_NODES = 500_000
"""No file that GitHub takes has more, unless its aliases repeat themselves."""
_MOST_LEVELS = 100
"""The library in C takes a level of the stack for each, and ends the process where there is none left."""


def load_workflow(text: str) -> Any:
    """Parse a workflow file; ValueError, one line, says where it is not YAML, or not what GitHub takes."""
    import yaml

    try:
        _require_shallow(text)
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


def _require_shallow(text: str) -> None:
    """Refuse a text that is nested more deeply than anybody means (ValueError); YAMLError if it is not YAML."""
    import yaml

    level = 0
    for event in yaml.parse(text, Loader=_loader()):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > _MOST_LEVELS:
            raise ValueError("it is nested too deeply")


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
# `steps.NAME.outputs.OUTPUT`, `needs.NAME.result`, and what is misspelled like one of them.
_OUTPUT = re.compile(r"(?<![\w.-])(steps|needs)\.([\w-]+)\.([\w-]+)(?:\.([\w-]+))?")


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


def read_outputs(expression: str) -> list[tuple[str, str, str, str]]:
    """What an expression reads of steps and jobs: `steps` or `needs`, the id, and the one or two names after it."""
    return _OUTPUT.findall(_LITERAL.sub("''", expression))
