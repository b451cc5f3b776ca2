"""What is linked for systems older than this machine, by the commands of a build
(docs/builders.md).
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from binaries import Binary
from buildkit import output_of, program, toolchain
from kci.builders.kernel_files import EXPORTS_MAP
from kci.builders.native.command_lines import COMPAT, EXPORTS, link_command
from kci.builders.native.recipe import compat_files, compat_steps, stand_ins
from kci.builders.toolchains.compilers import Toolchain, binutils_program, cxx_compiler
from kci.builders.toolchains.environment import Environment
from kci.builders.toolchains.glibc import find_newer_parts, old_libraries
from kci.matrix.variants import this_system

MACHINE = pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"), reason="kernels are made for these two"
)
USES = """
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <dlfcn.h>
#include <exception>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <stdexcept>
#include <string>
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
  std::thread([&] {
    result = std::exp(std::log(std::pow(value, 2.0))) + std::sin(0 * value);
  }).join();
  bool right = dlsym(RTLD_DEFAULT, "strlen") != nullptr && __isoc23_strtol("7", nullptr, 10) == 7;
  return right ? result : -1;
}

// What newer compilers and headers make of std::sscanf, noexcept and <iostream>.
extern "C" int __isoc23_sscanf(const char *, const char *, ...);
extern "C" int __isoc23_fscanf(void *, const char *, ...);
extern "C" void __cxa_call_terminate(void *);
namespace std { void ios_base_library_init(); }
extern void (*kci_at_an_end)(void *);
void (*kci_at_an_end)(void *) = __cxa_call_terminate;

extern "C" int kci_scanned(const char *text) {
  std::ios_base_library_init();
  int first = 0, second = 0;
  if (__isoc23_sscanf(text, "%d %d", &first, &second) != 2) return -1;
  if (FILE *file = fmemopen(const_cast<char *>(text), 1, "r")) {
    int again = 0;
    if (__isoc23_fscanf(file, "%d", &again) != 1) return -2;
    fclose(file);
  }
  std::string words = "one two";
  words.replace(0, 3, words.data() + 4, 3);
  std::ostringstream said;
  said << words << first;
  return said.str() == "two two" + std::to_string(first) ? first + second : -3;
}

int alive = 0;
struct Counted : std::runtime_error {
  Counted() : std::runtime_error("x") { ++alive; }
  Counted(const Counted &other) : std::runtime_error(other) { ++alive; }
  ~Counted() { --alive; }
};

