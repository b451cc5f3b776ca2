"""Libraries that lie or make no sense: each has a rule that speaks, and none costs much, hangs or ends in a traceback.

Each is a real library of this machine's compiler with bytes changed, or a header of another system written by hand.
"""

from __future__ import annotations

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

from cli.runner import kci
from lying_elf import ADDRESS, FLAGS, LINK, OFFSET, SIZE, Lie
from variants import CPU, make_variant

pytestmark = pytest.mark.skipif(shutil.which("g++") is None or sys.platform != "linux", reason="needs g++ for ELF")

ID = "_gated_norm_cpu_1a2b3c4"
MODULE = f"{ID}.abi3.so"
MACOS, WINDOWS = "torch213-cpu-aarch64-darwin", "torch213-cpu-x86_64-windows"
SOURCE = f"""
extern "C" {{ int strcmp(const char*, const char*); extern char __libc_single_threaded; void other();
int used(const char* a) {{ other(); return strcmp(a, a) + __libc_single_threaded; }}
void* PyInit_{ID}() {{ return 0; }} }}
"""
GUILTY = {"KCI742", "KCI744", "KCI745"}
"""What is wrong with the library before it lies: glibc 2.32, a search path, a library that users do not have."""
SECONDS, BYTES = 10.0, 64 * 1024 * 1024
"""What the answer to one binary may cost; both are far more than any takes."""

END = 1 << 64


