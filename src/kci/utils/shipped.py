"""The data files and templates of the package, read once and typed."""

from __future__ import annotations

import datetime
import json
from _thread import RLock
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import tomli

if TYPE_CHECKING:
    import jinja2


# Annotations are values here: msgspec would compile text ones at every start.


_Shape = TypeVar("_Shape")
ONE_AT_A_TIME = RLock()  # functools' lock: threading takes half a millisecond to import
"""Held during a call of msgspec with a type."""


def to_type(data: Any, shape: type[_Shape]) -> _Shape:
    """As `msgspec.convert`, and types that it does not know are read with their own `parse`;
    ValidationError.
    """
    with ONE_AT_A_TIME:
        return msgspec.convert(data, shape, dec_hook=lambda wanted, value: wanted.parse(value))  # noqa: TID251


class Dated(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """The common head of a data file."""

    as_of: datetime.date
    source: str


_Table = TypeVar("_Table", bound=Dated)
_PACKAGE = Path(__file__).parents[1]


def shipped(file: str | Path, shape: type[_Table]) -> Callable[[], _Table]:
    """A cached reader of a data file, by its path in the package, such as
    `matrix/catalog/data/floors.toml`.
    """
    return cache(lambda: to_type(tomli.loads((_PACKAGE / file).read_text(encoding="utf-8")), shape))


def template_folder() -> Path:
    """The folder in the package, or beside `src` in a checkout."""
    installed = Path(__file__).parents[1] / "templates"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "templates"


@cache
def template_environment() -> jinja2.Environment:
    """The Jinja environment: `[[ ]]` for values, `[% %]` for statements; `${{ }}` and `{{ }}` are
    plain text.
    """
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Sandboxed, because a pull request may change a repository's templates. Each template quotes
    # for its own language.
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
    environment.filters["toml"] = _as_toml
    return environment


def _as_toml(value: str) -> str:
    import tomlkit

    return tomlkit.item(value).as_string()


def fill_template(name: str, values: Mapping[str, Any]) -> str:
    """A template with its values, tidied."""
    return tidy(template_environment().get_template(name).render(values))


def tidy(text: str) -> str:
    """Remove trailing blanks and repeated empty lines; end with one newline."""
    lines: list[str] = []
    for line in (line.rstrip() for line in text.split("\n")):
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"
