"""The command lines for macOS, CPU and Metal, after the reference's CMake. They are text: they were never run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from kci.builders.commands import GENERATED, KERNEL, PYTHON, TORCH, seen
from kci.builders.definitions import torch_definitions
from kci.builders.units import Language, Sources, Unit
from kci.matrix.names import Kind
from kci.matrix.variants import Variant
from kci.toolchains.toolchain_data import toolchains

BACKENDS = ("cpu", "metal")

_OLDEST = {"cpu": "15.0", "metal": "26.0"}
"""The macOS that each needs at least."""

_ARCH = {"aarch64": "arm64", "x86_64": "x86_64"}
_TOOLCHAIN = (
    "METAL=\"$(xcodebuild -showComponent MetalToolchain | sed -n 's/^Toolchain Search Path: //p')\""
    "/Metal.xctoolchain/usr/bin"
)


def commands(variant: Variant, kernel_id: str, sources: Sources) -> list[str]:
    """The shell lines that compile and link, in order."""
    shaders = [unit for unit in sources.units if unit.language is Language.METAL]
    hosts = [unit for unit in sources.units if unit.language is not Language.METAL]
    lines = _metallib(kernel_id, shaders, sources) if shaders else []
    lines += [shlex.join(_compile(variant, kernel_id, unit, embedded=bool(shaders))) for unit in hosts]
    return [*lines, shlex.join(_link(variant, kernel_id, [unit.object for unit in hosts]))]


def _metallib(kernel_id: str, shaders: Sequence[Unit], sources: Sources) -> list[str]:
    """Shaders to one library, which becomes a header. Every shader has an object of its own, whatever it is called."""
    # The reference gives every shader the directories of all Metal components.
    include = dict.fromkeys(f"-I{seen(unit, path)}" for unit in sources.units for path in unit.include)
    lines = [_TOOLCHAIN]
    for unit in shaders:
        flags = ["-std=metal4.0", "-O2", *include, "-c", seen(unit, unit.source), "-o", f"{unit.object}.air"]
        lines.append(f'"$METAL"/metal {shlex.join(flags)}')
    airs = shlex.join(f"{unit.object}.air" for unit in shaders)
    lines.append(f'"$METAL"/metallib {airs} -o {kernel_id}.metallib')
    what = f"namespace {kernel_id}_metal with metallib_data, metallib_data_len and createLibrary(device, &error)"
    return [*lines, f"# {kernel_id}_metallib.h is made of {kernel_id}.metallib: {what}"]


def _compile(variant: Variant, kernel_id: str, unit: Unit, *, embedded: bool) -> list[str]:
    defines = torch_definitions(variant, kernel_id, named=unit.named)
    if embedded:
        header = f'-DEMBEDDED_METALLIB_HEADER="{kernel_id}_metallib.h"'
        defines += [header, f"-DEMBEDDED_METALLIB_NAMESPACE={kernel_id}_metal"]
    own = [GENERATED, *(seen(unit, path) for path in unit.include), f"{KERNEL}/csrc", *(["."] if embedded else [])]
    system = [f"{TORCH}/include", f"{TORCH}/include/torch/csrc/api/include", PYTHON]
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


def _link(variant: Variant, kernel_id: str, objects: Sequence[str]) -> list[str]:
    """Symbols of Python are left open, and there is no rpath: torch is in the process before a kernel is."""
    stable = variant.kind is Kind.STABLE_ABI
    libraries = ["-ltorch_cpu", *([] if stable else ["-ltorch", "-lc10"])]
    command = ["c++", "-bundle", "-Wl,-headerpad_max_install_names", "-undefined", "dynamic_lookup"]
    return [*command, *_machine(variant), "-o", f"{kernel_id}.abi3.so", *objects, f"-L{TORCH}/lib", *libraries]


def _machine(variant: Variant) -> list[str]:
    """The reference sets the minimum where it has no effect; see docs/builders.md."""
    return ["-arch", _ARCH[variant.system.partition("-")[0]], f"-mmacosx-version-min={_OLDEST[variant.backend]}"]
