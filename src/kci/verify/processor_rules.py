"""Which processors a library's code runs on, instruction by instruction; capstone reads them.

A library of one variant runs on every processor of its system, from x86-64-v2 on. Code for newer ones is fine where the
library asks the processor first. That it asks the right thing before each such instruction cannot be shown. What can
be is that it asks at all, and that neither what always runs (when the library is loaded) nor what asks is beyond.
"""

from __future__ import annotations

import ctypes
import fnmatch
import re
import struct
from bisect import bisect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kci.diagnostics import Diagnostic, finding
from kci.files.dated_data import Dated, shipped
from kci.plurals import count
from kci.tree.elf_image import IFUNC, INIT, INIT_ARRAY, INIT_ARRAYSZ, SYMBOL, ElfError, Image, open_image
from kci.verify.abi import cpp_namespace, is_std_name
from kci.verify.subject import VariantDir

_CHUNK = 64 * 1024
_MAX_CODE = 256 * 1024 * 1024
_MAX_FUNCTIONS = 2 * 1024 * 1024
_SYMTAB = 2
_WEAK = 2
_OTHERS = ("c10", "torch")
"""Namespaces of headers that every source of a kernel includes. at::vec has a namespace for each processor."""
_FUNCTIONS = (2, IFUNC)
_EH_FRAME = 0x6474E550
_USUAL_EH_FRAME = b"\x01\x1b\x03\x3b"
"""Its only form in practice: a table of places, as 32-bit distances from its own start."""
_RELATIVE, _ABSOLUTE, _IRELATIVE = 8, 1, 37
# In the text of an instruction: a 512-bit register, a mask, or one of the registers 16 to 31.
_AVX512 = re.compile(r"zmm|\{|mm(1[6-9]|[23]\d)")
_VECTOR_PREFIXES = b"\x62\xc4\xc5"
"""How AVX and AVX-512 instructions begin, and in 64-bit code nothing else."""


class BeyondTable(Dated, frozen=True):
    """`processor.toml`."""

    beyond: dict[str, tuple[str, ...]]
    systems: dict[str, tuple[str, ...]]
    asks: dict[str, tuple[str, ...]]


class BeyondFunction(msgspec.Struct, frozen=True, order=True):
    """A function and its first instruction that is beyond x86-64-v2."""

    address: int
    name: str
    instruction: str
    feature: str

    def __str__(self) -> str:
        return f"{self.name} has `{self.instruction}` ({self.feature})"


class Disassembly(msgspec.Struct, frozen=True):
    """What the code of a library asks of a processor."""

    beyond: tuple[BeyondFunction, ...] = ()
    always: tuple[BeyondFunction, ...] = ()
    """Those of them that run when the library is loaded, or that ask the processor."""
    shared: tuple[BeyondFunction, ...] = ()
    """Inline functions of the headers of C++ or torch among them: the linker keeps one copy of each."""
    asks: str = ""
    """How it asks which processor it is; empty if it does not."""


beyond_table = shipped("verify/data/processor.toml", BeyondTable)
"""What is beyond x86-64-v2."""


@cache
def feature_of(mnemonic: str) -> str:
    """The feature beyond x86-64-v2 that an instruction belongs to; empty for none."""
    table = beyond_table()
    if mnemonic in table.systems["names"]:
        return ""
    for name, patterns in table.beyond.items():
        if any(fnmatch.fnmatchcase(mnemonic, pattern) for pattern in patterns):
            return name
    return ""


