"""`metadata.json` (docs/format.md#metadata), and the mark of a partial variant."""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kci.config.facts import PythonPackage, depends_table, floors
from kci.config.model import Build, KernelDependency
from kci.config.urls import GitUrl, Upstream
from kci.config.values import NAME_PATTERN, Backend
from kci.errors import FindingsError, rule_error
from kci.tree.identity import SIGNATURE, Digest, GitState, check_commit, digest_of, file_hashes, kernel_id
from kci.utils.atomic import write_atomic
from kci.utils.bounded_json import read_bounded, strict_object
from kci.utils.shipped import to_type
from kci.utils.walk import remove_bytecode
from kci.version import __version__

_RESOLVED = (Backend.CUDA, Backend.TPU, Backend.XPU)
"""Backends whose `python-depends` reach the metadata. Neuron's are read and ignored."""


def python_depends(build: Build, backend: str) -> tuple[str, ...]:
    """Python dependencies for the metadata: the general ones, then the backend's.

    All backends' lists are checked, declared or not, as in the reference (KCI720).
    """
    table = depends_table()
    general = build.general.python_depends or ()
    _require(general, table.general, "general.python-depends")
    by_backend: dict[str, tuple[str, ...]] = {}
    for name in _RESOLVED:
        part = getattr(build.general, name.value)
        names = (part.python_depends or ()) if part is not None else ()
        _require(names, table.backends.get(name.value, {}), f"general.{name.value}.python-depends")
        by_backend[name.value] = names
    return general + by_backend.get(backend, ())


def unrecorded_depends(backend: str) -> tuple[str, ...]:
    """Allowed dependencies of a backend that its metadata cannot express."""
    return () if backend in _RESOLVED else tuple(sorted(depends_table().backends.get(backend, ())))


def _require(names: tuple[str, ...], known: dict[str, PythonPackage], key: str) -> None:
    choice = f"it can hold {', '.join(sorted(known))}" if known else "this backend has no curated names"
    for name in names:
        if name not in known:
            message = f"{key} names {name!r}, which the loader does not know"
            hint = f"{choice}; no other package can be a dependency"
            raise rule_error("KCI720", message, hint=hint, path="build.toml")


def kernel_depends(build: Build, backend: str) -> tuple[KernelDependency, ...]:
    """Kernels that a variant depends on: the general ones, then the backend's (cuda, neuron, xpu)."""
    part = getattr(build.general, backend, None) if backend in ("cuda", "neuron", "xpu") else None
    own = (part.kernel_depends or ()) if part is not None else ()
    return (build.general.kernel_depends or ()) + own


def kernels_minver(kernel_depends: Sequence[KernelDependency], upstreams: int) -> str:
    """The oldest `kernels` library that can load a variant, by its number of upstreams (docs/format.md#later)."""
    oldest = floors().kernels
    if upstreams > 1:
        return oldest.several_upstreams
    return oldest.kernel_depends if kernel_depends else oldest.any


FILE_NAME = "metadata.json"
MAX_BYTES = 16 * 1024 * 1024
"""A larger file is not a metadata file."""

_LARGEST = 2**64 - 1


class BuilderRecord(msgspec.Struct, frozen=True):
    """The tool that built the variant. `commit` and `dirty` are both set or both absent."""

    version: str
    commit: str | None = None
    dirty: bool | None = None

    def __post_init__(self) -> None:
        if (self.commit is None) != (self.dirty is None):
            raise ValueError("`commit` and `dirty` come together or not at all")
        if self.commit is not None:
            check_commit(self.commit)


class Provenance(msgspec.Struct, frozen=True, rename="kebab"):
    """The source of a variant."""

    kernel_builder: BuilderRecord
    kernel: GitState | None = None


class KciRecord(msgspec.Struct, frozen=True):
    """kci's additions; other readers ignore unknown keys."""

    variant: str
    """The variant's name at build time; a directory can be renamed."""
    committed: int | None = None
    """Commit time in seconds since 1970: it orders two builds without a clone."""


class BackendRecord(msgspec.Struct, frozen=True):
    """The backend, and the GPU architectures in the variant's code."""

    type: Backend
    archs: tuple[str, ...] | None = None


class Metadata(msgspec.Struct, frozen=True, rename="kebab"):
    """`metadata.json`; fields in the order in which they are written."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    id: str
    version: Annotated[int, Meta(ge=0)]
    kernels_minver: Annotated[str, Meta(pattern=r"^[0-9]{1,20}\.[0-9]{1,20}\.[0-9]{1,20}\Z")] | None = None
    """Oldest loader that can load the variant, as `major.minor.patch`."""
    license: str = ""
    upstream: str | tuple[str, ...] | None = None
    """One URL or several."""
    source: str | None = None
    python_depends: tuple[str, ...] = ()
    kernel_depends: tuple[KernelDependency, ...] = ()
    backend: BackendRecord = BackendRecord(Backend.CPU)
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
        """Unique id inside the kernel id; it changes with the source."""
        return self.id.rpartition(f"_{self.backend.type.value}_")[2]

    @property
    def upstreams(self) -> tuple[str, ...]:
        return (self.upstream,) if isinstance(self.upstream, str) else self.upstream or ()


_REQUIRED = ("name", "id", "version", "license", "python-depends", "backend")
"""Keys that the reference's reader requires."""


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
    """Make the metadata of a variant that is not sealed yet.

    `unique` comes from `kernel_id.unique_id`; `archs` are those that were built; `committed` is in seconds since 1970.
    """
    kind = Backend(backend)
    upstreams = build.general.upstream or Upstream()
    depends = kernel_depends(build, kind.value)
    return Metadata(
        name=build.name,
        id=kernel_id(build.name, kind.value, unique),
        version=build.general.version,
        kernels_minver=kernels_minver(depends, len(upstreams)),
        license=build.general.license,
        upstream=upstreams.spelt() if upstreams else None,
        source=str(build.general.source) if build.general.source is not None else None,
        python_depends=python_depends(build, kind.value),
        kernel_depends=depends,
        backend=BackendRecord(kind, _archs(build, kind, archs)),
        provenance=Provenance(
            # Version text is free. The suffix says that kci, not the reference's builder, was at work.
            kernel_builder=BuilderRecord(version=f"{__version__}+kci"),
            kernel=provenance,
        ),
        kci=KciRecord(variant, committed) if variant is not None else None,
    )


