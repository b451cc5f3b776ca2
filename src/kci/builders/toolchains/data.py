"""Reads `data/toolchains.toml`: wheels, C++ standards and toolkits."""

from __future__ import annotations

import os

from kci.config.facts import HOST
from kci.config.values import Version
from kci.matrix.variants import digits
from kci.utils.frozen import Frozen
from kci.utils.shipped import Dated, shipped

TORCH_INDEX = "KCI_TORCH_INDEX"
"""Mirror of https://download.pytorch.org/whl/."""


Compiler = tuple[str, ...]
"""The words that start a compiler: perhaps a launcher, its program, perhaps options."""


class CutlassRelease(Frozen, forbid_unknown_fields=True):
    """A version of CUTLASS."""

    tag: str
    commit: str = ""
    """Empty if it cannot be fetched: nobody has recorded its digest."""
    digest: str = ""
    """`headers_digest` of the checkout."""
    wheel: str = ""
    """Requirement of a wheel of this version, if any."""


class SyclTargets(Frozen, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """icpx's targets."""

    targets: tuple[str, ...]
    devices: tuple[str, ...]
    """The devices of `spir64_gen`."""


class Sycl(SyclTargets):
    """Settings of all builds with icpx."""

    device_options: tuple[str, ...]
    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]


class SyclApart(SyclTargets):
    """Targets of sources for one GPU only."""

    mark: str
    """Part of such a source's flags."""


class SyclTlaVersion(SyclTargets):
    """SYCL*TLA for one oneAPI version."""

    release: CutlassRelease
    apart: SyclApart | None = None


class SyclTla(Frozen, forbid_unknown_fields=True):
    """Effects of a dependency on SYCL*TLA."""

    defines: tuple[str, ...]
    extensions: tuple[str, ...]
    versions: dict[str, SyclTlaVersion]


class Toolchains(Dated):
    """`toolchains.toml`."""

    index: dict[str, str]
    torch: dict[str, str]
    pypi: dict[str, str]
    """Flavour of the wheels on PyPI by torch version."""
    cxx: dict[str, int]
    cuda: dict[str, tuple[str, ...]]
    newest_gcc: dict[str, int]
    """By CUDA version; unlisted ones accept any."""
    cuda_headers: dict[str, dict[str, str]]
    repositories: dict[str, str]
    cutlass: dict[str, CutlassRelease]
    pip: dict[str, str]
    """uv's variables for settings of pip."""
    runtime_packages: tuple[str, ...]
    ninja: str
    compiler_variables: tuple[str, ...]
    defines: dict[str, tuple[str, ...]]
    """Macros of torch's CMake targets: those of all, and more by backend."""
    openmp: str
    tvm_ffi: dict[str, str]
    sycl: Sycl
    sycl_tla: SyclTla

    def torch_release(self, torch: str) -> str:
        """The release of a minor version: `2.13.0` of `2.13`."""
        minor = Version.parse(torch).minor_text
        return self.torch.get(minor, f"{minor}.0")

    def cxx_standard(self, torch: Version) -> int:
        """C++ standard of a torch's headers (docs/format.md#flags)."""
        before = torch < Version.parse("2.12")
        return self.cxx["before-2-12" if before else "from-2-12"]

    def flavour(self, backend: str, compute: Version | None) -> str:
        """Last part of a wheel index: `cpu`, `cu130`, `rocm7.1`."""
        pattern = self.index.get(backend, self.index[HOST])
        if compute is None:
            return pattern if "{" not in pattern else self.index[HOST]
        return pattern.format(digits=digits(compute), dotted=compute.minor_text)

    def torch_wheel(self, torch: str, flavour: str) -> tuple[str, str]:
        """The release and index of a torch: `2.13`, or a `Variant.wheel`."""
        release, exact, index = torch.partition("@")
        if "://" in index:
            return release, index
        where = f"{index}/{flavour}".strip("/") if index.rpartition("/")[2] != flavour else index
        return (release if exact else self.torch_release(torch)), self.index_url(where)

    def index_url(self, flavour: str) -> str:
        base = os.environ.get(TORCH_INDEX)
        return (base.rstrip("/") + "/" if base else self.index["base"]) + flavour


toolchains = shipped("builders/toolchains/data/toolchains.toml", Toolchains)
