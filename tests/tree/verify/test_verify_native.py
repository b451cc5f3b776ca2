"""The rules about native libraries, each on a real library that a compiler made for it."""

from __future__ import annotations

import contextlib
import io
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.runner import kci
from conftest import ids, many, only
from kci.diagnostics import Diagnostic
from kci.tree.elf import ElfError, read_elf
from kci.tree.verify import verify
from kci.tree.verify.abi import allowed_libraries, cpp_scope, exceeded_cap, native_table
from variants import CPU, CUDA, STABLE, make_variant

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

ID = "_gated_norm_cpu_1a2b3c4"
CUDA_ID = ID.replace("cpu", "cuda")
ROCM = "torch213-cxx11-rocm72-x86_64-linux"
STABLE_CUDA = "torch-stable-abi213-cu130-x86_64-linux"
XPU = "torch213-cxx11-xpu20253-x86_64-linux"
INIT = f'extern "C" void* PyInit_{ID}() {{ return 0; }}\n'

Compile = Callable[..., Path]
Asking = Callable[..., list[Diagnostic]]


@pytest.fixture(scope="session")
def compile(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile C++ to a shared library; equal input is compiled once."""
    made: dict[tuple[str, ...], Path] = {}

    def run(source: str, *flags: str) -> Path:
        key = (source, *flags)
        if key not in made:
            root = tmp_path_factory.mktemp("native")
            (root / "a.cpp").write_text(source)
            command = ["g++", "-shared", "-fPIC", "-O1", "-nostdlib", "-o", "a.so", "a.cpp", *flags]
            subprocess.run(command, cwd=root, check=True)
            made[key] = root / "a.so"
        return made[key]

    return run


def linked(compile: Compile, *libraries: str) -> list[str]:
    """The flags that link libraries of these names."""
    made = [str(compile("int x;", f"-Wl,-soname,{library}")) for library in libraries]
    return ["-Wl,--no-as-needed", *made]


def asks(*symbols: str) -> str:
    """Code that calls functions, by the names that they have in a library."""
    names = "".join(f'void f{number}() asm("{symbol}"); ' for number, symbol in enumerate(symbols))
    calls = "".join(f"f{number}(); " for number, _ in enumerate(symbols))
    return f'extern "C" {{ {names} void all() {{ {calls} }} }}\n'


def native(
    root: Path,
    library: Path | bytes,
    variant: str = CPU,
    name: str = f"{ID}.abi3.so",
    ignore: Sequence[str] = (),
) -> list[Diagnostic]:
    """What verification says about a variant with this library."""
    content = library if isinstance(library, bytes) else library.read_bytes()
    directory = make_variant(root, variant, files={"__init__.py": "", name: content})
    return verify(directory, ignore=["KCI716", *ignore])


CLEAN = ("KCI740", "KCI741", "KCI742", "KCI743", "KCI744", "KCI745", "KCI746", "KCI749", "KCI750")


@pytest.mark.rule(*CLEAN, triggers=False)
@pytest.mark.rule("KCI751", "KCI752", "KCI753", "KCI754", "KCI755", "KCI757", triggers=False)
@pytest.mark.parametrize("flag", [
    "--hash-style=gnu", "--hash-style=sysv", "--hash-style=both", "-z,x86-64-v2,-z,noexecstack",
])  # fmt: skip
def test_a_clean_library_passes(tmp_path: Path, compile: Compile, flag: str) -> None:
    assert native(tmp_path, compile(INIT + asks("strcmp"), "-lc", f"-Wl,{flag}")) == []


THREADED = 'extern "C" char __libc_single_threaded; char f() { return __libc_single_threaded; }'
NEWER = ("PyErr_GetRaisedException", "_PyObject_Secret", "PyUnicode_AsUTF8AndSize")
MOVED = 'asm(".text\\n.globl moved\\nmoved: .quad moved\\n");'
WRONG: list[tuple[str, tuple[str, ...], str, tuple[str, ...]]] = [
    (THREADED, flags, "KCI742", ("GLIBC_2.32 (for __libc_single_threaded)", "GLIBC_2.28"))
    for flags in (("-lc",), ("-lc", "-s"))
] + [
    (asks("PyErr_SetString", *NEWER), (), "KCI743", (
        "not in the stable ABI of Python 3.9: PyErr_GetRaisedException (3.12), "
        "PyUnicode_AsUTF8AndSize (3.10), _PyObject_Secret",
    )),
    ("", ("-Wl,-rpath,/build/machine",), "KCI744", ("/build/machine",)),
    ("", ("-Wl,-rpath,/build/machine", "-Wl,--disable-new-dtags"), "KCI744", ("/build/machine",)),
    (f"#define PyInit_{ID} PyInit_other\n", (), "KCI749", (f"PyInit_{ID}",)),
    (MOVED, ("-Wl,-z,notext",), "KCI753", ()),
    ("", ("-Wl,-z,execstack",), "KCI754", ()),
    ("", ("-Wl,-z,x86-64-v3",), "KCI755", ()),
    ("", ("-Wl,-z,x86-64-v4",), "KCI755", ("x86-64-v4",)),
]  # fmt: skip


@pytest.mark.rule(
    "KCI742", "KCI743", "KCI744", "KCI749", "KCI753", "KCI754", "KCI755", triggers=True
)
def test_what_a_library_must_not_ask_for(tmp_path: Path, compile: Compile) -> None:
    for number, (source, flags, rule, said) in enumerate(WRONG):
        found = native(tmp_path / str(number), compile(source + INIT, *flags))
        assert only(found, rule, *said).path.endswith(f"{CPU}/{ID}.abi3.so")


@pytest.mark.parametrize(
    ("version", "cap"),
    [
        ("GLIBC_2.28", None), ("GLIBC_2.2.5", None), ("GLIBC_2.28.1", "GLIBC_2.28"),
        ("GLIBC_2.100", "GLIBC_2.28"), ("GLIBC_PRIVATE", "GLIBC_2.28"),
        ("GLIBC_ABI_DT_RELR", "GLIBC_2.28"), ("GLIBCXX_3.4.24", None),
        ("GLIBCXX_3.4.25", "GLIBCXX_3.4.24"), ("CXXABI_1.3.11", None),
        ("CXXABI_1.3.13", "CXXABI_1.3.11"), ("CXXABI_TM_1", None), ("GCC_7.0.0", None),
        ("GCC_4.3.0", None), ("GCC_14.0.0", "GCC_7.0.0"), ("GOMP_9.0", None),
        ("libcudart.so.13", None),
    ],
)  # fmt: skip
def test_versions_are_compared_by_size(version: str, cap: str | None) -> None:
    assert exceeded_cap(version, "x86_64") == cap


@pytest.mark.rule("KCI741", triggers=True)
def test_another_machine_than_the_name_says(tmp_path: Path, compile: Compile) -> None:
    found = only(native(tmp_path, compile(INIT), "torch213-cxx11-cpu-aarch64-linux"), "KCI741")
    assert found.message == "it is for x86_64-linux, the name says aarch64-linux"
    only(native(tmp_path, compile(INIT), "torch213-cpu-aarch64-darwin"), "KCI741")


@pytest.mark.rule("KCI745", "KCI746", triggers=True)
def test_a_library_that_users_do_not_have(tmp_path: Path, compile: Compile) -> None:
    other = compile('extern "C" void other() {}', "-Wl,-soname,libother.so.1")
    found = native(tmp_path, compile(INIT + asks("other"), str(other)))
    said = [(item.rule, "libother.so.1" in item.message) for item in found]
    assert said == [("KCI745", True), ("KCI746", False)]
    assert found[1].hint == "they may be those of libother.so.1, which users do not have"


@pytest.mark.parametrize(
    ("library", "backend", "major", "allowed"),
    [
        ("libc.so.6", "cpu", "", True), ("libtorch_cpu.so", "cpu", "", True),
        ("libcudart.so.13", "cuda", "13", True), ("libcudart.so.12", "cuda", "13", False),
        ("libcudart.so.13", "cpu", "", False), ("libtorch_cuda.so", "cpu", "", False),
        ("libamdhip64.so.7", "rocm", "7", True), ("libamdhip64.so.6", "rocm", "7", False),
        ("libgomp.so.1", "cpu", "", True), ("libmvec.so.1", "cpu", "", True),
        ("libatomic.so.1", "cuda", "13", True), ("libz.so.1", "cpu", "", True),
        ("libgomp.so.2", "cpu", "", False), ("libpython3.11.so.1.0", "cpu", "", False),
    ],
)  # fmt: skip
def test_needed_libraries_by_backend(library: str, backend: str, major: str, allowed: bool) -> None:
    groups = ("system", "system-more", "torch", backend)
    assert bool(allowed_libraries(library, groups, major)) is allowed


@pytest.mark.rule("KCI746", triggers=True)
def test_open_symbols_that_nothing_explains(tmp_path: Path, compile: Compile) -> None:
    explained = ("aoti_torch_ok", "_ZN3c102okEv", "PyErr_Clear", "_ZN5torch7Library2okEv")
    weak = 'extern "C" void weak() __attribute__((weak)); void maybe() { if (weak) weak(); }'
    source = INIT + asks("arc4random_like", "_ZSt9no_such_fv", *explained) + weak
    library = compile(source, *linked(compile, "libtorch_cpu.so"))
    found = only(native(tmp_path, library, ignore=["KCI751"]), "KCI746")
    assert found.message == "undefined symbols without a version: arc4random_like, std::no_such_f()"


UNBUILT = ["KCI712", "KCI749", "KCI761"]
"""What is wrong with a variant for GPUs whose only library is compiled from a line of C++."""


@pytest.fixture
def asking(tmp_path_factory: pytest.TempPathFactory, compile: Compile) -> Asking:
    """What is said of a library that asks for these symbols, and needs libraries."""

    def said(variant: str, *symbols: str, needs: str = "") -> list[Diagnostic]:
        source = INIT.replace("cpu", "cuda") + INIT + asks(*symbols)
        library = compile(source, *linked(compile, *needs.split()))
        name = f"{CUDA_ID if 'cu1' in variant else ID}.abi3.so"
        return native(tmp_path_factory.mktemp("a"), library, variant, name, ignore=UNBUILT)

    return said


@pytest.mark.rule("KCI746", triggers=True)
@pytest.mark.parametrize(
    ("symbol", "needs"),
    [
        ("cudaFooBar", "libcudart.so.13"),
        ("cuNoSuch", "libcuda.so.1"),
        ("__cudaNoSuch", "libcudart.so.13"),
        ("__cudaRegisterLinkedBinary_6cc0e1ad_8_extra_cu_dbdd4847", ""),
        ("cublasNoSuch", "libcublas.so.13"),
        ("cublasLtNoSuch", "libcublasLt.so.13"),
        ("cudnnNoSuch", "libcudnn.so.9"),
        ("cufftNoSuch", "libcufft.so.12"),
        ("curandNoSuch", "libcurand.so.10"),
        ("cusolverNoSuch", ""),
        ("cusparseNoSuch", "libcusparse.so.12"),
        ("ncclNoSuch", "libnccl.so.2"),
        ("nvrtcNoSuch", "libnvrtc.so.13"),
    ],
)
def test_a_name_like_one_of_cuda_s_is_none_of_them(asking: Asking, symbol: str, needs: str) -> None:
    found = only(asking(CUDA, symbol, needs=needs), "KCI746")
    assert found.message == f"CUDA 13.0 does not export {symbol}"
    assert ("-rdc=true" in found.hint) is ("LinkedBinary" in symbol)


@pytest.mark.rule("KCI746", "KCI750", triggers=False)
def test_what_cuda_exports(asking: Asking) -> None:
    names = (
        "cudaMalloc", "cudaLaunchKernelExC", "__cudaRegisterFatBinary",
        "__cudaPushCallConfiguration", "cudaProfilerStart", "cuTensorMapEncodeTiled",
        "cuLaunchKernel", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cublasCreate_v2",
        "cublasGemmEx", "cublasLtMatmul", "cudnnCreate", "cufftPlan1d", "curandCreateGenerator",
        "cusolverDnCreate", "cusparseSpMM", "ncclAllReduce", "nvrtcCompileProgram",
    )  # fmt: skip
    # libtorch.so leads to libtorch_cuda.so, and that to most of CUDA's
    needs = "libtorch.so libcuda.so.1 libcusolver.so.12"
    assert asking(CUDA, *names, needs=needs) == []


@pytest.mark.rule("KCI746", triggers=True)
@pytest.mark.parametrize(
    ("variant", "symbol", "needs", "owner"),
    [
        (CUDA, "cuTensorMapEncodeTiled", "libtorch_cuda.so libcudart.so.13", "libcuda.so.1"),
        (CUDA, "cusolverDnCreate", "libtorch.so", "libcusolver.so.*"),
        (CUDA, "cublasCreate_v2", "libcudart.so.13", "libcublas.so.13"),
        (CUDA, "nvmlInit_v2", "libcuda.so.1", "libnvidia-ml.so.1"),
        (CUDA, "_ZN2at4cuda25getCurrentCUDABlasHandleEv", "libtorch_cpu.so", "libtorch_cuda.so"),
        (CUDA.replace("213", "215"), "curandCreateGenerator", "libtorch.so", "libcurand.so.10"),
        (STABLE_CUDA, "curandCreateGenerator", "libtorch.so", "libcurand.so.10"),
        ("tvm-ffi01-cu130-x86_64-linux", "cudaMalloc", "libtvm_ffi.so", "libcudart.so.13"),
        ("tvm-ffi01-cpu-x86_64-linux", "omp_get_num_threads", "libtvm_ffi.so", "libgomp.so.1"),
        (ROCM, "hipMalloc", "libc10.so", "libamdhip64.so.7"),
        (XPU, "_ZN4sycl3_V15queueE", "libc10.so", "libsycl.so.*"),
        (CPU, "cudaMalloc", "libtorch.so", "libcudart.so.*"),
        (CPU, "THPVariable_Wrap", "libtorch.so", "libtorch_python.so"),
        (CPU, "_ZN2at5equalEv", "libc10.so", "libtorch_cpu.so"),
        (CPU, "deflate", "", "libz.so.1"),
    ],
)
def test_a_name_is_found_only_in_a_library_that_is_loaded(
    asking: Asking, variant: str, symbol: str, needs: str, owner: str
) -> None:
    found = only(asking(variant, symbol, needs=needs)[:1], "KCI746")
    assert found.message == f"it does not need {owner}, which has {symbol}"


def test_no_library_is_in_two_groups_and_those_that_others_bring_are_known() -> None:
    table = native_table()
    known = [library for libraries in table.libraries.values() for library in libraries]
    assert len(known) == len(set(known))
    assert {library for libraries in table.brings.values() for library in libraries} <= {*known}
    assert {name.partition(" ")[0] for name in table.brings} <= {*known, *table.libraries}


@pytest.mark.rule("KCI745", triggers=True)
def test_a_library_whose_versions_are_asked_for_is_needed(tmp_path: Path, compile: Compile) -> None:
    script = tmp_path / "versions"
    script.write_text("EVIL_1 { global: other; };")
    flags = ("-Wl,-soname,libevil.so.1", f"-Wl,--version-script={script}")
    evil = compile('extern "C" void other() {}', *flags)
    data = bytearray(compile(INIT + asks("other"), str(evil)).read_bytes())
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".dynamic")
    struct.pack_into("<Q", data, table["sh_offset"], 0x6FFFFEF0)  # what was DT_NEEDED
    only(native(tmp_path, bytes(data)), "KCI745", "it needs libevil.so.1,")


@pytest.mark.rule("KCI746", triggers=True)
def test_what_another_toolkit_or_link_would_have(asking: Asking) -> None:
    newer = "cudaDeviceGetExecutionCtx"
    assert "CUDA 13.1" in only(asking(CUDA, newer), "KCI746", newer).hint
    assert asking(CUDA.replace("cu130", "cu131"), newer) == []
    found = asking(ROCM, "__hip_fatbin_0a1b2c", "hipMalloc", needs="libamdhip64.so.7")
    assert ids(found) == ["KCI746", "KCI750"], "no device link registered it"
    for symbol, hint in (
        ("cuTensorMapEncodeTiled", "link it with -lcuda"),
        ("nvmlInit_v2", "this variant cannot rely on that library"),
    ):
        assert only(asking(CUDA, symbol), "KCI746").hint == hint


@pytest.mark.rule("KCI750", triggers=True)
@pytest.mark.parametrize(
    ("variant", "symbol", "needs"),
    [
        (ROCM, "hipNoSuch", "libamdhip64.so.7"),
        (ROCM, "hipMalloc", "libtorch.so"),
        (XPU, "__sycl_no_such", "libsycl.so.8"),
        (CUDA.replace("cu130", "cu118"), "cudaFooBar", "libcudart.so.11"),
        (CPU, "inflateNoSuch", "libz.so.1"),
    ],
)
def test_a_missing_list_is_named(asking: Asking, variant: str, symbol: str, needs: str) -> None:
    found = only(asking(variant, symbol, needs=needs), "KCI750", symbol)
    assert found.severity == "info"


TVM_FFI = "tvm-ffi01-cpu-x86_64-linux"


@pytest.mark.rule("KCI746", "KCI748", triggers=True)
def test_what_tvm_ffi_does_not_export_or_not_everywhere(asking: Asking) -> None:
    for symbol, rule, told in (
        ("TVMFFINoSuch", "KCI746", "apache-tvm-ffi does not export TVMFFINoSuch"),
        ("_ZN3tvm3ffi6NoSuchEv", "KCI746", "_ZN3tvm3ffi6NoSuchEv"),
        ("TVMFFIGetCustomAllocator", "KCI748", "TVMFFIGetCustomAllocator (0.1.13)"),
        ("TVMFFIBigIntFromByteArray", "KCI748", "(0.1.15)"),
    ):
        found = asking(TVM_FFI, symbol, needs="libtvm_ffi.so")
        only(found, rule, told)


@pytest.mark.rule("KCI746", "KCI748", triggers=False)
def test_what_every_tvm_ffi_exports(asking: Asking) -> None:
    of_c = ("TVMFFIFunctionCall", "TVMFFIErrorCreateWithCauseAndExtraContext")
    names = (*of_c, "_ZN3tvm3ffi8DeepCopyERKNS0_3AnyE")
    assert asking(TVM_FFI, *names, needs="libtvm_ffi.so") == []


@pytest.mark.rule("KCI751", triggers=True)
def test_a_function_of_no_torch_in_a_stable_variant(asking: Asking) -> None:
    found = asking(STABLE, "aoti_torch_no_such", needs="libtorch_cpu.so")
    told = "torch 2.11 does not export aoti_torch_no_such"
    assert only(found, "KCI751").message == told


IN_STABLE = ("aoti_torch_get_dim", "_ZN5torch6stable4fineEv")
STABLE_SOURCE = INIT + asks(
    "torch_library_def_with_tags", "torch_from_blob", "_ZN2at6Tensor4dataEv", *IN_STABLE
)


@pytest.mark.rule("KCI747", "KCI748", triggers=True)
def test_a_stable_variant_uses_no_cpp_and_nothing_newer(tmp_path: Path, compile: Compile) -> None:
    library = compile(STABLE_SOURCE, *linked(compile, "libtorch_cpu.so"))
    found = native(tmp_path, library, STABLE)
    assert ids(found) == ["KCI747", "KCI748"]
    assert found[0].message == "it uses torch's C++ interface: _ZN2at6Tensor4dataEv"
    newer = "torch_library_def_with_tags (2.12)"
    assert found[1].message == f"the name says 2.11, it uses newer functions: {newer}"
    later = STABLE.replace("abi211", "abi212")
    assert ids(native(tmp_path, library, later)) == ["KCI747"]
    assert native(tmp_path, library, CPU, ignore=["KCI751"]) == []


@pytest.mark.rule("KCI747", "KCI748", triggers=False)
def test_a_stable_variant_may_use_what_its_version_has(asking: Asking) -> None:
    assert asking(STABLE, "torch_call_dispatcher", *IN_STABLE, needs="libtorch_cpu.so") == []


MACOS = "torch213-cpu-aarch64-darwin"
WINDOWS = "torch213-cpu-x86_64-windows"
MACHO = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, 0, 0, 0, 0)
PE = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40) + b"PE\0\0"


@pytest.mark.rule("KCI750", triggers=True)
@pytest.mark.parametrize(
    ("variant", "name", "content", "said"),
    [(MACOS, f"{ID}.abi3.so", MACHO, "for macOS"), (WINDOWS, f"{ID}.pyd", PE, "for Windows")],
)
def test_libraries_of_other_systems_are_not_checked_and_the_summary_says_so(
    tmp_path: Path, variant: str, name: str, content: bytes, said: str
) -> None:
    assert only(native(tmp_path, content, variant, name), "KCI750").severity == "info"
    told = kci("verify", tmp_path / variant, "--ignore", "KCI716")
    assert (told.code, f"libraries {said} not checked" in told.stdout) == (0, True)


@pytest.mark.rule("KCI740", "KCI741", triggers=True)
def test_a_file_of_another_system_than_the_name_says(tmp_path: Path) -> None:
    cases = [
        (MACOS, "x.so", b"garbage", "KCI740"),
        (WINDOWS, "x.pyd", b"garbage", "KCI740"),
        (MACOS, "x.so", PE, "KCI741"),
        (CPU, "x.so", MACHO, "KCI741"),
        (CPU, "x.so", PE, "KCI741"),
    ]
    for number, (variant, name, content, rule) in enumerate(cases):
        assert ids(native(tmp_path / str(number), content, variant, name)) == [rule]


STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
SINCE_213 = f"_ZN3c109TypeErrorC1ENS_14SourceLocationE{STRING}"


@pytest.mark.rule("KCI751", triggers=True)
def test_symbols_that_the_named_torch_does_not_export(tmp_path: Path, compile: Compile) -> None:
    nothing, torch = "_ZN2at19nothing_of_the_kindEv", linked(compile, "libtorch.so")
    found = native(tmp_path / "1", compile(INIT + asks(nothing), *torch))
    only(found, "KCI751", f"torch 2.13 does not export {nothing}")
    newer = compile(INIT + asks(SINCE_213), *torch)
    assert native(tmp_path / "2", newer) == []
    found = native(tmp_path / "3", newer, CPU.replace("213", "212"))
    assert only(found, "KCI751").hint == "it fits torch 2.13, 2.14, 2.15"
    assert native(tmp_path / "4", newer, CPU.replace("213", "209")) == []


@pytest.mark.rule("KCI752", triggers=True)
def test_strings_of_the_old_abi(tmp_path: Path, compile: Compile) -> None:
    source = "#include <string>\nnamespace c10 { void take(const std::string&); }\n" + INIT
    source += "void f(const std::string& s) { c10::take(s); }"
    flags = ("-D_GLIBCXX_USE_CXX11_ABI=0", "-lstdc++", "-lc", *linked(compile, "libc10.so"))
    only(native(tmp_path / "1", compile(source, *flags)), "KCI752", "_ZN3c104takeERKSs")
    assert "KCI752" not in ids(native(tmp_path / "2", compile(source, *flags[1:])))


def test_a_library_without_sections_is_judged_as_loaded(tmp_path: Path, compile: Compile) -> None:
    data = bytearray(compile(INIT + asks("nowhere")).read_bytes())
    struct.pack_into("<Q", data, 40, 0)
    struct.pack_into("<3H", data, 58, 0, 0, 0)
    only(native(tmp_path, bytes(data)), "KCI746", "nowhere")


@pytest.mark.parametrize("use", ["void f() { nowhere(); }", "void* f() { return (void*)nowhere; }"])
def test_a_symbol_that_no_hash_table_counts_is_one_that_relocations_name(
    tmp_path: Path, compile: Compile, use: str
) -> None:
    data = bytearray(compile(f'{INIT}extern "C" {{ void nowhere(); {use} }}').read_bytes())
    table = ELFFile(io.BytesIO(data)).get_section_by_name(".gnu.hash")["sh_offset"]
    struct.pack_into("<4I", data, table, 1, 1, 1, 0)
    struct.pack_into("<I", data, table + 24, 0)
    found = only(native(tmp_path, bytes(data), ignore=["KCI749"]), "KCI746")
    assert found.message.partition(": ")[2] == "nowhere"


def thread_local(compile: Compile, size: int, align: int, *flags: str, code: str = "") -> Path:
    """A library with so much thread-local data."""
    room = f"alignas({align}) thread_local char room[{size}]; char* f(int i) {{ return room + i; }}"
    libc = ("-lc", "-Wl,-l:ld-linux-x86-64.so.2", "-Wl,--no-as-needed")
    return compile(INIT + room + code, *libc, *flags)


IN_THE_BLOCK = "-ftls-model=initial-exec"


@pytest.mark.rule("KCI758", triggers=True)
@pytest.mark.parametrize("hidden", ["-fvisibility=default", "-fvisibility=hidden"])
@pytest.mark.parametrize(("size", "align"), [(65536, 1), (1665, 8), (128, 128)])
def test_thread_local_data_for_which_the_static_block_has_no_room(
    tmp_path: Path, compile: Compile, size: int, align: int, hidden: str
) -> None:
    library = thread_local(compile, size, align, IN_THE_BLOCK, hidden)
    told = f"{size} bytes of thread-local data in the static TLS block, aligned to {align}"
    assert only(native(tmp_path, library, ignore=["KCI749"]), "KCI758").message.endswith(told)


@pytest.mark.rule("KCI758", triggers=False)
def test_thread_local_data_that_fits_or_lies_elsewhere(tmp_path: Path, compile: Compile) -> None:
    assert native(tmp_path / "1", thread_local(compile, 1664, 64, IN_THE_BLOCK)) == []
    assert native(tmp_path / "2", thread_local(compile, 65536, 1)) == []
    # DF_STATIC_TLS may be about another library's data.
    other = compile("thread_local int there = 1;", "-Wl,-soname,libgomp.so.1")
    code = 'extern __thread int there __attribute__((tls_model("initial-exec"))); '
    code += "int g() { return there; }"
    library = thread_local(compile, 65536, 1, str(other), code=code)
    assert b"there" in library.read_bytes()
    assert "KCI758" not in ids(native(tmp_path / "3", library))


@pytest.mark.rule("KCI754", triggers=True)
def test_a_library_silent_on_its_stack_may_execute_it(tmp_path: Path, compile: Compile) -> None:
    data = bytearray(compile(INIT).read_bytes())
    (first,) = struct.unpack_from("<Q", data, 32)
    size, number = struct.unpack_from("<HH", data, 54)
    places = range(first, first + size * number, size)
    (stack,) = (place for place in places if data[place : place + 4] == b"\x51\xe5\x74\x64")
    data[stack : stack + 4] = bytes(4)  # PT_GNU_STACK becomes PT_NULL
    assert ids(native(tmp_path, bytes(data))) == ["KCI754"]


@pytest.mark.rule("KCI745", "KCI746", triggers=False)
def test_openmp_and_what_torch_itself_exports(tmp_path: Path, compile: Compile) -> None:
    pointer = "_ZNSt15__exception_ptr13exception_ptr"
    of_std = (f"{pointer}9_M_addrefEv", f"{pointer}10_M_releaseEv")
    source = INIT + asks("Sleef_expf8_u10", "omp_get_num_threads", "GOMP_parallel", *of_std)
    needs = linked(compile, "libgomp.so.1", "libtorch_cpu.so")
    assert native(tmp_path, compile(source, *needs)) == []


INIT_LIBRARY = "_ZSt21ios_base_library_initv"
OF_NO_TORCH = "_ZSt11not_in_any_v"
ONLY_OLD = "_ZNSt6chrono8get_tzdbEv"


@pytest.mark.rule("KCI746", triggers=False)
@pytest.mark.parametrize(
    "variant", [CPU, CPU.replace("213", "210"), CPU.replace("213", "299"), STABLE]
)
def test_newer_functions_that_torch_exports(tmp_path: Path, compile: Compile, variant: str) -> None:
    exports = f'extern "C" void a() asm("{INIT_LIBRARY}"); void a() {{}}'
    torch = compile(exports, "-Wl,-soname,libc10.so")
    assert native(tmp_path, compile(INIT + asks(INIT_LIBRARY), str(torch)), variant) == []


@pytest.mark.rule("KCI746", triggers=True)
def test_functions_of_std_that_the_named_torch_lacks(tmp_path: Path, compile: Compile) -> None:
    torch = linked(compile, "libtorch_cpu.so")
    found = only(native(tmp_path / "1", compile(INIT + asks(OF_NO_TORCH), *torch)), "KCI746")
    told = "torch 2.13 would have to export them, as its own compiler's libstdc++ has them"
    assert found.hint == told
    old = compile(INIT + asks(ONLY_OLD), *torch)
    found = only(native(tmp_path / "2", old), "KCI746")
    assert "; torch 2.10, 2.11 does: link with the torch in the variant's name" in found.hint
    assert native(tmp_path / "3", old, CPU.replace("213", "211")) == []
    # Not linked with torch, it does not find torch's functions.
    only(native(tmp_path / "4", compile(INIT + asks(INIT_LIBRARY))), "KCI746")


@pytest.mark.rule("KCI717", "KCI744", "KCI757", triggers=True)
def test_libraries_are_known_by_their_content(tmp_path: Path, compile: Compile) -> None:
    module = {"__init__.py": b"", f"{ID}.abi3.so": compile(INIT).read_bytes()}

    def judged(name: str, content: bytes) -> list[Diagnostic]:
        noarch = {"__init__.py": b"", name: content}
        only(verify(make_variant(tmp_path / name / "noarch", "torch-cpu", files=noarch)), "KCI717")
        return verify(make_variant(tmp_path / name, files=module | {name: content}))

    bad = compile(INIT, "-Wl,-rpath,/x").read_bytes()
    for name in ("blob.bin", "plugin.SO", "data", "lib/libx.so.1"):
        assert only(judged(name, bad), "KCI744").path.endswith(f"/{name}")
    assert "KCI757" in ids(judged("tool", Path(sys.executable).resolve().read_bytes()))


@pytest.mark.rule("KCI757", triggers=True)
def test_what_no_loader_can_load_is_no_library(tmp_path: Path, compile: Compile) -> None:
    program = bytearray(compile(INIT).read_bytes())
    program[16:18] = struct.pack("<H", 2)  # ET_EXEC, without an interpreter
    archive = b"!<arch>\nparts.o/         0           0     0     644     1\n"
    files = {"__init__.py": b"", "bin/tool.so": bytes(program), "lib/parts.so": archive}
    told = verify(make_variant(tmp_path, files=files))
    found = [item for item in told if item.path.endswith(("tool.so", "parts.so"))]
    assert ids(found) == ["KCI757", "KCI757"]
    assert found[0].message == "it is a program, which nothing can load"


@pytest.mark.rule("KCI717", triggers=False)
def test_code_for_a_gpu_is_data(tmp_path: Path) -> None:
    cubin = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 2, 190) + bytes(60)
    java = b"\xca\xfe\xba\xbe\0\0\0\x3d"
    files = {"__init__.py": b"", "k.cubin": cubin, "A.class": java}
    assert verify(make_variant(tmp_path, "torch-cpu", files=files)) == []


@settings(
    max_examples=many(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_flipped_bytes_never_give_a_traceback(
    tmp_path: Path, compile: Compile, data: st.DataObject
) -> None:
    whole = bytearray(compile(STABLE_SOURCE, "-lc").read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    target = tmp_path / "flip.so"
    target.write_bytes(whole)
    with contextlib.suppress(ElfError):
        read_elf(target)


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("_ZN2at6Tensor4dataEv", ("at", "Tensor", "data")),
        ("_ZNK3c106Device3strEv", ("c10", "Device", "str")),
        ("_ZTIN3c105ErrorE", ("c10", "Error")),
        ("_ZGVZN5torch1fEvE1x", ("torch", "f")),
        ("_ZThn16_N5torch1A1fEv", ("torch", "A", "f")),
        ("_ZNKR5torch1A1fEv", ("torch", "A", "f")),
        ("_ZNSt6vectorIN3c106SymIntEE4sizeEv", ()),
        ("_ZSt4moveIRN2at6TensorEEv", ()),
        ("_ZlsRSoRKN2at6TensorE", ()),
        ("_Znwm", ()),
        ("aoti_torch_x", None),
    ],
)
def test_only_a_name_s_own_scope_counts(name: str, scope: tuple[str, ...] | None) -> None:
    assert cpp_scope(name) == scope


def test_a_library_cut_anywhere_or_without_tags_is_a_finding(
    tmp_path: Path, compile: Compile
) -> None:
    whole, target = compile(STABLE_SOURCE, "-lc").read_bytes(), tmp_path / "cut.so"
    table = ELFFile(io.BytesIO(whole)).get_section_by_name(".dynamic")["sh_offset"]
    empty = whole[:table] + bytes(8) + whole[table + 8 :]
    for data in (empty, *(whole[:size] for size in range(0, len(whole) - 1, len(whole) // 150))):
        target.write_bytes(data)
        with pytest.raises(ElfError, match="it has no string table" if data is empty else "."):
            read_elf(target)
