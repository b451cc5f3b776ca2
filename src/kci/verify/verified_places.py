"""What a path means to verification: a kernel with its sources and binaries, a tree or several, a variant, workflows.

Everything that verification says or counts asks here, so that what was looked at is what is said.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from kci.config.reader import BUILD_TOML
from kci.errors import UsageError
from kci.files.lock import beside
from kci.plurals import count
from kci.tree.artifacts import is_variant_dir
from kci.tree.manifest import FILE_NAME as MANIFEST_NAME
from kci.verify.subject import holds_variants, looks_like_variant

BINARIES = ("build", "result")
"""Where the variants of a kernel lie: what kci and the reference make, and the link that nix leaves."""


WORKFLOW_ENDINGS = (".yml", ".yaml")


class PlaceKind(enum.StrEnum):
    """What is looked at."""

    SOURCES = "sources"
    TREE = "tree"
    VARIANT = "variant"
    WORKFLOWS = "workflows"
    OTHER = "no variants"
    """A kernel's folder for binaries that holds something else, as setuptools' own `build/` does."""


class VerifiedPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is looked at."""

    kind: PlaceKind
    path: str
    """As the user would write it."""
    variants: tuple[str, ...] = ()
    """The names of the variant directories of a tree."""

    @property
    def directory(self) -> Path:
        return Path(self.path)

    def below(self, name: str) -> str:
        return joined(self.path, name)

    def variant_paths(self) -> list[str]:
        return [self.path] if self.kind is PlaceKind.VARIANT else [self.below(name) for name in self.variants]


def joined(shown: str, name: str) -> str:
    """A path below one that the user wrote."""
    return name if shown == "." else f"{shown.rstrip('/')}/{name}"


def places_of(shown: str) -> list[VerifiedPlace]:
    """Everything that is to be looked at for a path, in order.

    Raises UsageError: it is nothing that can be verified.
    """
    root = Path(shown)
    if _is_workflows(root):
        return [VerifiedPlace(PlaceKind.WORKFLOWS, shown)]
    _require_not_aside(root, shown)
    if not root.is_dir():
        raise UsageError(f"{shown} is not a directory", hint="name a tree, a variant directory or a kernel")
    if (root / BUILD_TOML).exists() and not _is_built(root):
        return [VerifiedPlace(PlaceKind.SOURCES, shown), *_of_kernel(root, shown)]
    found = _built(root, shown)
    below = root / "build"
    if not found and holds_variants(below):
        # In `build/build/` the variants are one directory too deep.
        found = [VerifiedPlace(PlaceKind.TREE, shown)] if root.resolve().name == "build" else []
        found += _built(below, joined(shown, "build"))
    if not found:
        hint = "a tree has variant directories such as torch213-cxx11-cpu-x86_64-linux, a kernel has a build.toml"
        raise UsageError(f"{shown} is neither a tree nor a variant directory nor a kernel", hint=hint)
    return found


def _is_workflows(path: Path) -> bool:
    if path.is_file():
        return path.suffix in WORKFLOW_ENDINGS
    return path.is_dir() and path.resolve().parts[-2:] == (".github", "workflows")


def said(shown: str, places: Sequence[VerifiedPlace]) -> str:
    """What was looked at, in a line: `relu: sources, build (3 variants)`."""
    parts = []
    for place in places:
        where = place.path.removeprefix(f"{shown.rstrip('/')}/") if place.path != shown else str(place.kind)
        if place.kind is PlaceKind.TREE:
            where += f" ({count(len(place.variants), 'variant')})"
        elif place.kind is PlaceKind.OTHER:
            where += " (no variants)"
        parts.append(where)
    if [place.kind for place in places] == [PlaceKind.SOURCES]:
        parts.append(f"no {' or '.join(f'{name}/' for name in BINARIES)}")
    return f"{shown}: {', '.join(parts)}"


def _of_kernel(root: Path, shown: str) -> Iterator[VerifiedPlace]:
    for name in BINARIES:
        where = joined(shown, name)
        _require_not_aside(root / name, where)
        if (root / name).is_dir():
            yield from _built(root / name, where) or [VerifiedPlace(PlaceKind.OTHER, where)]


def _is_built(root: Path) -> bool:
    """Whether a directory with a build.toml is a tree or a variant all the same: somebody has put it there."""
    return is_variant_dir(root.resolve()) or (root / MANIFEST_NAME).exists() or any(map(is_variant_dir, root.iterdir()))


def _built(root: Path, shown: str) -> list[VerifiedPlace]:
    if looks_like_variant(root.resolve()):
        return [VerifiedPlace(PlaceKind.VARIANT, shown)]
    if _is_tree(root):
        return [_tree(root, shown)]
    if root.resolve().name == "build" and not any((item / MANIFEST_NAME).exists() for item in root.iterdir()):
        return []
    return [_tree(item, joined(shown, item.name)) for item in sorted(root.iterdir()) if _is_tree(item)]


def _is_tree(path: Path) -> bool:
    return (path / MANIFEST_NAME).exists() or holds_variants(path)


def _tree(root: Path, shown: str) -> VerifiedPlace:
    names = (item.name for item in sorted(root.iterdir()) if looks_like_variant(item))
    return VerifiedPlace(PlaceKind.TREE, shown, tuple(names))


def _require_not_aside(root: Path, shown: str) -> None:
    if not root.is_dir() and (aside := beside(root.absolute(), "old")).is_dir():
        hint = f"`kci merge` puts it back, and so does: mv {aside} {root.absolute()}"
        raise UsageError(f"{shown} is not there: a kci that died had moved it to {aside}", hint=hint)
