"""Objects by ccache, with real compilers: what is taken of an earlier build, and what is compiled
again.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from buildkit import (
    STABLE_CPU,
    STABLE_CUDA,
    copy_kernel,
    output_of,
    program,
    quiet,
    request,
    with_changes,
)
from kci.builders import build_variant
from kci.builders.native.objects import read_head
from kci.builders.toolchains.compilers import find_compiler_cache
from kci.matrix.variants import ObjectUse
from planning import append, replace

pytestmark = [pytest.mark.torch, pytest.mark.programs]
NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
WRAPPER = 'exec {} "$@"'


class Made(NamedTuple):
    use: ObjectUse | None
    module: bytes


Build = Callable[..., Made]


@pytest.fixture
def build(
    torch_cache: Path, tmp_path: Path, as_users_compile: None, as_old_as_users_systems: None
) -> Build:
    """Builds a kernel, and says how many objects were found."""

    def made(kernel: Path, name: str = STABLE_CPU, **options: object) -> Made:
        place = tmp_path / "out" / kernel.parent.name
        shutil.rmtree(place, ignore_errors=True)
        what = with_changes(request(kernel, name, place, cache=torch_cache), **options)
        what.output.mkdir(parents=True, exist_ok=True)
        built = build_variant(what, quiet)
        (module,) = what.output.glob("*.so")
        return Made(built.objects, module.read_bytes())

    return made


def with_header_in_front(kernel: Path, text: str) -> None:
    (kernel / "csrc" / "bare.h").write_text(text)
    replace("build.toml", '"include/bare.h"', '"include/bare.h", "csrc/bare.h"')(kernel)


SOURCE = "csrc/bare.cpp"
another = append(SOURCE, "\nint another() { return 1; }\n")


def two_places(tmp_path: Path) -> list[Path]:
    """A kernel twice."""
    return [copy_kernel("bare", tmp_path / name) for name in ("one-place", "another-place")]


@pytest.mark.rule("KCI511", triggers=False)
def test_gcc(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found again, found elsewhere; and compiled where a file, a header in front or the compiler is
    another one.
    """
    monkeypatch.setenv("CXX", str(program(tmp_path, "one", WRAPPER.format("g++"))))
    first, second = two_places(tmp_path)
    cold = build(first)
    assert cold.use == ObjectUse(0, 2)
    assert build(first) == Made(ObjectUse(2, 0), cold.module)
    os.utime(tmp_path / "one", (0, 0))  # the compiler's bytes count, and not its time
    assert build(second) == Made(ObjectUse(2, 0), cold.module)
    another(second)
    assert build(second).use == ObjectUse(1, 1), "the other one is as it was"
    text = (first / "include" / "bare.h").read_text()
    with_header_in_front(first, f'{text}\nextern "C" inline int in_front() {{ return 1; }}\n')
    assert build(first).use == ObjectUse(0, 2), "a header is found before the one that was read"
    monkeypatch.setenv("CXX", str(program(tmp_path, "two", f"# another\n{WRAPPER.format('g++')}")))
    assert build(first).use == ObjectUse(0, 2)


@pytest.mark.parametrize("by_flag", [True, False])
def test_headers_outside_of_the_kernel(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_flag: bool
) -> None:
    """Folders that a flag or a variable names: a header that is now found before the one that was
    read.
    """
    kernel, folders = copy_kernel("bare", tmp_path / "place"), [tmp_path / "x", tmp_path / "y"]
    for folder in folders:
        folder.mkdir()
    (folders[1] / "outside.h").write_text("#define OUTSIDE 1\n")
    append(SOURCE, "\n#include <outside.h>\nint outside[] = {-1, OUTSIDE};\n")(kernel)
    if by_flag:
        flags = "".join(f'"-isystem", "{folder}", ' for folder in folders)
        cpu = 'backend = "cpu"'
        replace("build.toml", cpu, f"{cpu}\ncxx-flags = [{flags}]")(kernel)
    else:
        monkeypatch.setenv("CPATH", ":".join(map(str, folders)))
    cold = build(kernel)
    assert build(kernel) == Made(ObjectUse(2, 0), cold.module)
    (folders[0] / "outside.h").write_text("#define OUTSIDE 2\n")
    changed = build(kernel)
    assert changed.use == ObjectUse(0, 2), "a folder that is searched has a file more"
    assert changed.module != cold.module
    (folders[0] / "outside.h").write_text("#define OUTSIDE 3\n")
    assert build(kernel).use == ObjectUse(1, 1), "another text in a file that was read"


