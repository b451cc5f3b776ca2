"""A ROCm of parts that PyPI carries, so that device code for AMD GPUs is really compiled where there is no ROCm.

zig brings a clang that knows amdgcn and a linker, clang-tidy the headers that belong to that clang, and triton those of
HIP 7.1 with AMD's device library. The rest is made here: the constants that the device library asks for, a HIP runtime
with nothing behind its functions, and a stand-in for the one program of LLVM that no package has. What comes out is
material for tests and nothing to publish.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

from buildkit import program, quiet
from kci.utils.atomic import locked
from kci.utils.cache import default_cache

WHEELS = {
    "ziglang==0.17.0": ("ziglang/zig",),
    "clang-tidy==22.1.8": ("clang_tidy/data/lib/clang/22/include/",),
    "triton==3.7.1": ("triton/backends/amd/include/", "triton/backends/amd/lib/"),
}
RELEASE = "7.1.1"
_ISA = {"gfx90a": 9010, "gfx942": 9402, "gfx1100": 11000}
_SWITCHES = ("daz_opt", "unsafe_math", "finite_only", "correctly_rounded_sqrt", "wavefrontsize64")
_RUNTIME = (
    "__hipRegisterFatBinary", "__hipUnregisterFatBinary", "__hipRegisterFunction", "__hipPushCallConfiguration",
    "__hipPopCallConfiguration", "hipLaunchKernel", "hipGetLastError", "hipGetErrorString",
)  # fmt: skip

# What torch's headers use of two that triton does not carry: HIP's for half precision, and rocThrust's.
_HEADERS = {
    "hip/hip_fp16.h": """\
#pragma once
#include <hip/hip_runtime.h>
struct __half { unsigned short x; };
#define KCI_BOTH __host__ __device__ inline
KCI_BOTH float __half2float(__half value) { return static_cast<float>(__builtin_bit_cast(_Float16, value.x)); }
KCI_BOTH __half __float2half(float value) {
  return {__builtin_bit_cast(unsigned short, static_cast<_Float16>(value))};
}
KCI_BOTH short __half_as_short(__half value) { return __builtin_bit_cast(short, value.x); }
__device__ inline __half __hneg(__half value) { return {static_cast<unsigned short>(value.x ^ 0x8000)}; }
__device__ inline __half __ldg(const __half* from) { return *from; }
""",
    "thrust/complex.h": """\
#pragma once
namespace thrust {
template <typename T>
class complex {
 public:
  __host__ __device__ T real() const { return real_; }
  __host__ __device__ T imag() const { return imag_; }

