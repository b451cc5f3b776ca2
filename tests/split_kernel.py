"""A kernel of some sources whose variant is compiled in parts, by a compiler that notes what it
made.
"""

from __future__ import annotations

import collections
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from buildkit import OLDER_SYSTEM, program, warm_cache, write_tree

VARIANT = "torch-stable-abi211-cpu-x86_64-linux"
NAMES = [f"unit{number}" for number in range(7)]
_BUILD = """
    [general]
    name = "split"
    version = 1
    edition = 5
    license = "MIT"
    backends = ["cpu"]

    [torch]
    src = [{listed}]
    stable-abi = "2.11"

    [kernel.cpu]
    backend = "cpu"
    src = ["csrc/last.cpp"]
    depends = ["torch"]
"""
_LAST = """
#define PASTE(a, b) a##b
#define NAMED(a, b) PASTE(a, b)
extern "C" __attribute__((visibility("default")))
void *NAMED(PyInit_, TORCH_EXTENSION_NAME)() { return nullptr; }
"""


def sources(names: Sequence[str], text: str) -> dict[str, str]:
    """The files of a kernel that has these sources, each with this text."""
    return {f"csrc/{name}.cpp": text.format(name=name) for name in names} | {
        "build.toml": _BUILD.format(listed=", ".join(f'"csrc/{name}.cpp"' for name in names)),
        "torch-ext/split/__init__.py": "",
        "csrc/last.cpp": _LAST,
    }


SOURCES = sources(NAMES, "int {name};\n")

marks = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="the native builder works on Linux"
    ),
    pytest.mark.skipif(
        os.uname().machine != "x86_64", reason="the variant of these tests is for x86_64"
    ),
]


class SplitKernel:
    """The kernel, the cache of the client, and the notes of the compiler."""

    def __init__(self, place: Path, files: dict[str, str] = SOURCES, wait: str = "sleep 1") -> None:
        self.place = place
        self.directory = write_tree(place / "split", files)
        self.cache = warm_cache(place)
        self.notes = place / "made.txt"
        self.notes.touch()
        (place / "bin").mkdir()
        find = 'made=; last=; for word; do test "$last" = -o && made=$word; last=$word; done'
        noted = f'case "$made" in obj/[0-9]*) {wait}; echo "$made" >> {self.notes} ;; esac'
        self.compiler = program(
            place / "bin", "counted-g++", f'{OLDER_SYSTEM}{find}\ng++ "$@" || exit $?\n{noted}\n'
        )

    def made(self) -> collections.Counter[str]:
        """How often each object was compiled."""
        return collections.Counter(self.notes.read_text().split())
