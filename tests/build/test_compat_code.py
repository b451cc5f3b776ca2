"""The generated source that stands in for what older C++ libraries lack, compiled and called."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kci.build.kernel_files import EXPORTS_MAP
from kci.build.native.recipe import COMPAT_SOURCE, stand_ins

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="needs g++ on Linux, whose C++ library this is about"
)

PROBE = """
#include <exception>
#include <sstream>
#include <stdexcept>
int alive = 0;
struct Counted : std::runtime_error {
  Counted() : std::runtime_error("x") { ++alive; }
  Counted(const Counted &other) : std::runtime_error(other) { ++alive; }
  ~Counted() { --alive; }
};
extern "C" int probe() {
  int seen = 0;
  {
    std::exception_ptr first;
    try { throw Counted(); } catch (...) { first = std::current_exception(); }
    std::exception_ptr second = first, third;
    third = second;
    first = nullptr;
    second = nullptr;
    seen = alive;
    try { std::rethrow_exception(third); } catch (Counted &) { seen += 10; }
  }
  return seen * 10 + alive;
}
"""


@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_exceptions_are_counted_with_what_old_libraries_export(tmp_path: Path, level: str) -> None:
    for name, text in {
        "probe.cpp": PROBE,
        "compat.cpp": stand_ins()[COMPAT_SOURCE],
        "exports.map": EXPORTS_MAP,
    }.items():
        (tmp_path / name).write_text(text)
    made = tmp_path / "probe.so"
    command = ["g++", "-std=gnu++20", level, "-fPIC", "-shared", "-Werror", "probe.cpp", "compat.cpp", "-o", str(made)]
    subprocess.run([*command, "-Wl,--version-script=exports.map"], cwd=tmp_path, check=True)
    listed = subprocess.run(["nm", "-D", str(made)], capture_output=True, text=True, check=True).stdout
    assert "CXXABI_1.3.13" not in listed, "it would tie the kernel to GCC 11's library"
    exported = [line.split()[-1] for line in listed.splitlines() if line.split()[-2] != "U"]
    assert not [name for name in exported if name.startswith(("_ZNSt", "_ZSt"))]
    assert ctypes.CDLL(str(made)).probe() == 110, "one left alive while held, caught once, none alive afterwards"
