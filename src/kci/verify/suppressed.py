"""Suppressions of what verification finds: a kernel's own repository may, a tree that came from elsewhere may not.

Sources: a comment behind a finding or on the line above it, a comment `# kci: ignore[KCI771] reason` in build.toml for
the whole kernel, and `[lint] ignore` of kci.toml. Trees and variants: `[lint] ignore` of the kci.toml above them, for
a comment inside of a tree would be whoever made the tree judging it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kci.config.document import Document
from kci.config.find_settings import find_settings
from kci.config.reader import read_kernel
from kci.config.suppression import SuppressedFinding, apply_settings, apply_source_comments
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError
from kci.verify.verified_places import PlaceKind, VerifiedPlace


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
        kept = apply_source_comments(kept, _build_toml(place), suppressed.append)
    checked = {item.path for item in found}
    kept = apply_settings(kept, settings, checked, suppressed.append, verification=True)
    return Verification(tuple(kept), tuple(suppressed))


def _build_toml(place: VerifiedPlace) -> Document | None:
    try:
        return read_kernel(place.path).document if place.kind is PlaceKind.SOURCES else None
    except FindingsError:
        return None