def _archs(build: Build, backend: Backend, archs: Iterable[str] | None) -> tuple[str, ...] | None:
    if build.torch_noarch is not None:
        noarch = {Backend.CUDA: build.torch_noarch.cuda_capabilities, Backend.ROCM: build.torch_noarch.rocm_archs}
        return noarch.get(backend)
    if backend not in (Backend.CUDA, Backend.ROCM) or archs is None:
        return None
    return tuple(sorted({arch for arch in archs if arch})) or None


def encode(metadata: Metadata) -> bytes:
    """Encode `metadata.json`: indented by two spaces, no newline at the end."""
    data = _without_none(msgspec.to_builtins(metadata))
    return json.dumps(data, indent=2, ensure_ascii=False).encode()


def _without_none(value: Any) -> Any:
    """The reference leaves keys without a value out instead of writing null."""
    match value:
        case dict():
            return {key: _without_none(item) for key, item in value.items() if item is not None}
        case list() | tuple():
            return [_without_none(item) for item in value]
        case _:
            return value


def read_metadata(path: Path) -> Metadata:
    """Read a `metadata.json`, strictly.

    Raises FindingsError: missing, unreadable, or with an id that is no identifier.
    """
    try:
        return decode(read_bounded(path, MAX_BYTES))
    except OSError as error:
        raise rule_error("KCI710", f"cannot read {path}: {error.strerror}", path=str(path)) from error
    except ValueError as error:
        raise rule_error("KCI710", f"{path} is not a metadata file: {error}", path=str(path)) from error


def decode(data: bytes) -> Metadata:
    """Read the bytes of a metadata file. Raises ValueError with the reason."""
    raw = strict_object(data)
    missing = [key for key in _REQUIRED if key not in raw]
    if missing:
        raise ValueError(f"the key `{missing[0]}` is missing")
    # None stands for "not there" in the types above, so a null has to be refused before.
    for key in ("kernel-depends", "python-depends", "license"):
        if key in raw and raw[key] is None:
            raise ValueError(f"`{key}` is null")
    return to_type(_canonical_provenance(raw), Metadata)


def _canonical_provenance(raw: dict[str, Any]) -> dict[str, Any]:
    """Accepts the older key `sha` for `commit`, and lowers the case."""
    record = raw.get("provenance")
    if not isinstance(record, dict):
        return raw
    parts = {
        key: _canonical_commit(key, part) if key in ("kernel-builder", "kernel") and isinstance(part, dict) else part
        for key, part in record.items()
    }
    return raw | {"provenance": parts}


def _canonical_commit(key: str, record: dict[str, Any]) -> dict[str, Any]:
    if "sha" in record and "commit" in record:
        raise ValueError(f"`provenance.{key}` has both `commit` and its older name `sha`")
    renamed = {"commit" if name == "sha" else name: value for name, value in record.items()}
    commit = renamed.get("commit")
    return renamed | {"commit": commit.lower()} if isinstance(commit, str) else renamed


def seal(variant_dir: Path, metadata: Metadata) -> Metadata:
    """Remove bytecode and old signatures, hash the files, write `metadata.json` last, and return it."""
    if not variant_dir.is_dir():
        raise FindingsError(f"{variant_dir} is not a directory")
    remove_bytecode(variant_dir)
    (variant_dir / SIGNATURE).unlink(missing_ok=True)
    sealed = msgspec.structs.replace(metadata, digest=digest_of(file_hashes(variant_dir)))
    write_atomic(variant_dir / FILE_NAME, encode(sealed))
    (variant_dir / FILE_NAME).chmod(0o644)  # as the other files of a variant, whatever the umask is
    return sealed


MARK = "kci-partial.json"
"""Lies beside metadata.json; the loader ignores it."""


def mark_partial(variant_dir: Path, archs: Iterable[str]) -> None:
    """Mark an unsealed variant as partial, with the requested archs."""
    text = json.dumps({"archs": sorted(archs), "note": "made with `kci build --arch`: a part, not to be published"})
    (variant_dir / MARK).write_text(f"{text}\n", encoding="utf-8")


def refuse_partial(variant_dir: Path) -> None:
    """Raise FindingsError (KCI617) for a variant that is marked as partial."""
    if (variant_dir / MARK).exists():
        message = f"{variant_dir} was built with --arch and lacks code for the other GPUs"
        raise rule_error("KCI617", message, hint="build the variant again without --arch", path=str(variant_dir))
