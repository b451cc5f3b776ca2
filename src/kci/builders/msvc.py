"""The command lines for Windows, CPU and CUDA, after the reference's CMake. They are text: they were never run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from kci.builders.commands import CUDA, GENERATED, KERNEL, PYTHON, TORCH, TORCH_NVCC, gencode, seen
from kci.builders.definitions import torch_definitions
from kci.builders.units import Language, Sources, Unit
from kci.matrix.names import Kind
from kci.matrix.variants import Variant
from kci.toolchains.toolchain_data import toolchains

BACKENDS = ("cpu", "cuda")

_RELEASE = ("/O2", "/Ob2", "/DNDEBUG", "/MD")
"""CMake's flags of a release."""

_TORCH = ("/EHsc", "/bigobj")
"""What torch's targets ask of every language; `/permissive-` is for C++ alone."""


def commands(variant: Variant, kernel_id: str, sources: Sources) -> list[str]:
    """The lines that compile and link, in order, for a command prompt with the variables of vcvarsall set."""
    architecture = {"x86_64": "x64", "aarch64": "x64_arm64"}[variant.system.partition("-")[0]]
    lines = [f"# after: vcvarsall.bat {architecture}"]
    lines += [shlex.join(_compile(variant, kernel_id, unit)) for unit in sources.units]
    return [*lines, shlex.join(_link(variant, kernel_id, [f"{unit.object}bj" for unit in sources.units]))]


def _compile(variant: Variant, kernel_id: str, unit: Unit) -> list[str]:
    assert variant.torch is not None  # noqa: S101  - every torch variant has a torch
    standard = toolchains().cxx_standard(variant.torch)
    own = [GENERATED, *(seen(unit, path) for path in unit.include), f"{KERNEL}/csrc"]
    system = [f"{TORCH}/include", f"{TORCH}/include/torch/csrc/api/include", PYTHON]
    system += [f"{CUDA}/include"] if variant.backend == "cuda" else []
    shared = torch_definitions(variant, kernel_id, named=unit.named)
    shared += [f"-I{path}" for path in (*own, *system)]
    target = [seen(unit, unit.source), "-o", f"{unit.object}bj"]
    if unit.language is Language.CUDA:
        host = f"-Xcompiler={','.join((*_RELEASE, *_TORCH))}"
        flags = [f"-std=c++{standard}", "-O3", "-DNDEBUG", *TORCH_NVCC, *gencode(unit.archs), host]
        return ["nvcc", "-forward-unknown-to-host-compiler", *flags, *shared, *unit.flags, "-x", "cu", "-c", *target]
    flags = ["/nologo", "/TP", f"-std:c++{standard}", *_RELEASE, "/permissive-", *_TORCH]
    return ["cl", *flags, *shared, *unit.flags, "/c", target[0], f"/Fo{target[2]}"]


def _link(variant: Variant, kernel_id: str, objects: Sequence[str]) -> list[str]:
    """Every symbol has to come from an import library there; the file has no abi3 part in its name."""
    stable = variant.kind is Kind.STABLE_ABI
    libraries = ["torch_cpu.lib", *([] if stable else ["torch.lib", "c10.lib"])]
    paths = [f"/LIBPATH:{TORCH}/lib", f"/LIBPATH:{PYTHON}/../libs"]
    if variant.backend == "cuda":
        libraries += ["torch_cuda.lib", *([] if stable else ["c10_cuda.lib"]), "cudart.lib"]
        paths.append(f"/LIBPATH:{CUDA}/lib/x64")
    command = ["link", "/nologo", "/DLL", "/INCREMENTAL:NO", f"/OUT:{kernel_id}.pyd"]
    return [*command, *objects, *paths, *libraries, "python3.lib"]
