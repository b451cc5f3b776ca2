"""Objects by ccache, with real compilers: what is taken of an earlier build, and what is compiled
again.
"""

from __future__ import annotations

import os
import shutil
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
from kci.builders.dispatch import build_variant
from kci.builders.native.builder import plan
from kci.builders.native.objects import Objects, read_head
from kci.builders.toolchains import compilers
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


def test_headers_outside_of_the_kernel(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders that a flag or a variable names: a header that is now found before the one that was
    read.
    """
    kernel, places = copy_kernel("bare", tmp_path / "place"), ("flag", "variable")
    for place in places:
        for folder in ("first", "later"):
            (tmp_path / place / folder).mkdir(parents=True)
        (tmp_path / place / "later" / f"{place}.h").write_text("-1")
        append(SOURCE, f"\nint {place}[] = {{\n#include <{place}.h>\n}};\n")(kernel)
    flags = "".join(f'"-isystem", "{tmp_path}/flag/{folder}", ' for folder in ("first", "later"))
    replace("build.toml", 'd = "cpu"\n', f'd = "cpu"\ncxx-flags = [{flags}]\n')(kernel)
    monkeypatch.setenv("CPATH", f"{tmp_path}/variable/first:{tmp_path}/variable/later")
    cold = build(kernel)
    assert build(kernel) == Made(ObjectUse(2, 0), cold.module)
    made = {cold.module}
    for text, use in (("2", ObjectUse(0, 2)), ("3", ObjectUse(1, 1))):
        for place in places:
            (tmp_path / place / "first" / f"{place}.h").write_text(text)
            changed = build(kernel)
            assert changed.use == use, "a folder that is searched has a file more, or another text"
            made.add(changed.module)
    assert len(made) == 5


@NVCC
def test_nvcc(build: Build, tmp_path: Path) -> None:
    """What the pass of one arch sees alone, in a source and in a header that no other pass reads:
    `nvcc -E` shows the first arch only.
    """
    first, second = two_places(tmp_path)
    late = "include/late.h"
    for kernel in (first, second):
        replace("build.toml", '"include/bare.h"', f'"include/bare.h", "{late}"')(kernel)
        replace("build.toml", '["9.0"]', '["8.0", "9.0"]')(kernel)
        body = '\n#if __CUDA_ARCH__ >= 900\n#include "late.h"\n#endif\n'
        append("csrc/bare.cu", f"__global__ void late(int* to) {{{body}}}\n")(kernel)
        (kernel / late).write_text("*to = 1;\n")
    cold = build(first, STABLE_CUDA)
    assert cold.use == ObjectUse(0, 2)
    assert build(second, STABLE_CUDA) == Made(ObjectUse(2, 0), cold.module)
    (second / late).write_text("*to = 2;\n")
    edited = build(second, STABLE_CUDA)
    assert edited.use == ObjectUse(1, 1)
    assert edited.module != cold.module


def for_ccache(kernel: Path, tmp_path: Path) -> dict[str, str]:
    return Objects(plan(request(kernel, STABLE_CPU, tmp_path), quiet), quiet).environment()


def key(kernel: Path, tmp_path: Path) -> str:
    return for_ccache(kernel, tmp_path)["CCACHE_NAMESPACE"]


@pytest.mark.parametrize(
    ("read", "directive"),
    [
        ("csrc/table.s", ".include"),
        ("csrc/table.bin", '.inc" "bin'),
        ("include/table.h", '.in" "clude'),
    ],
)
def test_what_an_assembler_reads_is_part_of_the_key(
    tmp_path: Path, read: str, directive: str
) -> None:
    kernel = copy_kernel("bare", tmp_path / "place")
    (kernel / "kci.toml").write_text(f'[[inputs]]\npaths = ["{read}"]\n')
    text = rf'asm(".section .rodata\n{directive} \"kernel/{read}\"\n.previous");'
    append(SOURCE, f"\n{text}\n")(kernel)
    keys = []
    for value in (".byte 1\n", ".byte 2\n"):
        (kernel / read).write_text(value)
        keys.append(key(kernel, tmp_path))
    assert keys[0] != keys[1]


def test_versions_of_tools_and_variables_that_compilers_read_are_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = copy_kernel("bare", tmp_path / "place")
    usual = key(kernel, tmp_path)
    with monkeypatch.context() as another:
        another.setattr(compilers, "version_line", "another {}".format)
        assert key(kernel, tmp_path) != usual
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DANOTHER")
    assert key(kernel, tmp_path) != usual


@pytest.mark.parametrize(("flag", "counts"), [("-gdwarf-4", True), ("-g0", False)])
def test_the_folder_counts_where_objects_name_it(tmp_path: Path, flag: str, counts: bool) -> None:
    kernel = copy_kernel("bare", tmp_path / "place")
    replace("build.toml", "[torch]", f'[torch]\ncxx-flags = ["{flag}"]')(kernel)
    assert ("CCACHE_HASHDIR" in for_ccache(kernel, tmp_path)) is counts


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
