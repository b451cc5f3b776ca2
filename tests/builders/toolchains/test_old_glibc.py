"""Libraries that give functions the versions of an older glibc (docs/builders.md)."""

from __future__ import annotations

import platform
import re
import shutil

import pytest

from buildkit import output_of
from kci.builders.toolchains.glibc import old_libraries
from kci.matrix.variants import this_system

THREADS = re.compile(
    r" ((?:pthread|sem|mtx|cnd|thrd|tss|dl)_?\w+|call_once)@(@?)GLIBC_(\d+)\.(\d+)(?:\.(\d+))?$",
    re.MULTILINE,
)
FLOOR = (2, 28)


def test_a_version_is_never_older_than_the_cpus_first_glibc() -> None:
    x86 = {library.soname: dict(library.versions) for library in old_libraries("x86_64-linux")}
    arm = {library.soname: dict(library.versions) for library in old_libraries("aarch64-linux")}
    assert "dlsym" in x86["libdl.so.2"]["2.2.5"]
    assert list(arm["libdl.so.2"]) == ["2.17"]
    assert {"dlsym", "dlinfo", "dlmopen"} <= set(arm["libdl.so.2"]["2.17"])
    assert old_libraries("riscv64-linux") == ()


def test_each_version_holds_the_one_before_it() -> None:
    library = next(item for item in old_libraries("x86_64-linux") if item.soname == "libdl.so.2")
    assert library.files()[library.version_script].splitlines()[1:] == [
        "GLIBC_2.2.5 { global: dladdr; dlclose; dlerror; dlopen; dlsym; dlvsym; local: *; };",
        "GLIBC_2.3.3 { global: dladdr1; dlinfo; } GLIBC_2.2.5;",
        "GLIBC_2.3.4 { global: dlmopen; } GLIBC_2.3.3;",
    ]


@pytest.mark.programs
@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="this system's C library is another one"
)
def test_every_function_of_threads_and_loading_that_has_moved_is_in_them() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    libc = output_of("gcc", "-print-file-name=libc.so.6").strip()
    symbols = output_of("readelf", "--dyn-syms", "-W", libc)
    newest: dict[str, tuple[int, ...]] = {}
    older: dict[str, tuple[int, ...]] = {}
    for name, default, *numbers in THREADS.findall(symbols):
        version = tuple(int(number) for number in numbers if number)
        if default:
            newest[name] = version
        elif version <= FLOOR:
            older[name] = max(version, older.get(name, (0,)))
    moved = {name for name, version in newest.items() if version > FLOOR and name in older}
    known = {
        name: tuple(map(int, version.split(".")))
        for library in old_libraries(this_system())
        for version, names in library.versions
        for name in names
        if name in newest or name in older
    }
    assert newest
    assert {name: older[name] for name in moved if known.get(name) != older[name]} == {}
