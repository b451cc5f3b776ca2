"""The data and templates that kci ships, read once and typed."""

from __future__ import annotations

import datetime
import json
from _thread import RLock
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import tomli

if TYPE_CHECKING:
    import jinja2


# Annotations are values here, not text: msgspec would compile the text of each at every start.


_Shape = TypeVar("_Shape")
ONE_AT_A_TIME = RLock()  # as functools has it: threading takes half a millisecond to import
"""Held while msgspec is given a type."""


def to_type(data: Any, shape: type[_Shape]) -> _Shape:
    """Like `msgspec.convert`; a type that msgspec does not know reads a value with its own `parse`.

    Raises:
        msgspec.ValidationError: the data do not fit.
    """
    with ONE_AT_A_TIME:
        return msgspec.convert(data, shape, dec_hook=_parse)  # noqa: TID251


def _parse(wanted: Any, value: Any) -> Any:
    return wanted.parse(value)


class Dated(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """What every data file begins with."""

    as_of: datetime.date
    source: str


_Table = TypeVar("_Table", bound=Dated)
_PACKAGE = Path(__file__).parents[1]


def shipped(file: str | Path, shape: type[_Table]) -> Callable[[], _Table]:
    """The reader of a data file that ships with kci; it reads once.

    A file of another shape is a bug in kci, which a test finds.

    Args:
        file: where it lies in the package, such as `matrix/catalog/data/floors.toml`.
        shape: the type of the whole file.
    """
    return cache(lambda: to_type(tomli.loads((_PACKAGE / file).read_text(encoding="utf-8")), shape))


def template_folder() -> Path:
    """Inside the package when installed, next to `src` in a checkout."""
    installed = Path(__file__).parents[1] / "templates"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "templates"


@cache
def template_environment() -> jinja2.Environment:
    """Templates with `[[ ]]` for values and `[% %]` for statements; `${{ }}` and `{{ }}` belong to what is written."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Sandboxed, because a repository may bring templates, and a pull request may change them. Nothing is escaped as
    # HTML: each template quotes as the language of its file does.
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(template_folder()),
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
        comment_start_string="[#",
        comment_end_string="#]",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment


def tidy(text: str) -> str:
    """No trailing blanks, no run of empty lines, one newline at the end."""
    lines: list[str] = []
    for line in (line.rstrip() for line in text.split("\n")):
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"
