"""Everything that can be verified about a path, in a fixed order, without what is suppressed.

A kernel's own repository may suppress, a tree that came from elsewhere may not. Sources: a comment behind a finding or
on the line above it, a comment `# kci: ignore[KCI771] reason` in build.toml for the whole kernel, and `[lint] ignore`
of kci.toml. Trees and variants: `[lint] ignore` of the kci.toml above them, for a comment inside of a tree would be
whoever made the tree judging it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from kci.config.find_settings import find_settings
from kci.config.reader import read_kernel
from kci.config.suppression import SuppressedFinding, apply_settings, apply_source_comments
from kci.diagnostics import Diagnostic, in_file_order, rules
from kci.errors import FindingsError, UsageError
from kci.sources.source_rules import check_sources
from kci.verify import fatbin, native_rules, variant_rules
from kci.verify.load_rules import check_loads, probe
from kci.verify.subject import PlaceKind, VariantDir, VerifiedPlace, load_variant, places_of
from kci.verify.tree_rules import check_attestations, check_tree


class Verification(msgspec.Struct, frozen=True):
    """What verification of one path found."""

    diagnostics: tuple[Diagnostic, ...]
    suppressed: tuple[SuppressedFinding, ...] = ()
    places: tuple[VerifiedPlace, ...] = ()
    """What was looked at."""


def apply_suppressions(found: Sequence[Diagnostic], place: VerifiedPlace) -> Verification:
    """What was found at a place, without what is suppressed."""
    path = place.directory
    sources = place.kind is PlaceKind.SOURCES
    try:
        # A kci.toml inside of a tree is part of what is judged.
        settings = find_settings(path if sources else path.resolve().parent)
    except FindingsError as error:
        return Verification((*found, *error.diagnostics))
    suppressed: list[SuppressedFinding] = []
    kept = list(found)
    if sources:
        document = None
        with suppress(FindingsError):  # among the findings
            document = read_kernel(place.path).document
        kept = apply_source_comments(kept, document, suppressed.append)
    checked = {item.path for item in found}
    kept = apply_settings(kept, settings, checked, suppressed.append, verification=True)
    return Verification(tuple(kept), tuple(suppressed))


VARIANT_CHECKS: tuple[Callable[[VariantDir], Iterator[Diagnostic]], ...] = (
    variant_rules.check_layout,
    variant_rules.check_metadata,
    variant_rules.check_digest,
    native_rules.check_variant,
    fatbin.check_variant,
    variant_rules.check_python,
    variant_rules.check_signature,
)


_UNREAD = ("KCI700", "KCI710")
"""A variant could not be read, or its metadata: that no other rule says anything of it means nothing then."""


def verify(path: str | os.PathLike[str], select: Sequence[str] = (), ignore: Sequence[str] = ()) -> list[Diagnostic]:
    """Verify a tree, a variant directory, a folder of trees, a kernel, or workflow files.

    A directory with a build.toml is a kernel: its sources are verified, and its `build/` and `result/` where they are
    there. Binaries are never loaded.

    Args:
        path: the directory; of workflow files `.github/workflows` or one of them.
        select: rule ids or beginnings of them (`KCI74`); only these are reported, and what could not be read.
            Empty means all.
        ignore: rule ids or beginnings of them that are not reported.

    Returns:
        The findings that nobody suppressed, sorted by path and line.

    Raises:
        UsageError: the path is none of these, or a rule does not exist.
    """
    return list(verify_with_suppressions(path, select, ignore).diagnostics)


def verify_with_suppressions(
    path: str | os.PathLike[str], select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> Verification:
    """The same, with what was looked at, and what was suppressed and why."""
    for name in (*select, *ignore):
        if not name or not any(rule.startswith(name) for rule in rules()):
            hint = "a rule has an id such as KCI742; KCI74 means all of KCI74x"
            raise UsageError(f"there is no rule {name!r}", hint=hint)
    places = places_of(str(path))
    parts = [apply_suppressions(list(_check(place)), place) for place in places]
    found = [
        item
        for part in parts
        for item in part.diagnostics
        if (not select or item.rule.startswith((*select, *_UNREAD))) and not item.rule.startswith(tuple(ignore))
    ]
    ordered = sorted(found, key=in_file_order)
    suppressed = tuple(item for part in parts for item in part.suppressed)
    return Verification(tuple(ordered), suppressed, tuple(places))


def verify_loading(shown: str, python: Path) -> list[Diagnostic]:
    """Load every variant of a path that this machine can load, with a Python that has torch and the loader.

    This runs the variants' code. Raises MissingToolError: that Python cannot load kernels.
    """
    environment = probe(python)
    found: list[Diagnostic] = []
    for where in (path for place in places_of(shown) for path in place.variant_paths()):
        variant, _ = load_variant(Path(where).resolve(), where)
        found += check_loads(variant, python, environment)
    return found


def _check(place: VerifiedPlace) -> Iterator[Diagnostic]:
    match place.kind:
        case PlaceKind.SOURCES:
            try:
                kernel = read_kernel(place.path)
            except FindingsError as error:
                yield from error.diagnostics
                return
            yield from (*kernel.diagnostics, *check_sources(kernel))
        case PlaceKind.VARIANT:
            yield from _variant(place.directory.resolve(), place.path)[1]
        case PlaceKind.TREE:
            yield from _tree(place)
        case PlaceKind.OTHER:
            pass


def _tree(place: VerifiedPlace) -> Iterator[Diagnostic]:
    root = place.directory
    variants = []
    for name in place.variants:
        variant, found = _variant(root / name, place.below(name))
        variants.append(variant)
        yield from found
    yield from check_tree(root, place.path, variants)
    yield from check_attestations(root, place.path)


def _variant(directory: Path, shown: str) -> tuple[VariantDir, list[Diagnostic]]:
    variant, found = load_variant(directory, shown)
    for check in VARIANT_CHECKS:
        found += check(variant)
    return variant, found
