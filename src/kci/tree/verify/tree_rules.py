"""Rules about variant directories and trees (docs/format.md). Every claim is computed again."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from kci.config.facts import BACKENDS, depends_table
from kci.config.sources.card import CARD
from kci.config.sources.imports import module_name
from kci.config.sources.package_rules import MAX_BYTES, OPS, check_package, make_package
from kci.config.values import Version, python_name
from kci.diagnostics import Findings, finding, placed
from kci.errors import FindingsError, first_line_of
from kci.matrix.variants import Kind, is_variant_name
from kci.tree.identity import SIGNATURE, differences, file_hash, kernel_id, validate_dir
from kci.tree.manifest import FILE_NAME as MANIFEST_NAME
from kci.tree.manifest import Manifest, Present, missing_variants, read_manifest
from kci.tree.metadata import FILE_NAME, Metadata, kernels_minver, unrecorded_depends
from kci.tree.pack import size_problem, unpackable_entries
from kci.tree.sigstore import (
    SigningContext,
    signature_problem,
    unverified_statement,
    verify_bundle,
)
from kci.tree.top_level import (
    BUNDLE_NAME,
    SUMS_NAME,
    TOP_ENTRIES,
    decode_sums,
    encode_sums,
    files_at_top,
    tree_differences,
    tree_hashes,
)
from kci.tree.verify.subject import VariantDir, holds_variants, looks_like_variant
from kci.utils.bounded_json import read_bounded
from kci.utils.suggest import first_of
from kci.utils.walk import is_bytecode


def check_layout(variant: VariantDir) -> Findings:
    """Yield findings about file names and links."""
    names = {item.name for item in variant.files}
    if "__init__.py" not in names:
        yield finding("KCI702", "there is no __init__.py at the variant's root")
    package = python_name(variant.metadata.name) if variant.metadata else ""
    if package and ((variant.path / package).is_dir() or package in names):
        message = f"the package holds an entry called {package}, as it is called itself"
        yield finding("KCI703", message)
    for item in variant.files:
        if is_bytecode(item.name):
            yield finding("KCI705", "it is Python bytecode", item.name)
    for item, kind in variant.libraries() if variant.noarch else ():
        what = f"native code ({kind})" if kind else "a native library"
        yield finding("KCI717", f"a noarch variant holds {what}", item.name)
    if variant.module and variant.module not in names:
        yield finding("KCI716", f"the native module {variant.module} is missing")
    packed = [item for item in variant.files if not is_bytecode(item.name)]
    for item, rule, reason in unpackable_entries(packed):
        yield finding(rule, f"no artifact can hold it: {reason}", item.name)
    if size := size_problem(packed):
        yield finding("KCI709", f"no artifact can hold it: {size}")


def check_metadata(variant: VariantDir) -> Findings:
    """Yield findings about `metadata.json`."""
    if variant.metadata:
        yield from placed(_metadata(variant, variant.metadata), FILE_NAME)


def _metadata(variant: VariantDir, metadata: Metadata) -> Findings:
    backend = metadata.backend.type
    if variant.name and variant.name.backend != backend:
        message = f"the name is one of {variant.name.backend}, `backend.type` is {backend}"
        yield finding("KCI711", message)
    start = kernel_id(metadata.name, backend, "")
    if not metadata.id.startswith(start):
        message = f"the id {metadata.id} is not one of {metadata.name} for {backend}"
        yield finding("KCI711", message, hint=f"an id of this kernel starts with {start}")
    if variant.module and BACKENDS[backend].archs and not metadata.backend.archs:
        yield finding("KCI712", f"a compiled {backend} variant lists no architectures")
    for name in metadata.python_depends:
        if not depends_table().lookup(name, backend):
            yield finding("KCI720", f"`python-depends` names {name!r}, unknown for {backend}")
    needed = kernels_minver(metadata.kernel_depends, len(metadata.upstreams))
    oldest = metadata.kernels_minver
    if oldest and Version.parse(oldest) != Version.parse(needed):
        message = f"`kernels-minver` is {oldest}, and the oldest loader that reads this is {needed}"
        yield finding("KCI725", message)
    if metadata.kci and metadata.kci.variant != variant.path.name:
        built_as = f"it was built as {metadata.kci.variant}"
        message = f"{built_as}; renaming a directory does not make another variant"
        yield finding("KCI722", message)


def check_digest(variant: VariantDir) -> Findings:
    """Yield findings about files that contradict the digest."""
    if not variant.metadata:
        return
    if not variant.metadata.digest:
        yield finding("KCI730", "the metadata has no digest", FILE_NAME)
        return
    if variant.hashes is None:
        return  # already reported
    for path, message in validate_dir(variant.path, variant.metadata.digest, variant.hashes):
        yield finding("KCI731", message, path)


def check_signature(variant: VariantDir) -> Findings:
    """Yield findings about the loader's signature; its signer is not verified."""
    if not variant.metadata or not any(item.name == SIGNATURE for item in variant.regular()):
        return
    try:
        problem = signature_problem(
            read_bounded(variant.path / SIGNATURE), read_bounded(variant.path / FILE_NAME)
        )
    except (OSError, ValueError) as error:
        problem = f"it cannot be read: {error}"
    if problem:
        yield finding("KCI729", problem, SIGNATURE)


