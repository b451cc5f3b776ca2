"""Libraries that give functions the versions of an older glibc (docs/builders.md)."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest

from kci.builders.compilers import cxx_compiler
from kci.builders.old_glibc import old_libraries

USES = """
#include <cmath>
#include <dlfcn.h>
#include <mutex>
#include <thread>

extern "C" double kci_test(double value) {
  static std::once_flag once;
  double result = 0;
  std::call_once(once, [] {});
  std::thread([&] { result = std::exp(std::log(std::pow(value, 2.0))) + std::sin(0 * value); }).join();
  return dlsym(RTLD_DEFAULT, "strlen") != nullptr ? result : -1;
}
"""


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="kernels are made for these two")
def test_what_is_linked_against_them_needs_an_older_glibc_and_runs(tmp_path: Path) -> None:
    (tmp_path / "stub").mkdir()
    cxx = cxx_compiler()
    for library in old_libraries():
        for name, text in library.files().items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        subprocess.run(library.command(cxx), cwd=tmp_path, check=True)
    (tmp_path / "uses.cpp").write_text(USES)
    paths = [library.path for library in old_libraries()]
    link = [*cxx, "-shared", "-fPIC", "-O2", "uses.cpp", "-o", "uses.so", "-Wl,--as-needed", *paths]
    subprocess.run(link, cwd=tmp_path, check=True)
    listed = subprocess.run(
        ["readelf", "-W", "-V", "-d", tmp_path / "uses.so"], capture_output=True, text=True, check=True
    )
    versions = {tuple(map(int, text.split("."))) for text in re.findall(r"Name: GLIBC_([0-9.]+)", listed.stdout)}
    assert max(versions) <= (2, 28)
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", listed.stdout))
    assert {"libdl.so.2", "libpthread.so.0", "libm.so.6"} <= needed
    assert "librt.so.1" not in needed, "nothing of it is called"
    loaded = ctypes.CDLL(str(tmp_path / "uses.so"))
    loaded.kci_test.restype = ctypes.c_double
    assert loaded.kci_test(ctypes.c_double(3.0)) == pytest.approx(9.0)


def test_a_version_is_never_older_than_the_cpus_first_glibc() -> None:
    x86 = {library.soname: dict(library.versions) for library in old_libraries("x86_64")}
    arm = {library.soname: dict(library.versions) for library in old_libraries("aarch64")}
    assert "dlsym" in x86["libdl.so.2"]["2.2.5"]
    assert list(arm["libdl.so.2"]) == ["2.17"]
    assert {"dlsym", "dlinfo", "dlmopen"} <= set(arm["libdl.so.2"]["2.17"])
    assert old_libraries("riscv64") == ()


def test_each_version_holds_the_one_before_it() -> None:
    library = next(item for item in old_libraries("x86_64") if item.soname == "libdl.so.2")
    assert library.files()[library.version_script].splitlines()[1:] == [
        "GLIBC_2.2.5 { global: dladdr; dlclose; dlerror; dlopen; dlsym; dlvsym; local: *; };",
        "GLIBC_2.3.3 { global: dladdr1; dlinfo; } GLIBC_2.2.5;",
        "GLIBC_2.3.4 { global: dlmopen; } GLIBC_2.3.3;",
    ]


def test_no_function_is_in_two_of_them() -> None:
    names = [name for library in old_libraries("x86_64") for _, found in library.versions for name in found]
    assert len(names) == len(set(names))
