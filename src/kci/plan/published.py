"""Which variants need not be built, because a tree already has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from kci.diagnostics import finding
from kci.errors import FindingsError

MANIFEST = "kci-manifest.json"
SCHEMA = 1
_MAX_BYTES = 16 * 1024 * 1024


class _Present(msgspec.Struct, frozen=True):
    variant: str
    fingerprint: str | None = None


class _Manifest(msgspec.Struct, frozen=True):
    schema: int
    kernel: str
    present: tuple[_Present, ...]


def published(places: Iterable[Path]) -> dict[tuple[str, str], str]:
    """The fingerprints of published variants, by kernel and variant name.

    Args:
        places: manifests, or trees that have one.

    Raises:
        FindingsError: a manifest is not there or cannot be read (KCI313).
    """
    found: dict[tuple[str, str], str] = {}
    for place in places:
        manifest = _read(place / MANIFEST if place.is_dir() else place)
        for entry in manifest.present:
            if entry.fingerprint is not None:
                found[manifest.kernel, entry.variant] = entry.fingerprint
    return found


def already(
    fingerprints: Mapping[tuple[str, str], str], known: Mapping[tuple[str, str], str]
) -> dict[tuple[str, str], str]:
    """The variants that need not be built, and why."""
    return {
        key: f"published already with the same fingerprint, {value[:12]}"
        for key, value in fingerprints.items()
        if known.get(key) == value
    }


def _read(path: Path) -> _Manifest:
    hint = f"name the {MANIFEST} of a published tree, or the tree"
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES)
        manifest = msgspec.json.decode(raw, type=_Manifest)
        if manifest.schema != SCHEMA:
            raise ValueError(f"schema {manifest.schema} is not known; this kci reads schema {SCHEMA}")
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
    except (ValueError, RecursionError) as error:
        message = f"{path} is not a manifest: {error}"
    else:
        return manifest
    raise FindingsError(message, hint=hint, diagnostics=[finding("KCI313", message, hint=hint, path=str(path))])
