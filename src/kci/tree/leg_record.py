"""`leg.json`, the first member of an artifact: what a leg says about the variant it built."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.build.toolchains.compilers import ObjectUse
from kci.config.values import NAME_PATTERN, SYSTEMS
from kci.errors import rule_error
from kci.matrix.variants import parse_variant_name
from kci.plan.estimates import Seconds
from kci.tree.digest import directory_digest, file_hashes, validate_dir
from kci.tree.kernel_id import GitState
from kci.tree.metadata import FILE_NAME, Metadata, read_metadata
from kci.utils.bounded_json import decode_json, require_schema
from kci.version import __version__

SCHEMA = 1
LEG_NAME = "leg.json"


MAX_ATTEMPT = 1000
"""A larger number is a mistake or an attack: GitHub allows 50 attempts."""


Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._+-]{0,64}\Z")]
"""Text for manifests and summaries, which must not drive a terminal or a page."""


class LegRecord(msgspec.Struct, frozen=True):
    """The variant, where it was built and from what. Unknown keys are ignored, so a newer kci may add some."""

    schema: int
    kernel: Annotated[str, Meta(pattern=NAME_PATTERN)]
    version: Annotated[int, Meta(ge=0)]
    variant: str
    backend: str
    system: str
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """`directory_digest` of the variant."""
    kci: Word
    builder: Word
    attempt: Annotated[int, Meta(ge=1, le=MAX_ATTEMPT)] = 1
    run: Word = ""
    """CI run; empty outside of one."""
    source: GitState | None = None
    seconds: Seconds | None = None
    archs: tuple[Word, ...] | None = None
    objects: ObjectUse | None = None
    """Reused objects and the runs that they come from."""

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)
        if parse_variant_name(self.variant).backend != self.backend:
            raise ValueError(f"the variant {self.variant} is not one of backend {self.backend!r}")
        if self.system not in SYSTEMS:
            raise ValueError(f"{self.system!r} is not a system")


def leg_for(
    variant_dir: Path,
    *,
    system: str,
    builder: str,
    attempt: int = 1,
    run: str = "",
    source: GitState | None = None,
    seconds: float | None = None,
    objects: ObjectUse | None = None,
) -> LegRecord:
    """Describe a sealed variant directory. Raises FindingsError: it is not one.

    `system` is where it was built, for names without a system; `source` is for metadata without a commit.
    """
    try:
        name = parse_variant_name(variant_dir.name)
    except ValueError as error:
        raise rule_error("KCI710", f"{variant_dir}: {error}", path=str(variant_dir)) from error
    sealed = read_sealed(variant_dir)
    metadata = sealed.metadata
    try:
        kernel = metadata.provenance.kernel if metadata.provenance else None
        return LegRecord(
            schema=SCHEMA,
            kernel=metadata.name,
            version=metadata.version,
            variant=variant_dir.name,
            backend=metadata.backend.type.value,
            system=name.system or system,
            digest=sealed.digest,
            kci=__version__,
            builder=builder,
            attempt=attempt,
            run=run,
            source=kernel or source,
            seconds=seconds,
            archs=metadata.backend.archs,
            objects=objects,
        )
    except ValueError as error:
        raise rule_error("KCI710", f"{variant_dir}: {error}", path=str(variant_dir)) from error


class SealedVariant(msgspec.Struct, frozen=True):
    """A variant directory that agrees with its metadata."""

    metadata: Metadata
    hashes: dict[str, str]
    """Hex sha256 by file name."""

    @property
    def digest(self) -> str:
        return directory_digest(self.hashes)


def read_sealed(variant_dir: Path, hashes: dict[str, str] | None = None, name: str | None = None) -> SealedVariant:
    """Read a variant directory and check its files against its metadata.

    `hashes` are reused if given; `name` replaces the directory's name. Raises FindingsError: no valid metadata, no
    digest, changed files, or metadata of another variant.
    """
    metadata = read_metadata(variant_dir / FILE_NAME)
    hint = "seal it again: kci pack --seal"
    where = str(variant_dir)
    if metadata.digest is None:
        raise rule_error("KCI603", f"{variant_dir} has no digest in its metadata", hint=hint, path=where)
    hashes = file_hashes(variant_dir) if hashes is None else hashes
    if violations := validate_dir(variant_dir, metadata.digest, hashes):
        shown = "; ".join(str(violation) for violation in violations[:5])
        more = f" (and {len(violations) - 5} more)" if len(violations) > 5 else ""
        raise rule_error("KCI603", f"{variant_dir} was not sealed: {shown}{more}", hint=hint, path=where)
    name = name or variant_dir.name
    if metadata.kci is not None and metadata.kci.variant != name:
        message = f"{variant_dir} was built as {metadata.kci.variant}; a directory that is renamed is no other variant"
        raise rule_error("KCI612", message, hint=f"call it {metadata.kci.variant}, or build {name}", path=where)
    return SealedVariant(metadata, hashes)


def decode_leg(data: bytes) -> LegRecord:
    """Read a `leg.json`. Raises ValueError with the reason."""
    return decode_json(data, LegRecord)
