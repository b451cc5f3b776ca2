"""`metadata.json` (docs/format.md#metadata), and the mark of a partial variant."""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.config.facts import BACKENDS, depends_table, floors
from kci.config.model import Build, KernelDependency
from kci.config.urls import GitUrl, Upstream
from kci.config.values import NAME_PATTERN, Backend
from kci.errors import FindingsError, rule_error
from kci.tree.identity import (
    SIGNATURE,
    Commit,
    Digest,
    GitState,
    file_hashes,
    kernel_id,
    make_digest,
)
from kci.utils.atomic import write_atomic
from kci.utils.bounded_json import encode_file, read_bounded, reading, strict_object
from kci.utils.frozen import Frozen
from kci.utils.shipped import to_type
from kci.utils.walk import remove_bytecode
from kci.version import __version__


def python_depends(build: Build, backend: str) -> tuple[str, ...]:
    """General and backend dependencies for the metadata; all lists are checked, as in the reference
    (KCI720).
    """
    table = depends_table()
    recorded: tuple[str, ...] = ()
    for name, part in build.general.tables.items():
        if name and not BACKENDS[name].depends_recorded:
            continue
        names = part.python_depends or ()
        known = table.backends.get(name, {}) if name else table.general
        for unknown in (item for item in names if item not in known):
            raise rule_error(
                "KCI720",
                f"{f'general.{name}' if name else 'general'}.python-depends names {unknown!r}, "
                "which the loader does not know",
                "build.toml",
                hint=f"it can hold {', '.join(sorted(known)) or 'nothing'}, and no other package",
            )
        recorded += names if name in ("", backend) else ()
    return recorded


def unrecorded_depends(backend: str) -> tuple[str, ...]:
    """Dependencies that the backend's metadata cannot hold."""
    names = () if BACKENDS[backend].depends_recorded else depends_table().backends.get(backend, ())
    return tuple(sorted(names))


def kernel_depends(build: Build, backend: str) -> tuple[KernelDependency, ...]:
    """General and backend kernel dependencies."""
    own = getattr(build.general.tables.get(backend), "kernel_depends", None)
    return (build.general.kernel_depends or ()) + (own or ())


def kernels_minver(kernel_depends: Sequence[KernelDependency], upstreams: int) -> str:
    """Oldest `kernels` release that loads such a variant (docs/format.md#later)."""
    oldest = floors().kernels
    if upstreams > 1:
        return oldest.several_upstreams
    return oldest.kernel_depends if kernel_depends else oldest.any


FILE_NAME = "metadata.json"
MAX_BYTES = 16 * 1024 * 1024

_LARGEST = 2**64 - 1


class BuilderRecord(Frozen, omit_defaults=True):
    """The tool that built the variant."""

    version: str
    commit: Commit | None = None
    dirty: bool | None = None

    def __post_init__(self) -> None:
        if (self.commit is None) != (self.dirty is None):
            raise ValueError("`commit` and `dirty` come together or not at all")


class Provenance(Frozen, rename="kebab", omit_defaults=True):
    """The source of a variant."""

    kernel_builder: BuilderRecord
    kernel: GitState | None = None


class KciRecord(Frozen, omit_defaults=True):
    """kci's own keys, which other readers ignore."""

    variant: str
    """Name at build time; the directory may be renamed."""
    committed: int | None = None
    """Commit time in seconds since 1970; orders builds without a clone."""


class BackendRecord(Frozen, omit_defaults=True):
    """The backend and the GPU architectures of the code."""

    type: Backend
    archs: tuple[str, ...] | None = None


