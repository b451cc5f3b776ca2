"""The commands of a variant that this machine cannot build, as text for `--dry-run`: kci has not run them here.

For Linux they are those of the native builder, with tools that are assumed to be where they usually are; another
architecture's are a cross compiler's. Those for macOS and Windows are after the reference's CMake, and were never run.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from kci.builders.commands import (
    CUDA,
    GENERATED,
    KERNEL,
    PYTHON,
    TORCH,
    TORCH_NVCC,
    Toolchain,
    gencode,
    seen,
)
from kci.builders.definitions import TVM_FFI_BACKENDS, torch_definitions
from kci.builders.recipe import checked_sources, commands, make_recipe
from kci.builders.request import Request
from kci.builders.units import Language, Sources, Unit
from kci.config.values import Version
from kci.errors import MissingToolError
from kci.matrix.names import Kind, this_system
from kci.matrix.variants import Variant
from kci.processes.process import Log, shown
from kci.toolchains import oneapi
from kci.toolchains.cuda import Toolkit
from kci.toolchains.cutlass import Headers, find_headers
from kci.toolchains.environment import Environment
from kci.toolchains.rocm import OPT, Rocm
from kci.toolchains.toolchain_data import toolchains

_CUDA_FOLDERS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}
"""What NVIDIA calls the architectures in a toolkit's `targets`."""

_OLDEST_MACOS = {"cpu": "15.0", "metal": "26.0"}
"""The macOS that each backend needs at least; kci has no commands for others."""

_METAL = (
    "METAL=\"$(xcodebuild -showComponent MetalToolchain | sed -n 's/^Toolchain Search Path: //p')\""
    "/Metal.xctoolchain/usr/bin"
)

_RELEASE = ("/O2", "/Ob2", "/DNDEBUG", "/MD")
"""CMake's flags of a release for MSVC."""

_OF_TORCH = ("/EHsc", "/bigobj")
"""What torch's targets ask of every language there; `/permissive-` is for C++ alone."""


def elsewhere_commands(request: Request, lacking: MissingToolError, log: Log) -> list[str]:
    """The shell lines that would build a variant on the machine that it needs.

    Raises:
        FindingsError: the kernel's files are not as build.toml says.
        UnsafeError: build.toml names a path outside of the kernel's directory.
        MissingToolError: kci has no commands for such a variant.
    """
    variant = request.variant
    tvm_ffi = variant.kind is Kind.TVM_FFI
    if tvm_ffi and (variant.backend not in TVM_FFI_BACKENDS or not variant.system.endswith("linux")):
        raise lacking
    note = f"# not run by kci: {lacking.message.splitlines()[0]}"
    sources = checked_sources(request, log)
    install = ["python3", "-m", "pip", "install", "--no-deps", "--target", str(_folder(request))]
    setup = shown([*install, *_package(request)])
    if variant.system.endswith("linux") and variant.backend != "metal":
        headers = find_headers(
            sources.depends, request.options.cache, request.options.mirrors, log, compute=variant.compute or ""
        )
        recipe = make_recipe(request, sources, _assumed(request, headers))
        lines = commands(recipe)
        there = lines.index(shown(["mkdir", "-p", str(recipe.work)]))  # what is before installs on this machine
        return [note, setup, *lines[there:]]
    if variant.system.endswith("darwin") and variant.backend in _OLDEST_MACOS:
        module = _for_macos(variant, request.kernel_id, sources)
    elif variant.system.endswith("windows") and variant.backend in ("cpu", "cuda"):
        module = _for_windows(variant, request.kernel_id, sources)
    else:
        raise lacking
    folders = f"{KERNEL} is {request.kernel_dir.resolve()}, {TORCH} is the torch package, {PYTHON} has Python.h"
    return [note, setup, f"# in a directory in which {folders}; kci writes generated/torch-ext", *module]


def _package(request: Request) -> list[str]:
    variant = request.variant
    if variant.kind is Kind.TVM_FFI:
        return [f"apache-tvm-ffi=={toolchains().tvm_ffi[variant.tvm_ffi or '']}"]
    assert variant.torch is not None  # noqa: S101  - every torch variant has a torch
    release, flavour = toolchains().torch_release(variant.torch), _flavour(request)
    cpu, system = variant.system.split("-")
    cross = system == "linux" and not this_system().startswith(cpu)
    foreign = ["--only-binary=:all:", f"--platform=manylinux_2_28_{cpu}"] if cross else []
    version = release if system == "darwin" else f"{release}+{flavour}"  # torch's index has no +cpu for macOS
    return [*foreign, f"--index-url={toolchains().index_url(flavour)}", f"torch=={version}"]


