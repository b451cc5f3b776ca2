"""The commands of a variant that this machine cannot build, as text for `--dry-run`: kci has not run them here.

For Linux they are those of the native builder, with tools that are assumed to be where they usually are; another
architecture's are a cross compiler's. For macOS and Windows see `kci.builders.apple` and `kci.builders.msvc`.
"""

from __future__ import annotations

from pathlib import Path

from kci.builders import apple, msvc
from kci.builders.commands import KERNEL, PYTHON, TORCH, Toolchain
from kci.builders.definitions import TVM_FFI_BACKENDS
from kci.builders.recipe import Recipe, checked_sources, commands, make_recipe
from kci.builders.request import Request
from kci.config.values import Version
from kci.errors import MissingToolError
from kci.matrix.names import Kind, this_system
from kci.processes.process import Log, shown
from kci.toolchains import oneapi
from kci.toolchains.cuda import Toolkit
from kci.toolchains.cutlass import Headers, find_headers
from kci.toolchains.environment import Environment
from kci.toolchains.rocm import OPT, Rocm
from kci.toolchains.toolchain_data import toolchains

_CUDA_FOLDERS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}
"""What NVIDIA calls the architectures in a toolkit's `targets`."""


def elsewhere_commands(request: Request, lacking: MissingToolError, log: Log) -> list[str]:
    """The shell lines that would build a variant on the machine that it needs.

    Args:
        request: what to build.
        lacking: why this machine cannot.
        log: takes lines of progress.

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
    if variant.system.endswith("linux") and variant.backend != "metal":
        headers = find_headers(
            sources.depends, request.options.cache, request.options.mirrors, log, compute=variant.compute or ""
        )
        recipe = make_recipe(request, sources, _assumed(request, headers))
        return [note, *_setup(request), *_in_work_directory(recipe)]
    if variant.system.endswith("darwin") and variant.backend in apple.BACKENDS:
        module = apple.commands(variant, request.kernel_id, sources)
    elif variant.system.endswith("windows") and variant.backend in msvc.BACKENDS:
        module = msvc.commands(variant, request.kernel_id, sources)
    else:
        raise lacking
    folders = f"{KERNEL} is {request.kernel_dir.resolve()}, {TORCH} is the torch package, {PYTHON} has Python.h"
    return [note, *_setup(request), f"# in a directory in which {folders}; kci writes generated/torch-ext", *module]


def _in_work_directory(recipe: Recipe) -> list[str]:
    """What `commands` prints, without what it would install on this machine."""
    lines = commands(recipe)
    return lines[lines.index(shown(["mkdir", "-p", str(recipe.work)])) :]


def _setup(request: Request) -> list[str]:
    """How to get what it is compiled against, for the other machine."""
    package = _package(request)
    return [shown(["python3", "-m", "pip", "install", "--no-deps", "--target", str(_folder(request)), *package])]


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
