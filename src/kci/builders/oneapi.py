"""Compiling for XPU with oneAPI's icpx: the compiler, and the flags of the reference's CMake."""

from __future__ import annotations

import re
import shutil

from kci.builders.environment import same_version
from kci.builders.process import run
from kci.builders.toolchains import toolchains
from kci.config.values import Version
from kci.errors import MissingToolError

ICPX = "icpx"
_VERSION = re.compile(r"\d+\.\d+")
_PRECISE = ("-foffload-fp32-prec-div", "-foffload-fp32-prec-sqrt")
"""Division and square root of float as IEEE has them, and torch; compiling and linking both need them."""


def find_icpx(compute: str) -> tuple[str, ...]:
    """The compiler, for host and device code alike.

    Args:
        compute: the oneAPI version of the variant, `2025.3`.

    Raises:
        MissingToolError: it is not here, or of another version.
    """
    version = Version.parse(compute).minor_text
    hint = f"install oneAPI's DPC++ compiler {version}, and source its setvars.sh; --dry-run shows the commands"
    found = shutil.which(ICPX)
    if found is None:
        message = f"building for xpu needs icpx {version}, which is not installed on this machine"
        raise MissingToolError(message, hint=hint)
    told = _VERSION.search(run([found, "--version"]).output)
    if told is None or not same_version(told[0], version):
        has = f"oneAPI {told[0]}" if told else "no version that kci can read"
        raise MissingToolError(f"{found} is {has}, and the variant needs {version}", hint=hint)
    return (found,)


def compile_flags() -> list[str]:
    """What the sources of a component get on top of C++'s flags; the binding gets none of it."""
    strict = ("-fhonor-nans", "-fhonor-infinities", "-fno-associative-math", "-fno-approx-func")
    rest = ("-fno-sycl-instrument-device-code", "--offload-compress", _targets())
    return ["-fPIC", "-fsycl", *strict, *_PRECISE, *rest]


def link_flags() -> list[str]:
    """What the link gets: it is there that code for the devices is made ahead of time."""
    sycl = toolchains().sycl
    backend = f"-device {','.join(sycl.devices)} -options ' {' '.join(sycl.device_options)}'"
    flags = ["-Wl,-z,noexecstack", "-fsycl", "--offload-compress", *_PRECISE, _targets()]
    return [*flags, "-Xsycl-target-backend=spir64_gen", backend, "-ldnnl"]


def _targets() -> str:
    return f"-fsycl-targets={','.join(toolchains().sycl.targets)}"
