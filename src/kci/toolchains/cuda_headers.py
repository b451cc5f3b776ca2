"""The headers of CUDA libraries such as cuBLAS, which full-ABI kernels need and small toolkits do not have."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kci.files.cache import made_once
from kci.processes.process import Log
from kci.toolchains.cuda import Toolkit
from kci.toolchains.toolchain_data import toolchains

LINK = "cuda-headers"
"""Their link in the work directory."""

_INCLUDE = re.compile(rb'#[ \t]*include[ \t]*[<"](cublas|cufft|curand|cusolver|cusparse|nvrtc|nvToolsExt|nvtx3/)')


class LibraryHeaders(msgspec.Struct, frozen=True):
    """Headers out of NVIDIA's wheels."""

    folder: Path
    requirements: tuple[str, ...]
    """The wheels that they are in."""

    @property
    def complete(self) -> bool:
        """Whether they are there."""
        return self.folder.is_dir()


def mentions_libraries(sources: Iterable[Path]) -> bool:
    """Whether sources include a header of such a library themselves; a stable-ABI kernel needs none otherwise."""
    return any(_INCLUDE.search(source.read_bytes()) for source in sources)


def find_library_headers(toolkit: Toolkit, cache: Path) -> LibraryHeaders | None:
    """Those that a toolkit lacks; None if it has them all, or if none are known for its version."""
    missing = [
        requirement
        for header, requirement in sorted(toolchains().cuda_headers.get(toolkit.version, {}).items())
        if not (toolkit.root / "include" / header).is_file()
    ]
    if not missing:
        return None
    few = "" if len(missing) == len(toolchains().cuda_headers[toolkit.version]) else f"-{len(missing)}"
    return LibraryHeaders(cache / "cuda" / f"{toolkit.version}-headers{few}", tuple(missing))


def ensure_library_headers(headers: LibraryHeaders, log: Log) -> None:
    """Get them if they are not there: about a megabyte out of wheels of hundreds.

    Raises:
        MissingToolError: the index cannot be reached, or serves no byte ranges.
    """
    from kci.toolchains.wheel_ranges import extract, find_wheel

    def make(place: Path) -> None:
        for requirement in headers.requirements:
            package, _, version = requirement.partition("==")
            log(f"taking the headers out of {requirement}")
            extract(find_wheel(package, version, platform.machine()), below_include, place, log)

    made_once(headers.folder, lambda: headers.complete, make, log)


def below_include(path: str) -> str | None:
    """Where a file of an NVIDIA wheel goes: headers lie in `nvidia/cu13/include` or `nvidia/<library>/include`."""
    parts = path.split("/")
    return "/".join(parts[3:]) if len(parts) > 3 and (parts[0], parts[2]) == ("nvidia", "include") else None
