"""What is published: the variants of manifests, as far as their files are there and are what was merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError, KciError
from kci.plan.fingerprint import Key, PublishedVariant
from kci.tree.leg_record import read_sealed
from kci.tree.manifest import FILE_NAME, Manifest, Present, load_manifest


def read_published(places: Iterable[Path]) -> tuple[dict[Key, PublishedVariant], list[Diagnostic]]:
    """The variants of published trees, by kernel and variant name, and what is wrong with others.

    The files of a tree are compared with the digests in its manifest. A manifest without its tree is taken at its word:
    whoever merges then needs the tree.

    Args:
        places: manifests, trees that have one, or folders of such trees.

    Raises:
        FindingsError: a manifest is not there or cannot be read (KCI313).
    """
    found: dict[Key, PublishedVariant] = {}
    problems: list[Diagnostic] = []
    for place in places:
        for path in _manifests(place):
            manifest = _load(path)
            beside = path.name == FILE_NAME and any((path.parent / item.variant).is_dir() for item in manifest.present)
            with_tree = place.is_dir() or beside
            for entry in manifest.present:
                problem = _problem(path.parent, manifest, entry) if with_tree else ""
                if problem:
                    message = f"{manifest.kernel}: the published variant {entry.variant} {problem}; it is built again"
                    problems.append(finding("KCI314", message, path=str(path)))
                elif entry.fingerprint is not None:
                    inputs = manifest.inputs.get(entry.inputs or "")
                    found[manifest.kernel, entry.variant] = PublishedVariant(entry.fingerprint, inputs)
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


def _load(path: Path) -> Manifest:
    hint = f"name the {FILE_NAME} of a published tree, or the tree"
    try:
        return load_manifest(path)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
    except ValueError as error:
        message = f"{path} is not a manifest: {error}"
    raise FindingsError(message, hint=hint, diagnostics=[finding("KCI313", message, hint=hint, path=str(path))])