def check_python(variant: VariantDir) -> Findings:
    """Yield findings about Python files."""
    yield from _shadowed(variant)
    metadata = variant.metadata
    if not metadata:
        return
    backend = metadata.backend.type
    tvm_ffi = bool(variant.name and variant.name.kind is Kind.TVM_FFI)
    depends = (*metadata.python_depends, *unrecorded_depends(backend))
    package = make_package(
        metadata.name, [(name, backend) for name in depends], [backend], tvm_ffi=tvm_ffi
    )
    yield from check_package(variant.files, package, ())
    yield from _ops_module(variant, metadata)


_MODULE = re.compile(r"[^.]+(?:\.(abi3|(?:cpython-|cp|pypy)[^.]+))?\.(?:so|pyd)|[^.]+\.pyw?")
"""Importable file names; the group is an extension module's tag."""


def _shadowed(variant: VariantDir) -> Findings:
    # Python prefers packages to modules, and compiled code to source
    candidates = defaultdict(list)
    for item in variant.regular():
        _, _, name = item.name.rpartition("/")
        if match := _MODULE.fullmatch(name):
            single = not name.startswith("__init__.")
            order = (single, name.endswith((".py", ".pyw")), match[1] is None, match[1] == "abi3")
            candidates[module_name(item.name)].append((order, item.name, match[1] or ""))
    for files in candidates.values():
        (_, first, tag), *others = sorted(files)
        for _, name, other in others:
            if tag in ("", "abi3") or other in ("", "abi3", tag):
                message = (
                    f"{first} is imported in its place: it comes first for every Python that can "
                    "load it"
                )
                yield finding("KCI766", message, name)


