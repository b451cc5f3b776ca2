"""What a tree or a manifest has: its variants, whether their files are those of their digests, and who signed them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kci.errors import FindingsError, KciError, UsageError
from kci.files.bounded_json import read_bounded
from kci.matrix.names import parse_variant_name
from kci.tree.digest import SIGNATURE
from kci.tree.leg_record import read_sealed
from kci.tree.manifest import FILE_NAME as MANIFEST_NAME
from kci.tree.manifest import read_manifest
from kci.tree.metadata import FILE_NAME, MAX_BYTES
from kci.tree.signer import signature_problem, signer_of


class Held(msgspec.Struct, frozen=True):
    """A variant that is there. What is not known is None."""

    variant: str
    kernel: str | None = None
    version: int | None = None
    problem: str = ""
    """Why no loader should use it; empty if nothing is wrong."""
    signer: str | None = None
    fingerprint: str | None = None


class Holding(msgspec.Struct, frozen=True):
    """Everything that is there."""

    source: str
    variants: tuple[Held, ...]
    place: Path = Path()
    """The tree or manifest; unused for the Hub."""
    tree: Path | None = None
    """The directory, where there is one."""
    digests_checked: bool = True


def held_in(place: Path) -> Holding:
    """What a path has: a merged tree, a kernel directory with one in `build/`, or a manifest.

    Raises:
        UsageError: there is nothing of that name.
        FindingsError: a manifest cannot be read.
    """
    if place.is_dir():
        below = place / "build"
        return _tree(below if not variant_directories(place) and below.is_dir() else place)
    if place.name == MANIFEST_NAME and place.is_file():
        return _manifest(place)
    raise UsageError(f"{place}: there is no such tree", hint=f"name a merged tree, or its {MANIFEST_NAME}")


def variant_directories(tree: Path) -> list[Path]:
    """The entries of a tree that are named like variants, sorted."""
    return sorted(entry for entry in tree.iterdir() if is_variant_name(entry.name))


def is_variant_name(name: str) -> bool:
    """Whether a loader would take a directory of this name for a variant."""
    try:
        parse_variant_name(name)
    except ValueError:
        return False
    return True


def _tree(tree: Path) -> Holding:
    try:
        manifest = read_manifest(tree)
    except FindingsError:
        manifest = None  # `kci verify` says so; the files themselves are what counts here
    prints = {entry.variant: entry.fingerprint for entry in manifest.present} if manifest else {}
    variants = (_variant(directory, prints.get(directory.name)) for directory in variant_directories(tree))
    return Holding(str(tree), tuple(variants), tree, tree)


def _variant(directory: Path, fingerprint: str | None) -> Held:
    name = directory.name
    if directory.is_symlink() or not directory.is_dir():
        return Held(name, problem="it is a link or a file, not a directory")
    try:
        metadata = read_sealed(directory).metadata
    except KciError as error:
        return Held(name, problem=error.message.replace(f"{directory}/", "").replace(f"{directory} ", ""))
    held = Held(name, metadata.name, metadata.version, fingerprint=fingerprint)
    signature = directory / SIGNATURE
    if not signature.exists():
        return held
    try:
        bundle, signed = read_bounded(signature, MAX_BYTES), read_bounded(directory / FILE_NAME, MAX_BYTES)
    except (OSError, ValueError) as error:
        return msgspec.structs.replace(held, problem=f"its signature cannot be read: {error}")
    problem = signature_problem(bundle, signed)
    return msgspec.structs.replace(held, problem=problem, signer=signer_of(bundle))


def _manifest(path: Path) -> Holding:
    manifest = read_manifest(path.parent)
    assert manifest is not None  # noqa: S101  - the caller has seen the file
    variants = (
        Held(entry.variant, manifest.kernel, manifest.version, fingerprint=entry.fingerprint)
        for entry in manifest.present
    )
    return Holding(str(path), tuple(variants), path, digests_checked=False)
