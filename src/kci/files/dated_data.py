"""Data into values of a type, by one thread at a time; and the data that kci ships, with its date and its source.

msgspec works out what a type is made of when the type is first asked for, and remembers it in the class before it is
done: a second thread that asks meanwhile reads what is not there yet, and the process ends (seen with msgspec 0.22).
"""

# Annotations are values here, not text: msgspec would compile the text of each at every start.
import datetime
from _thread import RLock
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli

_Shape = TypeVar("_Shape")
ONE_AT_A_TIME = RLock()  # as functools has it: threading takes half a millisecond to import
"""Held while msgspec is given a type."""


def to_type(data: Any, shape: type[_Shape], dec_hook: Callable[[type, Any], Any] | None = None) -> _Shape:
    """Like `msgspec.convert`.

    Raises:
        msgspec.ValidationError: the data do not fit.
    """
    with ONE_AT_A_TIME:
        return msgspec.convert(data, shape, dec_hook=dec_hook)  # noqa: TID251


class Dated(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """What every data file begins with."""

    as_of: datetime.date
    source: str


_Table = TypeVar("_Table", bound=Dated)


def load_dated(path: Path, shape: type[_Table], dec_hook: Callable[[type, Any], Any] | None = None) -> _Table:
    """Read a data file that ships with kci; `dec_hook` decodes the types that msgspec does not know.

    Raises:
        msgspec.ValidationError: the file is not of that shape (a bug in kci, which a test finds).
    """
    data = tomli.loads(path.read_text(encoding="utf-8"))
    return to_type(data, shape, dec_hook=dec_hook)
