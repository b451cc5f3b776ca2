"""`leg.json`: what one leg says about the variant that it built. It is the first member of an artifact."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.matrix.names import SYSTEMS, artifact_stem, parse_variant_name
from kci.tree.digest import validate_dir, variant_digest
from kci.tree.findings import tree_error
from kci.tree.identity import GitState
from kci.tree.metadata import FILE_NAME, NAME_PATTERN, Metadata, read_metadata
from kci.version import __version__

SCHEMA = 1
LEG_NAME = "leg.json"


Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._+-]{0,64}\Z")]
"""Text that ends up in manifests and summaries, so nothing in it may drive a terminal or a page."""


class LegRecord(msgspec.Struct, frozen=True):
    """What was built, where and from what. Unknown keys are ignored, so that a newer kci may add some."""

    schema: int
    kernel: Annotated[str, Meta(pattern=NAME_PATTERN)]
    version: Annotated[int, Meta(ge=0)]
    variant: str
    backend: str
    system: str
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """`variant_digest` of the directory."""
    kci: Word
    builder: Word
    attempt: Annotated[int, Meta(ge=1)] = 1
    source: GitState | None = None
    seconds: float | None = None
    archs: tuple[Word, ...] | None = None

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"schema {self.schema} is not known; this kci reads schema {SCHEMA}")
        if parse_variant_name(self.variant).backend != self.backend:
            raise ValueError(f"the variant {self.variant} is not one of backend {self.backend!r}")
        if self.source is not None and not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", self.source.commit):
            raise ValueError("`source.commit` is not a full commit id")
        if self.system not in SYSTEMS:
            raise ValueError(f"{self.system!r} is not a system")


def artifact_name(kernel: str, variant: str, *, zstd: bool = False) -> str:
    """The file name of an artifact: `kci-<kernel>-<variant>.tar`, or `.tar.zst`."""
    return f"{artifact_stem(kernel, variant)}.tar{'.zst' if zstd else ''}"


def leg_for(
    variant_dir: Path,
    *,
    system: str,
    builder: str,
    attempt: int = 1,
    source: GitState | None = None,
    seconds: float | None = None,
) -> LegRecord:
    """Describe a sealed variant directory.

    Args:
        variant_dir: the directory; its name is the variant's name.
        system: the system that the variant was built on. An arch variant's own name has the last word.
        builder: which builder made it: `noarch`, `native`, `nix`.
        attempt: the attempt of the run; of two artifacts for one variant the higher one wins.
        source: the commit it was built from; taken from the metadata if it is not given.
        seconds: how long the build took.

    Raises:
        FindingsError: the directory is no sealed variant.
    """
    metadata = read_sealed(variant_dir)
    try:
        name = parse_variant_name(variant_dir.name)
        kernel = metadata.provenance.kernel if metadata.provenance else None
        return LegRecord(
            schema=SCHEMA,
            kernel=metadata.name,
            version=metadata.version,
            variant=variant_dir.name,
            backend=metadata.backend.type.value,
            system=name.system or system,
            digest=variant_digest(variant_dir),
            kci=__version__,
            builder=builder,
            attempt=attempt,
            source=source or (GitState(kernel.commit, kernel.dirty) if kernel else None),
            seconds=seconds,
            archs=metadata.backend.archs,
        )
    except ValueError as error:
        raise tree_error("KCI602", f"{variant_dir}: {error}", path=str(variant_dir)) from error


def read_sealed(variant_dir: Path) -> Metadata:
    """The metadata of a variant directory whose files agree with the digest in it.

    Raises:
        FindingsError: no valid metadata, no digest, or files that differ from it.
    """
    metadata = read_metadata(variant_dir / FILE_NAME)
    hint = "seal it again: kci pack --seal"
    if metadata.digest is None:
        raise tree_error("KCI603", f"{variant_dir} has no digest in its metadata", hint=hint, path=str(variant_dir))
    violations = validate_dir(variant_dir, metadata.digest)
    if violations:
        shown = "; ".join(str(violation) for violation in violations[:5])
        more = f" (and {len(violations) - 5} more)" if len(violations) > 5 else ""
        raise tree_error("KCI603", f"{variant_dir} was not sealed: {shown}{more}", hint=hint, path=str(variant_dir))
    return metadata


def decode_leg(data: bytes) -> LegRecord:
    """Read the bytes of a `leg.json`.

    Raises:
        ValueError: what is wrong with them.
    """
    return msgspec.json.decode(data, type=LegRecord)
