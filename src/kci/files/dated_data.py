"""Loading the data that kci ships: TOML files that say since when they hold and where they come from.

Annotations are values here, not text: msgspec would compile the text of each at every start.
"""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli

from kci.files.typed_data import to_type


class Dated(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """What every data file begins with."""

    as_of: datetime.date
    source: str


_Table = TypeVar("_Table", bound=Dated)


def load_dated(path: Path, shape: type[_Table], dec_hook: Callable[[type, Any], Any] | None = None) -> _Table:
    """Read a data file.

    Args:
        path: the file, which ships with kci.
        shape: the struct that it must be, to the last key.
        dec_hook: decodes the types that msgspec does not know.

    Raises:
        msgspec.ValidationError: the file is not of that shape (a bug in kci, which a test finds).
    """
    data = tomli.loads(path.read_text(encoding="utf-8"))
    return to_type(data, shape, dec_hook=dec_hook)
