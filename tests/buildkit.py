"""What the tests of the builders share: kernels on disk, variants by name, a PATH with chosen
programs only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from checkout import ROOT
from kci.builders.dispatch import build_variant
from kci.builders.request import BuildOptions, BuildResult, Request
from kci.builders.toolchains.compilers import GCC_FLAGS, Toolchain
from kci.builders.toolchains.environment import Environment, ensure_runtime
from kci.config.model import Build
from kci.config.reader import read_kernel
from kci.config.values import Backend, Version
from kci.matrix.variants import Kind, Variant, parse_variant_name
from kci.plan.workspace import Workspace
from kci.run.build_leg import LegRequest
from kci.utils.atomic import locked
from kci.utils.cache import default_cache

DATA = Path(__file__).parent / "builders" / "data"
CPU = "torch213-cxx11-cpu-x86_64-linux"
STABLE_CPU = "torch-stable-abi211-cpu-x86_64-linux"
CUDA = "torch213-cxx11-cu130-x86_64-linux"
STABLE_CUDA = "torch-stable-abi211-cu130-x86_64-linux"


def variant(name: str, *, torch: str = "2.13", archs: tuple[str, ...] | None = None) -> Variant:
    """The variant of a name; `torch` is what a stable ABI one is built with."""
    parts = parse_variant_name(name)
    framework = Version.parse(parts.framework_version) if parts.framework_version else None
    return Variant(
        name=name,
        kind=parts.kind,
        backend=Backend(parts.backend),
        system=parts.system or "x86_64-linux",
        torch=framework if parts.kind is Kind.FULL else Version.parse(torch),
        compute=Version.parse(parts.compute_version) if parts.compute_version else None,
        stable_abi=framework if parts.kind is Kind.STABLE_ABI else None,
        tvm_ffi=framework if parts.kind is Kind.TVM_FFI else None,
        archs=archs,
        bundled=True,
    )


def toolchain(name: str, environment: Environment, **changes: object) -> Toolchain:
    """A toolchain for a variant that is the same on every machine."""
    made = variant(name)
    fixed = (("g++",), GCC_FLAGS, environment, Path("/py"))
    return Toolchain(made, f"_k_{made.backend}_1", *fixed, **changes)  # type: ignore[arg-type]


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below a directory."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return root


def files_in(directory: Path) -> list[str]:
    """The files below a directory."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in found)


def build_of(directory: Path) -> Build:
    """What a kernel's build.toml says."""
    return read_kernel(directory).build


def copy_kernel(name: str, into: Path) -> Path:
    """A copy of one of the kernels in `data`, to be changed at will."""
    return Path(shutil.copytree(DATA / name, into / name))


def copy_example(name: str, into: Path) -> Path:
    """A copy of one of the examples, without what was built there."""
    ignored = shutil.ignore_patterns("build", "__pycache__")
    return Path(shutil.copytree(ROOT / "examples" / name, into / name, ignore=ignored))


def noarch_kernel(root: Path, **files: str) -> Path:
    """A small noarch kernel for cpu and cuda; `files` come on top, with `__` for `/` in their
    names.
    """
    text = """
        [general]
        name = "just-python"
        version = 1
        edition = 5
        license = "MIT"
        backends = ["cpu", "cuda"]

        [torch-noarch]
        cuda_capabilities = ["9.0", "8.0"]
    """
    return write_tree(
        root,
        {
            "build.toml": text,
            "torch-ext/just_python/__init__.py": "from ._ops import ops\n",
            **files,
        },
    )


def request(directory: Path, name: str, tmp_path: Path, **changes: object) -> Request:
    """A request to build a variant of a kernel, with everything else below a temporary directory.

    Args:
        directory: the kernel's.
        name: the variant's.
        tmp_path: the directory.
        changes: fields of the request, or of its options.
    """
    build = build_of(directory)
    made = variant(name)
    fields = {
        "kernel_dir": directory,
        "build": build,
        "variant": made,
        "kernel_id": f"_{build.name.replace('-', '_')}_{made.backend}_1a2b3c4",
        "output": tmp_path / "out" / name,
        "options": BuildOptions(tmp_path / "cache"),
    }
    return with_changes(Request(**fields), **changes)  # type: ignore[arg-type]


def leg_request(
    workspace: Workspace,
    output: Path,
    options: BuildOptions,
    artifact: Path | None = None,
    name: str = "torch-cpu",
    tier: str | None = None,
) -> LegRequest:
    """What is asked of a leg of the only kernel of a workspace."""
    return LegRequest(
        kernel=workspace.only_kernel(), variant=workspace.variant(name, tier=tier),
        output=output, options=options, artifact=artifact,
    )  # fmt: skip