def _flavour(request: Request) -> str:
    variant = request.variant
    full = variant.kind is Kind.FULL and variant.backend != "metal"
    return toolchains().flavour(variant.backend, variant.compute) if full else "cpu"


def _folder(request: Request) -> Path:
    return request.options.cache / "elsewhere" / request.variant.name


def _assumed(request: Request, headers: tuple[Headers, ...]) -> Toolchain:
    """The tools for Linux, by their usual names and places."""
    variant = request.variant
    cpu = variant.system.partition("-")[0]
    cross = cpu != this_system().partition("-")[0]
    gcc = f"{cpu}-linux-gnu-g++" if cross else "g++"
    package = _folder(request) / ("tvm_ffi" if variant.kind is Kind.TVM_FFI else "torch")
    environment = Environment(
        python=Path("python3"),
        torch=package,
        ninja=Path("ninja"),
        root=None,
        release="",
        requirement=_package(request)[0] if variant.kind is Kind.TVM_FFI else "",
    )
    compute = Version.parse(variant.compute).minor_text if variant.compute else ""
    cuda = Path("/usr/local", f"cuda-{compute}")
    rocm = OPT / f"rocm-{compute}"
    return Toolchain(
        cxx=(oneapi.ICPX,) if variant.backend == "xpu" else (gcc,),
        gnu_unique=variant.backend != "xpu",
        environment=environment,
        python_include=Path("/usr/include/python3"),
        cuda=Toolkit(compute, cuda / "bin/nvcc", cuda, libraries=cuda / "targets" / _CUDA_FOLDERS[cpu] / "lib")
        if variant.backend == "cuda"
        else None,
        rocm=Rocm(compute, compute, rocm, rocm / "lib") if variant.backend == "rocm" else None,
        sycl=oneapi.code_for(request.build, compute) if variant.backend == "xpu" else None,
        headers=headers,
        nvcc_flags=("--target-directory", _CUDA_FOLDERS[cpu]) if cross else (),
    )


def _directories(unit: Unit) -> tuple[list[str], list[str]]:
    own = [GENERATED, *(seen(unit, path) for path in unit.include), f"{KERNEL}/csrc"]
    return own, [f"{TORCH}/include", f"{TORCH}/include/torch/csrc/api/include", PYTHON]


def _for_macos(variant: Variant, kernel_id: str, sources: Sources) -> list[str]:
    shaders = [unit for unit in sources.units if unit.language is Language.METAL]
    hosts = [unit for unit in sources.units if unit.language is not Language.METAL]
    lines = _metallib(kernel_id, shaders, sources) if shaders else []
    lines += [shlex.join(_clang(variant, kernel_id, unit, embedded=bool(shaders))) for unit in hosts]
    return [*lines, shlex.join(_link_bundle(variant, kernel_id, [unit.object for unit in hosts]))]


def _metallib(kernel_id: str, shaders: Sequence[Unit], sources: Sources) -> list[str]:
    """Shaders to one library, which becomes a header. Every shader has an object of its own, whatever it is called."""
    # The reference gives every shader the directories of all Metal components.
    include = dict.fromkeys(f"-I{seen(unit, path)}" for unit in sources.units for path in unit.include)
    lines = [_METAL]
    for unit in shaders:
        flags = ["-std=metal4.0", "-O2", *include, "-c", seen(unit, unit.source), "-o", f"{unit.object}.air"]
        lines.append(f'"$METAL"/metal {shlex.join(flags)}')
    airs = shlex.join(f"{unit.object}.air" for unit in shaders)
    lines.append(f'"$METAL"/metallib {airs} -o {kernel_id}.metallib')
    what = f"namespace {kernel_id}_metal with metallib_data, metallib_data_len and createLibrary(device, &error)"
    return [*lines, f"# {kernel_id}_metallib.h is made of {kernel_id}.metallib: {what}"]


