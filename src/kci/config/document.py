"""TOML files with positions: `tomli` parses, and tree-sitter, imported only for messages, finds the
places.
"""

from __future__ import annotations

import re
import stat
from array import array
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli

from kci.diagnostics import Diagnostic, Span, finding
from kci.errors import FindingsError

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

KeyPath = tuple[str | int, ...]
"""Keys and array indexes from the top of the file to a value."""

BOM = b"\xef\xbb\xbf"
"""The reference skips a byte order mark, and so does `text`."""

MAX_BYTES = 1024 * 1024
"""The largest known build.toml has 550 KB."""

MAX_KEY_PARTS = 32
MAX_DOTTED = 20_000
"""Limits for one key and for all keys of a file: `tomli` takes quadratic time and memory."""


_GENERAL_FIRST = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\r?\n)*\[general\]")
"""The head of most files, which need no syntax tree for a place in it: that takes longer than a
plan of the kernel."""


class Document:
    """A parsed TOML file."""

    def __init__(self, path: str, text: str, data: dict[str, Any]) -> None:
        self.path = path
        self.text = text
        self.data = data

    def key_span(self, key_path: KeyPath) -> Span | None:
        """Position of the path's last key, or of the nearest parent in the file."""
        if key_path == ("general",) and (head := _GENERAL_FIRST.match(self.text)):
            line = head[0].count("\n") + 1
            return Span(line, 2, line, 9)
        return self._nearest(key_path, 0)

    def value_span(self, key_path: KeyPath) -> Span | None:
        """Position of the value, or of the nearest parent's key."""
        return self._nearest(key_path, 1)

    def at_key(self, key_path: KeyPath, rule: str, message: str, hint: str = "") -> Diagnostic:
        return finding(rule, message, self.path, hint=hint, span=self.key_span(key_path))

    def at_value(self, key_path: KeyPath, rule: str, message: str, hint: str = "") -> Diagnostic:
        return finding(rule, message, self.path, hint=hint, span=self.value_span(key_path))

    def place(self, key_path: KeyPath) -> tuple[str, int]:
        """File and line of a value; line 0 if it is not in the file."""
        span = self.value_span(key_path) if key_path else None
        return self.path, span.line if span else 0

    @cached_property
    def _places(self) -> Places:
        return Places(self.text)

    def spans(self, key_path: KeyPath) -> tuple[Span, Span] | None:
        """Positions of key and value; None if the syntax tree has no such path."""
        return self._places.get(key_path)

    def source(self, key_path: KeyPath) -> str:
        """The value as written in the file; empty if it is unknown or has several lines."""
        spans = self.spans(key_path)
        if spans is None or spans[1].line != spans[1].end_line:
            return ""
        value = spans[1]
        return self.text.split("\n")[value.line - 1][value.column - 1 : value.end_column - 1]

    def _nearest(self, key_path: KeyPath, which: int) -> Span | None:
        if spans := self.spans(key_path):
            return spans[which]
        return self._nearest(key_path[:-1], 0) if key_path else None


def read_document(path: Path, shown_as: str) -> Document:
    """Read a TOML file; `shown_as` is its path in messages.

    Raises FindingsError (KCI001, KCI002, KCI003, KCI004).
    """
    return parse_document(read_bytes(path, shown_as), shown_as)


def read_bytes(path: Path, shown_as: str) -> bytes:
    """Read at most `MAX_BYTES + 1` bytes; errors as `read_document`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block
            raise refuse(finding("KCI002", "not a regular file", shown_as, hint=_NO_FILE))
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise refuse(
            finding("KCI001", f"there is no {path.name} here", shown_as, hint=_NO_FILE)
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise refuse(finding("KCI002", f"cannot be read: {reason}", shown_as)) from None


_NO_FILE = "name a directory that holds a build.toml, or one with kernels below it"


def parse_document(raw: bytes, shown_as: str) -> Document:
    """Parse the bytes of a TOML file; errors as `read_document`."""
    if len(raw) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES // 1024} KiB"
        raise refuse(
            finding(
                "KCI002",
                message,
                shown_as,
                hint="a build.toml lists sources; it does not contain them",
            )
        )
    try:
        text = raw.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        from kci.config.syntax import place_after

        span = place_after(raw[: error.start].decode("utf-8", "replace"))
        message = f"the file is not UTF-8: byte 0x{raw[error.start]:02x}"
        raise refuse(
            finding("KCI003", message, shown_as, span=span, hint="save the file as UTF-8")
        ) from None
    _refuse_long_keys(text, shown_as)
    try:
        return Document(shown_as, text, tomli.loads(text))
    except RecursionError:
        raise refuse(finding("KCI004", "values are nested too deeply", shown_as)) from None
    except ValueError as error:  # TOMLDecodeError, and int() on a number of thousands of digits
        from kci.config.syntax import syntax_error

        raise refuse(syntax_error(text, str(error), shown_as)) from None


_PART = r"""(?:[A-Za-z0-9_-]++|"[^"]*+"|'[^']*+')"""
_LONG_KEY = rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_KEY_PARTS},}}"
_DOTTED = rf"[ \t]*+\[{{0,2}}[ \t]*+{_PART}(?:[ \t]*+\.[ \t]*+{_PART})++"