@pytest.fixture(scope="session")
def guilty(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real library with something to hide."""
    root = tmp_path_factory.mktemp("hostile")
    (root / "other.cpp").write_text('extern "C" void other() {}')
    (root / "a.cpp").write_text(SOURCE)
    command = ["g++", "-shared", "-fPIC", "-O1", "-nostdlib", "-o"]
    subprocess.run([*command, root / "o.so", root / "other.cpp", "-Wl,-soname,libother.so.1"], check=True)
    subprocess.run([*command, root / "a.so", root / "a.cpp", root / "o.so", "-lc", "-Wl,-rpath,/build"], check=True)
    return (root / "a.so").read_bytes()


def injected(tag: int) -> Callable[[Lie], Lie]:
    """One more entry of the dynamic table, with the library's search path as its text."""

    def change(lie: Lie) -> Lie:
        return lie.put(lie.tag("DT_NULL"), "QQ", tag, lie.value("DT_RUNPATH"))

    return change


def table(name: str, layout: str, *values: int | bytes, skip: int = 0) -> Callable[[Lie], Lie]:
    """Other content for a section, from an offset on."""
    return lambda lie: lie.put(lie.start(name) + skip, layout, *values)


def header(name: str, field: int, value: int) -> Callable[[Lie], Lie]:
    """Another section header."""
    return lambda lie: lie.put(lie.section(name, field), "Q" if field != LINK else "I", value)


def segment(kind: str, field: int, layout: str, value: int, number: int = 0) -> Callable[[Lie], Lie]:
    """Another program header."""
    return lambda lie: lie.put(lie.segment(kind, field, number), layout, value)


def at(offset: int, layout: str, *values: int | bytes) -> Callable[[Lie], Lie]:
    """Another header of the file."""
    return lambda lie: lie.put(offset, layout, *values)


def copied(name: str, layout: str, *values: int | bytes, skip: int = 0) -> Callable[[Lie], Lie]:
    """Show readers of section headers a copy of a section with other content."""
    return lambda lie: lie.put(lie.show_copy(name) + skip, layout, *values)


def hidden(*tags: str) -> Callable[[Lie], Lie]:
    """Show readers of section headers a dynamic table without these tags."""
    return lambda lie: lie.hide_tags(*tags)


def avx_at_the_import(lie: Lie) -> Lie:
    """`vzeroupper` where Python's import begins."""
    symbol = lie.elf.get_section_by_name(".dynsym").get_symbol_by_name(f"PyInit_{ID}")[0]
    return lie.put(symbol["st_value"], "3B", 0xC5, 0xF8, 0x77)  # the first segments lie in the file as in memory


LIES: dict[str, tuple[Callable[[Lie], Lie], set[str]]] = {
    # The section headers tell another story than what the loader reads.
    "hidden search path": (hidden("DT_RUNPATH"), {*GUILTY, "KCI764"}),
    "hidden dependency": (hidden("DT_NEEDED"), {*GUILTY, "KCI764"}),
    "hidden dynamic table": (hidden("DT_NEEDED", "DT_RUNPATH", "DT_SYMTAB", "DT_STRTAB"), {*GUILTY, "KCI764"}),
    "symbols of a copy": (copied(".dynsym", "Q", 0, skip=24), {*GUILTY, "KCI764"}),
    "names of a copy": (copied(".dynstr", "8s", b"libc.so\0"), {*GUILTY, "KCI764"}),
    "versions of a copy": (copied(".gnu.version_r", "HH", 1, 0), {*GUILTY, "KCI764"}),
    "versions of symbols of a copy": (copied(".gnu.version", "4H", 0, 0, 0, 0), {*GUILTY, "KCI764"}),
    "dynamic segment elsewhere": (segment("PT_DYNAMIC", 8, "Q", 64), {*GUILTY, "KCI764"}),
    "code that no section has": (header(".text", SIZE, 1), {*GUILTY, "KCI764"}),
    "code called data": (header(".text", FLAGS, 2), {*GUILTY, "KCI764"}),
    "section at another address": (header(".text", ADDRESS, 0x100000), {*GUILTY, "KCI764"}),
    "section of another place": (header(".rela.plt", OFFSET, 0), {*GUILTY, "KCI764"}),
    "two search paths in one table": (injected(29), GUILTY),
    # What the loader would do.
    "audit library": (injected(0x6FFFFEFC), {*GUILTY, "KCI756"}),
    "dependency audit": (injected(0x6FFFFEFB), {*GUILTY, "KCI756"}),
    "filter": (injected(0x7FFFFFFF), {*GUILTY, "KCI765"}),
    "auxiliary filter": (injected(0x7FFFFFFD), {*GUILTY, "KCI765"}),
    "library by its path": (injected(1), GUILTY),
    "older search path": (injected(15), GUILTY),
    "text relocations": (injected(22), {*GUILTY, "KCI753"}),
    "executable stack": (segment("PT_GNU_STACK", 4, "I", 7), {*GUILTY, "KCI754"}),
    "second string table": (
        lambda lie: lie.put(lie.tag("DT_NULL"), "QQ", 5, lie.value("DT_SYMTAB")),
        {"KCI744", "KCI745", "KCI749", "KCI764"},
    ),
    "AVX at the import": (avx_at_the_import, {*GUILTY, "KCI767"}),
    "another machine": (at(18, "H", 183), {*GUILTY, "KCI741"}),
    # What makes no sense, or would cost without end.
    "program": (at(16, "H", 2), {"KCI740"}),
    "32 bits": (at(4, "B", 1), {"KCI740"}),
    "big-endian": (at(5, "B", 2), {"KCI740"}),
    "65535 program headers": (at(56, "H", 65535), {"KCI740"}),
    "program headers of one byte": (at(54, "H", 1), {"KCI740"}),
    "program headers at the end": (at(32, "Q", END - 8), {"KCI740"}),
    "no section headers": (at(40, "Q", 0), {"KCI740"}),
    "section headers at the end": (at(40, "Q", END - 8), {"KCI740"}),
    "section names of no section": (at(62, "H", 65535), {"KCI740"}),
    "section without an end": (header(".text", SIZE, END - 1), {*GUILTY, "KCI740", "KCI764"}),
    "no dynamic table": (segment("PT_DYNAMIC", 0, "I", 0), {"KCI740"}),
    "two dynamic tables": (segment("PT_GNU_STACK", 0, "I", 2), {"KCI740"}),
    "dynamic table at no address": (segment("PT_DYNAMIC", 16, "Q", END - 16), {"KCI740"}),
    "segments over each other": (segment("PT_LOAD", 16, "Q", 0, 1), {"KCI740"}),
    "segment off its page": (segment("PT_LOAD", 16, "Q", 0x200001, 3), {"KCI740"}),
    "segment without an end": (segment("PT_LOAD", 32, "Q", END - 1), {"KCI740"}),
    "segment larger than its memory": (segment("PT_LOAD", 40, "Q", 1), {"KCI740"}),
    "hash table of 4 thousand million buckets": (table(".gnu.hash", "I", 0xFFFFFFFF), {"KCI740"}),
    "hash table that begins nowhere": (table(".gnu.hash", "I", 0xFFFFFFFF, skip=8), {"KCI740"}),
    "symbol with a name nowhere": (table(".dynsym", "I", 0xFFFFFFFF, skip=24), {"KCI740"}),
    "relocations without an end": (lambda lie: lie.put(lie.tag("DT_PLTRELSZ") + 8, "Q", END - 1), {"KCI740"}),
    "relocation of a symbol nowhere": (table(".rela.plt", "Q", 0xFFFFFFFF00000007, skip=8), {"KCI740"}),
    "versions one byte apart": (table(".gnu.version_r", "I", 1, skip=12), {"KCI740"}),
    "functions without an end": (table(".eh_frame_hdr", "4BIi", 1, 0x1B, 3, 0x3B, 0, 0x7FFFFFFF), {*GUILTY, "KCI740"}),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lying_library(tmp_path: Path, guilty: bytes, name: str) -> None:
    change, rules = LIES[name]
    assert judged(tmp_path, bytes(change(Lie(guilty)).data)) == rules


def test_the_library_as_it_was(tmp_path: Path, guilty: bytes) -> None:
    assert judged(tmp_path, guilty) == GUILTY


def too_long(*_: object) -> None:
    """What goes on without end ends here; only this process's own work counts, however busy the machine is."""
    raise AssertionError(f"more than {SECONDS} seconds of a processor")


def judged(root: Path, content: bytes, variant: str = CPU, name: str = MODULE) -> set[str]:
    """The errors about a library, which cost little."""
    directory = make_variant(root, variant, files={"__init__.py": "", name: content})
    tracemalloc.start()
    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        answer = kci("verify", directory, "--format", "json", "--ignore", "KCI716", "--ignore", "KCI746")
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


def macho(commands: bytes, count: int, size: int | None = None) -> bytes:
    """A Mach-O header for aarch64, and load commands."""
    return (
        struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, count, len(commands) if size is None else size, 0, 0)
        + commands
    )


NEEDS = struct.pack("<6I", 0x32, 24, 1, 26 << 16, 0, 0)
LOAD = struct.pack("<3I", 0x0C, 40, 24) + bytes(12) + b"/opt/x.dylib\0\0\0\0"


def universal(count: int, offset: int) -> bytes:
    """A universal binary whose parts are all at one place."""
    return struct.pack(">2I", 0xCAFEBABE, count) + struct.pack(">5I", 0, 0, offset, 100, 0) * min(count, 19) + bytes(64)


def pe(
    start: int = 0x40, sections: int = 1, imports: int = 0x1000, content: bytes = b"", machine: int = 0x8664
) -> bytes:
    """A Windows library with one section."""
    optional = struct.pack("<H", 0x20B) + bytes(106) + struct.pack("<I", 16) + bytes(8)
    optional += struct.pack("<2I", imports, len(content)) + bytes(8 * 14)
    data = b"MZ" + bytes(0x3A) + struct.pack("<I", start) + b"PE\0\0"
    data += struct.pack("<HHIIIHH", machine, sections, 0, 0, 0, len(optional), 0x2000) + optional
    data += struct.pack("<8s6I2HI", b".idata", len(content), 0x1000, len(content), 0x400, 0, 0, 0, 0, 0)
    return data.ljust(0x400, b"\0") + content


OTHERS: dict[str, tuple[bytes, str, str]] = {
    "Mach-O: commands that are not there": (macho(b"", 4), MACOS, "KCI740"),
    "Mach-O: 4 thousand million commands": (macho(LOAD, 0xFFFFFFFF), MACOS, "KCI740"),
    "Mach-O: a command of no length": (macho(struct.pack("<2I", 0x0C, 0) * 4, 4), MACOS, "KCI740"),
    "Mach-O: a command without an end": (macho(struct.pack("<2I", 0x0C, 0xFFFFFFF0) + bytes(64), 1), MACOS, "KCI740"),
    "Mach-O: commands without an end": (macho(LOAD, 1, 0xFFFFFFFF), MACOS, "KCI740"),
    "Mach-O: a newer system": (macho(NEEDS, 1), MACOS, "KCI758"),
    "Mach-O: a library of one machine": (macho(NEEDS.replace(struct.pack("<I", 26 << 16), struct.pack("<I", 15 << 16))
                                               + LOAD, 2), MACOS, "KCI745"),
    "Mach-O: no part": (universal(0, 0), MACOS, "KCI741"),
    "Mach-O: itself as its part": (universal(19, 0), MACOS, "KCI740"),
    "Mach-O: a part nowhere": (universal(1, 0xFFFFFFFF), MACOS, "KCI740"),
    "Mach-O: for Linux": (macho(NEEDS, 1), CPU, "KCI741"),
    "PE: a header nowhere": (pe(start=0xFFFFFFF0), WINDOWS, "KCI740"),
    "PE: 65535 sections": (pe(sections=65535), WINDOWS, "KCI740"),
    "PE: imports nowhere": (pe(imports=0xFFFFFF00), WINDOWS, "KCI740"),
    "PE: imports without an end": (pe(content=struct.pack("<5I", 1, 1, 1, 0x1000, 1) * 40), WINDOWS, "KCI740"),
    "PE: another machine": (pe(content=bytes(20), machine=0xAA64), WINDOWS, "KCI741"),
    "PE: cut short": (pe(content=bytes(20))[:0x80], WINDOWS, "KCI740"),
    "a script called like a library": (b"#!/bin/sh\n", CPU, "KCI740"),
    "code for a GPU called like a library": (b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 2, 190)
                                             + bytes(60), CPU, "KCI740"),
    "nothing": (b"", CPU, "KCI740"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_lying_library_of_another_system(tmp_path: Path, name: str) -> None:
    content, variant, rule = OTHERS[name]
    found = judged(tmp_path, content, variant, f"{ID}.pyd" if variant == WINDOWS else MODULE)
    assert rule in found
    assert found <= {rule, "KCI745"}


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    assert len(LIES) + len(OTHERS) >= 60