def _clang(variant: Variant, kernel_id: str, unit: Unit, *, embedded: bool) -> list[str]:
    defines = torch_definitions(variant, kernel_id, named=unit.named)
    if embedded:
        header = f'-DEMBEDDED_METALLIB_HEADER="{kernel_id}_metallib.h"'
        defines += [header, f"-DEMBEDDED_METALLIB_NAMESPACE={kernel_id}_metal"]
    own, system = _directories(unit)
    own += ["."] if embedded else []
    compiler = {Language.OBJCXX: ["c++", "-x", "objective-c++"], Language.C: ["cc"]}.get(unit.language, ["c++"])
    assert variant.torch is not None  # noqa: S101  - every torch variant has a torch
    standard = [] if unit.language is Language.C else [f"-std=gnu++{toolchains().cxx_standard(variant.torch)}"]
    return [
        *compiler,
        *standard,
        "-O3",
        "-DNDEBUG",
        *_machine(variant),
        "-fPIC",
        *defines,
        *(f"-I{path}" for path in own),
        *(part for path in system for part in ("-isystem", path)),
        *unit.flags,
        "-c",
        seen(unit, unit.source),
        "-o",
        unit.object,
    ]


def _link_bundle(variant: Variant, kernel_id: str, objects: Sequence[str]) -> list[str]:
    """Symbols of Python are left open, and there is no rpath: torch is in the process before a kernel is."""
    stable = variant.kind is Kind.STABLE_ABI
    libraries = ["-ltorch_cpu", *([] if stable else ["-ltorch", "-lc10"])]
    command = ["c++", "-bundle", "-Wl,-headerpad_max_install_names", "-undefined", "dynamic_lookup"]
    return [*command, *_machine(variant), "-o", f"{kernel_id}.abi3.so", *objects, f"-L{TORCH}/lib", *libraries]


def _machine(variant: Variant) -> list[str]:
    # The reference sets the minimum where it has no effect; see docs/builders.md.
    architecture = "arm64" if variant.system.startswith("aarch64") else "x86_64"
    return ["-arch", architecture, f"-mmacosx-version-min={_OLDEST_MACOS[variant.backend]}"]


def _for_windows(variant: Variant, kernel_id: str, sources: Sources) -> list[str]:
    """The lines that compile and link, in order, for a command prompt with the variables of vcvarsall set."""
    architecture = {"x86_64": "x64", "aarch64": "x64_arm64"}[variant.system.partition("-")[0]]
    lines = [f"# after: vcvarsall.bat {architecture}"]
    lines += [shlex.join(_cl(variant, kernel_id, unit)) for unit in sources.units]
    return [*lines, shlex.join(_link_dll(variant, kernel_id, [f"{unit.object}bj" for unit in sources.units]))]


def _cl(variant: Variant, kernel_id: str, unit: Unit) -> list[str]:
    assert variant.torch is not None  # noqa: S101  - every torch variant has a torch
    standard = toolchains().cxx_standard(variant.torch)
    own, system = _directories(unit)
    system += [f"{CUDA}/include"] if variant.backend == "cuda" else []
    shared = torch_definitions(variant, kernel_id, named=unit.named)
    shared += [f"-I{path}" for path in (*own, *system)]
    target = [seen(unit, unit.source), "-o", f"{unit.object}bj"]
    if unit.language is Language.CUDA:
        host = f"-Xcompiler={','.join((*_RELEASE, *_OF_TORCH))}"
        flags = [f"-std=c++{standard}", "-O3", "-DNDEBUG", *TORCH_NVCC, *gencode(unit.archs), host]
        return ["nvcc", "-forward-unknown-to-host-compiler", *flags, *shared, *unit.flags, "-x", "cu", "-c", *target]
    flags = ["/nologo", "/TP", f"-std:c++{standard}", *_RELEASE, "/permissive-", *_OF_TORCH]
    return ["cl", *flags, *shared, *unit.flags, "/c", target[0], f"/Fo{target[2]}"]


def _link_dll(variant: Variant, kernel_id: str, objects: Sequence[str]) -> list[str]:
    """Every symbol has to come from an import library there; the file has no abi3 part in its name."""
    stable = variant.kind is Kind.STABLE_ABI
    libraries = ["torch_cpu.lib", *([] if stable else ["torch.lib", "c10.lib"])]
    paths = [f"/LIBPATH:{TORCH}/lib", f"/LIBPATH:{PYTHON}/../libs"]
    if variant.backend == "cuda":
        libraries += ["torch_cuda.lib", *([] if stable else ["c10_cuda.lib"]), "cudart.lib"]
        paths.append(f"/LIBPATH:{CUDA}/lib/x64")
    command = ["link", "/nologo", "/DLL", "/INCREMENTAL:NO", f"/OUT:{kernel_id}.pyd"]
    return [*command, *objects, *paths, *libraries, "python3.lib"]
