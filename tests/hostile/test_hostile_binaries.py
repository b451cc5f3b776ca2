"""Libraries that make no sense: each has a rule that speaks, and none costs much, hangs or ends in
a traceback.

Each is a real library of this machine's compiler with bytes changed.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from cli.runner import kci
from variants import make_variant

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or sys.platform != "linux", reason="needs g++ for ELF"
)

ID = "_gated_norm_cpu_1a2b3c4"
MODULE = f"{ID}.abi3.so"
SOURCE = f"""
extern "C" {{ int puts(const char*); extern char __libc_single_threaded; void other();
int used(const char* a) {{ other(); return puts(a) + __libc_single_threaded; }}
void* PyInit_{ID}() {{ return 0; }} }}
"""
GUILTY = {"KCI742", "KCI744", "KCI745"}
"""What is wrong with the library before it is changed: glibc 2.32, a search path, a library that
users do not have."""
SECONDS, BYTES = 10.0, 64 * 1024 * 1024
"""What the answer to one binary may cost; both are far more than any takes."""

END = 1 << 64
SECTION_SIZE, SEGMENT_SIZE, TAG_SIZE = 64, 56, 16
SIZE, LINK, INFO = 32, 40, 44
"""Where a section header has what."""


class Changed:
    """A library's bytes, to be changed; pyelftools finds the places."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.elf = ELFFile(io.BytesIO(data))

    def put(self, offset: int, layout: str, *values: int | bytes) -> Changed:
        """Write numbers, or bytes."""
        struct.pack_into(f"<{layout}", self.data, offset, *values)
        return self

    def section(self, name: str, field: int) -> int:
        """Where a field of a section header is."""
        names = [section.name for section in self.elf.iter_sections()]
        return int(self.elf["e_shoff"]) + names.index(name) * SECTION_SIZE + field

    def segment(self, kind: str, field: int = 0, number: int = 0) -> int:
        """Where a field of a program header is."""
        segments = enumerate(self.elf.iter_segments())
        places = [place for place, item in segments if item["p_type"] == kind]
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


