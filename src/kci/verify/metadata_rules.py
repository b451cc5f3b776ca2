"""Metadata against the directory's name and files, and across the variants of a tree (docs/format.md#metadata)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from kci.config.depends_table import depends_table
from kci.diagnostics import Diagnostic, finding
from kci.matrix.names import Kind
from kci.tree.depends import kernels_minver
from kci.tree.identity import kernel_id
from kci.tree.metadata import FILE_NAME, Metadata
from kci.verify.subject import VariantDir


def check_variant(variant: VariantDir) -> Iterator[Diagnostic]:
    """The rules about one variant's metadata."""
    metadata = variant.metadata
    if metadata is None:
        return
    where = variant.at(FILE_NAME)
    backend = metadata.backend.type.value
    if variant.name is not None and variant.name.backend != backend:
        yield finding("KCI711", f"the name is one of {variant.name.backend}, `backend.type` is {backend}", path=where)
    if not metadata.id.startswith(kernel_id(metadata.name, backend, "")):
        hint = f"an id of this kernel starts with {kernel_id(metadata.name, backend, '')}"
        yield finding(
            "KCI711", f"the id {metadata.id} is not one of {metadata.name} for {backend}", hint=hint, path=where
        )
    if variant.name is not None and not variant.noarch and backend in ("cuda", "rocm") and not metadata.backend.archs:
        yield finding("KCI712", f"a compiled {backend} variant lists no architectures", path=where)
    record = metadata.provenance.kernel if metadata.provenance else None
    if record is not None and record.dirty:
        yield finding("KCI719", f"it was built from {record.commit[:12]} with uncommitted changes", path=where)
    for name in metadata.python_depends:
        if depends_table().lookup(name, backend) is None:
            yield finding("KCI720", f"`python-depends` names {name!r}, unknown for {backend}", path=where)
    needed = kernels_minver(metadata.kernel_depends, len(metadata.upstreams))
    if metadata.kernels_minver is not None and _numbers(metadata.kernels_minver) != _numbers(needed):
        message = f"`kernels-minver` is {metadata.kernels_minver}, and the oldest loader that reads this is {needed}"
        yield finding("KCI725", message, path=where)
    if metadata.kci is not None and metadata.kci.variant != variant.path.name:
        message = f"it was built as {metadata.kci.variant}; a directory that is renamed is no other variant"
        yield finding("KCI722", message, path=where)
    yield from _module(variant, metadata)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _module(variant: VariantDir, metadata: Metadata) -> Iterator[Diagnostic]:
    if variant.name is None:
        return
    if variant.noarch:
        for item, kind in variant.libraries():
            what = f"native code ({kind.value})" if kind else "a native library"
            yield finding("KCI717", f"a noarch variant holds {what}", path=variant.at(item.name))
        return
    expected = module_file(variant, metadata)
    if not any(item.name == expected for item in variant.files):
        yield finding("KCI716", f"the native module {expected} is missing", path=variant.shown)


def module_file(variant: VariantDir, metadata: Metadata) -> str:
    """The native module's file name, by system and framework (docs/format.md#tree)."""
    assert variant.name is not None  # noqa: S101  - callers have looked
    system = (variant.name.system or "").rpartition("-")[2]
    if variant.name.kind is Kind.TVM_FFI:
        return metadata.id + {"darwin": ".dylib", "windows": ".dll"}.get(system, ".so")
    return metadata.id + (".pyd" if system == "windows" else ".abi3.so")


def check_tree(shown: str, variants: Sequence[VariantDir]) -> Iterator[Diagnostic]:
    """The rules about all variants of a tree together."""
    known = [(variant, variant.metadata) for variant in variants if variant.metadata is not None]
    identities = sorted({(metadata.name, metadata.version) for _, metadata in known})
    if len(identities) > 1:
        listed = ", ".join(f"{name} version {version}" for name, version in identities)
        yield finding("KCI713", f"the tree mixes {listed}", path=shown)
    ids: dict[str, set[str]] = defaultdict(set)
    commits: dict[str, set[str]] = defaultdict(set)
    for _, metadata in known:
        ids[metadata.backend.type.value].add(metadata.id)
        if metadata.provenance is not None and metadata.provenance.kernel is not None:
            commits[metadata.id].add(metadata.provenance.kernel.commit)
    for backend, found in sorted(ids.items()):
        if len(found) > 1:
            yield finding("KCI714", f"the {backend} variants carry the ids {', '.join(sorted(found))}", path=shown)
    for shared, found in sorted(commits.items()):
        if len(found) > 1:
            listed = ", ".join(commit[:12] for commit in sorted(found))
            yield finding("KCI715", f"variants with the id {shared} come from the commits {listed}", path=shown)
