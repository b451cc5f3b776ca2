"""Where the keys and values of a TOML text are: line and column of each, from tree-sitter's TOML grammar."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING

import tomli
import tree_sitter
import tree_sitter_toml

from kci.config.document import KeyPath
from kci.diagnostics import Span

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

MAX_PLACES = 20_000
"""How many keys and elements of a file get a place; what comes after them is placed at its table, or nowhere."""


def index_places(text: str) -> Places:
    """For every key path of a valid TOML text, the positions of its key and its value.

    A table's key is its header's last key and its value the header; keys that exist only as part of a dotted key or a
    header have the place where they are first written.
    """
    raw = text.encode("utf-8")
    places = Places(raw)
    places.add(syntax_tree(raw).root_node)
    return places


def syntax_tree(raw: bytes) -> Tree:
    """The syntax tree of a TOML text in UTF-8."""
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_toml.language())).parse(raw)


class Places:
    """Walks a syntax tree once and notes the position of each key path; elements of an array when one is asked for."""

    def __init__(self, raw: bytes) -> None:
        self.lines = raw.split(b"\n")
        self.columns: dict[int, array[int] | None] = {}  # per line: columns by byte; None where they are the same
        self.found: dict[KeyPath, tuple[Span, Span]] = {}
        self.tables: dict[KeyPath, int] = {}  # arrays of tables: how many elements so far
        self.arrays: dict[KeyPath, Node] = {}  # whose elements have no place yet; a list of sources has thousands

    def get(self, path: KeyPath) -> tuple[Span, Span] | None:
        """The positions of the key and the value of a path."""
        for length in range(1, len(path)):
            if path[:length] in self.arrays:
                self._expand(path[:length])
        return self.found.get(path)

    def _expand(self, path: KeyPath) -> None:
        """Note the elements of an array."""
        elements = (child for child in self.arrays.pop(path).named_children if child.type != "comment")
        for index, element in enumerate(elements):
            if len(self.found) >= MAX_PLACES:
                return
            self._note((*path, index), element, element)
            self._value(element, (*path, index))

    def add(self, root: Node) -> None:
        """Note what a whole syntax tree has."""
        for node in root.named_children:
            if len(self.found) >= MAX_PLACES:
                return
            if node.type == "pair":
                self._pair(node, ())
            elif node.type in ("table", "table_array_element"):
                self._table(node)

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
        """The single keys of a possibly dotted key, each with its node."""
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