def disassemble(path: Path) -> Disassembly:
    """Look through the code of an x86-64 library.

    Raises:
        ElfError: it is no library that can be read, or has more code than is looked through.
        OSError: the file cannot be read.
    """
    with open_image(path) as image:
        names = _names(image)
        if sum(item.size for item in image.sections if item.runs) > _MAX_CODE:
            raise ElfError(f"it has more than {_MAX_CODE >> 20} MiB of code")
        starts = sorted(_starts(image) | names.keys())
        roots = {starts[bisect(starts, root) - 1] for root in _roots(image) if starts and root >= starts[0]}
        found: dict[int, BeyondFunction] = {}
        asking: dict[int, str] = {}
        for section in image.sections:
            if section.runs:
                data = image.part(section.offset, section.size)
                own = starts[bisect(starts, section.address) : bisect(starts, section.address + section.size - 1)]
                _look_through(data, section.address, [section.address, *own], found, asking)

        def named(address: int) -> str:
            return names.get(address, f"the function at {address:#x}")

        functions = {start: msgspec.structs.replace(function, name=named(start)) for start, function in found.items()}
        return Disassembly(
            tuple(sorted(functions.values())),
            tuple(sorted(functions[start] for start in functions.keys() & (roots | asking.keys()))),
            tuple(sorted(functions[start] for start in functions.keys() & _shared(image))),
            next((f"{what} in {named(start)}" for start, what in sorted(asking.items())), "") or _asks_otherwise(image),
        )


def _shared(image: Image) -> set[int]:
    found = set()
    for name, info, _, section, value, _ in image.symbols:
        if section and info >> 4 == _WEAK and info & 0xF in _FUNCTIONS:
            text = image.name(name)
            if is_std_name(text) or cpp_namespace(text) in _OTHERS:
                found.add(value)
    return found


def _asks_otherwise(image: Image) -> str:
    patterns = beyond_table().asks["symbols"]
    for name, info, _, section, _, _ in image.symbols:
        text = image.name(name)
        if section and info & 0xF == IFUNC:
            return f"{text} is chosen when it is loaded"
        if not section and any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns):
            return text
    if any(item.kind == _IRELATIVE for item in image.relocations()):
        return "functions are chosen when it is loaded"
    return ""


def _names(image: Image) -> dict[int, str]:
    """The functions with a name: what is exported, and what the compiler noted."""
    found = {}
    for section in image.sections:
        if section.kind == _SYMTAB:
            strings = image.sections[section.link].offset
            size = min(section.size, _MAX_FUNCTIONS * SYMBOL.size) // SYMBOL.size * SYMBOL.size
            table = image.part(section.offset, size)
            for name, info, _, place, value, _ in SYMBOL.iter_unpack(table):
                if place and info & 0xF in _FUNCTIONS:
                    found[value] = image.text(strings + name)
    for name, info, _, place, value, _ in image.symbols:
        if place and info & 0xF in _FUNCTIONS:
            found[value] = image.name(name)
    return found


def _starts(image: Image) -> set[int]:
    """Where functions start, by the table for exceptions, which a stripped library has too."""
    found: set[int] = set()
    for item in image.segments:
        if item.kind == _EH_FRAME:
            head = image.at(item.address, 12)
            if head[:4] == _USUAL_EH_FRAME:
                (count,) = struct.unpack_from("<I", head, 8)
                if count > _MAX_FUNCTIONS:
                    raise ElfError("it has more functions than any library does")
                table = struct.iter_unpack("<ii", image.at(item.address + 12, 8 * count))
                found |= {item.address + start for start, _ in table}
    return found


def _roots(image: Image) -> Iterator[int]:
    """What runs when Python imports the library."""
    if INIT in image.tags:
        yield image.tags[INIT]
    start, size = image.tags.get(INIT_ARRAY, 0), image.tags.get(INIT_ARRAYSZ, 0)
    for item in image.relocations() if size else ():
        if start <= item.place < start + size:
            if item.kind == _RELATIVE:
                yield item.addend
            elif item.kind == _ABSOLUTE:
                yield image.symbols[item.symbol][4] + item.addend
    for name, _, _, section, value, _ in image.symbols:
        if section and image.name(name).startswith("PyInit_"):
            yield value


def _look_through(
    data: bytes, address: int, starts: list[int], found: dict[int, BeyondFunction], asking: dict[int, str]
) -> None:
    reader = _Disassembler()
    for start, end in zip(starts, [*starts[1:], address + len(data)], strict=True):
        for kind, text in reader.notable(data[start - address : end - address]):
            if not kind:
                asking.setdefault(start, text)
            elif start not in found:
                found[start] = BeyondFunction(start, "", text, kind)