 private:
  T real_, imag_;
};
template <typename T>
__host__ __device__ complex<T> polar(const T&, const T&);
}  // namespace thrust
""",
}

# clang's own bundle format: a magic, a count, and for each entry offset, size, length of the name, and the name. In C,
# so that nothing in the cache needs a Python, which may be that of a checkout and go with it.
_BUNDLER = r"""
/* Stands in for clang-offload-bundler, as far as a compilation calls it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };

static const char *value(const char *word, const char *name) {
  while (*word == '-') word++;
  size_t length = strlen(name);
  return strncmp(word, name, length) == 0 && word[length] == '=' ? word + length + 1 : NULL;
}

static FILE *opened(const char *path, const char *mode) {
  FILE *file = fopen(path, mode);
  if (!file) { perror(path); exit(1); }
  return file;
}

// Compiler caches ask for preprocessed text: the parts one after another.
static int to_stdout(uint64_t count, char **targets, const char **inputs) {
  for (uint64_t i = 0; i < count; i++) {
    FILE *in = opened(inputs[i], "rb");
    printf("// __CLANG_OFFLOAD_BUNDLE____START__ %s\n", targets[i]);
    for (int byte; (byte = getc(in)) != EOF;) putchar(byte);
    printf("\n// __CLANG_OFFLOAD_BUNDLE____END__ %s\n", targets[i]);
    fclose(in);
  }
  return 0;
}

int main(int count, char **words) {
  const char *inputs[MOST], *output = NULL, *found;
  char *targets[MOST], *list = NULL;
  uint64_t places[MOST], sizes[MOST], align = 1, entries = 0, files = 0, place = 32, length;
  for (int i = 1; i < count; i++) {
    if ((found = value(words[i], "targets"))) list = strdup(found);
    else if ((found = value(words[i], "input"))) inputs[files++] = found;
    else if ((found = value(words[i], "output"))) output = found;
    else if ((found = value(words[i], "bundle-align"))) align = strtoull(found, NULL, 10);
  }
  for (char *word = strtok(list, ","); word; word = strtok(NULL, ",")) {
    targets[entries++] = word;
    place += 24 + strlen(word);
  }
  if (!output || entries != files) { fputs("targets and inputs do not match\n", stderr); return 1; }
  if (strcmp(output, "-") == 0) return to_stdout(entries, targets, inputs);
  FILE *out = opened(output, "wb");
  for (uint64_t i = 0; i < files; i++) {
    FILE *in = opened(inputs[i], "rb");
    char block[65536];
    size_t read;
    places[i] = place = (place + align - 1) / align * align;
    fseek(out, place, SEEK_SET);
    for (sizes[i] = 0; (read = fread(block, 1, sizeof block, in)) > 0; sizes[i] += read) fwrite(block, 1, read, out);
    place += sizes[i];
    fclose(in);
  }
  fseek(out, 0, SEEK_SET);
  fwrite("__CLANG_OFFLOAD_BUNDLE__", 1, 24, out);
  fwrite(&entries, 8, 1, out);
  for (uint64_t i = 0; i < entries; i++) {
    length = strlen(targets[i]);
    fwrite(&places[i], 8, 1, out);
    fwrite(&sizes[i], 8, 1, out);
    fwrite(&length, 8, 1, out);
    fwrite(targets[i], 1, length, out);
  }
  return fclose(out) != 0;
}
"""


@cache
def rocm() -> Path:
    """The directory of such a ROCm, made once for all test runs.

    Skips the test where its parts cannot be had.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("ROCm is for x86-64 Linux only")
    root = default_cache() / "test-tools" / f"rocm-{RELEASE}-3"
    with locked(root, quiet):
        if not root.is_dir():
            partial = root.with_name(root.name + ".part")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            _download(partial / "wheels")
            _assemble(partial)
            partial.rename(root)
    return root


def _download(into: Path) -> None:
    for wheel, wanted in WHEELS.items():
        with tempfile.TemporaryDirectory(dir=into.parent) as folder:
            command = ["pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", folder, wheel]
            done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"{wheel} cannot be had here: {done.stderr.strip().splitlines()[-1]}")
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as archive:
                archive.extractall(into, [name for name in archive.namelist() if name.startswith(wanted)])


def _assemble(root: Path) -> None:
    """Lay the parts out as AMD does."""
    amd = root / "wheels/triton/backends/amd"
    for folder in ("bin", "lib", "amdgcn/bitcode", ".info", "share/hip"):
        (root / folder).mkdir(parents=True)
    shutil.move(amd / "include", root / "include")
    for name, text in _HEADERS.items():
        (root / "include" / name).parent.mkdir(exist_ok=True)
        (root / "include" / name).write_text(text)
    (root / "wheels/ziglang/zig").chmod(0o755)
    (root / ".info/version").write_text(f"{RELEASE}-38\n")
    major, minor, patch = RELEASE.split(".")
    (root / "share/hip/version").write_text(
        f"HIP_VERSION_MAJOR={major}\nHIP_VERSION_MINOR={minor}\nHIP_VERSION_PATCH={patch}\n"
    )
    binaries = root / "bin"
    here = 'here=$(dirname "$(readlink -f "$0")")\n'
    clang = (
        '"$here/../wheels/ziglang/zig" clang --driver-mode=g++ --target=x86_64-linux-gnu '
        '-resource-dir "$here/../wheels/clang_tidy/data/lib/clang/22"'
    )
    program(binaries, "hipcc", here + f'PATH="$here:$PATH" exec {clang} "$@"\n')
    program(binaries, "hipconfig", f"echo {RELEASE}\n")
    program(binaries, "lld", here + 'shift 2\nexec "$here/../wheels/ziglang/zig" ld.lld "$@"\n')
    bundler = root / "bundler.c"
    bundler.write_text(_BUNDLER)
    _run(["gcc", "-O1", "-Wall", "-Werror", bundler, "-o", binaries / "clang-offload-bundler"])
    for name in ("ockl.bc", "ocml.bc"):
        shutil.move(amd / "lib" / name, root / "amdgcn/bitcode" / name)
    # clang takes a device library only if the one for OpenCL, which HIP does not use, is there as well.
    shutil.copy(root / "amdgcn/bitcode/ockl.bc", root / "amdgcn/bitcode/opencl.bc")
    _constants(root)
    source = root / "runtime.c"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in _RUNTIME))
    _run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libamdhip64.so.7", source, "-o", root / "lib/libamdhip64.so"])


def _constants(root: Path) -> None:
    """The small libraries that tell the device library about the GPU and the options."""
    constants = {
        f"{name}_{state}": (name, "_Bool", int(state == "on")) for name in _SWITCHES for state in ("on", "off")
    }
    constants |= {f"isa_version_{arch[3:]}": ("ISA_version", "int", number) for arch, number in _ISA.items()}
    constants |= {f"abi_version_{number}": ("ABI_version", "int", number) for number in (500, 600)}
    for file, (name, kind, value) in constants.items():
        source = root / "constant.c"
        source.write_text(f"const __attribute__((address_space(4))) {kind} __oclc_{name} = {value};\n")
        bitcode = root / "amdgcn/bitcode" / f"oclc_{file}.bc"
        zig = [root / "wheels/ziglang/zig", "clang", "-target", "amdgcn-amd-amdhsa", "-nogpulib", "-emit-llvm"]
        _run([*zig, "-c", source, "-o", bitcode])


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
