"""Data into values of a type, by one thread at a time.

msgspec works out what a type is made of when the type is first asked for, and remembers it in the class before it is
done: a second thread that asks meanwhile reads what is not there yet, and the process ends (seen with msgspec 0.22).
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

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
