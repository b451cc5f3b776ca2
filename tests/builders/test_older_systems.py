"""What is linked for systems older than this machine, by the commands of a build (docs/builders.md)."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from buildkit import variant
from kci.builders import older_systems
from kci.builders.commands import EXPORTS, Target, Toolchain, link_command
from kci.builders.compilers import cxx_compiler
from kci.builders.environment import Environment
from kci.builders.generate import EXPORTS_MAP
from kci.builders.newer_cxx import find_newer_parts
from kci.builders.ninjafile import Step

USES = """
#include <charconv>
#include <cmath>
#include <condition_variable>
#include <dlfcn.h>
#include <filesystem>
#include <mutex>
#include <sys/stat.h>
#include <thread>

extern "C" long __isoc23_strtol(const char *, char **, int);

extern "C" double kci_parsed(const char *text, int length) {
  double value = 0;
  std::from_chars(text, text + length, value);
  char again[64];
  std::to_chars(again, again + sizeof again, value);
  return value;
}

extern "C" double kci_computed(double value) {
  static std::once_flag once;
  double result = 0;
  std::call_once(once, [] {});
  std::mutex mutex;
  std::condition_variable ready;
  bool set = false;
  std::thread other([&] {
    std::unique_lock<std::mutex> lock(mutex);
    ready.wait(lock, [&] { return set; });
  });
  {
    std::lock_guard<std::mutex> lock(mutex);
    set = true;
  }
  ready.notify_all();
  other.join();
  std::thread([&] { result = std::exp(std::log(std::pow(value, 2.0))) + std::sin(0 * value); }).join();
  return dlsym(RTLD_DEFAULT, "strlen") != nullptr && __isoc23_strtol("7", nullptr, 10) == 7 ? result : -1;
}

extern "C" int kci_files(const char *folder) {
  struct stat found;
  int count = stat(folder, &found) == 0 && fstatat(-1, folder, &found, 0) == 0 && S_ISDIR(found.st_mode) ? 0 : 100;
  for (const auto &entry : std::filesystem::recursive_directory_iterator(folder)) count += entry.is_regular_file();
  return count;
}
"""


def linked(tmp_path: Path, source: str) -> Path:
    """A module of one source, made by the commands of a build."""
    python = Environment(python=Path("python"), torch=Path("torch"), ninja=Path("ninja"), root=tmp_path)
    cxx = cxx_compiler()
    chain = Toolchain(cxx, True, python, Path("python"), glibc_compat=True, newer_parts=find_newer_parts(cxx))
    target = Target(variant("tvm-ffi01-cpu-x86_64-linux"), "_k_cpu_1")
    for folder in ("obj", "stub"):
        (tmp_path / folder).mkdir()
    texts = {"uses.cpp": source, EXPORTS: EXPORTS_MAP, **older_systems.files(chain)}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    steps = list(older_systems.steps(chain, target, ()))
    steps.append(Step("uses.o", (), (*cxx, "-std=c++20", "-O2", "-fPIC", "-c", "uses.cpp", "-o", "uses.o"), ""))
    for step in steps:
        subprocess.run(step.command, cwd=tmp_path, check=True)
    command = [word for word in link_command(chain, target, ["uses.o"]) if not word.endswith("tvm_ffi")]
    subprocess.run(command, cwd=tmp_path, check=True)
    return tmp_path / target.module


def readelf(option: str, module: Path) -> str:
    return subprocess.run(["readelf", "-W", option, module], capture_output=True, text=True, check=True).stdout


def newest(module: Path, prefix: str) -> tuple[int, ...]:
    found = re.findall(rf"Name: {prefix}_([0-9.]+) ", readelf("-V", module))
    return max(tuple(map(int, version.split("."))) for version in found)


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="kernels are made for these two")
def test_what_a_newer_system_has_is_not_needed_and_works(tmp_path: Path) -> None:
    module = linked(tmp_path, USES)
    assert newest(module, "GLIBC") <= (2, 28)
    assert newest(module, "GLIBCXX") <= (3, 4, 24)
    undefined = re.findall(r" GLOBAL +DEFAULT +UND +(\S+)", readelf("--dyn-syms", module))
    assert undefined
    assert [name for name in undefined if "@" not in name] == []
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", module)))
    assert {"libdl.so.2", "libpthread.so.0", "libm.so.6"} <= needed
    assert "librt.so.1" not in needed, "nothing of it is called"
    loaded = ctypes.CDLL(str(module))
    loaded.kci_parsed.restype = loaded.kci_computed.restype = ctypes.c_double
    assert loaded.kci_parsed(b"2.5", 3) == pytest.approx(2.5)
    assert loaded.kci_computed(ctypes.c_double(3.0)) == pytest.approx(9.0)
    for name in ("a", "b/c", "b/d"):
        path = tmp_path / "tree" / PurePosixPath(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert loaded.kci_files(str(tmp_path / "tree").encode()) == 3


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="kernels are made for these two")
def test_what_is_not_used_is_not_in_the_binary(tmp_path: Path) -> None:
    module = linked(tmp_path, 'extern "C" int kci_one() { return 1; }\n')
    symbols = readelf("--dyn-syms", module)
    assert "kci_one" in symbols
    assert not re.search("xstat|pow|strtol", symbols)
    assert module.stat().st_size < 50_000


def test_a_compiler_without_a_static_library_has_no_parts(tmp_path: Path) -> None:
    program = tmp_path / "cxx"
    program.write_text("#!/bin/sh\necho libstdc++.a\n")
    program.chmod(0o755)
    assert find_newer_parts((str(program),)) is None
