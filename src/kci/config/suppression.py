"""Suppressing a rule for one place, with a reason: a comment in build.toml, or an entry of kci.toml.

    # kci: ignore[KCI152] both are wanted: 9.0 for other vendors' tools
    cuda-capabilities = ["9.0", "9.0a"]  # kci: ignore[KCI153, KCI151] or behind the value

A comment behind something holds for its own line; one on a separate line for the next line that is not a
comment. A reason is required, and a suppression without a finding is itself a finding. Errors that make a file
unreadable cannot be suppressed: they end the check before suppressions are applied.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kci.config.document import Document
from kci.config.values import quoted
from kci.diagnostics import Diagnostic, Span, finding, rules
from kci.utils.suggest import suggestion

if TYPE_CHECKING:
    from kci.config.discovery import FoundSettings
    from kci.config.settings import Ignore

_COMMENT = re.compile(r"#\s*kci:\s*ignore\s*(?:\[(?P<rules>[^\]]*)\])?(?P<reason>.*)", re.ASCII)


_SOURCE_SUPPRESSION = re.compile(r"(?:#|//|/\*)\s*kci:\s*ignore\s*\[(?P<rules>[^\]]*)\](?P<reason>.*)", re.ASCII)
"""The same in Python and C++."""


class _Suppression(NamedTuple):
    rule: str
    reason: str
    line: int
    """The line that it holds for."""
    span: Span


class SuppressedFinding(msgspec.Struct, frozen=True):
    """A finding that somebody suppressed, and why."""

    diagnostic: Diagnostic
    reason: str


Note = Callable[[SuppressedFinding], None]

_MAX_BYTES = 4 * 1024 * 1024

_OF_VERIFICATION = "KCI7"
"""What `kci verify` finds. Its suppressions in a build.toml hold for the whole kernel: most are not about that file."""


def line_suppression(lines: Sequence[str], line: int, rule: str) -> str | None:
    """The reason for which a comment on a line, or alone on the line above, suppresses a rule there; None if none does.

    Args:
        lines: the file's lines.
        line: the line of a finding, from 1.
        rule: its rule.
    """
    for number, alone in ((line, False), (line - 1, True)):
        if not 1 <= number <= len(lines):
            continue
        found = _SOURCE_SUPPRESSION.search(lines[number - 1])
        if found is None or (alone and lines[number - 1][: found.start()].strip()):
            continue
        reason = found["reason"].strip(" \t\r:-*/")
        if reason and rule in [name.strip() for name in found["rules"].split(",")]:
            return reason
    return None


def apply_source_comments(
    found: Iterable[Diagnostic], document: Document | None, note: Note = lambda _suppressed: None
) -> list[Diagnostic]:
    """The diagnostics about sources without those that a comment beside them suppresses, or one in build.toml.

    Args:
        found: what was found, in any file.
        document: the kernel's build.toml, if they are a kernel's.
        note: is told of every finding that is suppressed.
    """
    of_kernel = _comments(document) if document is not None else ()
    whole = {item.rule: item.reason for item in of_kernel if item.rule.startswith(_OF_VERIFICATION) and item.reason}
    lines: dict[str, list[str]] = {}
    kept = []
    for item in found:
        reason = whole.get(item.rule)
        if reason is None and item.line:
            if item.path not in lines:
                lines[item.path] = _lines(item.path)
            reason = line_suppression(lines[item.path], item.line, item.rule)
        if reason is None:
            kept.append(item)
        else:
            note(SuppressedFinding(item, reason))
    return kept


def _lines(path: str) -> list[str]:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return []


def apply_comments(found: Sequence[Diagnostic], document: Document) -> list[Diagnostic]:
    """The diagnostics of one file without those that its comments suppress, and with what is wrong with the comments.

    Args:
        found: what was found in this file.
        document: the file.
    """
    suppressions = _comments(document)
    if not suppressions:
        return list(found)
    used: set[_Suppression] = set()
    kept = []
    for diagnostic in found:
        matching = [item for item in suppressions if item.rule == diagnostic.rule and item.line == diagnostic.line]
        used.update(matching)
        if not any(item.reason for item in matching):
            kept.append(diagnostic)
    for item in suppressions:
        if item.rule not in rules():
            kept.append(_unknown_rule(item.rule, document.path, item.span))
        elif item not in used and not item.rule.startswith(_OF_VERIFICATION):
            message = f"this suppression has no effect: line {item.line} has no {item.rule}"
            kept.append(finding("KCI191", message, hint=_REMOVE, path=document.path, span=item.span))
        elif not item.reason:
            message = f"the suppression of {item.rule} gives no reason and has no effect"
            kept.append(finding("KCI190", message, hint=_WHY, path=document.path, span=item.span))
    return kept


def apply_settings(
    found: Sequence[Diagnostic],
    settings: FoundSettings,
    checked: Iterable[str],
    note: Note = lambda _suppressed: None,
    *,
    verification: bool = False,
) -> list[Diagnostic]:
    """The diagnostics without those that `[lint] ignore` of kci.toml suppresses, and what is wrong with its entries.

    Args:
        found: what was found, in any file.
        settings: kci.toml and where it lies; its entries name files relative to its directory, and may be patterns.
        checked: the files that were looked at; an entry for another file is left alone.
        note: is told of every finding that is suppressed.
        verification: whether this is about what `kci verify` finds, or about everything else; the entries for the other
            are left alone.
    """
    document = settings.document
    entries = settings.settings.lint.ignore
    if document is None or not entries:
        return list(found)
    root = settings.root
    relative = {path: _relative(path, root) for path in {*(item.path for item in found), *checked}}
    used: set[int] = set()
    kept = []
    for diagnostic in found:
        matching = [
            index
            for index, entry in enumerate(entries)
            if entry.rule.startswith(_OF_VERIFICATION) is verification
            and _is_about(entry, diagnostic.rule, relative[diagnostic.path])
        ]
        used.update(matching)
        reasons = [entries[index].reason.strip() for index in matching if entries[index].reason.strip()]
        if reasons:
            note(SuppressedFinding(diagnostic, reasons[0]))
        else:
            kept.append(diagnostic)
    for index, entry in enumerate(entries):
        if entry.rule.startswith(_OF_VERIFICATION) is not verification:
            continue
        span = document.value_span(("lint", "ignore", index, "rule"))
        if entry.rule not in rules():
            kept.append(_unknown_rule(entry.rule, document.path, span))
        elif not entry.reason.strip():
            message = f"the suppression of {entry.rule} gives no reason and has no effect"
            kept.append(finding("KCI190", message, hint=_WHY, path=document.path, span=span))
        elif index not in used and _was_checked(entry.path, (relative[path] for path in checked), root):
            message = f"this suppression has no effect: no {entry.rule} in {entry.path}"
            kept.append(finding("KCI191", message, hint=_REMOVE, path=document.path, span=span))
    return kept


def suppressed_in_trees(settings: FoundSettings) -> tuple[Ignore, ...]:
    """The entries of `[lint] ignore` that are about what `kci verify` finds and that have a reason."""
    entries = settings.settings.lint.ignore
    return tuple(entry for entry in entries if entry.rule.startswith(_OF_VERIFICATION) and entry.reason.strip())


def tree_place(settings: FoundSettings, kernel_dir: str) -> str:
    """How kci.toml calls the tree of a kernel, wherever the tree is made: `build` in the kernel's directory."""
    return _relative(f"{kernel_dir}/build", settings.root)


