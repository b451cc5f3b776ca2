"""Trees of earlier runs: whether they are those that were judged, their places, and how they are
packed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from kci.plan.plan import Plan
from kci.tree.identity import directory_digest, file_hashes
from kci.tree.manifest import Manifest, manifest_paths, read_manifest
from kci.utils.archive import add_file, written_archive
from kci.utils.walk import is_bytecode, walk


def is_judged(tree: Path, digest: str) -> bool:
    """True if a tree has this digest, and its files are those of its manifest."""
    if not digest:
        return True
    manifest = read_manifest(tree)
    return (
        manifest is not None
        and manifest.digest == digest
        and not any(is_bytecode(file.name) for file in walk(tree))
        and all(
            directory_digest(file_hashes(tree / name)) == known
            for name, known in manifest.digests.items()
        )
    )


def make_room(into: Path, planned: Plan | None) -> None:
    """Move each earlier tree to its new place; one of another version is removed."""
    versions = {kernel.name: kernel.version for kernel in planned.kernels} if planned else {}
    for path, manifest in find_manifests(into).items():
        kernel = manifest.kernel
        if manifest.version != versions.get(kernel, manifest.version):
            shutil.rmtree(path.parent)
        elif path.parent == into and versions.keys() - {kernel}:
            aside = into.with_name(f"{into.name}-aside")
            into.rename(aside)
            into.mkdir()
            aside.rename(into / kernel)


def find_manifests(into: Path) -> dict[Path, Manifest]:
    """The manifests of one tree, or of the trees of several kernels."""
    manifests = {path: read_manifest(path.parent) for path in manifest_paths(into)}
    return {path: manifest for path, manifest in manifests.items() if manifest}


def pack(into: Path, tar: Path) -> None:
    """Pack a tree reproducibly: sorted, without times and owners."""
    with written_archive(tar, zstd=False) as archive:
        for file in walk(into):
            if file.regular:
                add_file(archive, file.name, file.path)
