"""Verifies paths with all rules. The kci.toml above a path may suppress findings; one inside a foreign tree may not."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from kci.config.discovery import SuppressedFinding, drop_suppressed, find_settings
from kci.config.facts import BACKENDS
from kci.config.reader import read_kernel
from kci.config.sources.package_rules import check_sources
from kci.diagnostics import Diagnostic, Severity, in_file_order, rules
from kci.errors import FindingsError, UsageError
from kci.matrix.variants import is_variant_name, parse_variant_name
from kci.tree.manifest import read_manifest
from kci.tree.verify import fatbin, native_rules, variant_rules
from kci.tree.verify.subject import PlaceKind, VariantDir, VerifiedPlace, find_places, load_variant
from kci.tree.verify.tree_rules import check_attestations, check_tree
from kci.utils.suggest import count


class Verification(msgspec.Struct, frozen=True):
    """The findings about one path."""

    diagnostics: tuple[Diagnostic, ...]
    suppressed: tuple[SuppressedFinding, ...] = ()
    places: tuple[VerifiedPlace, ...] = ()


def apply_suppressions(findings: Sequence[Diagnostic], place: VerifiedPlace) -> Verification:
    """Split findings into reported and suppressed ones."""
    path = place.directory
    sources = place.kind is PlaceKind.SOURCES
    try:
        # a kci.toml inside a tree is untrusted
        settings = find_settings(path if sources else path.resolve().parent)
    except FindingsError as error:
        return Verification((*findings, *error.diagnostics))
    suppressed: list[SuppressedFinding] = []
    kept = drop_suppressed(findings, settings, suppressed.append)
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
"""Rules about unreadable variants, which other rules skip."""


def verify(path: str | os.PathLike[str], select: Sequence[str] = (), ignore: Sequence[str] = ()) -> list[Diagnostic]:
    """Verify a tree, variant, folder of trees, kernel or workflow files; findings are sorted.

    `select` and `ignore` are prefixes of rule ids, such as `KCI74`. Raises UsageError: no such path or rule.
    """
    return list(verify_with_suppressions(path, select, ignore).diagnostics)


def verify_with_suppressions(
    path: str | os.PathLike[str], select: Sequence[str] = (), ignore: Sequence[str] = ()
) -> Verification:
    """Like `verify`, with the places and the suppressed findings."""
    for name in (*select, *ignore):
        if not name or not any(rule.startswith(name) for rule in rules()):
            hint = "a rule has an id such as KCI742; KCI74 means all of KCI74x"
            raise UsageError(f"there is no rule {name!r}", hint=hint)
    places = find_places(str(path))
    parts = [apply_suppressions(list(_check(place)), place) for place in places]
    verifications = [
        item
        for part in parts
        for item in part.diagnostics
        if (not select or item.rule.startswith((*select, *_UNREAD))) and not item.rule.startswith(tuple(ignore))
    ]
    ordered = sorted(verifications, key=in_file_order)
    suppressed = tuple(item for part in parts for item in part.suppressed)
    return Verification(tuple(ordered), suppressed, tuple(places))


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
        variant, findings = _variant(root / name, place.below(name))
        variants.append(variant)
        yield from findings
    yield from check_tree(root, place.path, variants)
    yield from check_attestations(root, place.path)


def _variant(directory: Path, shown: str) -> tuple[VariantDir, list[Diagnostic]]:
    variant, findings = load_variant(directory, shown)
    for check in VARIANT_CHECKS:
        findings += check(variant)
    return variant, findings


_COLORS = {True: "brightgreen", False: "red", None: "lightgrey"}


class VariantState(msgspec.Struct, frozen=True):
    """One variant of a tree."""

    variant: str
    backend: str
    system: str
    """Empty for noarch."""
    errors: int
    warnings: int
    there: bool = True
    """False for a planned variant that is missing."""

    @property
    def compliant(self) -> bool:
        return self.there and not self.errors


class Compliance(msgspec.Struct, frozen=True):
    """The state of all verified variants."""

    variants: tuple[VariantState, ...]
    kernels: tuple[str, ...] = ()
    """Optional parts of each kernel's sources, such as tests, in words."""
    others: int = 0
    """Number of errors outside of variants."""

    @property
    def compliant(self) -> bool | None:
        """None without variants."""
        if not self.variants and not self.others and not self.kernels:
            return None
        return not self.others and all(item.compliant for item in self.variants)

    def lines(self) -> list[str]:
        """`compliant for CUDA x86_64-linux: 6 of 6`, per backend and system."""
        groups: dict[tuple[str, str], list[bool]] = defaultdict(list)
        for item in self.variants:
            groups[item.backend, item.system].append(item.compliant)
        titles = {str(backend): facts.title for backend, facts in BACKENDS.items()}
        return [
            f"compliant for {' '.join([titles.get(backend, backend), system]).strip()}: {sum(states)} of {len(states)}"
            for (backend, system), states in sorted(groups.items())
        ] + list(self.kernels)

    @property
    def message(self) -> str:
        if self.compliant is None:
            return "nothing to verify"
        met = sum(item.compliant for item in self.variants)
        counted = f"{met} of {len(self.variants)} variants" if self.variants else "sources"
        return counted if not self.others else f"{counted}, {count(self.others, 'error')}"


def compliance(paths: Sequence[str], findings: Sequence[Diagnostic]) -> Compliance:
    """Group unsuppressed findings by variant."""
    states: list[VariantState] = []
    claimed = 0
    places = [place for shown in paths for place in find_places(shown)]
    for where, planned in (pair for place in places for pair in _variants(place)):
        mine = [item for item in findings if where is not None and f"{item.path}/".startswith(f"{where.rstrip('/')}/")]
        errors = sum(item.severity is Severity.ERROR for item in mine)
        claimed += errors
        name = parse_variant_name(planned) if is_variant_name(planned) else None
        states.append(
            VariantState(
                planned,
                name.backend if name else "",
                (name.system or "") if name else "",
                errors,
                sum(item.severity is Severity.WARNING for item in mine),
                where is not None,
            )
        )
    total = sum(item.severity is Severity.ERROR for item in findings)
    kernels = tuple(_kernel(place.directory, place.path) for place in places if place.kind is PlaceKind.SOURCES)
    return Compliance(tuple(states), kernels, max(total - claimed, 0))


def _kernel(root: Path, shown: str) -> str:
    there = {
        "card": (root / "CARD.md").is_file(),
        "tests": any((root / "tests").glob("**/test_*.py")),
        "benchmark": any((root / "benchmarks").glob("benchmark*.py")),
    }
    return f"{shown}: " + ", ".join(f"{name} {'yes' if present else 'no'}" for name, present in there.items())


def _variants(place: VerifiedPlace) -> list[tuple[str | None, str]]:
    if place.kind is PlaceKind.VARIANT:
        return [(place.path, place.directory.resolve().name)]
    variants: list[tuple[str | None, str]] = [(place.below(name), name) for name in place.variants]
    try:
        manifest = read_manifest(place.directory) if place.kind is PlaceKind.TREE else None
    except FindingsError:
        return variants  # the rules report it
    planned = manifest.planned or () if manifest else ()
    return variants + [(None, name) for name in planned if name not in place.variants]


def shields(state: Compliance) -> dict[str, object]:
    """JSON for a shields.io endpoint badge."""
    return {
        "schemaVersion": 1,
        "label": "kernel requirements",
        "message": state.message,
        "color": _COLORS[state.compliant],
    }
