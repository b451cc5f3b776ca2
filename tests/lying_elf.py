"""Libraries that lie: a compiler's, with bytes changed afterwards. Headers are found by pyelftools, not by kci."""

from __future__ import annotations

import io
import struct

from elftools.elf.elffile import ELFFile

SECTION_SIZE, SEGMENT_SIZE, TAG_SIZE = 64, 56, 16
FLAGS, ADDRESS, OFFSET, SIZE, LINK = 8, 16, 24, 32, 40
"""Where a section header has what."""


class Lie:
    """A library's bytes, to be changed."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.elf = ELFFile(io.BytesIO(data))

    def put(self, offset: int, layout: str, *values: int | bytes) -> Lie:
        """Write numbers, or bytes."""
        struct.pack_into(f"<{layout}", self.data, offset, *values)
        return self

    def section(self, name: str, field: int) -> int:
        """Where a field of a section header is."""
        names = [section.name for section in self.elf.iter_sections()]
        return int(self.elf["e_shoff"]) + names.index(name) * SECTION_SIZE + field

    def segment(self, kind: str, field: int = 0, number: int = 0) -> int:
        """Where a field of a program header is."""
        places = [place for place, item in enumerate(self.elf.iter_segments()) if item["p_type"] == kind]
        return int(self.elf["e_phoff"]) + places[number] * SEGMENT_SIZE + field

    def tag(self, tag: str, number: int = 0) -> int:
        """Where an entry of the dynamic table is; `DT_NULL` is its end."""
        section = self.elf.get_section_by_name(".dynamic")
        tags = [item.entry.d_tag for item in section.iter_tags()]
        places = [place for place, found in enumerate(tags) if found == tag]
        return int(section["sh_offset"]) + places[number] * TAG_SIZE

    def value(self, tag: str) -> int:
        """What the dynamic table has for a tag."""
        table = self.elf.get_section_by_name(".dynamic")
        return int(next(item.entry.d_val for item in table.iter_tags() if item.entry.d_tag == tag))

    def start(self, name: str) -> int:
        """Where a section's content is."""
        return int(self.elf.get_section_by_name(name)["sh_offset"])

    def show_copy(self, name: str) -> int:
        """Have the section header tell of a copy of the section, at the end of the file; returns where that is."""
        section = self.elf.get_section_by_name(name)
        self.data += bytes(-len(self.data) % 16)
        place = len(self.data)
        self.data += section.data()
        self.put(self.section(name, OFFSET), "Q", place)
        return place

    def hide_tags(self, *tags: str) -> Lie:
        """Show readers of section headers a dynamic table without these tags; the loader still reads the real one."""
        section = self.elf.get_section_by_name(".dynamic")
        kept = [
            section.data()[place * TAG_SIZE : (place + 1) * TAG_SIZE]
            for place, item in enumerate(section.iter_tags())
            if item.entry.d_tag not in tags
        ]
        place = self.show_copy(".dynamic")
        content = b"".join(kept).ljust(len(section.data()), b"\0")
        self.data[place : place + len(content)] = content
        return self
