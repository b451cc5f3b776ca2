"""TOML files with positions: `tomli` parses, and tree-sitter, imported only for messages, finds the
places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tomli

from kci.diagnostics import Diagnostic, Span, finding
from kci.errors import FindingsError
from kci.utils.bounded_json import require_plain

if TYPE_CHECKING:
    from tree_sitter import Node

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

    def places(self, key_path: KeyPath) -> tuple[Place, Place] | None:
        """Key and value; None if the syntax tree has no such path."""
        return self._places.get(key_path)

    def source(self, key_path: KeyPath) -> str:
        """The value as written in the file; empty if it is unknown."""
        places = self.places(key_path)
        return self.written(places[1]) if places else ""

    def written(self, place: Place) -> str:
        return self.text[place.start : place.end]

    def _nearest(self, key_path: KeyPath, which: int) -> Span | None:
        if places := self.places(key_path):
            return places[which].span
        return self._nearest(key_path[:-1], 0) if key_path else None


def read_document(path: Path, shown_as: str) -> Document:
    """Read a TOML file; `shown_as` is its path in messages.

    Raises FindingsError (KCI001, KCI002, KCI003, KCI004).
    """
    return parse_document(read_bytes(path, shown_as), shown_as)


def read_bytes(path: Path, shown_as: str) -> bytes:
    """Read at most `MAX_BYTES + 1` bytes; errors as `read_document`."""
    try:
        require_plain(path)
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise refuse(
            finding("KCI001", f"there is no {path.name} here", shown_as, hint=_NO_FILE)
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise refuse(
            finding("KCI002", f"cannot be read: {reason}", shown_as, hint=_NO_FILE)
        ) from None


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


def _parts(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


class Place(NamedTuple):
    """A range of a text, in characters too."""

    start: int
    end: int
    span: Span


def _place(node: Node) -> Place:
    start, end = node.start_point, node.end_point
    span = Span(start[0] + 1, start[1] + 1, end[0] + 1, end[1] + 1)
    return Place(node.start_byte, node.end_byte, span)


_Found = tuple[KeyPath, "Node", "Node"]
"""A path, its last key and its value, which of a table is the header."""


class Places:
    """Where the keys and values of a TOML text are; elements of arrays are read on demand."""

    def __init__(self, text: str) -> None:
        import tree_sitter
        import tree_sitter_toml

        self.text = text
        self.places: dict[KeyPath, tuple[Place, Place]] = {}
        self.tables: dict[KeyPath, int] = {}  # number of elements in arrays of tables
        self.arrays: dict[KeyPath, Node] = {}  # arrays whose elements are not read yet
        # a byte for each character: the parser counts bytes
        parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_toml.language()))
        self._note(self._file(parser.parse(text.encode("ascii", "replace")).root_node))

    def get(self, path: KeyPath) -> tuple[Place, Place] | None:
        for length in range(1, len(path)):
            if array := self.arrays.pop(path[:length], None):
                self._note(self._elements(array, path[:length]))
        return self.places.get(path)

    def _note(self, found: Iterator[_Found]) -> None:
        for path, key, value in islice(found, MAX_PLACES - len(self.places)):
            self.places.setdefault(path, (_place(key), _place(value)))

    def _file(self, root: Node) -> Iterator[_Found]:
        yield from self._pairs(root, ())
        for node in root.named_children:
            if node.type in ("table", "table_array_element"):
                yield from self._table(node)

    def _table(self, node: Node) -> Iterator[_Found]:
        header = _parts(node)[0]
        keys = self._keys(header)
        path: KeyPath = ()
        for key, key_node in keys:
            path = (*path, key)
            yield path, key_node, header
            if node.type == "table_array_element" and key_node is keys[-1][1]:
                self.tables[path] = self.tables.get(path, -1) + 1
            if path in self.tables:
                path = (*path, self.tables[path])
                yield path, key_node, header
        yield from self._pairs(node, path)

    def _pairs(self, node: Node, path: KeyPath) -> Iterator[_Found]:
        for pair in node.named_children:
            if pair.type == "pair":
                inner, (keys, *_, value) = path, _parts(pair)
                for key, key_node in self._keys(keys):
                    inner = (*inner, key)
                    yield inner, key_node, value
                yield from self._value(value, inner)

    def _value(self, node: Node, path: KeyPath) -> Iterator[_Found]:
        if node.type == "inline_table":
            yield from self._pairs(node, path)
        elif node.type == "array":
            self.arrays.setdefault(path, node)

    def _elements(self, array: Node, path: KeyPath) -> Iterator[_Found]:
        for index, element in enumerate(_parts(array)):
            yield (*path, index), element, element
            yield from self._value(element, (*path, index))

    def _keys(self, node: Node) -> list[tuple[str, Node]]:
        nodes: list[Node] = []
        while node.type == "dotted_key":  # nested to the left; a loop survives hostile depths
            node, *more = _parts(node)
            nodes += more[::-1]
        return [(self._key_text(key), key) for key in (node, *nodes[::-1])]

    def _key_text(self, node: Node) -> str:
        raw = self.text[node.start_byte : node.end_byte]
        return next(iter(tomli.loads(f"{raw} = 0")), raw) if raw[:1] in ("'", '"') else raw
