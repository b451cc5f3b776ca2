"""The commands for macOS (CPU and Metal) and Windows (CPU and CUDA), after the reference's CMake. They never ran."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from kci.builders.commands import CUDA, GENERATED, KERNEL, PYTHON, TORCH, TORCH_NVCC, gencode, seen
from kci.builders.definitions import torch_definitions
from kci.builders.units import Language, Sources, Unit
from kci.matrix.names import Kind
from kci.matrix.variants import Variant
from kci.toolchains.toolchain_data import toolchains

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


def desktop_commands(variant: Variant, kernel_id: str, sources: Sources) -> list[str]:
    """The lines that compile and link a variant for macOS or Windows; none if kci has no commands for such a one."""
    if variant.system.endswith("darwin") and variant.backend in _OLDEST_MACOS:
        return _for_macos(variant, kernel_id, sources)
    if variant.system.endswith("windows") and variant.backend in ("cpu", "cuda"):
        return _for_windows(variant, kernel_id, sources)
    return []


def _directories(unit: Unit) -> tuple[list[str], list[str]]:
    own = [GENERATED, *(seen(unit, path) for path in unit.include), f"{KERNEL}/csrc"]
    return own, [f"{TORCH}/include", f"{TORCH}/include/torch/csrc/api/include", PYTHON]


def module_ending(variant: Variant) -> str:
    """How the file name of its native module ends."""
    return ".pyd" if variant.system.endswith("windows") else ".abi3.so"


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
    return [
        *command,
        *_machine(variant),
        "-o",
        kernel_id + module_ending(variant),
        *objects,
        f"-L{TORCH}/lib",
        *libraries,
    ]


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
    command = ["link", "/nologo", "/DLL", "/INCREMENTAL:NO", f"/OUT:{kernel_id}{module_ending(variant)}"]
    return [*command, *objects, *paths, *libraries, "python3.lib"]
