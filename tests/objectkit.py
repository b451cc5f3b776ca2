"""A kernel of three sources whose objects the tests look at: compiled by a real compiler, without torch and ninja."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from buildkit import STABLE_CPU, quiet, request, with_changes, write_tree
from kci.builders import native
from kci.builders.object_store import ObjectStore
from kci.builders.objects import Objects
from kci.builders.request import Request
from kci.builders.visible_files import VisibleFiles
from kci.files.cache import work_dir
from kci.processes.running_commands import EndedCommand

BUILD = """
    [general]
    name = "three"
    version = 1
    edition = 5
    license = "MIT"
    backends = ["cpu"]

    [torch]
    src = ["csrc/b.cpp"]
    stable-abi = "2.11"

    [kernel.cpu]
    backend = "cpu"
    src = ["csrc/a.cpp", "csrc/c.cpp", "include/a.h", "way/linked.h"]
    include = ["include"]
    depends = ["torch"]
"""
FILES = {
    "build.toml": BUILD,
    "kci.toml": '[[inputs]]\npaths = ["table.bin"]\n',
    "torch-ext/three/__init__.py": "",
    "csrc/a.cpp": """
        #include "a.h"
        #include "../way/linked.h"
        #if __has_include("other/extra.h")
        #endif
        // as in b.cpp
        int a() { return A + LINKED; }
    """,
    "csrc/b.cpp": "int b;\n",
    "csrc/c.cpp": '#include <math.h>\nasm(".incbin \\"kernel/table.bin\\"");\nint c;\n',
    "include/a.h": "#define A 1\n",
    "one/linked.h": "#define LINKED 1\n",
    "two/linked.h": "#define LINKED 2\n",
    "table.bin": "12345",
}
ALL = {"csrc/a.cpp", "csrc/b.cpp", "csrc/c.cpp"}


class Kernel:
    """A kernel of three sources, compiled one after the other."""

    def __init__(self, place: Path, cache: Path) -> None:
        self.place, self.cache = write_tree(place, FILES), cache
        (place / "way").symlink_to("one")
        self.said: list[str] = []
        self.given: Sequence[Path] = ()
        self.part: str | None = None
        self.missed: set[str] = set()
        """What was compiled when a build last looked."""

    @property
    def work(self) -> Path:
        return work_dir(self.cache, self.place, STABLE_CPU)

    @property
    def store(self) -> ObjectStore:
        return ObjectStore(self.cache / native.OBJECTS)

    def records(self) -> dict[str, Path]:
        """The record of each source."""
        found = self.store.place.glob("*/*.json")
        return {msgspec.json.decode(path.read_bytes())["source"].removeprefix("kernel/"): path for path in found}

    def request(self) -> Request:
        """What is asked of the builder."""
        what = request(self.place, STABLE_CPU, self.cache.parent)
        return with_changes(what, cache=self.cache, objects_from=self.given, part=self.part)

    def begin(self) -> tuple[Objects, native.Recipe]:
        what = self.request()
        recipe = native.plan(what, quiet)
        visible = VisibleFiles(what)
        native._prepare(recipe, visible)
        return native._objects(recipe, what, visible, self.said.append), recipe

    def compile(self, during: Callable[[str], None] = quiet, *, finish: bool = True) -> set[str]:
        """Build, and say which sources were compiled; `during` is called while a compiler runs."""
        objects, recipe = self.begin()
        missing = objects.restore()
        self.missed = {step.inputs[0].removeprefix("kernel/") for step in missing}
        for step in missing:
            made = recipe.work / step.output
            made.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(step.command, cwd=recipe.work, check=True)
            during(step.inputs[0])
            objects.ended(EndedCommand(step.output, 1.5, 10**6))
        if finish:
            objects.complete()
            if self.part is None:
                for step in recipe.steps:
                    if not step.depfile and not (recipe.work / step.output).exists():
                        (recipe.work / step.output).parent.mkdir(parents=True, exist_ok=True)
                        (recipe.work / step.output).write_text("of these objects")
                objects.linked()
            objects.finish(10**9)
        else:
            objects.keep()
        self.objects = objects
        return self.missed

    def pack(self, out_file: Path) -> Path:
        """Compile, and pack the objects."""
        self.compile()
        return self.packed(out_file)

    def packed(self, out_file: Path) -> Path:
        """Pack what the last build has."""
        what = with_changes(self.request(), objects_to=out_file)
        native._pack(self.objects, what)
        return out_file


def put(path: Path, text: str = "// changed\n") -> None:
    """A file that was written long ago is put in a place."""
    new = path.parents[1] / "new"
    new.write_text(text)
    os.utime(new, (10**9, 10**9))
    path.parent.mkdir(exist_ok=True)
    new.replace(path)
