"""Renders a card in a separate process, with limits and without kci: JSON on stdin, JSON on stdout."""

from __future__ import annotations

import json
import sys
import traceback
from contextlib import suppress
from typing import Any

_MEMORY = 1024**3
_ONLY_JINJA = ("center", "filesizeformat", "forceescape", "random", "striptags", "truncate", "urlize", "wordcount",
               "wordwrap", "xmlattr")  # fmt: skip


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


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, bool | Nothing):
        return str(value).lower()
    return json.dumps(list(value), ensure_ascii=False) if isinstance(value, list | tuple | range) else value


def environment(text: str) -> Any:
    """The environment in which a template is rendered as minijinja does it."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class CardEnvironment(ImmutableSandboxedEnvironment):
        # in minijinja, values have no methods; a loop, namespace or macro is Jinja's own
        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            return type(obj).__module__.startswith("jinja2.") and super().is_safe_attribute(obj, attr, value)

    newline = "\r\n" if "\r\n" in text else "\n"
    made = CardEnvironment(trim_blocks=True, newline_sequence=newline, finalize=_shown, extensions=["jinja2.ext.do"])
    made.globals = {name: made.globals[name] for name in ("dict", "namespace", "range")}
    made.filters = {name: call for name, call in made.filters.items() if name not in _ONLY_JINJA}
    made.filters |= {"bool": bool, "lines": str.splitlines, "split": str.split}
    made.tests |= {"endingwith": str.endswith, "startingwith": str.startswith}
    made.tests["none"] = lambda value: value is None or isinstance(value, Nothing)
    return made


def render(text: str, values: dict[str, Any], most: int) -> dict[str, Any]:
    """The card, and the names in it that have no value; or an error and its line."""
    import jinja2
    from jinja2 import meta, nodes

    made, parts, size = environment(text), [], 0
    try:
        parsed = made.parse(text)
        missing = meta.find_undeclared_variables(parsed) - values.keys() - made.globals.keys()
        names = reversed([*parsed.find_all(nodes.Name)])
        unknown = {name.name: name.lineno for name in names if name.name in missing}
        given = {name: Nothing() if value is None else value for name, value in values.items()}
        for part in made.from_string(text).generate(given):
            size += len(part.encode())
            if size > most:
                return {"error": f"it becomes larger than {most // 1024} KiB"}
            parts.append(part)
    except jinja2.TemplateSyntaxError as error:
        return {"error": error.message, "line": error.lineno}
    except Exception as error:
        lines = [place.lineno for place in traceback.extract_tb(error.__traceback__) if place.filename == "<template>"]
        return {"error": str(error) or type(error).__name__, "line": lines[-1] if lines else 0}
    return {"text": "".join(parts), "unknown": unknown}


if __name__ == "__main__":
    question = json.load(sys.stdin)  # noqa: TID251  - without kci
    sys.path[:] = question.pop("path")
    _limit(question.pop("seconds"))
    print(json.dumps(render(**question)))