@NVCC
def test_nvcc(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = two_places(tmp_path)
    cold = build(first, STABLE_CUDA)
    assert cold.use == ObjectUse(0, 2)
    assert build(second, STABLE_CUDA) == Made(ObjectUse(2, 0), cold.module)
    append("csrc/bare.cu", "\nint another() { return 1; }\n")(second)
    assert build(second, STABLE_CUDA).use == ObjectUse(1, 1)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DANOTHER")
    assert build(second, STABLE_CUDA).use == ObjectUse(0, 2), "what nvcc is told besides"


HOST = (
    'extern "C" inline __attribute__((used)) int {name}() {{\n#if {seen}\nreturn {value};\n'
    "#endif\nreturn 0;\n}}\n"
)
DEVICE = (
    "#ifdef __CUDACC__\n__global__ void {name}(int* p) {{\n#if {seen}\n*p = {value};\n#endif\n}}\n"
    "#endif\n"
)
EDITS = {
    STABLE_CPU: [
        (HOST, seen) for seen in ("defined(SEEN)", "!defined(SEEN)", "__has_include(<bare.h>)")
    ],
    STABLE_CUDA: [
        (DEVICE, "__CUDA_ARCH__ == 800"),
        (DEVICE, "__CUDA_ARCH__ >= 900"),
        (HOST, "!defined(__CUDA_ARCH__)"),
        (HOST, "defined(__CUDACC__)"),
        (HOST, "defined(SEEN)"),
    ],
}
PLACES = ("csrc/bare.cpp", "csrc/bare.cu", "include/bare.h", "include/late.h")


@pytest.mark.parametrize("name", [STABLE_CPU, pytest.param(STABLE_CUDA, marks=NVCC)])
def test_each_edit_is_compiled(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Edits that one arch, the host, or one component sees, in sources and headers, against builds
    without a cache.
    """
    kernel, chosen = copy_kernel("bare", tmp_path / "place"), random.Random(time.time_ns())
    for old, new in (
        ('"include/bare.h"]', '"include/bare.h", "include/late.h"]'),
        ('["9.0"]', '["8.0", "9.0"]'),
        ('d = "cpu"\n', 'd = "cpu"\ncxx-flags = ["-DSEEN"]\n'),
    ):
        replace("build.toml", old, new)(kernel)
    texts = {place: (kernel / place).read_text() for place in PLACES[:3]}
    texts["include/late.h"] = "#pragma once\n"
    texts["include/bare.h"] += (
        "\n#if defined(SEEN) || __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)\n"
        '#include "late.h"\n#endif\n'
    )

    def write(place: str, edit: str) -> None:
        (kernel / place).write_text(texts[place] + edit)

    for place in PLACES:
        write(place, "")
    before = build(kernel, name)
    compiled = [item for item in PLACES if name == STABLE_CUDA or not item.endswith("cu")]
    for _ in range(2):
        text, seen = chosen.choice(EDITS[name])
        place = chosen.choice(compiled)
        write(place, text.format(name="probe", seen=seen, value=chosen.randrange(1, 10**6)))
        after = build(kernel, name)
        with monkeypatch.context() as patch:
            patch.setenv("KCI_COMPILER_CACHE", "off")
            assert after.module == build(kernel, name).module, (place, seen)
        write(place, "")
    assert build(kernel, name) == Made(ObjectUse(2, 0), before.module)


@pytest.mark.parametrize(
    ("read", "directive"),
    [
        ("csrc/table.s", ".include"),
        ("csrc/table.bin", '.inc" "bin'),
        ("include/table.h", '.in" "clude'),
    ],
)
def test_what_an_assembler_reads_is_part_of_the_key(
    build: Build, tmp_path: Path, read: str, directive: str
) -> None:
    kernel = copy_kernel("bare", tmp_path / "place")
    (kernel / "kci.toml").write_text(f'[[inputs]]\npaths = ["{read}"]\n')
    text = rf'asm(".section .rodata\n{directive} \"kernel/{read}\"\n.previous");'
    append(SOURCE, f"\n{text}\n")(kernel)
    made = []
    for value in (".byte 1\n", ".byte 2\n"):
        (kernel / read).write_text(value)
        made.append(build(kernel).module)
    assert made[0] != made[1]


def test_a_header_that_appears_outside_is_seen(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `__has_include` in a folder that CXX names; and a compiler is known by its bytes, that of
    a folder as well.
    """
    kernel, folder = copy_kernel("bare", tmp_path / "place"), tmp_path / "outside"
    folder.mkdir()
    monkeypatch.setenv("CXX", f"g++ -isystem {folder} -B {folder}")
    append(SOURCE, "\n#if __has_include(<extra.h>)\nint which = 2;\n#endif\n")(kernel)
    cold = build(kernel)
    (folder / "extra.h").touch()
    assert build(kernel).module != cold.module
    real = output_of("g++", "-print-prog-name=cc1plus").strip()
    wrapper = program(folder, "cc1plus", f'exec {real} "$@"')
    assert build(kernel).use == ObjectUse(0, 2)
    os.utime(wrapper, (0, 0))
    assert build(kernel).use == ObjectUse(2, 0), "its time does not count"
    program(folder, "cc1plus", f'exec {real} "$@" # 2')
    os.utime(wrapper, (0, 0))
    assert build(kernel).use == ObjectUse(0, 2), "replaced in place"


def test_no_sloppiness_of_the_user_counts(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCACHE_SLOPPINESS", "time_macros,include_file_mtime")
    kernel = copy_kernel("bare", tmp_path / "place")
    append(SOURCE, "\nconst char* made() { return __TIMESTAMP__; }\n")(kernel)
    found = []
    for seconds in (10**9, 10**9 + 5):
        os.utime(kernel / SOURCE, (seconds, seconds))
        found.append(build(kernel).module)
    assert found[0] != found[1]


@pytest.mark.usefixtures("torch_cache")
def test_a_pack_has_what_a_build_used_and_goes_to_no_cache(build: Build, tmp_path: Path) -> None:
    """Whoever makes a pack is trusted by the build that is given it, and by no other one."""
    first, second = two_places(tmp_path)
    pack, again = tmp_path / "objects.tar", tmp_path / "again.tar"
    cold = build(first, objects_to=pack, run="17")
    head = read_head(pack)
    assert (head.objects, head.wanted, head.use, head.run) == (2, 2, ObjectUse(0, 2), "17")
    warm = build(second, objects_from=(pack,), objects_to=again)
    assert warm == Made(ObjectUse(2, 0, ("17",)), cold.module)
    assert again.stat().st_size > pack.stat().st_size // 2, "what was taken is packed again"
    assert build(second).use == ObjectUse(0, 2), "nothing of it is in the cache"


def test_a_damaged_object_is_compiled_again(build: Build, tmp_path: Path) -> None:
    kernel, pack = copy_kernel("bare", tmp_path / "place"), tmp_path / "objects.tar"
    cold = build(kernel, objects_to=pack)
    data = bytearray(pack.read_bytes())
    for at in range(len(data) // 4, len(data), 997):
        if data[at] and data[at - 300 : at + 300].count(0) < 20:  # inside of a compressed object
            data[at] ^= 255
    pack.write_bytes(data)
    warm = build(kernel, objects_from=(pack,))
    assert warm.module == cold.module


def test_sccache_goes_by_its_own_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = program(tmp_path, "sccache", "true")
    monkeypatch.setenv("KCI_COMPILER_CACHE", str(own))
    assert find_compiler_cache(("g++",)) == own
    assert find_compiler_cache(("sccache", "g++")) is None
    monkeypatch.setenv("KCI_COMPILER_CACHE", "off")
    assert find_compiler_cache(("g++",)) is None
