"""What a merge is given: artifacts, folders of artifacts, variant directories. Finding them, choosing among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from kci.diagnostics import Diagnostic, finding
from kci.errors import UsageError
from kci.matrix.names import parse_variant_name
from kci.tree import metadata
from kci.tree.archive import SUFFIXES
from kci.tree.findings import tree_error
from kci.tree.leg_record import LegRecord, leg_for
from kci.tree.unpack import read_leg

PREFIX = "kci-"
"""How the file name of an artifact starts."""


_ARCHIVES = (".tar", ".tar.zst", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
"""What people would expect to be merged."""


class Source(msgspec.Struct, frozen=True):
    """An artifact or a variant directory, and what its leg says."""

    path: Path
    leg: LegRecord
    artifact: str
    """The artifact's file name, empty for a directory."""

    @property
    def order(self) -> tuple[int, str, str, str]:
        """Newest attempt first; equal ones in an order that does not depend on how they were named to kci."""
        return (-self.leg.attempt, self.leg.system, self.artifact, str(self.path))


Report = Callable[[Diagnostic], None]


def find_sources(
    paths: Iterable[Path], skip: Path | None = None, report: Report = lambda _finding: None
) -> list[Source]:
    """Every artifact and variant directory that the paths name.

    A folder is searched through; links and hidden folders in it are passed over, files in it count if they are called
    `kci-*.tar[.zst]`. A file that is named outright must be an artifact.

    Args:
        paths: what the user named.
        skip: the real path of a folder that is not searched unless it is named itself: the tree that is to be made.
        report: is told of archives in a folder that are passed over because of their name.

    Raises:
        UsageError: a path does not exist.
        FindingsError: an artifact or variant directory cannot be read.
        UnsafeError: an artifact starts with something unsafe.
    """
    files: set[Path] = set()
    directories: set[Path] = set()
    for path in paths:
        if path.is_file():
            files.add(path.resolve())
        elif path.is_dir():
            _search(path.resolve(), files, directories, skip, report)
        else:
            raise UsageError(
                f"{path} does not exist", hint="name artifacts, folders of artifacts or variant directories"
            )
    found = [Source(path, read_leg(path), path.name) for path in sorted(files)]
    return found + [Source(path, _directory_leg(path), "") for path in sorted(directories)]


def is_variant_dir(path: Path) -> bool:
    """Whether a directory looks like a built variant: its name is one, and it has metadata."""
    try:
        parse_variant_name(path.name)
    except ValueError:
        return False
    return (path / metadata.FILE_NAME).is_file()


def _search(folder: Path, files: set[Path], directories: set[Path], skip: Path | None, report: Report) -> None:
    if is_variant_dir(folder):
        directories.add(folder)
        return
    for entry in sorted(os.scandir(folder), key=lambda item: item.name):
        if entry.is_dir(follow_symlinks=False):
            if not entry.name.startswith(".") and Path(entry.path) != skip:
                _search(Path(entry.path), files, directories, skip, report)
        elif entry.is_file(follow_symlinks=False) and _is_artifact_name(entry.name):
            files.add(Path(entry.path))
        elif entry.name.lower().endswith(_ARCHIVES):
            message = f"{entry.path} is passed over: it is not called like an artifact"
            hint = "an artifact is called kci-<kernel>-<variant>.tar or .tar.zst; name the file itself to merge it"
            report(finding("KCI615", message, hint=hint, path=entry.path))


def _is_artifact_name(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith(SUFFIXES)


def _directory_leg(path: Path) -> LegRecord:
    # A noarch name has no system, and nothing depends on where the directory was made.
    return leg_for(path, system="x86_64-linux", builder="")


def newest(sources: Iterable[Source], explain: Callable[[Source, Source], str] = lambda _one, _other: "") -> Source:
    """The one of several sources for the same variant that a merge uses.

    The newest attempt wins. Several of the same attempt must agree: a noarch variant is built once for every system.

    Args:
        sources: at least one.
        explain: says how two sources that should agree differ.

    Raises:
        FindingsError: two of the newest attempt differ.
    """
    ranked = sorted(sources, key=lambda source: source.order)
    best = ranked[0]
    for other in ranked[1:]:
        if other.leg.attempt == best.leg.attempt and other.leg.digest != best.leg.digest:
            how = explain(best, other)
            raise tree_error(
                "KCI608",
                f"{best.leg.kernel}: {best.leg.variant} differs between {best.path} (built on {best.leg.system}) "
                f"and {other.path} (built on {other.leg.system})" + (f":\n{how}" if how else ""),
                hint="equal sources must give equal files; merge only one of the two once it is clear why they differ",
                path=str(best.path),
            )
    return best
