"""Everything that can be verified about a path, in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kci.config.reader import read_kernel
from kci.diagnostics import Diagnostic, in_file_order, rules
from kci.errors import FindingsError, UsageError
from kci.sources.source_rules import check_sources
from kci.verify import (
    digest_rules,
    fatbin,
    layout_rules,
    manifest_rules,
    metadata_rules,
    native_rules,
    python_rules,
    signature_rules,
    top_rules,
)
from kci.verify.load_rules import check_loads, probe
from kci.verify.subject import VariantDir, load_variant
from kci.verify.suppressed import Verification, apply_suppressions
from kci.verify.verified_places import PlaceKind, VerifiedPlace, places_of
from kci.verify.workflow_rules import check_workflows

VARIANT_CHECKS: tuple[Callable[[VariantDir], Iterator[Diagnostic]], ...] = (
    layout_rules.check_variant,
    metadata_rules.check_variant,
    digest_rules.check_variant,
    native_rules.check_variant,
    fatbin.check_variant,
    python_rules.check_variant,
    signature_rules.check_variant,
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
    _require_rules([*select, *ignore])
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
    """Load every variant of a path that this machine can load. This runs the variants' code.

    Args:
        shown: a variant directory, a tree, a folder of trees, or a kernel, as the user wrote it.
        python: a Python with torch and the loader.

    Raises:
        MissingToolError: that Python cannot load kernels.
        UsageError: see `verify`.
    """
    environment = probe(python)
    found: list[Diagnostic] = []
    for where in (path for place in places_of(shown) for path in place.variant_paths()):
        variant, _ = load_variant(Path(where).resolve(), where)
        found += check_loads(variant, python, environment)
    return found


def _require_rules(names: Sequence[str]) -> None:
    for name in names:
        if not name or not any(rule.startswith(name) for rule in rules()):
            raise UsageError(
                f"there is no rule {name!r}", hint="a rule has an id such as KCI742; KCI74 means all of KCI74x"
            )


def _check(place: VerifiedPlace) -> Iterator[Diagnostic]:
    match place.kind:
        case PlaceKind.WORKFLOWS:
            yield from check_workflows(place.directory, place.path)
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
    yield from layout_rules.check_tree(root, place.path)
    variants = []
    for name in place.variants:
        variant, found = _variant(root / name, place.below(name))
        variants.append(variant)
        yield from found
    yield from metadata_rules.check_tree(place.path, variants)
    yield from manifest_rules.check_tree(root, place.path, variants)
    yield from top_rules.check_card(root, place.path)
    yield from signature_rules.check_attestations(root, place.path)


def _variant(directory: Path, shown: str) -> tuple[VariantDir, list[Diagnostic]]:
    variant, found = load_variant(directory, shown)
    for check in VARIANT_CHECKS:
        found += check(variant)
    return variant, found
