"""Parts of a newer C++ library that are linked into a kernel, because older systems do not have them.

A kernel that uses `std::filesystem` or `std::from_chars` needs functions that the C++ library of manylinux_2_28 does
not export. The toolsets for such systems link them in from a static library. Here they are taken out of the compiler's
own, whose other parts must stay where they are: two copies of streams or locales do not know of each other.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from kci.processes.process import run
from kci.toolchains.old_glibc import FOLDER, glibc_data


class NewerParts(msgspec.Struct, frozen=True):
    """Members of the compiler's static C++ library."""

    library: str
    members: tuple[str, ...]

    def unpack(self) -> list[str]:
        """The command that takes them out."""
        return ["ar", "x", f"--output={FOLDER}", self.library, *self.members]

    @property
    def unpacked(self) -> tuple[str, ...]:
        """The files that it makes."""
        return tuple(f"{FOLDER}/{member}" for member in self.members)


def find_newer_parts(cxx: tuple[str, ...]) -> NewerParts | None:
    """The parts that a compiler's own C++ library has; None if there is no static one, or it is not GNU's.

    Args:
        cxx: the C++ compiler.
    """
    asked = run([*cxx, "-print-file-name=libstdc++.a"])
    library = asked.output.strip()
    if asked.code != 0 or not Path(library).is_file():
        return None
    listed = run(["ar", "t", library]) if shutil.which("ar") else None
    there = set(listed.output.split()) if listed is not None and listed.code == 0 else set()
    members = tuple(member for member in glibc_data().cxx_library.members if member in there)
    return NewerParts(library, members) if members else None
