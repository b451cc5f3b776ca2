"""The records of an artifact (`leg.json`) and a tree (`kci-manifest.json`): equal inputs give equal
bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.config.sources.card import CardText
from kci.config.values import NAME_PATTERN, SYSTEMS
from kci.diagnostics import Diagnostic, finding
from kci.errors import KciError, rule_error
from kci.matrix.variants import ObjectUse, Word, parse_variant_name
from kci.plan.durations import Seconds
from kci.plan.hardware_tests import tree_under_test
from kci.plan.plan import Key
from kci.tree.identity import GitState, directory_digest, file_hashes, validate_dir
from kci.tree.metadata import FILE_NAME as METADATA_NAME
from kci.tree.metadata import Metadata, read_metadata
from kci.utils.bounded_json import VersionedRecord, encode_file, read_json, reading, require_schema
from kci.utils.frozen import Frozen
from kci.utils.suggest import first_of
from kci.version import __version__

SCHEMA = 1
LEG_NAME = "leg.json"
FILE_NAME = "kci-manifest.json"


MAX_ATTEMPT = 1000
"""GitHub allows 50."""


class Loading(Frozen, omit_defaults=True):
    """The outcome of loading a variant."""

    torch: tuple[Word, ...] = ()
    """The releases that it was loaded with, such as `2.13.0+cpu`; none if it was not loaded."""
    reason: Annotated[str, Meta(max_length=1000)] = ""
    """Why it was not loaded, or not with each torch that it is for."""
    must: bool = False
    """True if it is not to be published unless it was."""

    def __str__(self) -> str:
        if not self.torch:
            return f"not loaded: {self.reason}"
        return f"torch {', '.join(self.torch)}" + (
            f"; not loaded with {self.reason}" if self.reason else ""
        )


UNKNOWN_LOADING = (
    "nobody recorded that it was; `kci build --pack` and `kci run` load what they build"
)


class LegRecord(Frozen):
    """The variant of an artifact and its build; unknown keys are ignored."""

    schema: int
    kernel: Annotated[str, Meta(pattern=NAME_PATTERN)]
    version: Annotated[int, Meta(ge=0)]
    variant: str
    backend: str
    system: str
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """The variant's `directory_digest`."""
    kci: Word
    builder: Word
    attempt: Annotated[int, Meta(ge=1, le=MAX_ATTEMPT)] = 1
    run: Word = ""
    """CI run; empty outside CI."""
    source: GitState | None = None
    seconds: Seconds | None = None
    archs: tuple[Word, ...] | None = None
    objects: ObjectUse | None = None
    loaded: Loading | None = None
    """None if the record does not say."""
    card: CardText | None = None
    """The kernel's card; empty if it has none, None if the leg had no kernel to ask."""

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)
        if parse_variant_name(self.variant).backend != self.backend:
            raise ValueError(f"the variant {self.variant} is not one of backend '{self.backend}'")
        if self.system not in SYSTEMS:
            raise ValueError(f"{self.system!r} is not a system")


def leg_for(variant_dir: Path, *, system: str, builder: str) -> LegRecord:
    """Describe a sealed variant. `system` is for names without one."""
    try:
        name, sealed = parse_variant_name(variant_dir.name), read_sealed(variant_dir)
        metadata = sealed.metadata
        return LegRecord(
            schema=SCHEMA,
            kernel=metadata.name,
            version=metadata.version,
            variant=variant_dir.name,
            backend=metadata.backend.type,
            system=name.system or system,
            digest=sealed.digest,
            kci=__version__,
            builder=builder,
            source=metadata.made_from,
            archs=metadata.backend.archs,
        )
    except ValueError as error:
        raise rule_error("KCI710", f"{variant_dir}: {error}", variant_dir) from error


class SealedVariant(Frozen):
    """A variant directory that agrees with its metadata."""

    metadata: Metadata
    hashes: dict[str, str]
    """Hex sha256 by file name."""

    @property
    def digest(self) -> str:
        return directory_digest(self.hashes)


def read_sealed(variant_dir: Path, hashes: dict[str, str] | None = None) -> SealedVariant:
    """Check a variant's files against its metadata. Raises FindingsError."""
    metadata = read_metadata(variant_dir / METADATA_NAME)
    hashes = file_hashes(variant_dir) if hashes is None else hashes
    violations = [("", "its metadata has no digest")]
    if metadata.digest:
        violations = validate_dir(variant_dir, metadata.digest, hashes)
    if violations:
        message = f"{variant_dir} was not sealed: {first_of([text for _, text in violations], 5)}"
        raise rule_error("KCI603", message, variant_dir, hint="seal it again: kci pack --seal")
    name = variant_dir.name
    if metadata.kci and metadata.kci.variant != name:
        raise rule_error(
            "KCI612",
            f"{variant_dir} was built as {metadata.kci.variant}; renaming a directory does not "
            "make another variant",
            variant_dir,
            hint=f"rename it to {metadata.kci.variant}, or build {name}",
        )
    return SealedVariant(metadata, hashes)


