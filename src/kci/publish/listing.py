"""The variants of a tree or a Hub repository, and their problems; the Hub lists digests, so
libraries stay there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from kci.errors import FindingsError, KciError, UsageError
from kci.matrix.variants import is_variant_name
from kci.publish.hub import FOLDER, HubFile, reader_access, variant_in_path
from kci.publish.hub_branch import HubAnswerError, HubKernel
from kci.tree.identity import SIGNATURE, Algorithm, file_hashes, make_digest, validate
from kci.tree.manifest import read_manifest
from kci.tree.metadata import FILE_NAME, MAX_BYTES, decode
from kci.tree.sigstore import signature_problem
from kci.utils.bounded_json import read_bounded
from kci.utils.frozen import Frozen
from kci.utils.suggest import first_of


class ListedVariant(Frozen):
    """A published variant; None for an unknown field."""

    variant: str
    kernel: str | None = None
    version: int | None = None
    problem: str = ""
    """The reason not to load it; empty if there is none."""
    fingerprint: str | None = None


class TreeListing(Frozen):
    """The variants of a tree or a branch."""

    source: str
    variants: tuple[ListedVariant, ...]
    tree: Path | None = None


def list_tree(tree: Path) -> TreeListing:
    """List the variants of a merged tree; UsageError without one."""
    if not tree.is_dir():
        raise UsageError(f"{tree}: there is no such tree", "`kci run` or `kci merge` makes one")
    try:
        manifest = read_manifest(tree)
    except FindingsError:
        manifest = None
    prints = {entry.variant: entry.fingerprint for entry in manifest.present} if manifest else {}
    directories = (entry for entry in sorted(tree.iterdir()) if is_variant_name(entry.name))
    variants = (_local(directory, prints.get(directory.name)) for directory in directories)
    return TreeListing(str(tree), tuple(variants), tree)


def _local(directory: Path, fingerprint: str | None) -> ListedVariant:
    name = directory.name
    if directory.is_symlink() or not directory.is_dir():
        return ListedVariant(name, problem="it is a link or a file, not a directory")

    def read(file: str) -> bytes | None:
        path = directory / file
        return read_bounded(path, MAX_BYTES) if path.exists() else None

    try:
        return _listed(name, read, partial(file_hashes, directory), fingerprint)
    except KciError as error:
        return ListedVariant(name, problem=error.message.replace(f"{directory}/", ""))


def list_hub_tree(repo_id: str, revision: str) -> TreeListing:
    """List the variants of a kernel repository and compare each with its digest."""
    hub, source = HubKernel(repo_id, reader_access()), f"{repo_id}@{revision}"
    variants: dict[str, dict[str, HubFile]] = {}
    try:
        for path, file in hub.files(revision).items():
            if variant := variant_in_path(path):
                variants.setdefault(variant, {})[path.removeprefix(f"{FOLDER}{variant}/")] = file
        listed = [_on_hub(hub, revision, *entry) for entry in sorted(variants.items())]
    except HubAnswerError as answer:
        hint = (
            "check that the repository has this branch, that the network works, and that "
            "HF_TOKEN gives access"
        )
        raise FindingsError(f"{source} cannot be read: {answer.message}", hint) from answer
    return TreeListing(source, tuple(listed))


def _on_hub(
    hub: HubKernel, revision: str, variant: str, files: dict[str, HubFile]
) -> ListedVariant:
    def read(name: str) -> bytes | None:
        if not (file := files.get(name)):
            return None
        if file.size > MAX_BYTES:
            raise ValueError(f"{name} is too large")
        return hub.read(revision, file.path)

    def hashes(algorithm: Algorithm) -> dict[str, str]:
        of_sha256 = files if algorithm == "sha256" else {}  # the Hub knows no other
        return {
            name: file.sha256 or hashlib.sha256(read(name) or b"").hexdigest()
            for name, file in of_sha256.items()
        }

    return _listed(variant, read, hashes)


def _listed(
    variant: str,
    read: Callable[[str], bytes | None],
    hashes: Callable[[Algorithm], Mapping[str, str]],
    fingerprint: str | None = None,
) -> ListedVariant:
    try:
        if (raw := read(FILE_NAME)) is None:
            return ListedVariant(variant, problem=f"it has no {FILE_NAME}")
        metadata, signature, problem = decode(raw), read(SIGNATURE), ""
        if signature is not None:
            problem = signature_problem(signature, raw)
        if metadata.kci and metadata.kci.variant != variant:
            problem = f"it was built as {metadata.kci.variant}"
        if not (digest := metadata.digest):
            problem = "it has no digest in its metadata"
        elif not problem and (found := hashes(digest.algorithm)):
            differences = validate(digest, make_digest(found, digest.algorithm))
            problem = first_of([message for _, message in differences], 3)
    except (OSError, ValueError) as error:
        return ListedVariant(variant, problem=f"it cannot be read: {error}")
    return ListedVariant(variant, metadata.name, metadata.version, problem, fingerprint)
