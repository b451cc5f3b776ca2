"""Code for newer processors than every user has: it is fine behind a question, and ends the process without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kci.diagnostics import Diagnostic, finding
from kci.plurals import count
from kci.verify.disassembly import beyond_table, disassemble
from kci.verify.elf_image import ElfError
from kci.verify.subject import VariantDir

_MAX_PYTHON = 4 * 1024 * 1024


def check_processor(variant: VariantDir, path: Path, machine: str, where: str) -> Iterator[Diagnostic]:
    """The rules about the instructions of a library on Linux.

    Args:
        variant: whose Python files may ask the processor for it.
        path: the library.
        machine: its processor, as in variant names.
        where: the library as the user would write it.
    """
    if machine != "x86_64":
        yield finding("KCI750", f"of a library for {machine} the instructions are not looked at", path=where)
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
