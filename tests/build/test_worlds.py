"""Whole builds beside builds from nothing: whatever changed in between, the module has the bytes of one.

The world of a kernel is changed at random: headers, the links that lead to them, flags, macros, the order in which
directories are looked through, dates, the compiler, and what kci keeps.
"""

from __future__ import annotations

import collections
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildkit import STABLE_CPU, STABLE_CUDA, program, quiet, request, warm_cache, with_changes, write_tree
from kci.build.native import builder
from kci.build.request import BuildResult

CLANG = next((found for name in ("clang++", "clang++-19", "clang++-14") if (found := shutil.which(name))), None)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the variants of these tests are for x86_64"),
]

BUILD = """
    [general]
    name = "world"
    version = 1
    edition = 5
    license = "MIT"
    backends = ["{backend}"]

    [torch]
    src = ["csrc/b.cpp"]
    stable-abi = "2.11"

    [kernel.one]
    backend = "{backend}"
    {archs}
    src = ["csrc/a.{ending}", "csrc/c.{ending}", {headers}]
    include = ["include"]
    depends = ["torch"]
    {flags} = [{said}]
"""
A = """
    #include "v.h"
    #include <turned.h>
    #include <sub/w.h>
    #include HEADER
    #if __has_include(<extra.h>)
    #include <extra.h>
    #endif
    #ifndef EXTRA
    #define EXTRA 0
    #endif
    #ifndef WORLD_C
    #define WORLD_C 0
    #endif
    {code}
"""
VALUE = "WORLD_V + 10 * TURNED + 100 * WORLD_W + 1000 * WORLD_F + 10000 * WORLD_M + 100000 * EXTRA + 1000000 * WORLD_C"
CODE = {
    "cpp": f"int world_a[] = {{-1, {VALUE}}};",
    "cu": f"int world_a[] = {{-1, {VALUE}}};\n__global__ void kernel_a(int *to) {{ *to = {VALUE}; }}",
}
C = {
    "cpp": "int world_c = WORLD_F;",
    "cu": "int world_c = WORLD_F;\n__global__ void kernel_c(int *to) { *to = WORLD_F; }",
}