class Origin(Frozen):
    """The artifact and source of a variant."""

    artifact: str
    """Empty for a variant directory."""
    commit: str | None = None
    dirty: bool | None = None
    attempt: int = 1
    builder: str = ""
    carried: bool = False
    """True if this merge had no artifact of the variant and kept the old tree's."""
    committed: int | None = None
    """Commit time in seconds since 1970."""


class Present(Frozen, omit_defaults=True):
    """A variant in a tree."""

    variant: str
    digest: str
    backend: str
    origin: Origin
    fingerprint: str | None = None
    stale: bool = False
    """Carried over from another source than the planned one; counts as missing."""
    objects: ObjectUse | None = None
    loaded: Loading | None = None


class Replaced(Frozen):
    """An artifact that a later attempt with other files replaces."""

    variant: str
    artifact: str
    attempt: int
    digest: str


class Manifest(VersionedRecord):
    """The record of a tree; without a plan `planned` is None and nothing is missing."""

    kernel: str
    version: int
    planned: tuple[str, ...] | None
    present: tuple[Present, ...]
    missing: tuple[str, ...]
    complete: bool
    replaced: tuple[Replaced, ...] = ()
    card: str | None = None
    """Hex sha256 of the card; None for a tree without one, or with one that was written by hand."""
    created_by: str = f"kci {__version__}"

    @property
    def digests(self) -> dict[str, str]:
        return {item.variant: item.digest for item in self.present}

    @property
    def unloaded(self) -> dict[str, str]:
        """The variants that are not to be published without having been loaded, and were not; each
        with the reason.
        """
        return {
            item.variant: loaded.reason
            for item in self.present
            if (loaded := item.loaded) and loaded.must and not loaded.torch
        }

    @property
    def digest(self) -> str:
        """Stands for the whole tree: what was judged is found again by it."""
        return tree_under_test(self.digests)


_ORDER = "schema created_by kernel version complete card planned present missing replaced"


def encode(manifest: Manifest) -> bytes:
    """Encode a `kci-manifest.json`."""
    data = msgspec.to_builtins(manifest)
    return encode_file({key: data[key] for key in _ORDER.split()})


def missing_variants(planned: Iterable[str] | None, present: Iterable[Present]) -> tuple[str, ...]:
    """List the planned variants that are absent or stale."""
    fresh = {entry.variant for entry in present if not entry.stale}
    return tuple(sorted(set(planned or ()) - fresh))


def read_manifest(tree: Path) -> Manifest | None:
    """Read a tree's manifest, if it has one. Raises FindingsError."""
    path = tree / FILE_NAME
    return _load(path) if os.path.lexists(path) else None


def _load(path: Path) -> Manifest:
    with reading(path, "a manifest", f"merge again, or name the {FILE_NAME} of a tree"):
        return read_json(path, Manifest)


def read_published(places: Iterable[Path]) -> tuple[dict[Key, str], list[Diagnostic]]:
    """Map kernel and variant to fingerprint for published variants; invalid ones become findings.

    Raises KCI611.
    """
    fingerprints: dict[Key, str] = {}
    problems: list[Diagnostic] = []
    for place in places:
        below = manifest_paths(place) or [place / FILE_NAME]
        for path in below if place.is_dir() else [place]:
            manifest = _load(path)
            with_tree = place.is_dir() or (
                path.name == FILE_NAME
                and any((path.parent / item.variant).is_dir() for item in manifest.present)
            )
            for entry in manifest.present:
                if problem := _problem(path.parent, manifest, entry) if with_tree else "":
                    what = f"{manifest.kernel}: the published variant {entry.variant}"
                    message = f"{what} {problem}; it is built again"
                    problems.append(finding("KCI314", message, path))
                elif entry.fingerprint is not None:
                    fingerprints[manifest.kernel, entry.variant] = entry.fingerprint
    return fingerprints, problems


def manifest_paths(place: Path) -> list[Path]:
    """The manifest of a tree, or those of the trees of several kernels."""
    single = place / FILE_NAME
    return [single] if single.is_file() else sorted(place.glob(f"*/{FILE_NAME}"))


def _problem(tree: Path, manifest: Manifest, entry: Present) -> str:
    directory = tree / entry.variant
    if directory.is_symlink() or not directory.is_dir():
        return "is not in the tree"
    try:
        sealed = read_sealed(directory)
    except KciError as error:
        return f"is damaged: {error.message}"
    metadata = sealed.metadata
    if (metadata.name, metadata.version) != (manifest.kernel, manifest.version):
        return (
            f"is {metadata.name} version {metadata.version}, not {manifest.kernel} version "
            f"{manifest.version}"
        )
    return "" if sealed.digest == entry.digest else "was changed since it was merged"
