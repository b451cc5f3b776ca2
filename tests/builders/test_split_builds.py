"""A variant that is compiled in parts, on machines with other places and dates, has the bytes of a
whole build.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from buildkit import DATA, STABLE_CPU, asked, quiet, warm_cache, with_changes
from cli.runner import kci
from conftest import ROOT
from kci.builders.dispatch import build_variant
from kci.builders.request import BuildResult, Request
from planning import replace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("as_users_compile", "as_old_as_users_systems"),
    pytest.mark.skipif(
        os.uname().machine != "x86_64", reason="the variants of these tests are for x86_64"
    ),
]
MORE = 3


def checkout(kernel: Path, place: Path, seconds: int) -> Path:
    """A copy of a kernel with some more sources, at another place and of another date."""
    ignored = shutil.ignore_patterns("build")
    copy = Path(shutil.copytree(kernel, place / kernel.name, ignore=ignored))
    for source in sorted(copy.rglob("*.cpp")):
        if "binding" not in source.name:
            name = source.relative_to(copy).as_posix()
            more = [f"{name.removesuffix('.cpp')}_{number}.cpp" for number in range(MORE)]
            text = "namespace {{ int unused = {0}; }}\nint more_{0}_ = unused;\n"
            for number, path in enumerate(more):
                (copy / path).write_text(text.format(number))
            listed = ", ".join(f'"{path}"' for path in (name, *more))
            replace("build.toml", f'"{name}"', listed)(copy)
    for path in copy.rglob("*"):
        os.utime(path, (10**9 + seconds, 10**9 + seconds))
    return copy


class Machines:
    """Machines with nothing in common but what compiles."""

    def __init__(self, kernel: Path, name: str, tmp_path: Path) -> None:
        self.kernel, self.name, self.tmp_path, self.number = kernel, name, tmp_path, 0

    def build(self, **options: object) -> tuple[BuildResult, bytes]:
        """Build on one; what it made, and the bytes of the module."""
        self.number += 1
        place = self.tmp_path / "/".join(["deep"] * self.number) / f"machine-{self.number}"
        place.mkdir(parents=True)
        copy = checkout(self.kernel, place, self.number)
        what = with_changes(asked(self.name, copy, place), **options)
        built = build_variant(what, quiet)
        return built, b"" if what.options.part else module(what)


def module(what: Request) -> bytes:
    (made,) = what.output.glob("*.so")
    return made.read_bytes()


def test_the_bytes_of_parts_are_those_of_a_whole_build(tmp_path: Path) -> None:
    machines = Machines(DATA / "bare", STABLE_CPU, tmp_path)
    whole, expected = machines.build()
    assert whole.objects is not None
    count = whole.objects.made
    assert (whole.objects.found, count) == (0, count)
    for parts in (2, count):
        packs = tmp_path / f"packs-{parts}"
        made = 0
        for number in range(1, parts + 1):
            pack = packs / f"{number}.tar.zst"
            built, _ = machines.build(part=f"{number}/{parts}", objects_to=pack)
            made += built.objects.made if built.objects is not None else 0
        assert made == count, "each object once"
        linked, binary = machines.build(link=True, objects_from=(packs,))
        assert linked.objects is not None
        assert (linked.objects.found, linked.objects.made) == (count, 0)
        assert binary == expected
    lacking, binary = machines.build(link=True, objects_from=(packs / "1.tar.zst",))
    assert lacking.objects is not None
    assert (lacking.objects.found, lacking.objects.made, binary) == (1, count - 1, expected)


def test_a_build_that_fails_packs_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCI_CACHE", str(warm_cache(tmp_path)))
    kernel = checkout(DATA / "bare", tmp_path, 0)
    source = kernel / "csrc" / "bare_2.cpp"
    good = source.read_text()
    source.write_text("#error not yet\n")
    words = ["build", kernel, "--variant", STABLE_CPU, "--unique-id=1a2b3c4", "--jobs=1"]
    words.append("--no-load")
    failed = kci(*words, "--objects-to", tmp_path / "some.tar")
    assert (failed.code, "not yet" in failed.stderr) == (4, True)
    source.write_text(good)
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("KCI_CACHE", str(warm_cache(tmp_path / "other")))
    done = kci(*words, "--objects-from", tmp_path / "some.tar")
    assert done.code == 0, done.stderr
    assert " of 5 objects are as they were" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--part", "3/2", "--pack", "x.tar"], "is not a part"),
        (["--part", "1/2"], "where to put the objects"),
        (["--link"], "--link makes a variant of objects"),
        (["--link", "--objects-from", "missing.tar"], "no such file"),
        (["--part", "1/2", "--pack", "x.zip"], "another name"),
    ],
)
def test_what_the_command_line_refuses(tmp_path: Path, words: list[str], said: str) -> None:
    kernel = checkout(DATA / "bare", tmp_path, 0)
    cache = str(warm_cache(tmp_path))
    done = kci("build", kernel, "--variant", STABLE_CPU, *words, KCI_CACHE=cache)
    assert (done.code, said in done.stderr) == (2, True), done.stderr


def test_a_variant_of_python_has_no_parts(tmp_path: Path) -> None:
    words = ["build", ROOT / "examples" / "swiglu", "--variant=torch-cpu", "--part=1/2"]
    done = kci(*words, "--pack", tmp_path)
    assert done.code == 2, done.stderr
    assert "has no objects to split into parts" in done.stderr
