"""What the tests of builds look at in a shared library."""

from __future__ import annotations

import re
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

from kci.tree.verify.fatbin import HIP_SECTION, hip_code


class Binary:
    """A shared library, taken apart."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as handle:
            elf = ELFFile(handle)
            dynamic = elf.get_section_by_name(".dynamic")
            symbols = elf.get_section_by_name(".dynsym")
            versions = elf.get_section_by_name(".gnu.version_r")
            assert isinstance(dynamic, DynamicSection)
            assert isinstance(symbols, SymbolTableSection)
            assert isinstance(versions, GNUVerNeedSection)
            tags = [(tag.entry.d_tag, tag) for tag in dynamic.iter_tags()]
            self.needed = {tag.needed for kind, tag in tags if kind == "DT_NEEDED"}
            self.tags = {kind for kind, _ in tags}
            named = [(item.name, item.entry.st_shndx) for item in symbols.iter_symbols()]
            self.undefined = {name for name, where in named if where == "SHN_UNDEF"}
            self.defined = {name for name, where in named if where != "SHN_UNDEF"}
            self.versions = [
                entry.name for _, entries in versions.iter_versions() for entry in entries
            ]
            self.sections = {section.name for section in elf.iter_sections()}
            device = elf.get_section_by_name(HIP_SECTION)
            self.gpus = (
                {arch for _, arch in hip_code(device.data())} if device is not None else set()
            )

    def newest(self, prefix: str) -> tuple[int, ...]:
        """The newest version of a library that it needs; 0 where it needs none."""
        found = re.findall(rf"^{prefix}_([0-9.]+)$", "\n".join(self.versions), re.MULTILINE)
        return max((tuple(map(int, version.split("."))) for version in found), default=(0,))

    def check_manylinux(self) -> None:
        """The caps of manylinux_2_28 (docs/format.md#system-libraries)."""
        assert self.newest("GLIBC") <= (2, 28)
        assert self.newest("GLIBCXX") <= (3, 4, 24)
        assert self.newest("CXXABI") <= (1, 3, 11)
        assert not {"DT_RPATH", "DT_RUNPATH"} & self.tags
