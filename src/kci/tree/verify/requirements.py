"""Verifies paths with all rules.

The kci.toml of a kernel may suppress findings; one that came with a tree may not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from kci.config.discovery import SuppressedFinding, drop_suppressed, find_settings, settings_of_tree
from kci.config.reader import read_kernel
from kci.config.sources.package_rules import check_sources
from kci.diagnostics import Diagnostic, Findings, finding, in_file_order, placed, rules
from kci.errors import FindingsError, UsageError
from kci.tree.verify import fatbin, native_rules, tree_rules
from kci.tree.verify.subject import (
    PlaceKind,
    VariantDir,
    VerifiedPlace,
    find_places,
    join_shown,
    load_variant,
)
from kci.utils.frozen import Frozen


class Verification(Frozen):
    """The findings about one path."""

    diagnostics: tuple[Diagnostic, ...]
    suppressed: tuple[SuppressedFinding, ...]
    places: tuple[VerifiedPlace, ...]


VARIANT_CHECKS: tuple[Callable[[VariantDir], Findings], ...] = (
    tree_rules.check_layout,
    tree_rules.check_metadata,
    tree_rules.check_digest,
    native_rules.check_variant,
    fatbin.check_variant,
    tree_rules.check_python,
    tree_rules.check_signature,
)


_UNREAD = ("KCI700", "KCI710")
"""Rules about unreadable variants, which other rules skip."""


def verify(
    path: str | os.PathLike[str],
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    kernel: Path | None = None,
) -> list[Diagnostic]:
    """Verify a tree, variant, folder of trees, kernel or workflow files; findings are sorted.

    `select` and `ignore` are prefixes of rule ids, such as `KCI74`; `kernel` is the directory of
    the sources, whose kci.toml counts. Raises UsageError: no such path or rule.
    """
    return list(verify_with_suppressions(path, select, ignore, kernel).diagnostics)


def verify_with_suppressions(
    path: str | os.PathLike[str],
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    kernel: Path | None = None,
) -> Verification:
    """Like `verify`, with the places and the suppressed findings."""
    for name in (*select, *ignore):
        if not name or not any(rule.startswith(name) for rule in rules()):
            raise UsageError(
                f"there is no rule {name!r}",
                "a rule has an id such as KCI742; KCI74 means all of KCI74x",
            )
    places = find_places(str(path))
    kernel = next((place.directory for place in places if place.kind is PlaceKind.SOURCES), kernel)
    found: list[Diagnostic] = []
    suppressed: list[SuppressedFinding] = []
    for place in places:
        findings = list(_check(place))
        try:
            settings = settings_of_tree(place.path) if kernel is None else find_settings(kernel)
        except FindingsError as error:
            found += (*findings, *error.diagnostics)
        else:
            found += drop_suppressed(findings, settings, suppressed.append)
    chosen = [
        item
        for item in found
        if not item.rule.startswith(tuple(ignore))
        and (not select or item.rule.startswith((*select, *_UNREAD)))
    ]
    return Verification(tuple(sorted(chosen, key=in_file_order)), tuple(suppressed), tuple(places))


def _check(place: VerifiedPlace) -> Findings:
    try:
        match place.kind:
            case PlaceKind.SOURCES:
                kernel = read_kernel(place.path)
                yield from (*kernel.diagnostics, *check_sources(kernel))
            case PlaceKind.VARIANT:
                yield from _variant(place.directory.resolve(), place.path)[1]
            case PlaceKind.TREE:
                yield from _tree(place)
    except FindingsError as error:
        yield from error.diagnostics or [finding("KCI700", error.message, place.path)]
    except OSError as error:
        yield finding("KCI700", f"cannot read it: {error}", place.path)


def _tree(place: VerifiedPlace) -> Findings:
    root = place.directory
    variants = []
    for name in place.variants:
        variant, findings = _variant(root / name, join_shown(place.path, name))
        variants.append(variant)
        yield from findings
    yield from placed(tree_rules.check_tree(root, variants), place.path)
    yield from placed(tree_rules.check_attestation(root), place.path)


def _variant(directory: Path, shown: str) -> tuple[VariantDir, list[Diagnostic]]:
    variant, findings = load_variant(directory, shown)
    for check in VARIANT_CHECKS:
        findings += check(variant)
    return variant, list(placed(findings, shown))
