"""Data into values of a type, by one thread at a time; and the data that kci ships, with its date and its source.

msgspec works out what a type is made of when the type is first asked for, and remembers it in the class before it is
done: a second thread that asks meanwhile reads what is not there yet, and the process ends (seen with msgspec 0.22).
"""

# Annotations are values here, not text: msgspec would compile the text of each at every start.
import datetime
from _thread import RLock
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli

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
        file: where it lies in the package, such as `catalog/data/floors.toml`.
        shape: the type of the whole file.
    """
    return cache(lambda: to_type(tomli.loads((_PACKAGE / file).read_text(encoding="utf-8")), shape))
