"""Reading YAML as GitHub reads a workflow: a key that is there twice, or a merge key, makes the file invalid."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any


def load_workflow(text: str) -> Any:
    """Parse a workflow file.

    Raises:
        ValueError: it is not YAML, or not what GitHub takes; the text says where, in one line.
    """
    import yaml  # noqa: PLC0415 - slow to import, and only rendering needs it

    try:
        return yaml.load(text, Loader=_loader())  # noqa: S506 - it is a safe one
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None


def line_numbers(text: str) -> dict[str, int]:
    """The line of everything in a valid file, by its place: `jobs.build.steps[1].run`."""
    import yaml  # noqa: PLC0415

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
    import yaml  # noqa: PLC0415

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

    return Strict