def _ops_module(variant: VariantDir, metadata: Metadata) -> Findings:
    # torch finds the ops only under the id in the metadata
    ops = f"{OPS}.py"
    if not any(item.name == ops for item in variant.regular()):
        return
    try:
        with (variant.path / ops).open("rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return  # already reported
    start = kernel_id(metadata.name, metadata.backend.type, "")
    named = set(re.findall(rf"(?<![A-Za-z0-9_]){start}[A-Za-z0-9_]+", text))
    if others := sorted(named - {metadata.id}):
        message = f"it names {', '.join(others[:3])}; the metadata's id is {metadata.id}"
        yield finding("KCI724", message, ops)


_CARD_BYTES = 1024 * 1024
# YAML front matter, as the Hub finds it
_HEADER = re.compile(r"\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|\Z)", re.DOTALL)


def check_tree(tree: Path, variants: Sequence[VariantDir]) -> Findings:
    """Yield the findings about a tree without its variants, with paths in it."""
    yield from _top(tree)
    known = [variant.metadata for variant in variants if variant.metadata]
    identities = sorted({(metadata.name, metadata.version) for metadata in known})
    if len(identities) > 1:
        listed = ", ".join(f"{name} version {version}" for name, version in identities)
        yield finding("KCI713", f"the tree mixes {listed}")
    yield from _manifest(tree, variants)
    yield from _card(tree)


def _top(tree: Path) -> Findings:
    for entry in sorted(tree.iterdir()):
        name = entry.name.encode(errors="replace").decode()  # may be invalid UTF-8
        if entry.name in TOP_ENTRIES:
            continue
        if entry.is_symlink():
            yield finding("KCI706", "it is a link", name)
        elif holds_variants(entry):
            yield finding("KCI704", "the variants in it lie one directory too deep", name)
        elif not looks_like_variant(entry):
            yield finding("KCI707", f"{name} does not belong in a tree", name)
    for item, rule, reason in unpackable_entries(files_at_top(tree)):
        yield finding(rule, f"no artifact can hold it: {reason}", item.name)


def _manifest(tree: Path, variants: Sequence[VariantDir]) -> Findings:
    try:
        manifest = read_manifest(tree)
    except FindingsError as error:
        yield finding("KCI718", error.message, MANIFEST_NAME)
        return
    if not manifest:
        yield finding("KCI723", f"there is no {MANIFEST_NAME}")
        yield from _checksums(tree, variants, {MANIFEST_NAME})
        return
    there = {variant.path.name: variant for variant in variants}
    digests = {
        name: manifest.digests.get(name, "") if variant.hashes is None else variant.digest
        for name, variant in there.items()
    }
    words = (
        "is in the manifest and does not exist",
        "changed after it was merged",
        "exists and is not in the manifest",
    )
    other = differences(manifest.digests, digests, *words)
    contradictions = [message for _, message in other] + _contradictions(manifest)
    card = tree / CARD
    if manifest.card is not None and not (card.is_file() and file_hash(card) == manifest.card):
        contradictions.append(f"{CARD} changed after it was merged")
    for entry in manifest.present:
        if entry.variant in there and (metadata := there[entry.variant].metadata):
            contradictions += _wrong_claims(manifest, entry, metadata)
    for message in contradictions:
        yield finding("KCI718", message, MANIFEST_NAME)
    for name in missing_variants(manifest.planned, manifest.present):
        from_another = " (what is there was made from another source)" if name in there else ""
        yield finding(
            "KCI721", f"the planned variant {name} is missing{from_another}", MANIFEST_NAME
        )
    reported = {name for name, _ in other} | {MANIFEST_NAME} if contradictions else set()
    yield from _checksums(tree, variants, reported)


def _contradictions(manifest: Manifest) -> list[str]:
    found = []
    present = tuple(entry.variant for entry in manifest.present)
    for what, names in (("present", present), ("planned", manifest.planned or ())):
        if names != tuple(sorted(set(names))):
            found.append(f"`{what}` is not sorted, or names a variant twice")
        found += [
            f"`{what}`: no variant is called {name}"
            for name in sorted(set(names))
            if not is_variant_name(name)
        ]
    missing = missing_variants(manifest.planned, manifest.present)
    if (manifest.missing, manifest.complete) != (missing, not missing):
        says = f"`missing` says {', '.join(manifest.missing) or 'nothing'}, `complete` says "
        counted = f"planned without present is {', '.join(missing) or 'nothing'}"
        found.append(f"{says}{str(manifest.complete).lower()}; {counted}")
    return found


def _wrong_claims(manifest: Manifest, entry: Present, metadata: Metadata) -> list[str]:
    claims: list[tuple[str, object, object]] = [
        ("kernel", manifest.kernel, metadata.name),
        ("version", manifest.version, metadata.version),
        ("backend", entry.backend, metadata.backend.type),
    ]
    origin, made_from = entry.origin, metadata.made_from
    if made_from and origin.commit:
        states = ((origin.commit, origin.dirty), (made_from.commit, made_from.dirty))
        claims.append(("`commit` and `dirty`", *states))
    if origin.committed is not None:
        claims.append(("time of the commit", origin.committed, metadata.committed))
    return [
        f"the manifest says {claimed} of the {what} of {entry.variant}, its metadata {recorded}"
        for what, claimed, recorded in claims
        if claimed != recorded
    ]


def _checksums(tree: Path, variants: Sequence[VariantDir], reported: Collection[str]) -> Findings:
    # `reported` variants contradict the manifest, which another rule reports
    if any(variant.hashes is None for variant in variants):
        return  # already reported
    hashes = {
        f"{variant.path.name}/{name}": digest
        for variant in variants
        for name, digest in (variant.hashes or {}).items()
    }
    actual = tree_hashes(hashes, tree)
    try:
        recorded = decode_sums(read_bounded(tree / SUMS_NAME, 2 * len(encode_sums(actual)) + 65536))
    except FileNotFoundError:
        if (tree / MANIFEST_NAME).exists():
            yield finding("KCI726", f"there is no {SUMS_NAME}")
        return
    except (OSError, ValueError) as error:
        yield finding("KCI726", f"it is not what kci writes: {error}", SUMS_NAME)
        return
    words = ("is not a file of the tree", "has another hash", "is not in it")
    wrong = [
        message
        for name, message in differences(recorded, actual, *words)
        if name.partition("/")[0] not in reported
    ]
    if wrong:
        yield finding("KCI726", first_of(wrong, 1), SUMS_NAME)


def _card(tree: Path) -> Findings:
    # the Hub validates the card only after the upload of binaries
    path = tree / CARD
    if path.is_symlink() or not path.exists():
        return
    import yaml

    reason = ""
    try:
        header = _HEADER.match(read_bounded(path, _CARD_BYTES).decode())
        if not isinstance(yaml.safe_load(header[1]) if header else None, dict | None):
            reason = "its header is not a table of keys and values"
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 (byte {error.start})"
    except (yaml.YAMLError, RecursionError) as error:
        reason = f"its header is not YAML: {first_line_of(error)}"
    except (OSError, ValueError) as error:
        reason = str(error)
    if reason:
        yield finding("KCI728", f"it cannot become a front page: {reason}", CARD)


_SHOWN = 20


def check_attestation(
    tree: Path, signer: SigningContext | None = None, trust: Path | None = None
) -> Findings:
    """Compare a tree with its attestation, whoever signed it, or require one of a signer."""
    if not (tree / BUNDLE_NAME).exists():
        if signer:
            yield finding("KCI790", f"there is no {BUNDLE_NAME}")
        return
    try:
        data = read_bounded(tree / BUNDLE_NAME)
        statement = verify_bundle(data, signer, trust) if signer else unverified_statement(data)
    except (OSError, ValueError) as error:
        yield finding("KCI791", f"the attestation does not count: {error}", BUNDLE_NAME)
        return
    for message in tree_differences(tree, statement, signer or SigningContext())[:_SHOWN]:
        yield finding("KCI792", message, BUNDLE_NAME)