// One exception that is left while it is held, is caught once, and none afterwards: 110.
extern "C" int kci_counted() {
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

// Whether waiting by a clock that only goes forward ends when it should: 1 for each that does.
extern "C" int kci_waited(int milliseconds) {
  const std::chrono::milliseconds time(milliseconds);
  auto took = [&](auto &&wait) {
    const auto begun = std::chrono::steady_clock::now();
    const bool got = wait();
    return !got && std::chrono::steady_clock::now() - begun >= time;
  };
  std::mutex mutex;
  std::condition_variable ready;
  std::unique_lock<std::mutex> lock(mutex);
  int right = took([&] { return ready.wait_for(lock, time, [] { return false; }); });
  std::timed_mutex timed;
  std::shared_timed_mutex shared;
  timed.lock();
  shared.lock();
  std::thread([&] {
    right += took([&] { return timed.try_lock_for(time); });
    right += took([&] { return shared.try_lock_for(time); });
    right += took([&] { return shared.try_lock_shared_for(time); });
  }).join();
  timed.unlock();
  shared.unlock();
  return right;
}

extern "C" int kci_files(const char *folder) {
  struct stat found;
  bool there = stat(folder, &found) == 0 && fstatat(-1, folder, &found, 0) == 0;
  int count = there && S_ISDIR(found.st_mode) ? 0 : 100;
  for (const auto &entry : std::filesystem::recursive_directory_iterator(folder))
    count += entry.is_regular_file();
  return count;
}
"""


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """A toolchain, in whose root there is what is linked to every module, made by the commands of a
    build.
    """
    place = tmp_path_factory.mktemp("older")
    python = Environment(Path("python"), Path("torch"), Path("ninja"), root=place)
    cxx = cxx_compiler()
    ar = binutils_program(cxx, "ar")
    tools = {"newer_parts": find_newer_parts(cxx, ar), "ar": ar}
    older = toolchain(f"tvm-ffi01-cpu-{this_system()}", python, glibc_compat=True, **tools)
    made = replace(older, cxx=cxx)
    for folder in ("obj", "stub"):
        (place / folder).mkdir()
    write(place, {EXPORTS: EXPORTS_MAP, **compat_files(made)})
    for step in compat_steps(made, ()):
        subprocess.run(step.command, cwd=place, check=True)
    return made


def write(place: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def linked(chain: Toolchain, source: str, *flags: str) -> Path:
    """A module of one source, made by the commands of a build."""
    place = chain.environment.root
    assert place is not None
    write(place, {"uses.cpp": source})
    compiled = [*chain.cxx, "-std=c++20", "-O2", "-fPIC", *flags, "-isystem", COMPAT]
    subprocess.run([*compiled, "-c", "uses.cpp", "-o", "uses.o"], cwd=place, check=True)
    command = [word for word in link_command(chain, ["uses.o"]) if not word.endswith("tvm_ffi")]
    subprocess.run(command, cwd=place, check=True)
    return (place / chain.module).rename(place / f"made-{len(list(place.glob('made-*')))}.so")


def symbols_of(module: str | Path) -> str:
    return output_of("readelf", "-W", "--dyn-syms", module)


@MACHINE
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_what_a_newer_system_has_is_not_needed_and_works(
    chain: Toolchain, level: str, tmp_path: Path
) -> None:
    module = linked(chain, USES, level)
    binary, symbols = Binary(module), symbols_of(module)
    binary.check_manylinux()
    undefined = re.findall(r" GLOBAL +DEFAULT +UND +(\S+)", symbols)
    assert undefined
    assert [name for name in undefined if "@" not in name] == []
    assert not re.search(r" DEFAULT +\d+ +_ZN?St", symbols), "exported"
    assert {"libdl.so.2", "libpthread.so.0", "libm.so.6"} <= binary.needed
    assert "librt.so.1" not in binary.needed, "nothing of it is called"
    loaded = ctypes.CDLL(str(module))
    loaded.kci_parsed.restype = loaded.kci_computed.restype = ctypes.c_double
    assert loaded.kci_parsed(b"2.5", 3) == pytest.approx(2.5)
    assert loaded.kci_computed(ctypes.c_double(3.0)) == pytest.approx(9.0)
    assert loaded.kci_scanned(b"3 4") == 7
    assert loaded.kci_counted() == 110
    assert [loaded.kci_waited(milliseconds) for milliseconds in (1, 30)] == [4, 4]
    write(tmp_path / "tree", dict.fromkeys(("a", "b/c", "b/d"), ""))
    assert loaded.kci_files(str(tmp_path / "tree").encode()) == 3


MATH = re.compile(r" (\w+)@(@?)GLIBC_(\d+)\.(\d+)(?:\.(\d+))?$", re.MULTILINE)
RARE = re.compile(r"u?fromfp|totalorder")
"""Functions of C23, which no kernel calls."""
OURS = re.compile(r"^KCI_\w+\((?:float|double), (\w+)", re.MULTILINE)


@MACHINE
def test_every_function_of_mathematics_that_has_changed_is_the_older_one(chain: Toolchain) -> None:
    """Held to this machine's libm, and to the list of a newer one."""
    older: dict[str, tuple[int, ...]] = {}
    changed = set()
    libm = output_of("gcc", "-print-file-name=libm.so.6").strip()
    for name, default, *numbers in MATH.findall(symbols_of(libm)):
        version = tuple(int(number) for number in numbers if number)
        if version <= (2, 28):
            older[name] = max(version, older.get(name, (0,)))
        elif default:
            changed.add(name)
    changed = {name for name in changed & set(older) if not RARE.match(name)}
    ours = set(OURS.findall(stand_ins()["glibc/math.cpp"]))
    assert len(ours) > 30
    assert changed - ours == set()
    # Only the names matter here, and of what is not in this machine's libm nothing can be said.
    known = sorted(ours & set(older))
    uses = "".join(f'extern "C" void {name}();\n' for name in known)
    uses += "void (*kci_all[])() = {" + ", ".join(known) + "};\n"
    module = linked(chain, uses, "-fno-builtin")
    linked_to = dict(re.findall(r" UND +(\w+)@GLIBC_([0-9.]+)", symbols_of(module)))
    wanted = {name: ".".join(map(str, older[name])) for name in known}
    assert {name: linked_to.get(name) for name in known} == wanted


@pytest.mark.parametrize(
    ("cuda", "seen"),
    [("", True), ("12 9", False), ("13 0", False), ("13 1", False), ("13 2", True)],
)
def test_functions_that_cuda_declares_otherwise_are_hidden_from_it(
    cuda: str, seen: bool, tmp_path: Path
) -> None:
    """As glibc's headers since 2.41 ask whether to declare sinpi, rsqrt and the like."""
    header, asked = "bits/libc-header-start.h", "__GLIBC_USE_IEC_60559_FUNCS_EXT_C23"
    texts = {f"system/{header}": f"#define {asked} 1\n"}
    write(tmp_path, {**stand_ins(), **texts, "uses.cpp": f"#include <{header}>\nseen = {asked}\n"})
    command = [*cxx_compiler(), "-isystem", COMPAT, "-isystem", "system", "-E", "uses.cpp"]
    if cuda:
        major, minor = cuda.split()
        command += [f"-D__CUDACC_VER_MAJOR__={major}", f"-D__CUDACC_VER_MINOR__={minor}"]
        command.append("-D__CUDACC__")
    assert output_of(*command, cwd=tmp_path).split()[-1] == str(int(seen))


ENDS = """
#include <stdexcept>
#include <vector>

extern "C" void __cxa_call_terminate(void *);

extern "C" int kci_element(unsigned long index) {
  std::vector<int> numbers(3);
  return numbers[index];
}

extern "C" void kci_left() { __cxa_call_terminate(nullptr); }
"""


@MACHINE
@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("kci_element(7)", "Assertion '__n < this->size()' failed"),
        ("kci_left()", "terminate called"),
    ],
)
def test_what_must_not_happen_ends_the_process_with_the_reason(
    chain: Toolchain, call: str, said: str
) -> None:
    module = linked(chain, ENDS, "-D_GLIBCXX_ASSERTIONS")
    assert Binary(module).newest("GLIBCXX") <= (3, 4, 24)
    code = f"import ctypes\nlibrary = ctypes.CDLL({str(module)!r})\nlibrary.kci_element(1)\n"
    command = [sys.executable, "-c", f"{code}library.{call}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGABRT
    assert said in done.stderr


@MACHINE
def test_what_is_not_used_is_not_in_the_binary(chain: Toolchain) -> None:
    module = linked(chain, 'extern "C" int kci_one() { return 1; }\n')
    symbols = symbols_of(module)
    assert "kci_one" in symbols
    assert not re.search("xstat|pow|strtol", symbols)
    assert module.stat().st_size < 50_000


def test_a_compiler_without_a_static_library_has_no_parts(tmp_path: Path) -> None:
    assert find_newer_parts((str(program(tmp_path, "cxx", "echo libstdc++.a\n")),), "ar") is None


# --- libraries that give functions the versions of an older glibc ---

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