def with_changes(request: Request, **changes: object) -> Request:
    """A request with other fields, or with other fields of its options."""
    said = {
        name: changes.pop(name) for name in tuple(changes) if name in BuildOptions.__struct_fields__
    }
    options = msgspec.structs.replace(request.options, **said)
    return msgspec.structs.replace(request, options=options, **changes)


def asked(name: str, kernel: Path, tmp_path: Path) -> Request:
    """A request to build a variant with the user's environments and toolkits."""
    return request(kernel, name, tmp_path, cache=warm_cache(tmp_path))


def built(what: Request) -> BuildResult:
    """The variant, built."""
    return build_variant(what, quiet)


def module(what: Request) -> Path:
    """Its shared library."""
    return what.output / f"{what.kernel_id}.abi3.so"


def output_of(*command: str | Path, **keys: Any) -> str:
    """What a program says that ends well."""
    return subprocess.run(command, check=True, capture_output=True, text=True, **keys).stdout


def compiled_before() -> dict[str, str]:
    """Variables with which a build takes what a test has compiled, in this run or an
    earlier one.
    """
    if not Path(sysconfig.get_path("scripts"), "ccache").exists():
        return {}
    folder = (default_cache() / "test-tools" / "ccache").resolve()
    return {"KCI_COMPILER_CACHE": "ccache", "CCACHE_DIR": str(folder), "CCACHE_MAXSIZE": "2G"}


def built_once(
    shared: Path, kernel: str, name: str, prepare: Callable[[Path], object] = lambda _kernel: None
) -> Request:
    """The request of a variant of a kernel in `data` that is built once a test run, for tests that
    only look at it.

    Args:
        shared: a folder that the workers of a test run have in common.
        kernel: the kernel.
        name: the variant.
        prepare: changes the copy of the kernel that is built.
    """
    place = shared / "built-once" / f"{kernel}-{name}"
    with locked(place):
        if not (place / "complete").exists():
            copy = copy_kernel(kernel, place)
            prepare(copy)
            what = request(copy, name, place, cache=warm_cache(place))
            with patch.dict(os.environ, compiled_before()):
                build_variant(what, quiet)
            (place / "complete").touch()
    return request(place / kernel, name, place)


def only_these(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *programs: str) -> Path:
    """A PATH with nothing but some of this machine's programs, and none of the variables that name
    compilers.
    """
    folder = tmp_path / "only-these"
    folder.mkdir(exist_ok=True)
    for program in programs:
        found = shutil.which(program)
        assert found, program
        (folder / program).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CC", "CXX", "NVCC", "CUDA_HOME", "CUDA_PATH", "MAX_JOBS", "NVCC_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return folder


def program(folder: Path, name: str, text: str) -> Path:
    """A shell script on a PATH of its own."""
    path = folder / name
    path.write_text("#!/bin/sh\n" + dedent(text))
    path.chmod(0o755)
    return path


class Bare:
    """This machine with nothing on its PATH but what a test puts there, and none of the variables
    that name compilers.
    """

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self.patch = place, patch
        self.folder = only_these(patch, place)

    def add(self, name: str, text: str = "exit 0") -> Path:
        """Put a program there."""
        return program(self.folder, name, text)

    def set(self, **variables: object) -> None:
        """Set variables, until they are set again."""
        for name, value in variables.items():
            self.patch.setenv(name, str(value))


OLDER_SYSTEM = """case " $* " in *" -dM "*)
  g++ "$@" | sed 's/^#define __GLIBC_MINOR__ .*/#define __GLIBC_MINOR__ 28/'; exit ;;
esac
"""
"""The begin of a compiler that says it is of a system as old as users have; see
`as_old_as_users_systems`."""


def quiet(_line: str) -> None:
    """A log for tests that do not look at it."""


@cache
def runtime(torch: str = "2.13") -> Path:
    """A Python with torch and the loader.

    It is in the user's own cache, because it takes time and space.
    """
    return ensure_runtime(torch, cache=default_cache(), log=quiet)


def warm_cache(tmp_path: Path) -> Path:
    """A cache with the user's environments and toolkits, and with objects of its own.

    What is built in a test stays out of the user's cache: it would name places that go with the
    test.
    """
    runtime()
    made = tmp_path / "cache"
    made.mkdir(exist_ok=True)
    for part in ("cuda", "envs", "headers"):
        (default_cache() / part).mkdir(exist_ok=True)
        if not (made / part).exists():
            (made / part).symlink_to(default_cache() / part)
    return made


def wait_for(there: Callable[[], object], what: str) -> None:
    """Look until something is there."""
    for _ in range(1200):
        if there():
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"waited in vain for {what}")
