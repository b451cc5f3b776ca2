"""Where the newest tree of each kernel is, from one CI run on a branch to the next.

A run merges only the kernels that it has built something of, so the trees of a repository lie in the artifacts of many
runs. Every run uploads an index of them: the index of the run before it, brought up to date by that run's records.
So a kernel that fails keeps its last good tree, and a run that builds nothing loses nothing. Whoever can upload an
artifact in a run can have written it, so it is read as data: its names become paths only after they are checked.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.errors import FindingsError
from kci.files.bounded_json import read_json, require_schema
from kci.run.run_records import read_records
from kci.tree.manifest import FILE_NAME, Manifest, encode
from kci.tree.metadata import NAME_PATTERN

INDEX_FILE = "kci-trees.json"
SCHEMA = 1
KEPT_DAYS = 60
"""For how long a tree counts. GitHub keeps artifacts for 90 days unless a repository says less; after that everything
is built once more, and it has to be before the artifact is gone."""


class TreePlace(msgspec.Struct, frozen=True):
    """A tree that a run has merged."""

    run: Annotated[str, Meta(pattern=r"^[0-9]{0,20}\Z")]
    """The run's id, under which its artifacts are found."""
    day: int
    """When the run was planned, in days since 1970."""
    manifest: Manifest


class TreeIndex(msgspec.Struct, frozen=True):
    """The newest tree of each kernel, by name."""

    trees: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], TreePlace] = {}
    day: int = 0
    """When the run that uploads this was planned."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)
        for kernel, place in self.trees.items():
            if place.manifest.kernel != kernel:
                raise ValueError(f"the tree of {kernel!r} is one of {place.manifest.kernel!r}")

    def write_manifests(self, folder: Path) -> list[Path]:
        """Write the manifests as files, one for each kernel, for `read_published`."""
        written = []
        for kernel, place in sorted(self.trees.items()):
            path = folder / kernel / FILE_NAME
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(place.manifest))
            written.append(path)
        return written

    def write(self, path: Path) -> None:
        """Write the index, for the next run."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(self))


def today() -> int:
    """The day, as an index counts them."""
    return datetime.datetime.now(datetime.UTC).date().toordinal() - datetime.date(1970, 1, 1).toordinal()


def next_index(earlier: Path | None, run: str, day: int) -> TreeIndex:
    """The index that a run starts with.

    Args:
        earlier: a folder with the plan and the records of the run before it; None if there is none.
        run: the id of that run.
        day: the day of the run that starts.

    Raises:
        FindingsError: what the earlier run uploaded cannot be read.
    """
    if earlier is None or not earlier.is_dir():
        return TreeIndex(day=day)
    indexes = [_read(path) for path in sorted(earlier.rglob(INDEX_FILE))]
    before = max(indexes, key=lambda index: index.day, default=TreeIndex())
    trees = dict(before.trees)
    for kernel, record in read_records(earlier).items():
        if record.manifest is not None and record.complete:
            trees[kernel] = TreePlace(run, before.day, record.manifest)
    kept = {kernel: place for kernel, place in sorted(trees.items()) if day - place.day <= KEPT_DAYS}
    return TreeIndex(kept, day)


def read_index(folder: Path) -> TreeIndex:
    """The index that a run was planned with, from the folder with what its jobs uploaded.

    Raises:
        FindingsError: it cannot be read.
    """
    found = [_read(path) for path in sorted(folder.rglob(INDEX_FILE))]
    return max(found, key=lambda index: index.day, default=TreeIndex())


def _read(path: Path) -> TreeIndex:
    try:
        return read_json(path, TreeIndex)
    except OSError as error:
        raise FindingsError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FindingsError(f"{path} is no index of trees: {error}") from error
