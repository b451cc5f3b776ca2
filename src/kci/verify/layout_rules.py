"""The layout of trees and variant directories (docs/format.md#tree)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kci.config.values import python_name
from kci.diagnostics import Diagnostic, finding
from kci.files.portable_names import folded, unsafe_name
from kci.files.walk import is_bytecode
from kci.tree.merge import KEPT_AT_TOP
from kci.verify.subject import VariantDir, looks_like_variant


def check_variant(variant: VariantDir) -> Iterator[Diagnostic]:
    """The rules about one variant directory."""
    names = {item.name for item in variant.files}
    if "__init__.py" not in names:
        yield finding("KCI702", "there is no __init__.py at the variant's root", path=variant.shown)
    yield from _nested(variant, names)
    seen: dict[str, str] = {}
    for item in variant.files:
        if item.link or not item.regular:
            what = "a link" if item.link else "neither a file nor a directory"
            yield finding("KCI706", f"it is {what}", path=variant.at(item.name))
        elif is_bytecode(item.name):
            yield finding("KCI705", "it is Python bytecode", path=variant.at(item.name))
        if reason := unsafe_name(item.name):
            yield finding("KCI708", f"the file name is unsafe: {reason}", path=variant.at(item.name))
        if other := seen.get(folded(item.name)):
            yield finding("KCI708", f"the name differs from {other!r} in case only", path=variant.at(item.name))
        seen[folded(item.name)] = item.name


def _nested(variant: VariantDir, names: set[str]) -> Iterator[Diagnostic]:
    if variant.metadata is None:
        return
    package = python_name(variant.metadata.name)
    if (variant.path / package).is_dir() or f"{package}.py" in names:
        yield finding("KCI703", f"the package holds an entry with its own name, {package}", path=variant.shown)


def check_tree(tree: Path, shown: str) -> Iterator[Diagnostic]:
    """The rules about a tree's top."""
    for entry in sorted(tree.iterdir()):
        path = f"{shown}/{entry.name}"
        if entry.is_symlink():
            yield finding("KCI706", "it is a link", path=path)
        elif holds_variants(entry):
            yield finding("KCI704", "the variants in it lie one directory too deep", path=path)
        elif not looks_like_variant(entry) and entry.name not in KEPT_AT_TOP:
            yield finding("KCI707", f"{entry.name} does not belong in a tree", path=path)


def holds_variants(path: Path) -> bool:
    """Whether a directory has variants right below it, and is not one itself."""
    return path.is_dir() and not looks_like_variant(path) and any(looks_like_variant(item) for item in path.iterdir())