@pytest.fixture(scope="session")
def guilty(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real library with something to hide."""
    root = tmp_path_factory.mktemp("hostile")
    (root / "other.cpp").write_text('extern "C" void other() {}')
    (root / "a.cpp").write_text(SOURCE)
    command = ["g++", "-shared", "-fPIC", "-O1", "-nostdlib", "-o"]
    for words in (
        ("o.so", "other.cpp", "-Wl,-soname,libother.so.1"),
        ("a.so", "a.cpp", "o.so", "-lc", "-Wl,-rpath,/build"),
    ):
        subprocess.run([*command, *words], cwd=root, check=True)
    return (root / "a.so").read_bytes()


def injected(tag: int) -> Callable[[Changed], Changed]:
    """One more entry of the dynamic table, with the library's search path as its text."""

    def change(library: Changed) -> Changed:
        return library.put(library.tag("DT_NULL"), "QQ", tag, library.value("DT_RUNPATH"))

    return change


def table(
    name: str, layout: str, *values: int | bytes, skip: int = 0
) -> Callable[[Changed], Changed]:
    """Other content for a section, from an offset on."""
    return lambda library: library.put(library.start(name) + skip, layout, *values)


def header(name: str, link: int) -> Callable[[Changed], Changed]:
    """A section that another one belongs to."""
    return lambda library: library.put(library.section(name, LINK), "I", link)


def segment(
    kind: str, field: int, layout: str, value: int, number: int = 0
) -> Callable[[Changed], Changed]:
    """Another program header."""
    return lambda library: library.put(library.segment(kind, field, number), layout, value)


def at(offset: int, layout: str, *values: int | bytes) -> Callable[[Changed], Changed]:
    """Another header of the file."""
    return lambda library: library.put(offset, layout, *values)


def value(tag: str, number: int) -> Callable[[Changed], Changed]:
    """Another value in the dynamic table."""
    return lambda library: library.put(library.tag(tag) + 8, "Q", number)


def no_sections(library: Changed) -> Changed:
    """Section headers that say that there is nothing."""
    for name in (".dynsym", ".dynstr", ".gnu.version", ".gnu.version_r"):
        library.put(library.section(name, SIZE), "Q", 0).put(library.section(name, INFO), "I", 0)
    return library


def filters(library: Changed) -> Changed:
    """The libraries that it needs, under the other name that loads them."""
    for number in range(2):
        library.put(library.tag("DT_NEEDED", number), "Q", 0x7FFFFFFF)
    return library


def one_number(library: Changed) -> Changed:
    """Two versions with one number, which for symbols is that of the last."""
    place = library.start(".gnu.version_r") + 16
    return library.put(place + 6, "H", 2).put(place + 16 + 6, "H", 2)


def many_segments(library: Changed) -> Changed:
    """Program headers behind the library's end, 300 of them."""
    first, count = int(library.elf["e_phoff"]), int(library.elf["e_phnum"])
    library.put(32, "Q", len(library.data)).put(56, "H", 300)
    library.data += library.data[first : first + count * SEGMENT_SIZE]
    library.data += bytes((300 - count) * SEGMENT_SIZE)
    return library


CHANGES: dict[str, tuple[Callable[[Changed], Changed], set[str]]] = {
    "nothing": (lambda library: library, GUILTY),
    # What the loader would do.
    "library by its path": (injected(1), GUILTY),
    "older search path": (injected(15), GUILTY),
    "text relocations": (injected(22), {*GUILTY, "KCI753"}),
    "executable stack": (segment("PT_GNU_STACK", 4, "I", 7), {*GUILTY, "KCI754"}),
    "another machine": (at(18, "H", 183), {*GUILTY, "KCI741"}),
    # What the loader does not look at.
    "no section headers": (at(40, "Q", 0), GUILTY),
    "sections of symbols, names and versions": (no_sections, GUILTY),
    "names of symbols in no section": (header(".dynsym", 0xFFFFFFFF), GUILTY),
    "another section of the dynamic table": (header(".dynamic", 1), GUILTY),
    "dynamic table elsewhere in the file": (segment("PT_DYNAMIC", 8, "Q", 64), GUILTY),
    "dynamic table of one entry": (segment("PT_DYNAMIC", 40, "Q", 16), GUILTY),
    "names of one byte": (value("DT_STRSZ", 1), GUILTY),
    "requirements of no library": (value("DT_VERNEEDNUM", 0), GUILTY),
    "a library of no requirements": (table(".gnu.version_r", "H", 0, skip=2), GUILTY),
    # What it looks at, and others do not.
    "symbols that nobody finds": (table(".gnu.hash", "I", 0, skip=24), {*GUILTY, "KCI749"}),
    "libraries as filters": (filters, GUILTY),
    "two versions of one number": (one_number, GUILTY),
    # What makes no sense, or would cost without end.
    "program": (at(16, "H", 2), {"KCI740"}),
    "32 bits": (at(4, "B", 1), {"KCI740"}),
    "big-endian": (at(5, "B", 2), {"KCI740"}),
    "65535 program headers": (at(56, "H", 65535), {"KCI740"}),
    "300 program headers": (many_segments, {"KCI740"}),
    "program headers of one byte": (at(54, "H", 1), {"KCI740"}),
    "program headers at the end": (at(32, "Q", END - 8), {"KCI740"}),
    "section headers at the end": (at(40, "Q", END - 8), {"KCI740"}),
    "no strings": (value("DT_STRTAB", END - 8), {"KCI740"}),
    "symbols nowhere": (value("DT_SYMTAB", END - 8), {"KCI740"}),
    "relocations without an end": (value("DT_RELASZ", END - 1), {"KCI740"}),
    "requirements nowhere": (value("DT_VERNEED", 1), {"KCI740"}),
    "versions nowhere": (value("DT_VERSYM", END - 2), {"KCI740"}),
    "4 thousand million names": (table(".gnu.hash", "I", 0xFFFFFFFF), {"KCI740"}),
    "a name that is the last of 4 thousand million": (table(".gnu.hash", "I", 0xFFFFFFFF, skip=24),
        {"KCI740"}),
    "no dynamic table": (segment("PT_DYNAMIC", 0, "I", 0), {"KCI740"}),
    "two dynamic tables": (segment("PT_GNU_STACK", 0, "I", 2), {"KCI740"}),
    "segments over each other": (segment("PT_LOAD", 16, "Q", 0, 1), {"KCI740"}),
    "segment off its page": (segment("PT_LOAD", 16, "Q", 0x200001, 3), {"KCI740"}),
    "segment without an end": (segment("PT_LOAD", 32, "Q", END - 1), {"KCI740"}),
    "segment larger than its memory": (segment("PT_LOAD", 40, "Q", 1), {"KCI740"}),
    "a dynamic table without an end": (table(".dynamic", "240Q", *[1] * 240), {"KCI740"}),
    "symbol with a name nowhere": (table(".dynsym", "I", 0xFFFFFFFF, skip=24), {"KCI740"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_library_that_makes_no_sense(tmp_path: Path, guilty: bytes, name: str) -> None:
    change, rules = CHANGES[name]
    assert judged(tmp_path, bytes(change(Changed(guilty)).data)) == rules


def too_long(*_: object) -> None:
    """What goes on without end ends here; only this process's own work counts, however busy the
    machine is.
    """
    raise AssertionError(f"more than {SECONDS} seconds of a processor")


def judged(root: Path, content: bytes) -> set[str]:
    """The errors about a library, which cost little."""
    directory = make_variant(root, files={"__init__.py": "", MODULE: content})
    tracemalloc.start()
    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        ignored = ("--ignore", "KCI716", "--ignore", "KCI746")
        answer = kci("verify", directory, "--format", "json", *ignored)
        _, most = tracemalloc.get_traced_memory()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        tracemalloc.stop()
    assert "Traceback" not in answer.stderr
    assert answer.code == 1, answer
    assert most < BYTES
    found = json.loads(answer.stdout)["diagnostics"]
    return {item["rule"] for item in found if item["severity"] == "error"}


def test_what_is_no_library(tmp_path: Path) -> None:
    cubin = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 2, 190)
    for number, content in enumerate((b"#!/bin/sh\n", cubin, b"")):
        assert judged(tmp_path / str(number), content) == {"KCI740"}