class _Disassembler:
    """capstone, asked for many instructions at once: one by one, as its own iterator does, takes ten times as long."""

    def __init__(self) -> None:
        import capstone

        self._engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._library = capstone._cs
        self._instruction = capstone._cs_insn
        self._notable = _notable_numbers()

    def notable(self, code: bytes) -> Iterator[tuple[str, str]]:
        """Of a function the first instructions that are beyond, with the feature, and that ask, without one."""
        place = 0
        while place < len(code):
            part = code[place : place + _CHUNK]
            first = ctypes.POINTER(self._instruction)()
            count = self._library.cs_disasm(self._engine.csh, part, len(part), place, 0, ctypes.byref(first))
            if not count:
                if code[place] in _VECTOR_PREFIXES:
                    yield "AVX-512", f"bytes {code[place : place + 6].hex(' ')}"
                return  # padding, data, or what capstone does not know; the next function is read again
            try:
                numbers = self._numbers(first, count)
                for number in self._notable.keys() & set(numbers):
                    item = first[numbers.index(number)]
                    text = f"{item.mnemonic.decode()} {item.op_str.decode()}".strip()
                    kind = self._notable[number]
                    yield "AVX-512" if kind == "AVX" and _AVX512.search(text) else kind, text
                last = first[count - 1]
                place = last.address + last.size
            finally:
                self._library.cs_free(first, count)

    def _numbers(self, first: Any, count: int) -> list[int]:
        """The numbers of the instructions: the first field of each struct."""
        size = ctypes.sizeof(self._instruction)
        memory = (ctypes.c_char * (size * count)).from_address(ctypes.addressof(first.contents))
        return memoryview(memory).cast("B").cast("I")[:: size // 4].tolist()


@cache
def _notable_numbers() -> dict[int, str]:
    """Capstone's numbers of the instructions that matter, with the feature; empty for those that ask."""
    import capstone

    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    asks = beyond_table().asks["instructions"]
    named = {number: engine.insn_name(number) or "" for number in range(1, capstone.x86_const.X86_INS_ENDING)}
    return {number: feature_of(name) for number, name in named.items() if name in asks or feature_of(name)}


_MAX_PYTHON = 4 * 1024 * 1024


def check_processor(variant: VariantDir, path: Path, machine: str, where: str) -> Iterator[Diagnostic]:
    """The rules about the instructions of a library on Linux; the variant's Python may ask the processor for it."""
    if machine != "x86_64":
        yield finding("KCI750", f"the instructions of a library for {machine} are not checked", path=where)
        return
    try:
        code = disassemble(path)
    except ElfError as error:
        yield finding("KCI740", str(error), path=where)
        return
    if not code.beyond:
        return
    if code.always:
        message = f"{code.always[0]}, which runs before anything can ask for the processor"
        hint = "ask in sources that are compiled without such flags, and keep constructors of others out of them"
        yield finding("KCI767", message, hint=hint, path=where)
        return
    asks = code.asks or _asks_in_python(variant)
    more = f" (and {count(len(code.beyond) - 1, 'more function')})" if len(code.beyond) > 1 else ""
    if not asks:
        message = f"{code.beyond[0]}{more}, and nothing asks which processor it runs on"
        yield finding("KCI767", message, path=where)
        return
    if code.shared:
        message = f"{code.shared[0]}, and the linker gives this copy to all who call that function"
        yield finding("KCI769", message, path=where)
    message = f"{code.beyond[0]}{more}; it asks ({asks}), and that it does so before each of them is not shown"
    yield finding("KCI768", message, path=where)


def _asks_in_python(variant: VariantDir) -> str:
    words = [word.encode() for word in beyond_table().asks["python"]]
    for item in variant.regular(".py"):
        try:
            with item.path.open("rb") as file:
                text = file.read(_MAX_PYTHON)
        except OSError:
            continue  # reported when the directory was read
        if any(word in text for word in words):
            return item.name
    return ""
