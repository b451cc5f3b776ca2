"""A TOML file as text, as data, and as places: which line and column holds `general.cuda.minver`.

`tomli` decides what is valid and gives the values. Places come from tree-sitter's TOML grammar, which is imported and
asked only when there is something to point at, so that reading an ordinary file stays fast.
"""

from __future__ import annotations

import re
import stat
from array import array
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli

from kci.diagnostics import Diagnostic, Span, finding
from kci.errors import FindingsError

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

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

    def at_key(self, key_path: KeyPath, rule: str, message: str, hint: str = "") -> Diagnostic:
        """A finding about a key or table."""
        return finding(rule, message, hint=hint, path=self.path, span=self.key_span(key_path))

    def at_value(self, key_path: KeyPath, rule: str, message: str, hint: str = "") -> Diagnostic:
        """A finding about the value at a key path."""
        return finding(rule, message, hint=hint, path=self.path, span=self.value_span(key_path))

    def place(self, key_path: KeyPath) -> tuple[str, int]:
        """File and line of a value; line 0 if it is not in the file."""
        span = self.value_span(key_path) if key_path else None
        return self.path, span.line if span else 0

    def spans(self, key_path: KeyPath) -> tuple[Span, Span] | None:
        """The exact positions of the key and the value of a path, or None if the syntax tree does not have it."""
        if self._places is None:
            self._places = Places(self.text)
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
        reason = getattr(error, "strerror", None) or error
        raise refuse(finding("KCI002", f"cannot be read: {reason}", path=shown_as)) from None


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
        from kci.config.syntax import place_after

        span = place_after(raw[: error.start].decode("utf-8", "replace"))
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


MAX_PLACES = 20_000
"""How many keys and elements of a file get a place; what comes after them is placed at its table, or nowhere."""


def syntax_tree(raw: bytes) -> Tree:
    """The syntax tree of a TOML text in UTF-8."""
    import tree_sitter
    import tree_sitter_toml

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_toml.language())).parse(raw)


class Places:
    """For every key path of a valid TOML text, the positions of its key and its value.

    A table's key is its header's last key and its value the header; keys that exist only as part of a dotted key or a
    header have the place where they are first written. Elements of an array are looked for when one is asked for.
    """

    def __init__(self, text: str) -> None:
        raw = text.encode("utf-8")
        self.lines = raw.split(b"\n")
        self.columns: dict[int, array[int] | None] = {}  # per line: columns by byte; None where they are the same
        self.found: dict[KeyPath, tuple[Span, Span]] = {}
        self.tables: dict[KeyPath, int] = {}  # arrays of tables: how many elements so far
        self.arrays: dict[KeyPath, Node] = {}  # whose elements have no place yet; a list of sources has thousands
        for node in syntax_tree(raw).root_node.named_children:
            if len(self.found) >= MAX_PLACES:
                return
            if node.type == "pair":
                self._pair(node, ())
            elif node.type in ("table", "table_array_element"):
                self._table(node)

    def get(self, path: KeyPath) -> tuple[Span, Span] | None:
        """The positions of the key and the value of a path."""
        for length in range(1, len(path)):
            if path[:length] in self.arrays:
                self._expand(path[:length])
        return self.found.get(path)

    def _expand(self, path: KeyPath) -> None:
        elements = (child for child in self.arrays.pop(path).named_children if child.type != "comment")
        for index, element in enumerate(elements):
            if len(self.found) >= MAX_PLACES:
                return
            self._note((*path, index), element, element)
            self._value(element, (*path, index))

    def _table(self, node: Node) -> None:
        header = next((child for child in node.named_children if child.type != "comment"), None)
        if header is None:
            return
        keys = self._keys(header)
        path: KeyPath = ()
        for position, (key, key_node) in enumerate(keys):
            path = (*path, key)
            self._note(path, key_node, header)
            last = position == len(keys) - 1
            if node.type == "table_array_element" and last:
                self.tables[path] = self.tables.get(path, -1) + 1
            if path in self.tables:
                path = (*path, self.tables[path])
                self._note(path, key_node, header)
        for child in node.named_children:
            if len(self.found) >= MAX_PLACES:
                return
            if child.type == "pair":
                self._pair(child, path)

    def _pair(self, node: Node, path: KeyPath) -> None:
        parts = [child for child in node.named_children if child.type != "comment"]
        if len(parts) < 2:
            return
        key_node, value = parts[0], parts[-1]
        for key, single in self._keys(key_node):
            path = (*path, key)
            self._note(path, single, value)
        self._value(value, path)

    def _value(self, node: Node, path: KeyPath) -> None:
        if node.type == "inline_table":
            for child in node.named_children:
                if child.type == "pair":
                    self._pair(child, path)
        elif node.type == "array":
            self.arrays.setdefault(path, node)

    def _keys(self, node: Node) -> list[tuple[str, Node]]:
        if node.type != "dotted_key":
            return [(self._key_text(node), node)]
        found: list[tuple[str, Node]] = []
        while node.type == "dotted_key":  # the grammar nests dotted keys to the left; a loop, for hostile depths
            parts = [child for child in node.named_children if child.type != "comment"]
            found.extend((self._key_text(part), part) for part in reversed(parts[1:]))
            node = parts[0]
        found.append((self._key_text(node), node))
        return found[::-1]

    @staticmethod
    def _key_text(node: Node) -> str:
        raw = (node.text or b"").decode("utf-8", "replace")
        if raw[:1] in ("'", '"'):
            return next(iter(tomli.loads(f"{raw} = 0")), raw)
        return raw

    def _note(self, path: KeyPath, key: Node, value: Node) -> None:
        if len(self.found) < MAX_PLACES and path not in self.found:
            self.found[path] = self._span(key), self._span(value)

    def _span(self, node: Node) -> Span:
        start, end = node.start_point, node.end_point
        return Span(start[0] + 1, self._column(*start), end[0] + 1, self._column(*end))

    def _column(self, row: int, byte: int) -> int:
        if row not in self.columns:
            line = self.lines[row]
            starts = (char & 0xC0 != 0x80 for char in line)
            self.columns[row] = None if line.isascii() else array("I", accumulate(starts, initial=0))
        columns = self.columns[row]
        return (columns[byte] if columns else byte) + 1
