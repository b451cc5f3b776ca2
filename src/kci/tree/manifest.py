"""`kci-manifest.json` at a tree's top: what was planned, what is there, and where each variant came from.

It holds no times but those of commits, and no paths of the machine that merged, so equal inputs give equal bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from kci.config.schema import answer_schema
from kci.files.bounded_json import read_json
from kci.inputs.recorded import RecordedInputs
from kci.tree.findings import tree_error
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
    inputs: str | None = None
    """Under which key of the manifest's `inputs` stands what its build really read."""


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
    inputs: dict[str, RecordedInputs] = {}
    """What builds read. Variants that read the same, as those of one backend mostly do, share an entry."""
    schema: int = SCHEMA
    created_by: str = f"kci {__version__}"

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each variant that is there."""
        return {item.variant: item.digest for item in self.present}

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"schema {self.schema} is not known; this kci reads schema {SCHEMA}")


_ORDER = (
    "schema", "created_by", "kernel", "version", "complete", "planned", "present", "missing", "replaced", "inputs",
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


def inputs_key(inputs: RecordedInputs) -> str:
    """The key of a record: a hash of it."""
    return hashlib.sha256(msgspec.json.encode(inputs, order="deterministic")).hexdigest()[:16]


def load_manifest(path: Path) -> Manifest:
    """Read a manifest file: the one reader of them.

    Raises:
        OSError: it cannot be read.
        ValueError: the text is not a manifest.
    """
    return read_json(path, Manifest)


def read_manifest(tree: Path) -> Manifest | None:
    """The manifest of a tree, or None if it has none.

    Raises:
        FindingsError: there is one, and it cannot be read.
    """
    path = tree / FILE_NAME
    try:
        return load_manifest(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise tree_error("KCI611", f"cannot read {path}: {error.strerror}", path=str(path)) from error
    except ValueError as error:
        raise tree_error(
            "KCI611", f"{path} is not a manifest: {error}", hint="remove it and merge again", path=str(path)
        ) from error


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema of a manifest."""
    return answer_schema(Manifest, f"{FILE_NAME}: the record of a merged tree")
