"""Reading YAML as GitHub does, in YAML 1.2.

`on`, `yes` and `no` are texts, and so is a date; a key that is there twice, or a merge key, makes the file invalid.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import cache
from typing import Any

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
