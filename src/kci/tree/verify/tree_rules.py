"""Rules about a whole tree: top level, manifest, checksums, card, signatures. Every claim is computed again."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.matrix.variants import parse_variant_name
from kci.tree.manifest import FILE_NAME, Manifest, Present, missing_variants, read_manifest
from kci.tree.pack import unpackable_entries
from kci.tree.sigstore import SigningContext, Statement, unverified_statement, verify_bundle
from kci.tree.top_level import (
    BUNDLE_NAME,
    CARD,
    SUMS_NAME,
    TOP_ENTRIES,
    TOP_ENTRIES_WITH_SUMS,
    decode_sums,
    encode_sums,
    files_at_top,
    tree_differences,
    tree_hashes,
)
from kci.tree.verify.subject import VariantDir, holds_variants, looks_like_variant
from kci.utils.bounded_json import read_bounded

_CARD_BYTES = 1024 * 1024
# YAML front matter, as the Hub finds it
_HEADER = re.compile(r"\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|\Z)", re.DOTALL)


def check_tree(tree: Path, shown: str, variants: Sequence[VariantDir]) -> Iterator[Diagnostic]:
    """Yield the findings about a tree without its variants; `shown` is its path in messages."""
    yield from _top(tree, shown)
    yield from _kernel_conflicts(shown, variants)
    yield from _manifest(tree, shown, variants)
    yield from _card(tree, shown)


def _top(tree: Path, shown: str) -> Iterator[Diagnostic]:
    for entry in sorted(tree.iterdir()):
        name = entry.name.encode(errors="replace").decode()  # may be invalid UTF-8
        path = f"{shown}/{name}"
        if entry.name in TOP_ENTRIES:
            continue
        if entry.is_symlink():
            yield finding("KCI706", "it is a link", path=path)
        elif holds_variants(entry):
            yield finding("KCI704", "the variants in it lie one directory too deep", path=path)
        elif not looks_like_variant(entry):
            yield finding("KCI707", f"{name} does not belong in a tree", path=path)
    for item, rule, reason in unpackable_entries(files_at_top(tree)):
        yield finding(rule, f"it cannot travel: {reason}", path=f"{shown}/{item.name}")


def _kernel_conflicts(shown: str, variants: Sequence[VariantDir]) -> Iterator[Diagnostic]:
    known = [variant.metadata for variant in variants if variant.metadata is not None]
    identities = sorted({(metadata.name, metadata.version) for metadata in known})
    if len(identities) > 1:
        listed = ", ".join(f"{name} version {version}" for name, version in identities)
        yield finding("KCI713", f"the tree mixes {listed}", path=shown)


def _manifest(tree: Path, shown: str, variants: Sequence[VariantDir]) -> Iterator[Diagnostic]:
    where = f"{shown}/{FILE_NAME}"
    try:
        manifest = read_manifest(tree)
    except FindingsError as error:
        yield finding("KCI718", error.message.replace(str(tree), shown), path=where)
        return
    if manifest is None:
        yield finding("KCI723", f"there is no {FILE_NAME}", path=shown)
        yield from _checksums(tree, shown, variants, {FILE_NAME}, merged=False)
        return
    listed = {entry.variant: entry for entry in manifest.present}
    there = {variant.path.name: variant for variant in variants}
    entries = [listed[name] for name in sorted(listed.keys() & there.keys())]
    contradictions = [*_contradictions(manifest)]
    contradictions += [
        f"the manifest lists {name}, which does not exist" for name in sorted(listed.keys() - there.keys())
    ]
    contradictions += [f"{name} exists and is not in the manifest" for name in sorted(there.keys() - listed.keys())]
    contradictions += [message for entry in entries for message in _entry(manifest, entry, there[entry.variant])]
    for message in contradictions:
        yield finding("KCI718", message, path=where)
    for name in missing_variants(manifest.planned, manifest.present):
        from_another = " (what is there was made from another source)" if name in there else ""
        yield finding("KCI721", f"the planned variant {name} is missing{from_another}", path=where)
    same = {entry.variant for entry in entries if there[entry.variant].digest == entry.digest}
    reported = (listed.keys() | there.keys()) - same | ({FILE_NAME} if contradictions else set())
    yield from _checksums(tree, shown, variants, reported, merged=True)


def _contradictions(manifest: Manifest) -> Iterator[str]:
    names = [entry.variant for entry in manifest.present]
    for what, listed in (("present", names), ("planned", list(manifest.planned or ()))):
        if listed != sorted(set(listed)):
            yield f"`{what}` is not sorted, or names a variant twice"
        for name in sorted(set(listed)):
            try:
                parse_variant_name(name)
            except ValueError as error:
                yield f"`{what}`: {error}"
    missing = missing_variants(manifest.planned, manifest.present)
    if manifest.missing != missing:
        recorded, counted = (", ".join(names) or "nothing" for names in (manifest.missing, missing))
        yield f"`missing` says {recorded}; planned without present is {counted}"
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


def _checksums(
    tree: Path, shown: str, variants: Sequence[VariantDir], reported: Collection[str], *, merged: bool
) -> Iterator[Diagnostic]:
    # `reported` variants contradict the manifest, which another rule reports
    if any(variant.hashes is None for variant in variants):
        return  # already reported
    try:
        hashes = {variant.path.name: variant.hashes or {} for variant in variants}
        actual = tree_hashes(hashes, {name: tree / name for name in TOP_ENTRIES_WITH_SUMS if (tree / name).exists()})
    except FindingsError as error:
        yield finding("KCI700", error.message.replace(str(tree), shown), path=shown)
        return
    where = f"{shown}/{SUMS_NAME}"
    try:
        recorded = decode_sums(read_bounded(tree / SUMS_NAME, 2 * len(encode_sums(actual)) + 65536))
    except FileNotFoundError:
        if merged:
            yield finding("KCI726", f"there is no {SUMS_NAME}", path=shown)
        return
    except (OSError, ValueError) as error:
        yield finding("KCI726", f"it is not what kci writes: {error}", path=where)
        return
    wrong = [
        file
        for file in sorted(recorded.keys() | actual.keys())
        if recorded.get(file) != actual.get(file) and file.partition("/")[0] not in reported
    ]
    if wrong:
        yield finding("KCI726", _difference(wrong, recorded, actual), path=where)


def _difference(wrong: Sequence[str], recorded: Collection[str], actual: Collection[str]) -> str:
    first = wrong[0]
    what = "has another hash" if first in actual else "is no file of the tree"
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return (f"{first!r} {what}" if first in recorded else f"it says nothing of {first!r}") + more


def _card(tree: Path, shown: str) -> Iterator[Diagnostic]:
    # the Hub validates the card only after the upload of binaries
    path = tree / CARD
    if path.is_symlink() or not path.exists():
        return
    try:
        text = read_bounded(path, _CARD_BYTES).decode("utf-8")
        reason = _header_problem(text)
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 (byte {error.start})"
    except (OSError, ValueError) as error:
        reason = str(error)
    if reason:
        yield finding("KCI728", f"it cannot become a front page: {reason}", path=f"{shown}/{CARD}")


def _header_problem(text: str) -> str:
    header = _HEADER.match(text)
    if header is None:
        return ""
    import yaml

    try:
        data = yaml.safe_load(header[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return f"its header is no YAML: {(str(error) or type(error).__name__).splitlines()[0][:200]}"
    return "" if data is None or isinstance(data, dict) else "its header is no table of keys and values"


_SHOWN = 20


def check_attestations(tree: Path, shown: str) -> Iterator[Diagnostic]:
    """Compare a tree with its attestation, whoever signed it."""
    if (tree / BUNDLE_NAME).exists():
        yield from _attestation_problems(tree, shown, unverified_statement, SigningContext())


def check_signatures(tree: Path, shown: str, trust: Path | None, context: SigningContext) -> Iterator[Diagnostic]:
    """Verify the signer and the claims of a tree's attestation."""
    if not (tree / BUNDLE_NAME).exists():
        yield finding("KCI790", f"there is no {BUNDLE_NAME}", path=shown)
        return
    yield from _attestation_problems(tree, shown, partial(verify_bundle, context=context, trust=trust), context)


def _attestation_problems(
    tree: Path, shown: str, read: Callable[[bytes], Statement], context: SigningContext
) -> Iterator[Diagnostic]:
    where = f"{shown}/{BUNDLE_NAME}"
    try:
        statement = read(read_bounded(tree / BUNDLE_NAME))
    except (OSError, ValueError) as error:
        yield finding("KCI791", f"the attestation does not count: {error}", path=where)
        return
    try:
        wrong = tree_differences(tree, statement, context)
    except FindingsError as error:
        yield finding("KCI700", error.message.replace(str(tree), shown), path=shown)
        return
    for message in wrong[:_SHOWN]:
        yield finding("KCI792", message, path=where)