class Metadata(Frozen, rename="kebab", kw_only=True, omit_defaults=True):
    """`metadata.json`; fields are in file order."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    id: str
    version: Annotated[int, Meta(ge=0)]
    kernels_minver: (
        Annotated[str, Meta(pattern=r"^[0-9]{1,20}\.[0-9]{1,20}\.[0-9]{1,20}\Z")] | None
    ) = None
    """Oldest loader, as `major.minor.patch`."""
    license: str
    upstream: str | tuple[str, ...] | None = None
    source: str | None = None
    python_depends: tuple[str, ...]
    kernel_depends: tuple[KernelDependency, ...] = msgspec.field(default_factory=lambda: ())
    """Written also if it is empty."""
    backend: BackendRecord
    digest: Digest | None = None
    provenance: Provenance | None = None
    kci: KciRecord | None = None

    def __post_init__(self) -> None:
        if not self.id.isascii() or not self.id.isidentifier() or keyword.iskeyword(self.id):
            raise ValueError(f"`id` {self.id!r} is not a Python module name")
        for number in (self.version, *map(int, (self.kernels_minver or "0").split("."))):
            if number > _LARGEST:
                raise ValueError(f"the number {str(number)[:30]} is larger than 64 bits can hold")
        for url in (*self.upstreams, self.source):
            if url is not None:
                GitUrl.parse(url)

    @property
    def unique(self) -> str:
        """The part of the kernel id that identifies the source."""
        return self.id.rpartition(f"_{self.backend.type}_")[2]

    @property
    def made_from(self) -> GitState | None:
        """The commit of the sources."""
        return self.provenance.kernel if self.provenance else None

    @property
    def committed(self) -> int | None:
        """The time of that commit."""
        return self.kci.committed if self.kci else None

    @property
    def upstreams(self) -> tuple[str, ...]:
        return (self.upstream,) if isinstance(self.upstream, str) else self.upstream or ()


def metadata_for(
    build: Build,
    backend: str,
    unique: str,
    *,
    archs: Iterable[str] | None = None,
    provenance: GitState | None = None,
    variant: str | None = None,
    committed: int | None = None,
) -> Metadata:
    """Make the metadata of a variant before sealing; `unique` is `identity.unique_id`, `archs` are
    those built.
    """
    kind = Backend(backend)
    upstreams = build.general.upstream or Upstream()
    depends = kernel_depends(build, kind)
    return Metadata(
        name=build.name,
        id=kernel_id(build.name, kind, unique),
        version=build.general.version,
        kernels_minver=kernels_minver(depends, len(upstreams)),
        license=build.general.license,
        upstream=upstreams.to_toml() if upstreams else None,
        source=str(build.general.source) if build.general.source is not None else None,
        python_depends=python_depends(build, kind),
        kernel_depends=depends,
        backend=BackendRecord(kind, _archs(build, kind, archs)),
        provenance=Provenance(
            # the version text is free: the suffix names kci
            kernel_builder=BuilderRecord(version=f"{__version__}+kci"),
            kernel=provenance,
        ),
        kci=KciRecord(variant, committed) if variant is not None else None,
    )


def _archs(build: Build, backend: Backend, archs: Iterable[str] | None) -> tuple[str, ...] | None:
    if build.torch_noarch:
        return build.torch_noarch.archs(backend)
    if not BACKENDS[backend].archs or archs is None:
        return None
    return tuple(sorted({arch for arch in archs if arch})) or None


def encode(metadata: Metadata) -> bytes:
    """Encode a `metadata.json`, without a final newline."""
    return encode_file(metadata).rstrip()


def read_metadata(path: Path) -> Metadata:
    """Read a `metadata.json`. Raises FindingsError."""
    with reading(path, "a metadata file", rule="KCI710"):
        return decode(read_bounded(path, MAX_BYTES))


def decode(data: bytes) -> Metadata:
    """Decode a `metadata.json`. Raises ValueError."""
    raw = strict_object(data)
    origin = raw.get("provenance")
    for key in ("kernel-builder", "kernel"):
        record = origin.get(key) if isinstance(origin, dict) else None
        if not isinstance(record, dict):
            continue
        if "sha" in record:  # an older name
            if "commit" in record:
                raise ValueError(f"`provenance.{key}` has both `commit` and its older name `sha`")
            record["commit"] = record.pop("sha")
        if isinstance(commit := record.get("commit"), str):
            record["commit"] = commit.lower()
    return to_type(raw, Metadata)


def seal(variant_dir: Path, metadata: Metadata) -> Metadata:
    """Hash a variant's files and write `metadata.json` last; bytecode and old signatures are
    removed.
    """
    if not variant_dir.is_dir():
        raise FindingsError(f"{variant_dir} is not a directory")
    remove_bytecode(variant_dir)
    (variant_dir / SIGNATURE).unlink(missing_ok=True)
    sealed = msgspec.structs.replace(metadata, digest=make_digest(file_hashes(variant_dir)))
    write_atomic(variant_dir / FILE_NAME, encode(sealed))
    (variant_dir / FILE_NAME).chmod(0o644)  # independent of the umask
    return sealed


MARK = "kci-partial.json"
"""Beside metadata.json; the loader ignores it."""


def mark_partial(variant_dir: Path, archs: Iterable[str]) -> None:
    """Mark an unsealed variant as partial."""
    text = json.dumps(
        {
            "archs": sorted(archs),
            "note": "made with `kci build --arch`: a part, not to be published",
        }
    )
    (variant_dir / MARK).write_text(f"{text}\n", encoding="utf-8")


def refuse_partial(variant_dir: Path) -> None:
    """Raise FindingsError (KCI617) for a partial variant."""
    if (variant_dir / MARK).exists():
        raise rule_error(
            "KCI617",
            f"{variant_dir} was built with --arch and lacks code for the other GPUs",
            variant_dir,
            hint="build the variant again without --arch",
        )
