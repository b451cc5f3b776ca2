"""icpx for XPU: the compiler, and the flags of the reference's CMake."""

from __future__ import annotations

import os
import re
import shutil

from kci.builders.process.run import run
from kci.builders.toolchains.cutlass import tla_version
from kci.builders.toolchains.data import Compiler, SyclTargets, toolchains
from kci.builders.toolchains.environment import same_version
from kci.config.model import Build
from kci.config.values import Backend, Depend, Version, text_of
from kci.errors import MissingToolError
from kci.matrix.variants import Variant

ICPX = "icpx"

# extensions behind the leading `-all`, in the command line of llvm-spirv
_EXTENSIONS = re.compile(r'-spirv-ext=(?:-all,)?([^" ]+)')
_VERSION = re.compile(r"\d+\.\d+")


def find_icpx(compute: str) -> Compiler:
    """The icpx of a oneAPI version such as `2025.3`. Raises MissingToolError."""
    version = Version.parse(compute).minor_text
    hint = f"install oneAPI's DPC++ compiler {version}, and source its setvars.sh"
    path = shutil.which(ICPX)
    if not path:
        raise MissingToolError(
            f"building for xpu needs icpx {version}, which is not installed on this machine", hint
        )
    match = _VERSION.search(run([path, "--version"]).output)
    if not match or not same_version(match[0], version):
        has = f"oneAPI {match[0]}" if match else "no version that kci can read"
        raise MissingToolError(f"{path} is {has}, and the variant needs {version}", hint)
    return (path,)


class SyclCode(SyclTargets):
    """icpx's targets and settings."""

    extensions: tuple[str, ...] = ()
    """SPIR-V extensions; for the link, `default_extensions` come first."""
    defines: tuple[str, ...] = ()


def sycl_code(build: Build, variant: Variant) -> SyclCode | None:
    """The targets of an XPU variant; SYCL*TLA decides for all components, as in the reference;
    MissingToolError.
    """
    if variant.backend != Backend.XPU:
        return None
    parts = build.components(variant.backend).values()
    plain, tla = toolchains().sycl, toolchains().sycl_tla
    if not any(Depend.SYCL_TLA in part.depends for part in parts):
        return SyclCode(targets=plain.targets, devices=plain.devices)
    version = tla_version(text_of(variant.compute))
    flags, apart = [flag for part in parts for flag in part.device_flags], version.apart
    code = apart if apart and any(apart.mark in flag for flag in flags) else version
    return SyclCode(
        targets=code.targets, devices=code.devices, extensions=tla.extensions, defines=tla.defines
    )


def default_extensions(icpx: Compiler) -> str:
    """Default SPIR-V extensions of icpx, which a list on the command line replaces.

    Raises MissingToolError.
    """
    result = run([*icpx, "-fsycl", "-fsycl-targets=spir64_gen", "-###", "-x", "c++", os.devnull])
    match = _EXTENSIONS.search(result.output)
    if result.code != 0 or not match:
        raise MissingToolError(
            f"{icpx[0]} does not say which SPIR-V extensions it uses", "see what `icpx -###` says"
        )
    return match[1]


def compile_flags(code: SyclCode) -> list[str]:
    """Flags of component sources, on top of C++'s."""
    return [*toolchains().sycl.compile_flags, _targets(code)]


def link_flags(code: SyclCode) -> list[str]:
    """Flags of the link, which compiles ahead of time."""
    flags = [*toolchains().sycl.link_flags, _targets(code)]
    options = f"-options ' {' '.join(toolchains().sycl.device_options)}'"
    for target in code.targets:
        if target == "spir64_gen":
            flags += [
                f"-Xsycl-target-backend={target}",
                f"-device {','.join(code.devices)} {options}",
            ]
        elif target.startswith("intel_gpu_"):
            flags += [f"-Xsycl-target-backend={target}", options]
    for target in code.targets if code.extensions else ():
        flags += [
            f"-Xspirv-translator={target}",
            f"-spirv-ext={','.join(code.extensions)}",
        ]
    return [*flags, "-ldnnl"]


def _targets(code: SyclCode) -> str:
    return f"-fsycl-targets={','.join(code.targets)}"