def _refuse_long_keys(text: str, shown_as: str) -> None:
    total = 0
    crowded = text.count(".") > MAX_DOTTED
    for number, line in enumerate(text.split("\n"), start=1):
        if (not crowded and line.count(".") < MAX_KEY_PARTS) or line.lstrip(" \t").startswith("#"):
            continue
        dotted = re.match(_DOTTED, line)
        total += dotted[0].count(".") if dotted else 0
        long = re.search(_LONG_KEY, line) if line.count(".") >= MAX_KEY_PARTS else None
        if long or total > MAX_DOTTED:
            column = long.start() + 1 if long else 1
            message = (
                f"a key of more than {MAX_KEY_PARTS} parts"
                if long
                else f"more than {MAX_DOTTED} dotted keys"
            )
            span = Span(number, column, number, column + 1)
            raise refuse(finding("KCI004", message, shown_as, span=span))


def refuse(*diagnostics: Diagnostic) -> FindingsError:
    """Make the error for an unusable file."""
    first = diagnostics[0]
    more = f" (and {len(diagnostics) - 1} more)" if len(diagnostics) > 1 else ""
    return FindingsError(f"{first.path or 'input'}: {first.message}{more}", diagnostics=diagnostics)


MAX_PLACES = 20_000
"""Keys and elements beyond this number have no position of their own."""


def syntax_tree(raw: bytes) -> Tree:
    """Parse a TOML text in UTF-8 to a syntax tree."""
    import tree_sitter
    import tree_sitter_toml

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_toml.language())).parse(raw)


def _parts(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


class Places:
    """Positions in a TOML text.

    The value of a table is its header; elements of arrays are read on demand.
    """

    def __init__(self, text: str) -> None:
        raw = text.encode("utf-8")
        self.lines = raw.split(b"\n")
        self.columns: dict[int, array[int] | None] = {}  # byte to column, per line; None for ASCII
        self.positions: dict[KeyPath, tuple[Span, Span]] = {}
        self.tables: dict[KeyPath, int] = {}  # number of elements in arrays of tables
        self.arrays: dict[KeyPath, Node] = {}  # arrays whose elements have no position yet
        root = syntax_tree(raw).root_node
        self._pairs(root, ())
        for node in root.named_children:
            if node.type in ("table", "table_array_element") and len(self.positions) < MAX_PLACES:
                self._table(node)

    def get(self, path: KeyPath) -> tuple[Span, Span] | None:
        for length in range(1, len(path)):
            if path[:length] in self.arrays:
                self._expand(path[:length])
        return self.positions.get(path)

    def _expand(self, path: KeyPath) -> None:
        for index, element in enumerate(_parts(self.arrays.pop(path))):
            if len(self.positions) >= MAX_PLACES:
                return
            self._note((*path, index), element, element)
            self._value(element, (*path, index))

    def _table(self, node: Node) -> None:
        header = _parts(node)[0]
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
        self._pairs(node, path)

    def _pairs(self, node: Node, path: KeyPath) -> None:
        for child in node.named_children:
            if child.type == "pair" and len(self.positions) < MAX_PLACES:
                self._pair(child, path)

    def _pair(self, node: Node, path: KeyPath) -> None:
        key_node, *_, value = _parts(node)
        for key, single in self._keys(key_node):
            path = (*path, key)
            self._note(path, single, value)
        self._value(value, path)

    def _value(self, node: Node, path: KeyPath) -> None:
        if node.type == "inline_table":
            self._pairs(node, path)
        elif node.type == "array":
            self.arrays.setdefault(path, node)

    def _keys(self, node: Node) -> list[tuple[str, Node]]:
        keys: list[tuple[str, Node]] = []
        while (
            node.type == "dotted_key"
        ):  # the grammar nests dotted keys to the left; a loop survives hostile depths
            node, *more = _parts(node)
            keys.extend((self._key_text(part), part) for part in reversed(more))
        keys.append((self._key_text(node), node))
        return keys[::-1]

    @staticmethod
    def _key_text(node: Node) -> str:
        raw = (node.text or b"").decode("utf-8", "replace")
        return next(iter(tomli.loads(f"{raw} = 0")), raw) if raw[:1] in ("'", '"') else raw

    def _note(self, path: KeyPath, key: Node, value: Node) -> None:
        if len(self.positions) < MAX_PLACES and path not in self.positions:
            self.positions[path] = self._span(key), self._span(value)

    def _span(self, node: Node) -> Span:
        start, end = node.start_point, node.end_point
        return Span(start[0] + 1, self._column(*start), end[0] + 1, self._column(*end))

    def _column(self, row: int, byte: int) -> int:
        if row not in self.columns:
            line = self.lines[row]
            starts = (char & 0xC0 != 0x80 for char in line)
            self.columns[row] = (
                None if line.isascii() else array("I", accumulate(starts, initial=0))
            )
        columns = self.columns[row]
        return (columns[byte] if columns else byte) + 1
