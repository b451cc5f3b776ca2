"""Compiling for XPU with oneAPI's icpx: the compiler, and the flags of the reference's CMake."""

from __future__ import annotations

import os
import re
import shutil

import msgspec

from kci.build.process.run import run
from kci.build.toolchains.cutlass import tla_version
from kci.build.toolchains.data import toolchains
from kci.build.toolchains.environment import same_version
from kci.config.model import Build, XpuComponent
from kci.config.values import Depend, Version
from kci.errors import MissingToolError

ICPX = "icpx"

# in the line for llvm-spirv: the extensions without the `-all` that comes first
_EXTENSIONS = re.compile(r'-spirv-ext=(?:-all,)?([^" ]+)')
_VERSION = re.compile(r"\d+\.\d+")
_PRECISE = ("-foffload-fp32-prec-div", "-foffload-fp32-prec-sqrt")
"""Division and square root of float as IEEE has them, and torch; compiling and linking both need them."""


def find_icpx(compute: str) -> tuple[str, ...]:
    """The compiler of a oneAPI version such as `2025.3`, for host and device code alike.

    Raises:
        MissingToolError: it is not here, or of another version.
    """
    version = Version.parse(compute).minor_text
    hint = f"install oneAPI's DPC++ compiler {version}, and source its setvars.sh"
    found = shutil.which(ICPX)
    if found is None:
        message = f"building for xpu needs icpx {version}, which is not installed on this machine"
        raise MissingToolError(message, hint=hint)
    told = _VERSION.search(run([found, "--version"]).output)
    if told is None or not same_version(told[0], version):
        has = f"oneAPI {told[0]}" if told else "no version that kci can read"
        raise MissingToolError(f"{found} is {has}, and the variant needs {version}", hint=hint)
    return (found,)


class SyclCode(msgspec.Struct, frozen=True):
    """What icpx makes code for, and with what."""

    targets: tuple[str, ...]
    devices: tuple[str, ...]
    """Those that `spir64_gen` stands for."""
    extensions: tuple[str, ...] = ()
    """Of SPIR-V, beside those that icpx has by default."""
    defines: tuple[str, ...] = ()


def code_for(build: Build, compute: str) -> SyclCode:
    """What to make for a variant of a oneAPI version.

    A component that depends on SYCL*TLA decides for all, as in the reference.

    Raises:
        MissingToolError: there is no SYCL*TLA for that version.
    """
    parts = [part for part in build.components("xpu").values() if isinstance(part, XpuComponent)]
    plain, tla = toolchains().sycl, toolchains().sycl_tla
    if not any(Depend.SYCL_TLA in part.depends for part in parts):
        return SyclCode(plain.targets, plain.devices)
    version = tla_version(compute)
    marked = version.apart and any(version.apart.mark in flag for part in parts for flag in part.sycl_flags or ())
    made = version.apart if version.apart and marked else version
    return SyclCode(made.targets, made.devices, tla.extensions, tla.defines)


def default_extensions(icpx: tuple[str, ...]) -> str:
    """The extensions of SPIR-V that icpx gives its translator; a list on the command line replaces them all.

    Raises:
        MissingToolError: it does not say. Leaving them out would make other code.
    """
    said = run([*icpx, "-fsycl", "-fsycl-targets=spir64_gen", "-###", "-x", "c++", os.devnull])
    found = _EXTENSIONS.search(said.output)
    if said.code != 0 or found is None:
        raise MissingToolError(
            f"{icpx[0]} does not say which SPIR-V extensions it uses", hint="see what `icpx -###` says"
        )
    return found[1]


def compile_flags(code: SyclCode) -> list[str]:
    """What the sources of a component get on top of C++'s flags; the binding gets none of it."""
    strict = ("-fhonor-nans", "-fhonor-infinities", "-fno-associative-math", "-fno-approx-func")
    rest = ("-fno-sycl-instrument-device-code", "--offload-compress", _targets(code))
    return ["-fPIC", "-fsycl", *strict, *_PRECISE, *rest]


def link_flags(code: SyclCode, extensions: str) -> list[str]:
    """What the link gets: it is there that code for the devices is made ahead of time.

    `extensions` are those of SPIR-V that icpx has by default (`default_extensions`).
    """
    flags = ["-Wl,-z,noexecstack", "-fsycl", "--offload-compress", *_PRECISE, _targets(code)]
    options = f"-options ' {' '.join(toolchains().sycl.device_options)}'"
    for target in code.targets:
        if target == "spir64_gen":
            flags += [f"-Xsycl-target-backend={target}", f"-device {','.join(code.devices)} {options}"]
        elif target.startswith("intel_gpu_"):
            flags += [f"-Xsycl-target-backend={target}", options]
    for target in code.targets if code.extensions else ():
        flags += [f"-Xspirv-translator={target}", f"-spirv-ext={','.join((extensions, *code.extensions))}"]
    return [*flags, "-ldnnl"]


def _targets(code: SyclCode) -> str:
    return f"-fsycl-targets={','.join(code.targets)}"
