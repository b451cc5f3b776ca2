"""The layout of trees and variant directories (docs/format.md#tree)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kci.config.values import python_name
from kci.diagnostics import Diagnostic, finding
from kci.files.walk import is_bytecode
from kci.tree.pack import too_large, untransportable
from kci.tree.tree_top import KEPT_AT_TOP, files_at_top
from kci.verify.subject import VariantDir, holds_variants, looks_like_variant


def check_variant(variant: VariantDir) -> Iterator[Diagnostic]:
    """The rules about one variant directory."""
    names = {item.name for item in variant.files}
    if "__init__.py" not in names:
        yield finding("KCI702", "there is no __init__.py at the variant's root", path=variant.shown)
    yield from _nested(variant, names)
    for item in variant.files:
        if is_bytecode(item.name):
            yield finding("KCI705", "it is Python bytecode", path=variant.at(item.name))
    packed = [item for item in variant.files if not is_bytecode(item.name)]
    for item, rule, reason in untransportable(packed):
        yield finding(rule, f"it cannot travel: {reason}", path=variant.at(item.name))
    try:
        size = too_large(packed)
    except OSError as error:
        yield finding("KCI700", f"cannot read it: {error.strerror}", path=variant.shown)
        return
    if size:
        yield finding("KCI709", f"no artifact can hold it: {size}", path=variant.shown)


def _nested(variant: VariantDir, names: set[str]) -> Iterator[Diagnostic]:
    if variant.metadata is None:
        return
    package = python_name(variant.metadata.name)
    if (variant.path / package).is_dir() or package in names:
        yield finding(
            "KCI703", f"the package holds an entry called {package}, as it is called itself", path=variant.shown
        )


def check_tree(tree: Path, shown: str) -> Iterator[Diagnostic]:
    """The rules about a tree's top."""
    for entry in sorted(tree.iterdir()):
        name = entry.name.encode(errors="replace").decode()  # it may be no text
        path = f"{shown}/{name}"
        if entry.name in KEPT_AT_TOP:
            continue
        if entry.is_symlink():
            yield finding("KCI706", "it is a link", path=path)
        elif holds_variants(entry):
            yield finding("KCI704", "the variants in it lie one directory too deep", path=path)
        elif not looks_like_variant(entry):
            yield finding("KCI707", f"{name} does not belong in a tree", path=path)
    for item, rule, reason in untransportable(files_at_top(tree)):
        yield finding(rule, f"it cannot travel: {reason}", path=f"{shown}/{item.name}")
