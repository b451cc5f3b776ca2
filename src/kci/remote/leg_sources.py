"""What travels to where a leg runs: archives of sources and of trees, by their digest."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from kci.config.reader import Kernel
from kci.config.settings import KCI_TOML
from kci.errors import FindingsError
from kci.files.replace import flush
from kci.files.walk import is_bytecode, is_own, walk
from kci.remote.job import JobFile
from kci.workspace.workspace import Workspace

SOURCES = "source.tar"
TREE = "tree.tar"


def place_of(workspace: Workspace, kernel: Kernel) -> str:
    """Where a kernel lies in the archive of sources: as in its repository, so that kci.toml is found above it."""
    directory, root = Path(kernel.directory).resolve(), workspace.settings.root.resolve()
    below = directory.relative_to(root) if directory.is_relative_to(root) else kernel.build.name
    return (PurePosixPath("source") / below).as_posix()


def pack_sources(workspace: Workspace, kernel: Kernel, inputs: Path) -> JobFile:
    """The archive of all that a kernel's legs read, the same bytes for the same files, in the folder of inputs."""
    root, place = workspace.settings.root, place_of(workspace, kernel)
    files = {f"{place}/{item.name}": item.path for item in walk(Path(kernel.directory)) if is_own(item.name)}
    if workspace.settings.document is not None:
        files[f"source/{KCI_TOML}"] = root / KCI_TOML
        catalog = workspace.settings.settings.catalog
        if catalog and (root / catalog).is_file():
            files[f"source/{PurePosixPath(catalog)}"] = root / catalog
    for declared in workspace.settings.settings.inputs_of(kernel.build.name):
        below = root / declared
        entries = walk(below) if below.is_dir() else ()
        files |= {f"source/{declared}/{item.name}": item.path for item in entries if not is_bytecode(item.name)}
        files |= {f"source/{declared}": below} if below.is_file() else {}
    if workspace.catalog_name and workspace.catalog_file:
        files["catalog.toml"] = workspace.catalog_file
    return _pack(SOURCES, files, inputs)


def pack_variants(tree: Path, variants: Iterable[str], inputs: Path) -> JobFile:
    """The archive of some variants of a tree, in the folder of inputs."""
    files = {f"tree/{name}/{item.name}": item.path for name in variants for item in walk(tree / name)}
    return _pack(TREE, files, inputs)


def _pack(name: str, files: Mapping[str, Path], inputs: Path) -> JobFile:
    """A tar of files and links, without owners and times, under its digest."""
    inputs.mkdir(parents=True, exist_ok=True)
    beside = inputs / f".{name}.{os.getpid()}.new"
    with tarfile.open(beside, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for place, path in sorted(files.items()):
            entry = tarfile.TarInfo(place)
            try:
                if path.is_symlink():
                    entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
                    archive.addfile(entry)
                elif path.is_file():
                    content = path.read_bytes()
                    entry.size, entry.mode = len(content), 0o755 if path.stat().st_mode & 0o100 else 0o644
                    archive.addfile(entry, io.BytesIO(content))
            except OSError as error:
                beside.unlink()
                raise FindingsError(f"cannot read {path}: {error.strerror}") from error
    with beside.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = beside.stat().st_size
    flush(beside)
    beside.replace(inputs / digest)
    return JobFile(name, digest, size)
