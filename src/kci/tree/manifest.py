"""`kci-manifest.json` at the top of a tree: planned and present variants and their origins.

Equal inputs give equal bytes: the only times are those of commits, and there are no paths of the merging machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from kci.build.toolchains.compilers import ObjectUse
from kci.diagnostics import Diagnostic, finding
from kci.errors import KciError, rule_error
from kci.plan.fingerprint import Key
from kci.tree.leg_record import read_sealed
from kci.utils.bounded_json import read_json, require_schema
from kci.version import __version__

FILE_NAME = "kci-manifest.json"
SCHEMA = 1


class Origin(msgspec.Struct, frozen=True):
    """Where a variant came from."""

    artifact: str
    """File name; empty for a variant directory."""
    commit: str | None = None
    dirty: bool | None = None
    attempt: int = 1
    builder: str = ""
    carried: bool = False
    """The variant was in the tree before this merge and is not in its artifacts."""
    committed: int | None = None
    """Commit time in seconds since 1970."""


class Present(msgspec.Struct, frozen=True, omit_defaults=True):
    """A variant that is in the tree."""

    variant: str
    digest: str
    backend: str
    origin: Origin
    fingerprint: str | None = None
    """The plan's fingerprint, if the plan has one."""
    stale: bool = False
    """Carried over from another source than the planned one, so it counts as missing."""
    objects: ObjectUse | None = None
    """Number of compiled objects, and the CI runs that the others come from."""


class Replaced(msgspec.Struct, frozen=True):
    """An artifact that a later attempt with other files replaces."""

    variant: str
    artifact: str
    attempt: int
    digest: str


class Manifest(msgspec.Struct, frozen=True):
    """The tree's record. `planned` is null after a merge without a plan; nothing is missing then."""

    kernel: str
    version: int
    planned: tuple[str, ...] | None
    present: tuple[Present, ...]
    missing: tuple[str, ...]
    complete: bool
    replaced: tuple[Replaced, ...] = ()
    schema: int = SCHEMA
    created_by: str = f"kci {__version__}"

    @property
    def digests(self) -> dict[str, str]:
        return {item.variant: item.digest for item in self.present}

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


_ORDER = (
    "schema", "created_by", "kernel", "version", "complete", "planned", "present", "missing", "replaced",
)  # fmt: skip


def encode(manifest: Manifest) -> bytes:
    """Encode `kci-manifest.json`, with a newline at the end."""
    data = msgspec.to_builtins(manifest)
    text = msgspec.json.encode({key: data[key] for key in _ORDER})
    return msgspec.json.format(text, indent=2) + b"\n"


def missing_of(planned: Iterable[str] | None, present: Iterable[Present]) -> tuple[str, ...]:
    """List the planned variants that are absent or stale."""
    fresh = {entry.variant for entry in present if not entry.stale}
    return tuple(sorted(set(planned or ()) - fresh))


def read_manifest(tree: Path) -> Manifest | None:
    """Read a tree's manifest; None if there is none. Raises FindingsError: it cannot be read."""
    path = tree / FILE_NAME
    return _load(path, "KCI611", "remove it and merge again") if os.path.lexists(path) else None


def _load(path: Path, rule: str, hint: str) -> Manifest:
    try:
        return read_json(path, Manifest)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
    except ValueError as error:
        message = f"{path} is not a manifest: {error}"
    raise rule_error(rule, message, hint=hint, path=str(path))


def read_published(places: Iterable[Path]) -> tuple[dict[Key, str], list[Diagnostic]]:
    """Map kernel and variant to fingerprint for the valid variants of published trees; the rest become findings.

    `places` are manifests, trees, or folders of trees. A tree's files are checked against its manifest; a manifest
    without a tree is trusted, because the merge needs the tree. Raises FindingsError: a manifest is missing or
    unreadable (KCI611).
    """
    found: dict[Key, str] = {}
    problems: list[Diagnostic] = []
    for place in places:
        for path in _manifests(place):
            manifest = _load(path, "KCI611", f"name the {FILE_NAME} of a published tree, or the tree")
            beside = path.name == FILE_NAME and any((path.parent / item.variant).is_dir() for item in manifest.present)
            with_tree = place.is_dir() or beside
            for entry in manifest.present:
                problem = _problem(path.parent, manifest, entry) if with_tree else ""
                if problem:
                    message = f"{manifest.kernel}: the published variant {entry.variant} {problem}; it is built again"
                    problems.append(finding("KCI314", message, path=str(path)))
                elif entry.fingerprint is not None:
                    found[manifest.kernel, entry.variant] = entry.fingerprint
    return found, problems


def _manifests(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        yield place
    elif (place / FILE_NAME).is_file():
        yield place / FILE_NAME
    else:
        yield from sorted(place.glob(f"*/{FILE_NAME}")) or [place / FILE_NAME]


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
        return f"is {metadata.name} version {metadata.version}, not {manifest.kernel} version {manifest.version}"
    return "" if sealed.digest == entry.digest else "was changed since it was merged"
