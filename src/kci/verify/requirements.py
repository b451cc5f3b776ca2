"""Everything that can be verified about a path, in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kci.diagnostics import Diagnostic, in_file_order, rules
from kci.errors import UsageError
from kci.files.lock import beside
from kci.tree.manifest import FILE_NAME as MANIFEST_NAME
from kci.verify import digest_rules, fatbin, layout_rules, manifest_rules, metadata_rules, native_rules, python_rules
from kci.verify.load_rules import check_loads, probe
from kci.verify.requirement_sets import requirement_set
from kci.verify.source_rules import check_sources
from kci.verify.subject import VariantDir, load_variant, looks_like_variant
from kci.verify.suppressed import Verification, apply_suppressions
from kci.verify.workflow_rules import check_workflows, is_workflows

VARIANT_CHECKS: tuple[Callable[[VariantDir], Iterator[Diagnostic]], ...] = (
    layout_rules.check_variant,
    metadata_rules.check_variant,
    digest_rules.check_variant,
    native_rules.check_variant,
    fatbin.check_variant,
    python_rules.check_variant,
)


VariantCheck = Callable[[VariantDir], Iterator[Diagnostic]]

_UNREAD = ("KCI700", "KCI710")
"""A variant could not be read, or its metadata: that no other rule says anything of it means nothing then."""


def verify(
    path: str | os.PathLike[str], select: Sequence[str] = (), ignore: Sequence[str] = (), requirements: str = "current"
) -> list[Diagnostic]:
    """Verify a tree, a variant directory, a folder of trees, a kernel's sources, or workflow files.

    A directory with a build.toml is a kernel: only what its sources show is verified. Binaries are never loaded.

    Args:
        path: the directory; of workflow files `.github/workflows` or one of them.
        select: rule ids or beginnings of them (`KCI74`); only these are reported, and what could not be read.
            Empty means all.
        ignore: rule ids or beginnings of them that are not reported.
        requirements: which set of requirements, `current` or `seed`.

    Returns:
        The findings that nobody suppressed, sorted by path and line.

    Raises:
        UsageError: the path is none of these, or a rule does not exist.
    """
    return list(verify_with_suppressions(path, select, ignore, requirements).diagnostics)


def verify_with_suppressions(
    path: str | os.PathLike[str], select: Sequence[str] = (), ignore: Sequence[str] = (), requirements: str = "current"
) -> Verification:
    """The same, with what was suppressed and why."""
    _require_rules([*select, *ignore])
    older = requirement_set(requirements)
    checks = VARIANT_CHECKS if older is None else (*VARIANT_CHECKS, older.check_variant)
    ignore = [*ignore, *(older.ignore if older is not None else ())]
    verified = apply_suppressions(list(_check(Path(path), str(path), checks)), Path(path), str(path))
    found = [
        item
        for item in verified.diagnostics
        if (not select or item.rule.startswith((*select, *_UNREAD))) and not item.rule.startswith(tuple(ignore))
    ]
    ordered = sorted(found, key=in_file_order)
    return Verification(tuple(ordered), verified.suppressed)


def verify_loading(path: Path, shown: str, python: Path) -> list[Diagnostic]:
    """Load every variant below a path that this machine can load. This runs the variants' code.

    Args:
        path: a variant directory, a tree, or a folder of trees.
        shown: the path as the user wrote it.
        python: a Python with torch and the loader.

    Raises:
        MissingToolError: that Python cannot load kernels.
    """
    environment = probe(python)
    below = sorted(item for item in path.rglob("*") if looks_like_variant(item))
    found: list[Diagnostic] = []
    for directory in [path] if looks_like_variant(path) else below:
        relative = directory.relative_to(path).as_posix()
        variant, _ = load_variant(directory.resolve(), shown if relative == "." else _join(shown, relative))
        found += check_loads(variant, python, environment)
    return found


def _require_rules(names: Sequence[str]) -> None:
    for name in names:
        if not name or not any(rule.startswith(name) for rule in rules()):
            raise UsageError(
                f"there is no rule {name!r}", hint="a rule has an id such as KCI742; KCI74 means all of KCI74x"
            )


def _check(root: Path, shown: str, checks: Sequence[VariantCheck]) -> Iterator[Diagnostic]:
    if is_workflows(root):
        yield from check_workflows(root, shown)
        return
    if not root.is_dir() and (aside := beside(root.absolute(), "old")).is_dir():
        hint = f"`kci merge` puts it back, and so does: mv {aside} {root.absolute()}"
        raise UsageError(f"{shown} is not there: a kci that died had moved it to {aside}", hint=hint)
    if not root.is_dir():
        raise UsageError(f"{shown} is not a directory", hint="name a tree, a variant directory or a kernel")
    if (root / "build.toml").exists():
        yield from check_sources(root, shown)
    elif looks_like_variant(root.resolve()):
        yield from _variant(root.resolve(), shown, checks)[1]
    elif layout_rules.holds_variants(root) or (root / MANIFEST_NAME).exists():
        yield from _tree(root, shown, checks)
    elif layout_rules.holds_variants(root / "build") and root.resolve().name != "build":
        yield from _tree(root / "build", _join(shown, "build"), checks)
    elif trees := _trees(root):
        for tree in trees:
            yield from _tree(tree, _join(shown, tree.name), checks)
    elif layout_rules.holds_variants(root / "build"):
        yield from layout_rules.check_tree(root, shown)
        yield from _tree(root / "build", _join(shown, "build"), checks)
    else:
        hint = "a tree has variant directories such as torch213-cxx11-cpu-x86_64-linux, a kernel has a build.toml"
        raise UsageError(f"{shown} is neither a tree nor a variant directory nor a kernel", hint=hint)


def _trees(root: Path) -> list[Path]:
    """The trees right below a folder of trees. In `build/build/` the variants are one directory too deep instead."""
    if root.resolve().name == "build" and not any((item / MANIFEST_NAME).exists() for item in root.iterdir()):
        return []
    return [
        item for item in sorted(root.iterdir()) if (item / MANIFEST_NAME).exists() or layout_rules.holds_variants(item)
    ]


def _tree(root: Path, shown: str, checks: Sequence[VariantCheck]) -> Iterator[Diagnostic]:
    yield from layout_rules.check_tree(root, shown)
    variants = []
    for directory in sorted(root.iterdir()):
        if looks_like_variant(directory):
            variant, found = _variant(directory, _join(shown, directory.name), checks)
            variants.append(variant)
            yield from found
    yield from metadata_rules.check_tree(shown, variants)
    yield from manifest_rules.check_tree(root, shown, variants)


def _variant(directory: Path, shown: str, checks: Sequence[VariantCheck]) -> tuple[VariantDir, list[Diagnostic]]:
    variant, found = load_variant(directory, shown)
    for check in checks:
        found += check(variant)
    return variant, found


def _join(shown: str, name: str) -> str:
    return name if shown == "." else f"{shown.rstrip('/')}/{name}"
