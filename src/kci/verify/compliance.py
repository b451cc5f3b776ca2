"""What verification comes to: how many variants of each backend and system meet the requirements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kci.diagnostics import Diagnostic, Severity
from kci.errors import FindingsError
from kci.matrix.names import is_variant_name, parse_variant_name
from kci.plurals import count
from kci.tree.manifest import read_manifest
from kci.verify.subject import PlaceKind, VerifiedPlace, places_of

_COLORS = {True: "brightgreen", False: "red", None: "lightgrey"}
_NAMES = {"cpu": "CPU", "cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU", "tpu": "TPU", "cann": "CANN", "metal": "Metal"}


class VariantState(msgspec.Struct, frozen=True):
    """One variant of a tree."""

    variant: str
    backend: str
    system: str
    """Empty for a noarch variant."""
    errors: int
    warnings: int
    there: bool = True
    """False for a variant that was planned and is missing."""

    @property
    def compliant(self) -> bool:
        return self.there and not self.errors


class Compliance(msgspec.Struct, frozen=True):
    """All variants that were looked at."""

    variants: tuple[VariantState, ...]
    kernels: tuple[str, ...] = ()
    """What the sources of each kernel have besides code, in words. Nothing of it is required; users look for it."""
    others: int = 0
    """Errors that are about no variant: of a tree's top, of its manifest, of a kernel's sources."""

    @property
    def compliant(self) -> bool | None:
        """Whether everything meets the requirements; None if there is nothing to judge."""
        if not self.variants and not self.others and not self.kernels:
            return None
        return not self.others and all(item.compliant for item in self.variants)

    def lines(self) -> list[str]:
        """`compliant for CUDA x86_64-linux: 6 of 6`, for each backend and system."""
        groups: dict[tuple[str, str], list[bool]] = defaultdict(list)
        for item in self.variants:
            groups[item.backend, item.system].append(item.compliant)
        return [
            f"compliant for {' '.join([_NAMES.get(backend, backend), system]).strip()}: {sum(states)} of {len(states)}"
            for (backend, system), states in sorted(groups.items())
        ] + list(self.kernels)

    @property
    def message(self) -> str:
        if self.compliant is None:
            return "nothing to verify"
        met = sum(item.compliant for item in self.variants)
        counted = f"{met} of {len(self.variants)} variants" if self.variants else "sources"
        return counted if not self.others else f"{counted}, {count(self.others, 'error')}"


def compliance(paths: Sequence[str], found: Sequence[Diagnostic]) -> Compliance:
    """Sort the findings that are not suppressed by the variants that they are about."""
    states: list[VariantState] = []
    claimed = 0
    places = [place for shown in paths for place in places_of(shown)]
    for where, planned in (pair for place in places for pair in _variants(place)):
        mine = [item for item in found if where is not None and f"{item.path}/".startswith(f"{where.rstrip('/')}/")]
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
    total = sum(item.severity is Severity.ERROR for item in found)
    kernels = tuple(_kernel(place.directory, place.path) for place in places if place.kind is PlaceKind.SOURCES)
    return Compliance(tuple(states), kernels, max(total - claimed, 0))


def _kernel(root: Path, shown: str) -> str:
    there = {
        "card": (root / "CARD.md").is_file(),
        "tests": any((root / "tests").glob("**/test_*.py")),
        "benchmark": any((root / "benchmarks").glob("benchmark*.py")),
    }
    return f"{shown}: " + ", ".join(f"{name} {'yes' if found else 'no'}" for name, found in there.items())


def _variants(place: VerifiedPlace) -> list[tuple[str | None, str]]:
    """Every variant of a place with its path, and the planned ones that have none."""
    if place.kind is PlaceKind.VARIANT:
        return [(place.path, place.directory.resolve().name)]
    found: list[tuple[str | None, str]] = [(place.below(name), name) for name in place.variants]
    try:
        manifest = read_manifest(place.directory) if place.kind is PlaceKind.TREE else None
    except FindingsError:
        return found  # reported by the rules
    planned = manifest.planned or () if manifest else ()
    return found + [(None, name) for name in planned if name not in place.variants]


def shields(state: Compliance) -> dict[str, object]:
    """The JSON that shields.io's endpoint badge reads."""
    return {
        "schemaVersion": 1,
        "label": "kernel requirements",
        "message": state.message,
        "color": _COLORS[state.compliant],
    }