def apply_to_tree(
    found: Iterable[Diagnostic], entries: Sequence[Ignore], shown: str, place: str, note: Note
) -> list[Diagnostic]:
    """The diagnostics without those about a tree that its repository suppresses.

    Args:
        found: what was found; what is not about the tree stays.
        entries: of the kci.toml of the repository; see `suppressed_in_trees`.
        shown: the tree's path in the diagnostics.
        place: what kci.toml calls the tree; see `tree_place`.
        note: is told of every finding that is suppressed.
    """
    kept = []
    for diagnostic in found:
        about = diagnostic.path == shown or diagnostic.path.startswith(f"{shown}/")
        path = place + diagnostic.path.removeprefix(shown)
        entry = next((entry for entry in entries if about and _is_about(entry, diagnostic.rule, path)), None)
        if entry is None:
            kept.append(diagnostic)
        else:
            note(SuppressedFinding(diagnostic, entry.reason.strip()))
    return kept


def _is_about(entry: Ignore, rule: str, path: str) -> bool:
    return entry.rule == rule and fnmatch.fnmatchcase(path, entry.path)


_REMOVE = "remove it; errors that make a file unreadable cannot be suppressed"
_WHY = "write after the rule why it does not apply here"


def _unknown_rule(rule: str, path: str, span: Span | None) -> Diagnostic:
    hint = suggestion(rule, list(rules())) or "`kci explain` lists the rules"
    return finding("KCI192", f"there is no rule {quoted(rule[:40])} to suppress", hint=hint, path=path, span=span)


def _was_checked(pattern: str, checked: Iterable[str], root: Path) -> bool:
    if any(fnmatch.fnmatchcase(path, pattern) for path in checked):
        return True
    return not any(char in pattern for char in "*?[") and not os.path.lexists(root / pattern)


def _relative(path: str, root: Path) -> str:
    return os.path.relpath(os.path.realpath(path), os.path.realpath(root)).replace(os.sep, "/")


def _comments(document: Document) -> list[_Suppression]:
    """Every suppression in the comments of a file; text inside strings is not a comment."""
    if "kci:" not in document.text:
        return []
    suppressions: list[_Suppression] = []
    lines = document.text.split("\n")
    for line, column, text in _comment_places(document.text):
        matched = _COMMENT.match(text)
        if matched is None:
            continue
        span = Span(line, column, line, column + len(text.rstrip()))
        alone = not lines[line - 1][: column - 1].strip()
        target = _next_line(lines, line) if alone else line
        names = [name.strip() for name in (matched["rules"] or "").split(",") if name.strip()]
        for name in names or [""]:
            suppressions.append(_Suppression(name, matched["reason"].strip(" \t\r:-"), target, span))
    return suppressions


def _next_line(lines: list[str], line: int) -> int:
    while line < len(lines) and lines[line].lstrip().startswith("#"):
        line += 1
    return line + 1


def _comment_places(text: str) -> list[tuple[int, int, str]]:
    from kci.config.document import syntax_tree

    raw = text.encode("utf-8")
    lines = raw.split(b"\n")
    found = []
    todo = [syntax_tree(raw).root_node]
    while todo:
        node = todo.pop()
        if node.type == "comment":
            row, byte = node.start_point
            column = len(lines[row][:byte].decode("utf-8", "replace")) + 1
            found.append((row + 1, column, (node.text or b"").decode("utf-8", "replace")))
        todo.extend(node.children)
    return sorted(found)
