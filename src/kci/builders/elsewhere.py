"""The commands of a variant that this machine cannot build, as text for `--dry-run`: kci has not run them here.

For Linux they are those of the native builder, with tools that are assumed to be where they usually are; another
architecture's are a cross compiler's. What never ran anywhere is in `never_ran`.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from kci.builders.commands import KERNEL, PYTHON, TORCH, Toolchain
from kci.builders.definitions import TVM_FFI_BACKENDS
from kci.builders.generate import compiled_ops
from kci.builders.kernel_files import package_files, write_package
from kci.builders.never_ran import oneapi
from kci.builders.never_ran.desktops import desktop_commands, module_ending
from kci.builders.never_ran.ran_on import heading, never_ran
from kci.builders.recipe import checked_sources, commands, make_recipe
from kci.builders.request import Built, Request
from kci.config.values import Version
from kci.errors import FindingsError, MissingToolError, UsageError
from kci.matrix.names import Kind, this_system
from kci.processes.process import Log, shown, silent
from kci.toolchains.compilers import GCC_FLAGS
from kci.toolchains.cuda import Toolkit
from kci.toolchains.cutlass import Headers, find_headers
from kci.toolchains.environment import Environment
from kci.toolchains.rocm import OPT, Rocm
from kci.toolchains.toolchain_data import toolchains

_CUDA_FOLDERS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}
"""What NVIDIA calls the architectures in a toolkit's `targets`."""


def elsewhere_commands(request: Request, lacking: MissingToolError, log: Log) -> list[str]:
    """The shell lines that would build a variant on the machine that it needs.

    Raises:
        FindingsError: the kernel's files are not as build.toml says.
        UnsafeError: build.toml names a path outside of the kernel's directory.
        MissingToolError: kci has no commands for such a variant.
    """
    before, module = _commands(request, lacking, log)
    install = ["python3", "-m", "pip", "install", "--no-deps", "--target", str(_folder(request))]
    note = f"# not run by kci: {lacking.message.splitlines()[0]}"
    return [note, shown([*install, *_package(request)]), *before, *module]


def never_ran_digest(request: Request) -> str:
    """A hash of the commands that compile and link a variant of a kind that never ran; empty for every other variant.

    It is the same on every machine, and in every checkout of the same sources. Raises as `elsewhere_commands`.
    """
    if not never_ran().kind_of(request.variant):
        return ""
    _, module = _commands(request, MissingToolError(f"kci has no commands for {request.variant.name}"), silent)
    text = "\n".join(line for line in module if not line.startswith("#"))
    for own, name in (
        (request.options.cache, "CACHE"),
        (request.kernel_dir.resolve(), KERNEL),
        (request.kernel_id, "ID"),
    ):
        text = text.replace(str(own), name)
    return hashlib.sha256(text.encode()).hexdigest()


def made_by_hand(request: Request, module: Path) -> Built:
    """Make a variant, in `request.output`, of a native module that somebody has made with the commands that never ran.

    Raises:
        UsageError: kci builds such a variant itself.
        FindingsError: there is no such file, or the kernel's package is missing or wrong.
    """
    variant = request.variant
    if not never_ran().kind_of(variant) or variant.system.endswith("linux"):
        raise UsageError(f"kci builds {variant.name} itself", hint="leave out --module")
    if not module.is_file():
        raise FindingsError(f"{module} is not a file", hint="`--dry-run` prints the commands that make it")
    ops = compiled_ops(request.kernel_id, tvm_ffi=False)
    write_package(request.output, package_files(request.kernel_dir, request.build, compiled=True), {"_ops.py": ops})
    name = request.kernel_id + module_ending(variant)
    shutil.copyfile(module, request.output / name)
    (request.output / name).chmod(0o755)
    return Built(builder="by-hand", archs=None)


def never_ran_heading(request: Request) -> list[str]:
    """What stands above commands that never ran; nothing above others. Raises as `elsewhere_commands`."""
    return heading(request.variant, never_ran_digest(request))


def _commands(request: Request, lacking: MissingToolError, log: Log) -> tuple[list[str], list[str]]:
    """What prepares a directory, and what compiles and links in it."""
    variant = request.variant
    tvm_ffi = variant.kind is Kind.TVM_FFI
    if tvm_ffi and (variant.backend not in TVM_FFI_BACKENDS or not variant.system.endswith("linux")):
        raise lacking
    sources = checked_sources(request, log)
    if variant.system.endswith("linux") and variant.backend != "metal":
        headers = find_headers(
            sources.depends, request.options.cache, request.options.mirrors, log, compute=variant.compute or ""
        )
        recipe = make_recipe(request, sources, _assumed(request, headers))
        lines = commands(recipe)
        there = lines.index(shown(["mkdir", "-p", str(recipe.work)]))  # what is before installs on this machine
        steps = len(lines) - len(recipe.steps)
        return lines[there:steps], lines[steps:]
    if not (module := desktop_commands(variant, request.kernel_id, sources)):
        raise lacking
    folders = f"{KERNEL} is {request.kernel_dir.resolve()}, {TORCH} is the torch package, {PYTHON} has Python.h"
    return [f"# in a directory in which {folders}; kci writes generated/torch-ext"], module


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
        gcc_flags=() if variant.backend == "xpu" else GCC_FLAGS,
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
