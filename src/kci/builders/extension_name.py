"""Which sources are given the kernel's id: only those that can mention it, so that a new id compiles little anew.

Every commit changes the id, and it reaches the sources as a macro. Most of them never mention that macro, and their
objects stay as they are if the id is not on their command lines. They get `POISON` in its place: it is no C++ token, so
that a mention which this module did not find stops the compiler, and never registers operators under a wrong name.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from kci.files.walk import walk

MACROS = (b"TORCH_EXTENSION_NAME", b"TVM_FFI_EXTENSION_NAME")
POISON = "@"

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"](?:[^">\n]*/)?([^">/\n]+)[>"]', re.MULTILINE)
_NO_CODE = (".git/", "build/", "tests/", "benchmarks/")
_NO_CODE_ENDINGS = (".lock", ".md", ".nix", ".py", ".pyi", ".toml", ".txt", ".json", ".so", ".png")


def sources_with_name(kernel_dir: Path, sources: Collection[str]) -> set[str]:
    """The sources that may mention the name of the extension.

    These are the ones whose own text does. If any other file that does is included by name from anywhere in the kernel,
    it is all of them: working out who includes it through whom is not worth a mistake.

    Args:
        kernel_dir: the directory of build.toml.
        sources: what is compiled, relative to it.
    """
    mentioned: set[str] = set()
    other: set[bytes] = set()
    included: set[bytes] = set()
    for entry in walk(kernel_dir):
        if entry.name.startswith(_NO_CODE) or entry.name.endswith(_NO_CODE_ENDINGS) or not entry.regular:
            continue
        text = entry.path.read_bytes()
        included.update(_INCLUDE.findall(text))
        if not any(macro in text for macro in MACROS):
            continue
        mentioned.add(entry.name)
        other.add(entry.path.name.encode())
    if included & other:
        return set(sources)
    return mentioned & set(sources)
