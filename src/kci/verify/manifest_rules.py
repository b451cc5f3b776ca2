"""The manifest against the tree: everything that it says and that the tree can contradict is computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.matrix.names import parse_variant_name
from kci.tree.manifest import FILE_NAME, Manifest, Present, missing_of, read_manifest
from kci.verify.subject import VariantDir
from kci.verify.top_rules import check_checksums


def check_tree(tree: Path, shown: str, variants: Sequence[VariantDir]) -> Iterator[Diagnostic]:
    """The rules about a tree's manifest, and about the checksums of all that it names."""
    where = f"{shown}/{FILE_NAME}"
    try:
        manifest = read_manifest(tree)
    except FindingsError as error:
        yield finding("KCI718", error.message.replace(str(tree), shown), path=where)
        return
    if manifest is None:
        yield finding("KCI723", f"there is no {FILE_NAME}", path=shown)
        yield from check_checksums(tree, shown, variants, {FILE_NAME}, merged=False)
        return
    listed = {entry.variant: entry for entry in manifest.present}
    there = {variant.path.name: variant for variant in variants}
    entries = [listed[name] for name in sorted(listed.keys() & there.keys())]
    found = [*_contradictions(manifest)]
    found += [f"the manifest lists {name}, which does not exist" for name in sorted(listed.keys() - there.keys())]
    found += [f"{name} exists and is not in the manifest" for name in sorted(there.keys() - listed.keys())]
    found += [message for entry in entries for message in _entry(manifest, entry, there[entry.variant])]
    for message in found:
        yield finding("KCI718", message, path=where)
    for name in missing_of(manifest.planned, manifest.present):
        from_another = " (what is there was made from another source)" if name in there else ""
        yield finding("KCI721", f"the planned variant {name} is missing{from_another}", path=where)
    same = {entry.variant for entry in entries if there[entry.variant].digest == entry.digest}
    reported = (listed.keys() | there.keys()) - same | ({FILE_NAME} if found else set())
    yield from check_checksums(tree, shown, variants, reported, merged=True)


def _contradictions(manifest: Manifest) -> Iterator[str]:
    """What in the manifest cannot be true, whatever is in the tree."""
    names = [entry.variant for entry in manifest.present]
    for what, listed in (("present", names), ("planned", list(manifest.planned or ()))):
        if listed != sorted(set(listed)):
            yield f"`{what}` is not sorted, or names a variant twice"
        for name in sorted(set(listed)):
            try:
                parse_variant_name(name)
            except ValueError as error:
                yield f"`{what}`: {error}"
    missing = missing_of(manifest.planned, manifest.present)
    if manifest.missing != missing:
        said, counted = (", ".join(names) or "nothing" for names in (manifest.missing, missing))
        yield f"`missing` says {said}; planned without present is {counted}"
    if manifest.complete != (not missing):
        yield f"`complete` says {str(manifest.complete).lower()}; {len(missing)} planned variants are missing"


def _entry(manifest: Manifest, entry: Present, variant: VariantDir) -> Iterator[str]:
    metadata = variant.metadata
    name = entry.variant
    if metadata is not None:
        if (metadata.name, metadata.version) != (manifest.kernel, manifest.version):
            yield f"the manifest is about {manifest.kernel} version {manifest.version}, {name} is not"
        if entry.backend != metadata.backend.type.value:
            yield f"the manifest says that {name} is for {entry.backend!r}, it is for {metadata.backend.type.value}"
        made_from = metadata.provenance.kernel if metadata.provenance else None
        origin = entry.origin
        if made_from and origin.commit and (origin.commit, origin.dirty) != (made_from.commit, made_from.dirty):
            yield f"the manifest says that {name} was made from {origin.commit[:12]}, its metadata says otherwise"
        known = metadata.kci.committed if metadata.kci is not None else None
        if origin.committed not in (None, known):
            yield f"the manifest says when the commit of {name} was made, its metadata says otherwise"
    if variant.hashes is not None and variant.digest != entry.digest:
        yield f"{name} changed after it was merged"
