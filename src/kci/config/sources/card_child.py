"""Renders a card in a separate process, with limits and without kci: JSON on stdin, JSON on
stdout.
"""

from __future__ import annotations

import json
import sys
import traceback
from contextlib import suppress
from typing import Any

_MEMORY = 1024**3
_ONLY_JINJA = (
    "center",
    "filesizeformat",
    "forceescape",
    "random",
    "striptags",
    "truncate",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
)


class Nothing(tuple[()]):
    """minijinja's none: a loop over it is empty."""

    __slots__ = ()

    def __str__(self) -> str:
        return "none"


def _limit(seconds: int) -> None:
    with suppress(ImportError):
        import resource

        for what, most in (("CPU", seconds), ("AS", _MEMORY), ("CORE", 0)):
            with suppress(ValueError, OSError):  # a lower limit holds
                getattr(resource, "setrlimit")(getattr(resource, f"RLIMIT_{what}"), (most, most))  # noqa: B009  - not on Windows


def _given(value: Any) -> Any:
    return Nothing() if value is None else value


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | Nothing):
        return str(value).lower()
    return (
        json.dumps(list(value), ensure_ascii=False)
        if isinstance(value, list | tuple | range)
        else value
    )


def environment(text: str) -> Any:
    """The environment in which a template is rendered as minijinja does it."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class CardEnvironment(ImmutableSandboxedEnvironment):
        # in minijinja, values have no methods; a loop, namespace or macro is Jinja's own
        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            return type(obj).__module__.startswith("jinja2.") and super().is_safe_attribute(
                obj, attr, value
            )

    newline = "\r\n" if "\r\n" in text else "\n"
    made = CardEnvironment(
        trim_blocks=True, newline_sequence=newline, finalize=_shown, extensions=["jinja2.ext.do"]
    )
    made.globals = {name: made.globals[name] for name in ("dict", "namespace", "range")}
    made.filters = {name: call for name, call in made.filters.items() if name not in _ONLY_JINJA}
    made.filters |= {"bool": bool, "lines": str.splitlines, "split": str.split}
    made.tests |= {"endingwith": str.endswith, "startingwith": str.startswith}
    made.tests["none"] = lambda value: value is None or isinstance(value, Nothing)
    return made


def render(text: str, values: dict[str, Any], most: int) -> dict[str, Any]:
    """The card, and findings: rule, message and line."""
    from jinja2 import TemplateSyntaxError, meta, nodes

    made, parts, size, line = environment(text), [], 0, 0
    try:
        parsed = made.parse(text)
        missing = meta.find_undeclared_variables(parsed) - values.keys() - made.globals.keys()
        names = {
            node.name: node.lineno
            for node in [*parsed.find_all(nodes.Name)][::-1]
            if node.name in missing
        }
        for part in made.from_string(text).generate(
            {key: _given(value) for key, value in values.items()}
        ):
            parts.append(part)
            size += len(part.encode())
            if size > most:
                raise OverflowError(f"it becomes larger than {most // 1024} KiB")
    except Exception as error:
        for place in traceback.extract_tb(error.__traceback__):
            line = place.lineno or 0 if place.filename == "<template>" else line
        line = error.lineno if isinstance(error, TemplateSyntaxError) else line
        return {
            "findings": [
                ("KCI775", getattr(error, "message", str(error)) or type(error).__name__, line)
            ]
        }
    empty = "no card has a value for `{}`: it is left empty"
    return {
        "text": "".join(parts),
        "findings": [("KCI777", empty.format(name), names[name]) for name in names],
    }


if __name__ == "__main__":
    question = json.load(sys.stdin)  # noqa: TID251  - without kci
    sys.path[:] = question.pop("path")
    _limit(question.pop("seconds"))
    print(json.dumps(render(**question)))
