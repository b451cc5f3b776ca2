"""Which kci.toml holds for a kernel, and reading it.

The file lies at the root of the repository: the nearest directory at or above a kernel that has a `.git`. Outside of a
repository the nearest kci.toml at or above the kernel counts, up to the border of the file system, and only if it
belongs to the user or to root: a file that somebody else left in a shared directory must not choose runners.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kci.config.document import Document, read_document
from kci.config.reader import read_as
from kci.config.settings import KCI_TOML, Settings
from kci.errors import UsageError


class FoundSettings(msgspec.Struct, frozen=True):
    """The settings that hold for a kernel, and where they come from."""

    settings: Settings = Settings()
    root: Path = Path()
    """The directory that paths in kci.toml are relative to."""
    document: Document | None = None
    """The file; None where the defaults hold."""

    @property
    def catalog(self) -> str | None:
        """What to load the catalog from: an edition's name, or the path of a file relative to kci.toml."""
        chosen = self.settings.catalog
        if chosen is None or not ("/" in chosen or chosen.endswith(".toml")):
            return chosen
        return str(self.root / chosen)

    @property
    def publishes(self) -> bool:
        """Whether the kernels are published: asked for by a `[publish]`, even an empty one."""
        return self.document is not None and "publish" in self.document.data

    @property
    def trust_config(self) -> Path | None:
        """The trust file of a private Sigstore; None for the public one."""
        name = self.settings.signing.trust_config
        return self.root / name if name else None


def find_settings(directory: str | Path) -> FoundSettings:
    """The settings for a kernel directory: those of its kci.toml (see the module's text), or the defaults.

    Raises:
        FindingsError: the file is not valid; it carries every diagnostic.
    """
    root, path = locate(Path(directory))
    if path is None:
        return FoundSettings(root=root)
    document = read_document(path, _shown(path))
    return FoundSettings(read_as(document, Settings), root, document)


def settings_for(directories: Sequence[str]) -> FoundSettings:
    """The settings that several kernels share.

    Raises:
        UsageError: they lie in different repositories with a kci.toml.
        FindingsError: see `find_settings`.
    """
    places = {locate(Path(directory)): directory for directory in directories or (".",)}
    files = {path for _, path in places if path is not None}
    if len(files) > 1:
        shown = " and ".join(sorted(_shown(path) for path in files))
        raise UsageError(f"the kernels have different settings: {shown}", hint="name the kernels of one repository")
    with_file = [directory for (_, path), directory in places.items() if path is not None]
    return find_settings(with_file[0] if with_file else next(iter(places.values())))


def locate(directory: Path) -> tuple[Path, Path | None]:
    """The root for a directory, and the kci.toml there if there is one."""
    start = directory.resolve()
    above = (start, *start.parents)
    for place in above:
        if (place / ".git").exists():
            file = place / KCI_TOML
            return place, file if os.path.lexists(file) else None
    device = start.stat().st_dev if start.exists() else None
    for place in above:
        if device is not None and place.stat().st_dev != device:
            break
        file = place / KCI_TOML
        # of no use on Windows, where the owner is unknown
        if sys.platform != "win32" and file.is_file() and file.stat().st_uid in (0, os.getuid()):
            return place, file
    return start, None


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.path.join("..", "..", "..")) else relative  # noqa: PTH118


def settings_schema() -> dict[str, Any]:
    """The JSON Schema of kci.toml, for editors; made from the types that read it."""
    from kci.config.schema import document_schema, value_definition

    title = "kci.toml: how and where a repository wants its GPU kernels built"
    return document_schema(Settings, title, value_definition, file="kci.schema.json")
