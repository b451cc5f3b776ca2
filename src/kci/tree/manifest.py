"""`kci-manifest.json` at a tree's top: what was planned, what is there, and where each variant came from.

It holds no times but those of commits, and no paths of the machine that merged, so equal inputs give equal bytes. What
is published is read from it too, as far as the files are there and are what was merged.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.build.toolchains.compilers import ObjectUse
from kci.config.settings import Ignore
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError, KciError, rule_error
from kci.matrix.variants import parse_variant_name
from kci.plan.fingerprint import Key
from kci.tree.leg_record import read_sealed
from kci.tree.metadata import NAME_PATTERN
from kci.utils.bounded_json import decode_json, read_bounded, read_json, require_schema
from kci.version import __version__

FILE_NAME = "kci-manifest.json"
SCHEMA = 1


class Origin(msgspec.Struct, frozen=True):
    """Where a variant came from."""

    artifact: str
    """The artifact's file name; empty for a variant directory that was given as it was."""
    commit: str | None = None
    dirty: bool | None = None
    attempt: int = 1
    builder: str = ""
    carried: bool = False
    """The variant was in the tree before this merge and was not in its artifacts."""
    committed: int | None = None
    """When its commit was made, in seconds since 1970."""


class Present(msgspec.Struct, frozen=True, omit_defaults=True):
    """A variant that is in the tree."""

    variant: str
    digest: str
    backend: str
    origin: Origin
    fingerprint: str | None = None
    """What it was made from, as the plan of its run said; not there if the plan said nothing."""
    stale: bool = False
    """It was in the tree before and was made from another source than what is planned: it counts as missing."""
    objects: ObjectUse | None = None
    """How many objects were compiled for it, where others are from the packs of CI runs; these are named."""


class Replaced(msgspec.Struct, frozen=True):
    """An artifact that was not taken, because a later attempt for the same variant holds other files."""

    variant: str
    artifact: str
    attempt: int
    digest: str


class Manifest(msgspec.Struct, frozen=True):
    """The tree's record. `planned` is null when the merge was given no plan; nothing is missing then."""

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
    """The bytes of `kci-manifest.json`, with a newline at the end."""
    data = msgspec.to_builtins(manifest)
    text = msgspec.json.encode({key: data[key] for key in _ORDER})
    return msgspec.json.format(text, indent=2) + b"\n"


def missing_of(planned: Iterable[str] | None, present: Iterable[Present]) -> tuple[str, ...]:
    """What is planned and not there, or there from another source only."""
    fresh = {entry.variant for entry in present if not entry.stale}
    return tuple(sorted(set(planned or ()) - fresh))


def read_manifest(tree: Path) -> Manifest | None:
    """The manifest of a tree, or None if it has none. Raises FindingsError: there is one, and it cannot be read."""
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
    """The variants of published trees, by kernel and variant name, and what is wrong with others.

    `places` are manifests, trees that have one, or folders of such trees. The files of a tree are compared with the
    digests in its manifest. A manifest without its tree is taken at its word: the merge needs the tree.

    Raises FindingsError: a manifest is not there or cannot be read (KCI611).
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
    """What is wrong with a variant of a tree; empty if nothing is."""
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


PLANNED_SCHEMA = 1
_MAX_BYTES = 64 * 1024 * 1024


class PlannedKernel(msgspec.Struct, frozen=True):
    """The variants of one kernel that a run set out to build. `version` is null where the plan does not say."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    planned: tuple[str, ...]
    version: Annotated[int, Meta(ge=0)] | None = None
    fingerprints: dict[str, Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]] | None = None
    """What each planned variant is made from, if the plan says so."""
    tree: Annotated[str, Meta(max_length=4096)] = ""
    """Where its tree would lie in the repository, relative to kci.toml; `Planned.suppressions` name files so."""

    elsewhere: tuple[str, ...] = ()
    """Variants that nothing builds here. They are taken from whoever uploads them, and nobody has to."""

    def __post_init__(self) -> None:
        for variant in (*self.planned, *self.elsewhere):
            parse_variant_name(variant)


class Planned(msgspec.Struct, frozen=True):
    """The kernels of a plan by name. A run without legs has none."""

    kernels: dict[str, PlannedKernel]
    commit: str | None = None
    """The commit that was planned, if the plan says so: fingerprints hold for what was built from it."""
    suppressions: tuple[Ignore, ...] = ()
    """What the kci.toml of the repository suppresses of the findings about trees."""


class _Plan(msgspec.Struct):
    schema: int
    kernels: tuple[PlannedKernel, ...]
    commit: str | None = None
    suppressions: tuple[Ignore, ...] = ()


def read_plan(path: Path) -> Planned:
    """Read a plan file.

    Raises:
        FindingsError: it cannot be read, or is no plan that this kci knows.
    """
    try:
        return parse_plan(read_bounded(path, _MAX_BYTES), str(path))
    except OSError as error:
        raise _error(f"cannot read the plan {path}: {error.strerror}", str(path)) from error
    except ValueError as error:
        raise _error(f"{path} is not a plan: {error}", str(path)) from error


def parse_plan(text: bytes | str, where: str = "the plan") -> Planned:
    """Read the JSON of a plan, called `where` in errors; keys that are not about planned variants are ignored."""
    try:
        schema = decode_json(text, dict[str, msgspec.Raw]).get("schema")
        if schema != msgspec.Raw(str(PLANNED_SCHEMA).encode()):
            raise ValueError(
                f"schema {bytes(schema).decode() if schema else 'missing'}; this kci reads schema {PLANNED_SCHEMA}"
            )
        plan = decode_json(text, _Plan)
    except ValueError as error:
        raise _error(f"{where} is not a plan: {error}", where) from error
    kernels: dict[str, PlannedKernel] = {}
    for kernel in plan.kernels:
        if kernel.name in kernels:
            raise _error(f"{where} names the kernel {kernel.name} twice", where)
        kernels[kernel.name] = kernel
    return Planned(kernels, plan.commit, plan.suppressions)


def _error(message: str, where: str) -> FindingsError:
    return rule_error("KCI611", message, hint="kci plan --format json makes one", path=where)
