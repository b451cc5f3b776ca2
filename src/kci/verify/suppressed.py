"""Suppressions of what verification finds: a kernel's own repository may, a tree that came from elsewhere may not.

Sources: a comment behind a finding or on the line above it, a comment `# kci: ignore[KCI771] reason` in build.toml for
the whole kernel, and `[lint] ignore` of kci.toml. Trees and variants: `[lint] ignore` of the kci.toml above them, for
a comment inside of a tree would be whoever made the tree judging it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from kci.config.find_settings import find_settings
from kci.config.reader import read_kernel
from kci.config.suppression import SuppressedFinding, apply_settings, kernel_suppressions, line_suppression
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError
from kci.verify.verified_places import PlaceKind, VerifiedPlace

_MAX_BYTES = 4 * 1024 * 1024


class Verification(msgspec.Struct, frozen=True):
    """What verification of one path found."""

    diagnostics: tuple[Diagnostic, ...]
    suppressed: tuple[SuppressedFinding, ...] = ()
    places: tuple[VerifiedPlace, ...] = ()
    """What was looked at."""


def apply_suppressions(found: Sequence[Diagnostic], place: VerifiedPlace) -> Verification:
    """Sort out the findings that somebody suppressed.

    Args:
        found: what was found there.
        place: what was verified.
    """
    path = place.directory
    # A workflow file is the repository's own too.
    sources = place.kind in (PlaceKind.SOURCES, PlaceKind.WORKFLOWS)
    try:
        # A kci.toml inside of a tree is part of what is judged.
        settings = find_settings(path if sources and path.is_dir() else path.resolve().parent)
    except FindingsError as error:
        return Verification((*found, *error.diagnostics))
    suppressed: list[SuppressedFinding] = []
    kept = list(found)
    if sources:
        kept = _by_comments(kept, place, suppressed)
    checked = {item.path for item in found}
    kept = apply_settings(kept, settings, checked, suppressed.append, verification=True)
    return Verification(tuple(kept), tuple(suppressed))


def _by_comments(
    found: Iterable[Diagnostic], place: VerifiedPlace, suppressed: list[SuppressedFinding]
) -> list[Diagnostic]:
    try:
        whole = kernel_suppressions(read_kernel(place.path).document) if place.kind is PlaceKind.SOURCES else {}
    except FindingsError:
        whole = {}
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
            suppressed.append(SuppressedFinding(item, reason))
    return kept


def _lines(path: str) -> list[str]:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return []
