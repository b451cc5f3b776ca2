"""A TOML file as text, as data, and as places: which line and column holds `general.cuda.minver`.

`tomli` decides what is valid and gives the values. Places come from tree-sitter's TOML grammar (`kci.config.places`),
which is asked only when there is something to point at, so that reading an ordinary file stays fast.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli

from kci.diagnostics import Diagnostic, Span, finding
from kci.errors import FindingsError

if TYPE_CHECKING:
    from kci.config.places import Places

KeyPath = tuple[str | int, ...]
"""Where a value is: keys, and indexes into arrays, from the top of the file."""

BOM = b"\xef\xbb\xbf"
"""What some editors on Windows put first. The reference skips one, and so does kci; `text` is without it."""

MAX_BYTES = 1024 * 1024
"""A larger file is refused unread. The largest real build.toml known has 550 KB."""

MAX_KEY_PARTS = 32
MAX_DOTTED = 20_000
"""How many parts one key may have, and all dotted keys and headers of a file together. A build.toml needs 4 in one; the
time and memory that `tomli` takes grow with their square."""


class Document:
    """One TOML file that was read and parsed."""

    def __init__(self, path: str, text: str, data: dict[str, Any]) -> None:
        self.path = path
        self.text = text
        self.data = data
        self._places: Places | None = None

    def key_span(self, key_path: KeyPath) -> Span | None:
        """The position of the last key of a path, or of its nearest parent that is in the file."""
        return self._nearest(key_path, 0)

    def value_span(self, key_path: KeyPath) -> Span | None:
        """The position of the value at a path, or of its nearest parent's key."""
        return self._nearest(key_path, 1)

    def spans(self, key_path: KeyPath) -> tuple[Span, Span] | None:
        """The exact positions of the key and the value of a path, or None if the syntax tree does not have it."""
        if self._places is None:
            from kci.config.places import index_places

            self._places = index_places(self.text)
        return self._places.get(key_path)

    def source(self, key_path: KeyPath) -> str:
        """A value as the file spells it; empty where the syntax tree does not know."""
        found = self.spans(key_path)
        if found is None or found[1].line != found[1].end_line:
            return ""
        return (self.line(found[1].line) or "")[found[1].column - 1 : found[1].end_column - 1]

    def _nearest(self, key_path: KeyPath, which: int) -> Span | None:
        for length in range(len(key_path), 0, -1):
            if found := self.spans(key_path[:length]):
                return found[which if length == len(key_path) else 0]
        return None

    def line(self, number: int) -> str | None:
        """The text of a line, counted from 1."""
        lines = self.text.split("\n")
        return lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else None


def read_document(path: Path, shown_as: str) -> Document:
    """Read and parse a TOML file.

    Args:
        path: the file.
        shown_as: how diagnostics name it.

    Raises:
        FindingsError: there is no such file (KCI001), it cannot be read or is too large (KCI002), it is not UTF-8
            (KCI003) or not TOML (KCI004).
    """
    return parse_document(read_bytes(path, shown_as), shown_as)


def read_bytes(path: Path, shown_as: str) -> bytes:
    """Read a file as it is, or somewhat more than `MAX_BYTES` of it; see `read_document`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would wait for ever
            raise refuse(finding("KCI002", "not a regular file", path=shown_as, hint=_NO_FILE))
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise refuse(finding("KCI001", f"there is no {path.name} here", path=shown_as, hint=_NO_FILE)) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise refuse(finding("KCI002", f"cannot be read: {_reason(error)}", path=shown_as)) from None


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


_NO_FILE = "name a directory that holds a build.toml, or one with kernels below it"


def parse_document(raw: bytes, shown_as: str) -> Document:
    """Parse the bytes of a TOML file; see `read_document`."""
    if len(raw) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES // 1024} KiB"
        raise refuse(
            finding("KCI002", message, path=shown_as, hint="a build.toml lists sources; it does not contain them")
        )
    try:
        text = raw.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        span = _span_at(raw[: error.start].decode("utf-8", "replace"))
        message = f"the file is not UTF-8: byte 0x{raw[error.start]:02x}"
        raise refuse(finding("KCI003", message, path=shown_as, span=span, hint="save the file as UTF-8")) from None
    _refuse_long_keys(text, shown_as)
    try:
        return Document(shown_as, text, tomli.loads(text))
    except RecursionError:
        raise refuse(finding("KCI004", "values are nested too deeply", path=shown_as)) from None
    except ValueError as error:  # TOMLDecodeError, and int() on a number of thousands of digits
        from kci.config.syntax import syntax_error

        raise refuse(syntax_error(text, str(error), shown_as)) from None


_PART = r"""(?:[A-Za-z0-9_-]++|"[^"]*+"|'[^']*+')"""
_LONG_KEY = rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_KEY_PARTS},}}"
_DOTTED = rf"[ \t]*+\[{{0,2}}[ \t]*+{_PART}(?:[ \t]*+\.[ \t]*+{_PART})++"


def _refuse_long_keys(text: str, shown_as: str) -> None:
    """Refuse keys that no build.toml has and that the parser would take minutes for.

    Raises:
        FindingsError: a key, or text that looks like one, is longer than that (KCI004).
    """
    total = 0
    crowded = text.count(".") > MAX_DOTTED
    for number, line in enumerate(text.split("\n"), start=1):
        if not crowded and line.count(".") < MAX_KEY_PARTS:
            continue
        if line.lstrip(" \t").startswith("#"):
            continue
        found = re.match(_DOTTED, line)
        total += found[0].count(".") if found else 0
        found = re.search(_LONG_KEY, line) if line.count(".") >= MAX_KEY_PARTS else None
        if found or total > MAX_DOTTED:
            column = found.start() + 1 if found else 1
            message = f"a key of more than {MAX_KEY_PARTS} parts" if found else f"more than {MAX_DOTTED} dotted keys"
            span = Span(number, column, number, column + 1)
            raise refuse(finding("KCI004", message, path=shown_as, span=span))


def refuse(*diagnostics: Diagnostic) -> FindingsError:
    """The error for a file that cannot be used, with all that is wrong with it."""
    first = diagnostics[0]
    more = f" (and {len(diagnostics) - 1} more)" if len(diagnostics) > 1 else ""
    return FindingsError(f"{first.path or 'input'}: {first.message}{more}", diagnostics=diagnostics)


def _span_at(before: str) -> Span:
    """The place just after some text."""
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    return Span(line, column, line, column + 1)
