"""Metadata against the directory's name and files, and across the variants of a tree (docs/format.md#metadata)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from kci.config.depends_table import depends_table
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.matrix.names import Kind
from kci.tree.depends import kernels_minver
from kci.tree.digest import variant_digest
from kci.tree.identity import kernel_id
from kci.tree.manifest import FILE_NAME as MANIFEST_NAME
from kci.tree.manifest import read_manifest
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
    yield from _module(variant, metadata)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _module(variant: VariantDir, metadata: Metadata) -> Iterator[Diagnostic]:
    if variant.name is None:
        return
    if variant.noarch:
        for item in variant.libraries():
            yield finding("KCI717", "a noarch variant holds a native library", path=variant.at(item.name))
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


def check_tree(tree: Path, shown: str, variants: Sequence[VariantDir]) -> Iterator[Diagnostic]:
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
    yield from _manifest(tree, shown, variants)


def _manifest(tree: Path, shown: str, variants: Sequence[VariantDir]) -> Iterator[Diagnostic]:
    where = f"{shown}/{MANIFEST_NAME}"
    try:
        manifest = read_manifest(tree)
    except FindingsError as error:
        yield finding("KCI718", error.message.replace(str(tree), shown), path=where)
        return
    if manifest is None:
        return
    listed = {entry.variant: entry for entry in manifest.present}
    there = {variant.path.name: variant for variant in variants}
    for name in sorted(listed.keys() - there.keys()):
        yield finding("KCI718", f"the manifest lists {name}, which does not exist", path=where)
    for name in sorted(there.keys() - listed.keys()):
        yield finding("KCI718", f"{name} exists and is not in the manifest", path=where)
    for name in manifest.missing:
        yield finding("KCI721", f"the planned variant {name} is missing", path=where)
    for name in sorted(listed.keys() & there.keys()):
        yield from _entry(manifest.kernel, manifest.version, listed[name].digest, there[name], where)


def _entry(kernel: str, version: int, digest: str, variant: VariantDir, where: str) -> Iterator[Diagnostic]:
    metadata = variant.metadata
    if metadata is not None and (metadata.name, metadata.version) != (kernel, version):
        message = f"the manifest is about {kernel} version {version}, {variant.path.name} is not"
        yield finding("KCI718", message, path=where)
    try:
        actual = variant_digest(variant.path)
    except FindingsError:
        return  # reported when the directory was read
    if actual != digest:
        yield finding("KCI718", f"{variant.path.name} changed after it was merged", path=where)
