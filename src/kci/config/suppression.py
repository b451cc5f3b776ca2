"""Suppressing a rule in some files, with a reason: an entry of `[[lint.ignore]]` in kci.toml.

Errors that make a file unreadable cannot be suppressed: they end the check before entries are applied.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kci.diagnostics import Diagnostic

if TYPE_CHECKING:
    from kci.config.discovery import FoundSettings
    from kci.config.settings import Ignore


class SuppressedFinding(msgspec.Struct, frozen=True):
    """A finding that somebody suppressed, and why."""

    diagnostic: Diagnostic
    reason: str


Note = Callable[[SuppressedFinding], None]

_OF_VERIFICATION = "KCI7"
"""What `kci verify` finds."""


def apply_settings(
    found: Sequence[Diagnostic], settings: FoundSettings, note: Note = lambda _suppressed: None
) -> list[Diagnostic]:
    """The diagnostics without those that an entry of kci.toml suppresses.

    Args:
        found: what was found, in any file.
        settings: kci.toml and where it lies; its entries name files relative to its directory, and may be patterns.
        note: is told of every finding that is suppressed.
    """
    entries = settings.settings.lint.ignore
    if not entries:
        return list(found)
    places = {path: _relative(path, settings.root) for path in {item.path for item in found}}
    return _kept(found, entries, lambda item: places[item.path], note)


def _kept(
    found: Iterable[Diagnostic], entries: Sequence[Ignore], place: Callable[[Diagnostic], str | None], note: Note
) -> list[Diagnostic]:
    kept = []
    for item in found:
        path = place(item)
        entry = next((entry for entry in entries if path is not None and _is_about(entry, item.rule, path)), None)
        if entry is None:
            kept.append(item)
        else:
            note(SuppressedFinding(item, entry.reason.strip()))
    return kept


def suppressed_in_trees(settings: FoundSettings) -> tuple[Ignore, ...]:
    """The entries that are about what `kci verify` finds."""
    return tuple(entry for entry in settings.settings.lint.ignore if entry.rule.startswith(_OF_VERIFICATION))


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

    def named(item: Diagnostic) -> str | None:
        about = item.path == shown or item.path.startswith(f"{shown}/")
        return place + item.path.removeprefix(shown) if about else None

    return _kept(found, entries, named, note)


def _is_about(entry: Ignore, rule: str, path: str) -> bool:
    return entry.rule == rule and bool(entry.reason.strip()) and fnmatch.fnmatchcase(path, entry.path)


def _relative(path: str, root: Path) -> str:
    return os.path.relpath(os.path.realpath(path), os.path.realpath(root)).replace(os.sep, "/")