class World:
    """A kernel with all that its compilers read, and two caches: one is kept, the other is of no use.

    With `outside`, flags name folders that are no part of the kernel, and ccache then runs the preprocessor each time.
    """

    def __init__(self, root: Path, compiler: str, seed: int, monkeypatch: pytest.MonkeyPatch, *, outside: bool) -> None:
        self.root, self.random, self.monkeypatch = root, random.Random(seed), monkeypatch
        self.ending, self.name = ("cu", STABLE_CUDA) if compiler == "nvcc" else ("cpp", STABLE_CPU)
        self.compiler = CLANG if compiler == "clang++" else "g++"
        self.far = root / "a" / "longer" / "way" / "to"
        """Where links are whose targets have the shorter path."""
        headers = {f"{number}.h": f"#define TURNED {number}\n" for number in range(1, 4)}
        folders = {f"{number}/w.h": f"#define WORLD_W {number}\n" for number in range(1, 4)}
        write_tree(root, {**headers, **folders, "a/longer/way/to/x/none.h": "", "a/longer/way/to/y/none.h": ""})
        write_tree(
            root / "kernel",
            {
                f"csrc/a.{self.ending}": A.format(code=CODE[self.ending]), "csrc/b.cpp": "int world_b = 1;\n",
                f"csrc/c.{self.ending}": C[self.ending], "include/v.h": "#define WORLD_V 1\n",
                "include/m1.h": "#define WORLD_M 1\n", "include/m2.h": "#define WORLD_M 2\n",
                "torch-ext/world/__init__.py": "",
            },
        )  # fmt: skip
        (self.far / "x" / "turned.h").symlink_to(root / "1.h")
        (self.far / "y" / "sub").symlink_to(root / "1")
        self.flag, self.header, self.outside = 1, 1, outside
        self.order = ["x", "y"] if outside else []
        if not outside:
            write_tree(root / "kernel" / "include", {"turned.h": headers["1.h"], "sub/w.h": folders["1/w.h"]})
        self.done: list[str] = []
        self.compiled: collections.Counter[str] = collections.Counter()
        self.wrapped(0)
        self.describe()
        self.caches = [warm_cache(write_tree(root / name, {"none": ""})) for name in ("kept", "new")]

    def describe(self) -> None:
        flags = [f"-DWORLD_F={self.flag}", f'-DHEADER=\\"m{self.header}.h\\"']
        flags += [word for name in self.order for word in ("-isystem", str(self.far / name))]
        headers = sorted(path.relative_to(self.root / "kernel") for path in self.root.glob("kernel/**/*.h"))
        said = ", ".join(f"'{flag}'" for flag in flags).replace('\\"', '"')
        write_tree(
            self.root / "kernel",
            {
                "build.toml": BUILD.format(
                    backend="cuda" if self.ending == "cu" else "cpu", ending=self.ending, said=said,
                    headers=", ".join(f'"{path}"' for path in headers),
                    flags="cuda-flags" if self.ending == "cu" else "cxx-flags",
                    archs='cuda-capabilities = ["9.0"]' if self.ending == "cu" else "",
                )
            },
        )  # fmt: skip

    def wrapped(self, number: int) -> None:
        words = f"-DWORLD_C={number}" if number else ""
        made = program(self.root, f"compiler{len(self.done)}", f'exec {self.compiler} {words} "$@"\n')
        made.replace(self.root / "compiler")
        self.monkeypatch.setenv("CXX", str(self.root / "compiler"))

    def build(self, *, fresh: bool) -> tuple[bytes, BuildResult]:
        cache = self.caches[fresh]
        for name in ("ccache", "work") if fresh else ():
            shutil.rmtree(cache / name, ignore_errors=True)
        what = request(self.root / "kernel", self.name, self.root)
        output = self.root / f"output-{fresh}"
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        made = builder.build(with_changes(what, cache=cache, output=output), quiet)
        (module,) = output.glob("*.so")
        return module.read_bytes(), made

    def header_changed(self) -> None:
        turned, w = ("1.h", "2/w.h") if self.outside else ("kernel/include/turned.h", "kernel/include/sub/w.h")
        name, macro = self.random.choice([("kernel/include/v.h", "WORLD_V"), (turned, "TURNED"), (w, "WORLD_W")])
        (self.root / name).write_text(f"#define {macro} {self.random.randrange(1, 10)}\n")

    def header_with_the_dates_of_before(self) -> None:
        path = self.root / "kernel" / "include" / "v.h"
        before = path.stat()
        path.write_text(f"#define WORLD_V {self.random.randrange(1, 10)}\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def link_turned(self) -> None:
        for link in (self.far / "x" / "turned.h", self.far / "y" / "turned.h"):
            if self.random.random() < 0.5 and link.is_symlink() and len(list(self.far.glob("*/turned.h"))) > 1:
                link.unlink()
            else:
                link.unlink(missing_ok=True)
                link.symlink_to(self.root / f"{self.random.randrange(1, 4)}.h")

    def folder_turned(self) -> None:
        link = self.far / "y" / "sub"
        link.unlink()
        link.symlink_to(self.root / f"{self.random.randrange(1, 4)}")

    def found_before(self) -> None:
        places = ["kernel/csrc/v.h", "kernel/csrc/extra.h", "a/longer/way/to/y/extra.h"]
        path = self.root / self.random.choice(places if self.outside else places[:2])
        macro = "WORLD_V" if path.name == "v.h" else "EXTRA"
        if path.exists():
            path.unlink()
        else:
            path.write_text(f"#define {macro} {self.random.randrange(1, 10)}\n")

    def flag_changed(self) -> None:
        self.flag = self.random.randrange(1, 4)

    def macro_changed(self) -> None:
        self.header = self.random.randrange(1, 3)

    def include_order(self) -> None:
        self.order.reverse()

    def compiler_replaced(self) -> None:
        self.wrapped(self.random.randrange(3))

    def dates_changed(self) -> None:
        for path in sorted(self.root.glob("kernel/*/*")):
            when = self.random.choice((1, 10**9, 4 * 10**9))
            os.utime(path, (when, when))

    def work_lost(self) -> None:
        shutil.rmtree(self.caches[0] / "work")

    def work_damaged(self) -> None:
        for path in (self.caches[0] / "work").rglob("*.o"):
            path.unlink()
            path.write_text("something else")

    def bits_flipped(self) -> None:
        for path in sorted((self.caches[0] / "ccache").rglob("*")):
            if path.is_file() and self.random.random() < 0.3 and (data := bytearray(path.read_bytes())):
                data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
                path.unlink()
                path.write_bytes(data[: self.random.choice((None, len(data) // 2))])

    def step(self) -> None:
        kinds = [self.header_changed, self.found_before] * 3
        kinds += [self.header_with_the_dates_of_before, self.flag_changed, self.macro_changed] * 2
        if self.outside:
            kinds += [self.link_turned, self.folder_turned] * 3 + [self.include_order] * 2
        kinds += [self.compiler_replaced, self.dates_changed, self.work_lost, self.work_damaged, self.bits_flipped]
        for change in self.random.choices(kinds, k=self.random.choice((1, 1, 1, 2))):
            self.done.append(change.__name__)
            change()
        self.describe()
        self.compare()

    def compare(self) -> None:
        kept, made = self.build(fresh=False)
        new, whole = self.build(fresh=True)
        assert made.objects is not None
        assert whole.objects is not None
        assert whole.objects.made == 3
        self.compiled.update(builds=1, objects=3, compiled=made.objects.made, found=made.objects.found)
        assert kept == new, "the module is not that of a build from nothing"


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("KCI_COMPILER_CACHE", raising=False)
    yield
    monkeypatch.delenv("CXX", raising=False)


def run_world(
    root: Path, compiler: str, seed: int, steps: int, monkeypatch: pytest.MonkeyPatch, *, outside: bool
) -> World:
    world = World(root, compiler, seed, monkeypatch, outside=outside)
    world.compare()
    for _ in range(steps):
        try:
            world.step()
        except AssertionError as error:
            where = "with folders outside" if outside else "within the kernel"
            raise AssertionError(f"{compiler}, seed {seed}, {where}, after {world.done}: {error}") from error
    return world


COMPILERS = [
    "g++",
    pytest.param("clang++", marks=pytest.mark.skipif(CLANG is None, reason="there is no clang++")),
    pytest.param("nvcc", marks=pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")),
]


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize("compiler", COMPILERS if os.environ.get("KCI_MANY") else COMPILERS[:1])
def test_a_changed_world(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = run_world(tmp_path, compiler, 1, 4, monkeypatch, outside=False)
    assert world.compiled["compiled"] < world.compiled["objects"], "objects are found, too"


@pytest.mark.slow
@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize("compiler", COMPILERS if os.environ.get("KCI_MANY") else COMPILERS[:1])
def test_a_world_that_changes_often(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KCI_MANY=1 takes three times as many steps, and the other compilers: each step of nvcc takes ten seconds."""
    found: collections.Counter[str] = collections.Counter()
    for seed in range(100, 103 if os.environ.get("KCI_MANY") else 101):
        for outside in (False, True):
            root = tmp_path / f"{seed}-{outside}"
            found += run_world(root, compiler, seed, 4, monkeypatch, outside=outside).compiled
    print(compiler, dict(found))
