"""Which variants a change touches: a pure function of the changed files and of what is known about the kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kci.config.model import Build
from kci.config.reader import BUILD_TOML
from kci.matrix.variants import Matrix, Variant
from kci.plan.fingerprint import same_configuration
from kci.plan.inputs import Effect, Uses, active, effect, listed, removed

SETTINGS = "kci.toml"
_WORKFLOWS = re.compile(r"\.github/workflows/kci[^/]*\.ya?ml")


class Before(msgspec.Struct, frozen=True):
    """A kernel as it was at the base."""

    build: Build
    variants: tuple[Variant, ...]
    """Its matrix then, by the same catalog, tier and filters as now."""


class View(msgspec.Struct, frozen=True):
    """What is known about one kernel."""

    name: str
    directory: str
    """Relative to the repository's root, with `/`; empty for the root itself."""
    build: Build
    variants: tuple[Variant, ...]
    uses: Mapping[str, Uses]
    before: Before | None = None
    """None if there was no valid build.toml at the base."""


class Touch(msgspec.Struct, frozen=True):
    """What one changed file touches, and why."""

    path: str
    kernel: str
    """Empty for a file that belongs to no kernel and touches none."""
    touches: tuple[str, ...]
    """Names of variants, sorted."""
    reason: str


def affected(changed: Iterable[str], views: Sequence[View], everywhere: Mapping[str, str] | None = None) -> list[Touch]:
    """Decide what a change touches.

    Args:
        changed: paths relative to the repository's root, with `/`; of a renamed file both names.
        views: the kernels that are planned.
        everywhere: further files that decide every kernel (a catalog file, say), and why.

    Returns:
        the decisions, sorted by path and kernel; at least one for each changed file.
    """
    everywhere = {SETTINGS: "kci.toml decides runners, images and limits of all kernels", **(everywhere or {})}
    decisions: list[Touch] = []
    for path in sorted(set(changed)):
        reason = everywhere.get(path, "")
        if _WORKFLOWS.fullmatch(path):
            reason = "the workflow decides which kci builds, and how"
        if reason:
            decisions += [Touch(path, view.name, _names(view.variants), reason) for view in views]
            continue
        owners = [view for view in views if _inside(path, view.directory) is not None]
        # A kernel inside another one's directory owns its files alone.
        deepest = max((len(view.directory) for view in owners), default=0)
        found = [_decide(path, view) for view in owners if len(view.directory) == deepest]
        decisions += found or [Touch(path, "", (), "outside of every kernel that is planned")]
    return sorted(decisions, key=lambda decision: (decision.path, decision.kernel))


def narrow(matrix: Matrix, decisions: Iterable[Touch]) -> Matrix:
    """The matrix with the touched variants only, and without the kernels of which none is left."""
    touched: dict[str, set[str]] = {}
    for decision in decisions:
        touched.setdefault(decision.kernel, set()).update(decision.touches)
    kernels = []
    for kernel in matrix.kernels:
        kept = tuple(item for item in kernel.variants if item.name in touched.get(kernel.name, ()))
        if kept:
            kernels.append(msgspec.structs.replace(kernel, variants=kept))
    return msgspec.structs.replace(matrix, kernels=tuple(kernels))


def _inside(path: str, directory: str) -> str | None:
    """The path relative to a directory, or None if it is not in it."""
    if not directory:
        return path
    return path[len(directory) + 1 :] if path.startswith(directory + "/") else None


def _decide(path: str, view: View) -> Touch:
    relative = _inside(path, view.directory) or ""
    if relative == BUILD_TOML:
        return _configuration(path, view)
    found = effect(relative, view.build, view.uses)
    known = any(relative in item.listed or relative in item.included for item in view.uses.values())
    if not known and found.labels is None and view.before is not None:
        found = removed(relative, view.uses, listed(view.before.build)) or found
    return Touch(path, view.name, _touched(view, found), found.reason)


def _touched(view: View, found: Effect) -> tuple[str, ...]:
    if found.labels is None:
        return _names(view.variants)
    return _names(item for item in view.variants if found.labels & active(view.build, item).keys())


def _configuration(path: str, view: View) -> Touch:
    before = view.before
    if before is None:
        return Touch(path, view.name, _names(view.variants), "there was no valid build.toml at the base")
    earlier = {variant.name: variant for variant in before.variants}
    touched = _names(item for item in view.variants if not same_configuration(before.build, view.build, earlier, item))
    if not touched:
        return Touch(path, view.name, (), "nothing changed in it that decides what is in a variant")
    count = "all" if len(touched) == len(_names(view.variants)) else str(len(touched))
    return Touch(path, view.name, touched, f"it changes what {count} of the variants are made from")


def _names(variants: Iterable[Variant]) -> tuple[str, ...]:
    return tuple(sorted({variant.name for variant in variants}))
