"""Objects that ninja would keep: what was read is another file now, or another one would be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from kci.builders.ninjafile import Step
from kci.builders.outdated_objects import OutdatedObjects

STEP = Step("obj/000/a.o", ("kernel/csrc/a.cpp",), ("c++",), "c++ csrc/a.cpp", depfile=True)
OTHER = Step("obj/001/b.o", ("kernel/csrc/b.cpp",), ("c++",), "c++ csrc/b.cpp", depfile=True)


class Compiled:
    """A work directory in which two sources were compiled."""

    def __init__(self, place: Path) -> None:
        self.kernel, self.work = place / "kernel", place / "work"
        sources = {
            "csrc/a.cpp": '#include "a.h"\n#if __has_include("other/extra.h")\n#endif\n// as in b.cpp\n',
            "csrc/b.cpp": "int b;\n",
            "include/a.h": "",
            "one/linked.h": "",
            "two/linked.h": "",
        }
        write_tree(self.kernel, sources)
        (self.kernel / "way").symlink_to("one")
        self.work.mkdir()
        (self.work / "kernel").symlink_to(self.kernel)
        read = "kernel/csrc/a.cpp kernel/csrc/../include/a.h kernel/way/linked.h"
        objects = {
            STEP.output: "",
            f"{STEP.output}.d": f"{STEP.output}: {read}\n",
            OTHER.output: "",
            f"{OTHER.output}.d": f"{OTHER.output}: kernel/csrc/b.cpp\n",
        }
        write_tree(self.work, objects)
        self.compile()

    def add(self, name: str) -> None:
        """A file that was written long ago is put into the kernel, in place of one or as another."""
        new = write_tree(self.kernel.parent, {"new": "changed"}) / "new"
        (self.kernel / name).parent.mkdir(exist_ok=True)
        new.replace(self.kernel / name)

    def outdated(self) -> list[str]:
        """The objects that are gone afterwards."""
        self.begin().remove([STEP, OTHER])
        return [step.output for step in (STEP, OTHER) if not (self.work / step.output).exists()]

    def begin(self) -> OutdatedObjects:
        """Another build begins."""
        return OutdatedObjects(self.work, [str(path) for path in self.kernel.rglob("*") if path.is_file()])

    def compile(self) -> None:
        """Both objects are made."""
        for step in (STEP, OTHER):
            (self.work / step.output).touch()
        self.tick()

    def tick(self) -> None:
        """Wait until the clock of the file system has gone on."""
        probe = self.work / "probe"
        probe.touch()
        while probe.stat().st_ctime_ns <= max(
            path.stat().st_ctime_ns for path in self.work.rglob("*") if path != probe
        ):
            probe.touch()


@pytest.fixture
def compiled(tmp_path: Path) -> Compiled:
    return Compiled(tmp_path)


def test_nothing_is_removed_where_nothing_has_changed(compiled: Compiled) -> None:
    assert compiled.outdated() == []


@pytest.mark.parametrize("name", ["csrc/a.cpp", "include/a.h", "one/linked.h"])
def test_a_file_that_was_put_in_place_of_one_that_was_read(compiled: Compiled, name: str) -> None:
    compiled.add(name)
    assert compiled.outdated() == [STEP.output]


def test_a_link_that_leads_elsewhere(compiled: Compiled) -> None:
    (compiled.kernel / "way").unlink()
    (compiled.kernel / "way").symlink_to("two")
    assert compiled.outdated() == [STEP.output]


@pytest.mark.parametrize("name", ["csrc/a.h", "other/linked.h", "other/extra.h"])
def test_a_file_that_would_be_found_now(compiled: Compiled, name: str) -> None:
    compiled.add(name)
    assert compiled.outdated() == [STEP.output]


@pytest.mark.parametrize("name", ["csrc/new.h", "other/a.cpp", "README.md"])
def test_a_file_that_no_source_asks_for(compiled: Compiled, name: str) -> None:
    compiled.add(name)
    assert compiled.outdated() == []


def test_a_source_that_another_one_only_mentions(compiled: Compiled) -> None:
    compiled.add("csrc/b.cpp")
    assert compiled.outdated() == [OTHER.output]


def test_what_ninja_makes_anyway_is_left_to_it(compiled: Compiled) -> None:
    (compiled.work / STEP.output).unlink()
    (compiled.work / f"{OTHER.output}.d").unlink()
    compiled.add("csrc/b.cpp")
    assert compiled.outdated() == [STEP.output], "it was gone before"


@pytest.mark.parametrize("finished", [True, False])
def test_a_file_that_was_replaced_while_it_was_compiled(compiled: Compiled, finished: bool) -> None:
    """Its objects are newer than it. A build that finishes has looked whether a file changed."""
    build = compiled.begin()
    compiled.tick()
    compiled.add("include/a.h")
    compiled.tick()
    compiled.compile()
    if finished:
        build.finish()
    assert compiled.outdated() == ([] if finished else [STEP.output])


def test_what_an_unfinished_build_compiled_is_kept(compiled: Compiled) -> None:
    compiled.begin()
    compiled.tick()
    compiled.compile()
    assert compiled.outdated() == []
    compiled.add("include/a.h")
    compiled.tick()
    assert compiled.outdated() == [STEP.output]
