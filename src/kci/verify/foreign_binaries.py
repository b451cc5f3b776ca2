"""Libraries of macOS and Windows: what their headers say. Their symbols are not looked at."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from pathlib import Path

from kci.diagnostics import Diagnostic, finding
from kci.matrix.names import VariantName
from kci.verify.abi import native_table, numbers
from kci.verify.macho import MachO, MachOError, read_macho
from kci.verify.pe import PeError, read_pe


def check_macho(name: VariantName, path: Path, where: str) -> Iterator[Diagnostic]:
    """The rules about a library for macOS."""
    try:
        parts = read_macho(path)
    except (MachOError, OSError) as error:
        yield finding("KCI740", str(error), path=where)
        return
    cpu = (name.system or "").partition("-")[0]
    fitting = [part for part in parts if part.machine == cpu]
    if not fitting:
        machines = ", ".join(part.machine for part in parts) or "nothing"
        yield finding("KCI741", f"it is for {machines}, the name says {name.system}", path=where)
    for part in fitting:
        yield from _macho_part(name, part, where)
    yield finding("KCI750", "of a Mach-O library only the header and the needed libraries are checked", path=where)


def _macho_part(name: VariantName, part: MachO, where: str) -> Iterator[Diagnostic]:
    table = native_table().macos
    newest = table.newest.get(name.backend, table.newest["cpu"])
    if part.minimum_os is None:
        yield finding("KCI758", "it does not say which macOS it needs", path=where)
    elif part.minimum_os > numbers(newest):
        shown = ".".join(map(str, part.minimum_os))
        yield finding("KCI758", f"it needs macOS {shown}; {name.backend} variants may ask for {newest}", path=where)
    for library in part.needed:
        if not any(fnmatch.fnmatchcase(library, pattern) for pattern in table.needed):
            yield finding("KCI745", f"it needs {library}, which {name.backend} variants cannot rely on", path=where)
    for rpath in part.search_path:
        if not rpath.startswith("@loader_path"):
            yield finding("KCI744", f"it has the search path {rpath!r} built in", path=where)


def check_pe(name: VariantName, path: Path, where: str) -> Iterator[Diagnostic]:
    """The rules about a library for Windows."""
    try:
        library = read_pe(path)
    except (PeError, OSError) as error:
        yield finding("KCI740", str(error), path=where)
        return
    if not library.library:
        yield finding("KCI757", "it is a program", path=where)
        return
    cpu = (name.system or "").partition("-")[0]
    if library.machine != cpu:
        yield finding("KCI741", f"it is for {library.machine}-windows, the name says {name.system}", path=where)
    patterns = native_table().windows.needed
    for needed in sorted(set(library.needed)):
        lower = needed.lower()
        if fnmatch.fnmatchcase(lower, "python3?*.dll"):
            yield finding(
                "KCI743", f"it needs {needed}, which belongs to one Python; python3.dll is for all", path=where
            )
        elif not any(fnmatch.fnmatchcase(lower, pattern) for pattern in patterns):
            yield finding("KCI745", f"it needs {needed}, which {name.backend} variants cannot rely on", path=where)
    yield finding("KCI750", "of a Windows library only the header and the imported libraries are checked", path=where)
