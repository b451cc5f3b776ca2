"""The store of objects against a clean build: whatever is changed between builds, the objects are those of one.

Some changes are chosen, because compilers do not tell what they looked for in vain; the others are random.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from buildkit import program, quiet, write_tree
from kci.builders.commands import Toolchain
from kci.builders.files_now import FilesNow
from kci.builders.object_compilers import ObjectCompilers
from kci.inputs.stat_cache import StatCache
from kci.toolchains.cuda import Toolkit
from kci.toolchains.environment import tvm_ffi_environment
from objectkit import BUILD, Kernel

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the variant of these tests is for x86_64")

ALL = {"csrc/a.cpp", "csrc/b.cpp", "csrc/c.cpp"}


class Compared(Kernel):
    """A kernel whose objects are compared with those of a clean build, after each of its builds."""

    def __init__(self, place: Path, cache: Path, files: Mapping[str, str], flags: tuple[str, ...] = ()) -> None:
        super().__init__(place, cache)
        said = ", ".join(f"'{flag}'" for flag in flags)
        build = BUILD.replace("[kernel.cpu]", f"[kernel.cpu]\n    cxx-flags = [{said}]")
        write_tree(place, {"build.toml": build, "csrc/c.cpp": "int c;\n", **files})

    def compile(self, during: Callable[[str], None] = quiet, *, finish: bool = True) -> set[str]:
        made = super().compile(during, finish=finish)
        _, recipe = self.begin()
        environment = {**os.environ, "LC_ALL": "C"}
        for step in recipe.steps:
            if step.depfile:
                clean = list(step.command)
                clean[clean.index("-o") + 1] = "clean.o"
                clean[clean.index("-MF") + 1] = "clean.d"
                subprocess.run(clean, cwd=recipe.work, check=True, env=environment)
                same = (recipe.work / "clean.o").read_bytes() == (recipe.work / step.output).read_bytes()
                assert same, f"the object of {step.what} is not that of a clean build"
        return made


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCI_COMPILER_CACHE", "off")


ASKS = "#if __has_include({})\nint a = 1;\n#else\nint a;\n#endif\n"
V1, V2 = "#define V 1\n", "#define V 2\n"
USES = '#include "v.h"\nint a = V;\n'

# Of each: the source, flags, files before, files that are written afterwards. {x} and {y} lie outside of the kernel.
CHANGES: dict[str, tuple[str, tuple[str, ...], dict[str, str], dict[str, str]]] = {
    **{
        f"before one that {' '.join(flags)} leads to": (USES, flags, {"{y}/v.h": V1}, {"{x}/v.h": V2})
        for flags in (
            ("-I{x}", "-I{y}"),
            ("-I", "{x}", "-I", "{y}"),
            ("-iquote", "{x}", "-iquote", "{y}"),
            ("-isystem{x}", "-isystem{y}"),
            ("-idirafter", "{x}", "-idirafter", "{y}"),
            ("--include-directory={x}", "--include-directory={y}"),
            ("-Wp,-I,{x}", "-Wp,-I,{y}"),
            ("@{x}/flags", "-I{y}"),
        )
    },
    "a header that is asked for beside the kernel": (ASKS.format("<v.h>"), ("-I{x}",), {}, {"{x}/v.h": ""}),
    "one that another one asks for": (
        "#include <w.h>\nint a = V;\n", ("-isystem", "{x}"),
        {"{x}/w.h": "#if __has_include(<v.h>)\n#define V 1\n#else\n#define V 2\n#endif\n"}, {"{x}/v.h": ""},
    ),
    "one that is asked for by a macro": (
        f'#define H "other/v.h"\n{ASKS.format("H")}', (), {}, {"csrc/other/v.h": ""},
    ),
    "one that is asked for by a macro of flags": (ASKS.format("H"), ('-DH="other/v.h"',), {}, {"csrc/other/v.h": ""}),
    "one that is asked for by a function": (
        f"#define S(x) #x\n#define H(x) S(other/x.h)\n{ASKS.format('H(v)')}", (), {}, {"csrc/other/v.h": ""},
    ),
    "what assembler includes": ('asm(".include \\"kernel/v.s\\"");\n', (), {"v.s": ".long 1\n"}, {"v.s": ".long 2\n"}),
    "what assembler includes by a macro": (
        '#define I(f) asm(".incbin \\"" f "\\"")\nI("kernel/v.bin");\n', (), {"v.bin": "1"}, {"v.bin": "2"},
    ),
    "what assembler includes from elsewhere": (
        'asm(".incbin \\"{y}/v.bin\\"");\n', (), {"{y}/v.bin": "1"}, {"{y}/v.bin": "2"},
    ),
    "a file of arguments": ("int a = V;\n", ("@kernel/f",), {"f": "-DV=1"}, {"f": "-DV=2"}),
    "what a file of arguments names": (
        "int a = V;\n", ("@kernel/f",), {"f": "@kernel/g", "g": "-DV=1"}, {"g": "-DV=2"},
    ),
    "specs of GCC": (
        "int a = V;\n", ("-specs={y}/s",), {"{y}/s": "*cpp:\n+ -DV=1\n\n"}, {"{y}/s": "*cpp:\n+ -DV=2\n\n"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_no_compiler_tells_of(name: str, tmp_path: Path) -> None:
    source, flags, before, after = CHANGES[name]
    places = {"{x}": str(tmp_path / "x"), "{y}": str(tmp_path / "y")}

    def placed(text: str) -> str:
        for word, place in places.items():
            text = text.replace(word, place)
        return text

    write_tree(tmp_path, {"x/flags": f"-I{tmp_path}/x", "y/other.h": ""})
    files = {placed(path): text for path, text in before.items()}
    kernel = Compared(
        tmp_path / "kernel", tmp_path / "cache", {"csrc/a.cpp": placed(source), **files}, tuple(map(placed, flags))
    )
    assert kernel.compile() == ALL
    assert kernel.compile() == set()
    write_tree(kernel.place, {placed(path): text for path, text in after.items()})
    assert "csrc/a.cpp" in kernel.compile()
    assert kernel.compile() == set()


@pytest.mark.parametrize("option", ["-isystem{x}", "-I{x}", "-idirafter{x}"])
def test_a_link_beside_system_headers_that_is_turned(option: str, tmp_path: Path) -> None:
    """Where the real path of a system header is the shorter one, GCC tells of that alone unless it is told not to."""
    folder = tmp_path / "a" / "longer" / "name"
    write_tree(tmp_path, {"1.h": V1, "2.h": V2, "a/longer/name/other.h": ""})
    (folder / "v.h").symlink_to(tmp_path / "1.h")
    flags = (option.format(x=folder),)
    kernel = Compared(tmp_path / "kernel", tmp_path / "cache", {"csrc/a.cpp": USES}, flags)
    assert kernel.compile() == ALL
    assert kernel.compile() == set()
    (folder / "v.h").unlink()
    (folder / "v.h").symlink_to(tmp_path / "2.h")
    assert kernel.compile() == {"csrc/a.cpp"}
    assert kernel.compile() == set()


@pytest.mark.parametrize("variable", ["CPATH", "CPLUS_INCLUDE_PATH"])
def test_directories_of_variables(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").mkdir()
    monkeypatch.setenv(variable, str(tmp_path / "x"))
    kernel = Compared(tmp_path / "kernel", tmp_path / "cache", {"csrc/a.cpp": ASKS.format("<v.h>")})
    kernel.compile()
    (tmp_path / "x" / "v.h").write_text("")
    assert kernel.compile() == {"csrc/a.cpp"}
    monkeypatch.delenv(variable)
    assert kernel.compile() == ALL
    assert kernel.compile() == set()


@pytest.mark.parametrize("words", ["{}", "env {}", "{}/../outer"])
def test_a_compiler_behind_another_program(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = program(tmp_path, "inner", 'exec g++ -DV=1 "$@"\n')
    program(tmp_path, "outer", 'exec inner "$@"\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CXX", str(tmp_path / "outer") if "outer" in words else words.format(inner))
    kernel = Compared(tmp_path / "kernel", tmp_path / "cache", {"csrc/a.cpp": "int a = V;\n"})
    kernel.compile()
    program(tmp_path, "inner", 'exec g++ -DV=2 "$@"\n')
    assert kernel.compile() == ALL


@pytest.mark.parametrize("macro", ["__TIMESTAMP__", "__DATE__"])
def test_what_holds_the_time_is_not_kept(macro: str, tmp_path: Path) -> None:
    kernel = Compared(tmp_path / "kernel", tmp_path / "cache", {"csrc/a.cpp": f"const char* a = {macro};\n"})
    kernel.compile()
    os.utime(kernel.place / "csrc" / "a.cpp", (10**9, 10**9))
    assert kernel.compile() == {"csrc/a.cpp"}


def test_what_names_its_directory_is_of_no_other(tmp_path: Path) -> None:
    here = Compared(tmp_path / "kernel", tmp_path / "cache", {}, ("-g",))
    assert here.compile() == ALL
    assert here.compile() == set()
    there = Compared(tmp_path / "far" / "kernel", tmp_path / "far" / "cache", {}, ("-g",))
    shutil.copytree(here.cache / "objects", there.cache / "objects")
    assert there.compile() == {"csrc/a.cpp", "csrc/c.cpp"}


@pytest.mark.parametrize("deep", [False, True])
def test_a_folder_that_is_replaced_while_a_compiler_reads(deep: bool, tmp_path: Path) -> None:
    """Its files were there before, so nothing but their folder is new."""
    kernel = Compared(tmp_path / "kernel", tmp_path / "cache", {"csrc/a.cpp": USES, "include/v.h": V1})
    what = kernel.place / "include" if deep else kernel.place
    other = shutil.copytree(what, tmp_path / "other", symlinks=True)
    write_tree(other, {"v.h" if deep else "include/v.h": V2})

    def swap(source: str) -> None:
        if source == "kernel/csrc/a.cpp":
            what.rename(tmp_path / "old")
            other.rename(what)

    Kernel.compile(kernel, swap)
    assert kernel.compile() == {"csrc/a.cpp"}


@pytest.mark.parametrize("suffix", [".json", ".list", ".o", ""])
def test_a_store_with_flipped_bits_heals(suffix: str, tmp_path: Path) -> None:
    kernel = Compared(tmp_path / "kernel", tmp_path / "cache", {})
    kernel.compile()
    for path in filter(Path.is_file, kernel.store.place.rglob(f"*{suffix}")):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    kernel.compile()
    assert kernel.compile() == set()


def test_headers_that_nvcc_reads_and_does_not_list(tmp_path: Path) -> None:
    names = ("bin/nvcc", "include/crt/host_runtime.h", "include/fatbinary_section.h")
    toolkit = write_tree(tmp_path, dict.fromkeys(names, ""))
    environment = tvm_ffi_environment(tmp_path, "0.1")
    chain = Toolchain(("g++",), (), environment, Path("/py"), cuda=Toolkit("13.0", toolkit / "bin" / "nvcc", toolkit))

    def named() -> str:
        files = FilesNow(tmp_path, StatCache(Path("/"), tmp_path / "inputs"))
        return ObjectCompilers(chain, files).named([str(toolkit / "bin" / "nvcc"), "-c", "a.cu", "-o", "a.o"])[1]

    nvcc = [str(toolkit / "bin" / "nvcc"), "-Xcompiler", "-Iother", "-c", "a.cu", "-o", "a.o"]
    (tmp_path / "other").mkdir()
    searched = ObjectCompilers(chain, FilesNow(tmp_path, StatCache(Path("/"), tmp_path / "inputs"))).directories(nvcc)
    assert "other" in searched, "what reads its headers is g++, which is asked where it looks for them"
    assert any(path.startswith("/usr/") for path in searched)
    found = {named()}
    for name in names[1:]:
        (toolkit / name).write_text("// changed\n")
        found.add(named())
    assert len(found) == 3


SOURCE = """
#if __has_include("v.h")
#include "v.h"
#endif
#if __has_include(<sub/w.h>)
#include <sub/w.h>
#endif
int a = V + 10 * W;
"""
HEADERS = (
    "#undef {macro}\n#define {macro} {number}\n",
    '#undef {macro}\n#if __has_include("sub/w.h")\n#define {macro} {number}\n#else\n#define {macro} 9\n#endif\n',
)
PLACES = ("kernel/csrc", "kernel/include", "kernel", "x", "y", "z")
NAMES = ("v.h", "sub/w.h", "w.h")


class Fuzz:
    """One kernel and directories beside it, changed at random."""

    def __init__(self, root: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.random, self.monkeypatch = root, random.Random(seed), monkeypatch
        for name in "xyz":
            (root / name).mkdir(parents=True)
        flags = ("-DV=0", "-DW=0", "-iquote", str(root / "x"), "-isystem", str(root / "y"))
        self.kernel = Compared(root / "kernel", root / "cache", {"csrc/a.cpp": SOURCE}, flags)
        self.done: list[str] = []
        self.seen: list[object] = []
        """States whose objects are in the store."""

    def path(self) -> Path:
        return self.root / self.random.choice(PLACES) / self.random.choice(NAMES)

    def text(self, path: Path) -> str:
        macro = "V" if path.name == "v.h" else "W"
        return self.random.choice(HEADERS).format(macro=macro, number=self.random.randrange(1, 5))

    def state(self) -> object:
        found = []
        for place in ("kernel", "x", "y", "z"):
            for path in sorted((self.root / place).rglob("*")):
                if path.is_file():
                    found.append((str(path.relative_to(self.root)), path.read_bytes()))
        return found, os.environ.get("CPATH")

    def write(self) -> None:
        path = self.path()
        path.parent.mkdir(exist_ok=True)
        if path.is_symlink():
            path.unlink()
        path.write_text(self.text(path))

    def write_with_the_dates_of_before(self) -> None:
        path = self.path()
        if path.is_file():
            before = path.stat()
            text = path.read_text()
            path.write_text(text.translate(str.maketrans("1234", "2341")))
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def remove(self) -> None:
        self.path().unlink(missing_ok=True)

    def rename(self) -> None:
        one, other = self.path(), self.path()
        if one.is_file() and one.name == other.name:
            other.parent.mkdir(exist_ok=True)
            one.replace(other)

    def link(self) -> None:
        # the kernel's own lead nowhere else
        one, other = self.path(), self.path()
        if (
            other.is_file()
            and one != other
            and one.name == other.name
            and ("kernel" in one.parts) <= ("kernel" in other.parts)
        ):
            one.parent.mkdir(exist_ok=True)
            one.unlink(missing_ok=True)
            one.symlink_to(other.resolve())

    def set_dates(self) -> None:
        path = self.path()
        if path.is_file():
            when = self.random.choice((1, 10**9, 4 * 10**9))
            os.utime(path, (when, when))

    def variable(self) -> None:
        if "CPATH" in os.environ:
            self.monkeypatch.delenv("CPATH")
        else:
            self.monkeypatch.setenv("CPATH", str(self.root / "z"))

    def move_the_store(self) -> None:
        """The work directory goes, and the store is one that was copied."""
        shutil.rmtree(self.kernel.work)
        shutil.copytree(self.kernel.cache / "objects", self.root / "copy")
        shutil.rmtree(self.kernel.cache)
        self.kernel.cache.mkdir()
        (self.root / "copy").rename(self.kernel.cache / "objects")

    def flip_bits(self) -> None:
        for path in self.kernel.store.place.rglob("*"):
            if path.is_file() and self.random.random() < 0.3:
                data = bytearray(path.read_bytes())
                if data:
                    data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
                    path.write_bytes(data[: self.random.choice((None, len(data) // 2))])
        self.seen.clear()

    def damage_the_work(self) -> None:
        for path in self.kernel.work.glob("obj/*/*.o"):
            path.unlink()
            path.write_text("something else")

    def during(self, source: str) -> None:
        if self.random.random() < 0.1:
            self.done.append(f"while {source} is compiled:")
            self.seen.clear()
            self.change()
            self.changed_meanwhile = True

    def change(self) -> None:
        kinds = [self.write] * 5 + [self.write_with_the_dates_of_before] * 2 + [self.remove] * 3 + [self.rename] * 2
        change = self.random.choice([*kinds, self.link, self.link, self.set_dates])
        self.done.append(change.__name__)
        change()

    def step(self) -> None:
        rare = (self.variable, self.move_the_store, self.flip_bits, self.damage_the_work)
        if self.random.random() < 0.25:
            change = self.random.choice(rare)
            self.done.append(change.__name__)
            change()
        else:
            self.change()
        self.changed_meanwhile = False
        state = self.state()
        if self.random.random() < 0.2:
            Kernel.compile(self.kernel, self.during)
        made = self.kernel.compile()
        if not self.changed_meanwhile:
            assert state not in self.seen or not made, f"{made} was compiled before"
            self.seen = [*self.seen[-8:], state]


def run_fuzz(root: Path, seed: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz = Fuzz(root, seed, monkeypatch)
    fuzz.kernel.compile()
    for _ in range(steps):
        try:
            fuzz.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, after {fuzz.done}: {error}") from error


@pytest.mark.parametrize("seed", range(2))
def test_random_changes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_fuzz(tmp_path, seed, 8, monkeypatch)


@pytest.mark.slow
def test_many_random_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KCI_MANY=1 takes as many as eight seeds."""
    for seed in range(100, 108 if os.environ.get("KCI_MANY") else 103):
        run_fuzz(tmp_path / str(seed), seed, 40, monkeypatch)
        monkeypatch.delenv("CPATH", raising=False)
