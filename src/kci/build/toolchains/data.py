"""Reads `data/toolchains.toml`: wheels, C++ standards and toolkits."""

from __future__ import annotations

import os

import msgspec

from kci.config.values import Version
from kci.matrix.variants import digits
from kci.utils.shipped import Dated, shipped

TORCH_INDEX = "KCI_TORCH_INDEX"
"""In place of https://download.pytorch.org/whl/: a mirror with a folder for each flavour of torch."""


class CutlassRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of CUTLASS that a component can depend on."""

    tag: str
    commit: str = ""
    """Empty for one that cannot be fetched, because nobody could look at it to take its digest."""
    digest: str = ""
    """`headers_digest` of its checkout."""
    wheel: str = ""
    """The requirement of the wheel that carries just this version, if one does."""


class Sycl(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """What icpx makes code for."""

    targets: tuple[str, ...]
    devices: tuple[str, ...]
    """The devices that `spir64_gen` stands for."""
    device_options: tuple[str, ...]


class SyclApart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is made where some sources are for one GPU alone."""

    mark: str
    """The flag of such a source has it."""
    targets: tuple[str, ...]
    devices: tuple[str, ...]


class SyclTlaVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """SYCL*TLA with one version of oneAPI."""

    release: CutlassRelease
    targets: tuple[str, ...]
    devices: tuple[str, ...]
    apart: SyclApart | None = None


class SyclTla(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What depending on SYCL*TLA changes."""

    defines: tuple[str, ...]
    extensions: tuple[str, ...]
    versions: dict[str, SyclTlaVersion]


class Toolchains(Dated, frozen=True):
    """The data file, as it is."""

    index: dict[str, str]
    torch: dict[str, str]
    cxx: dict[str, int]
    cuda: dict[str, tuple[str, ...]]
    newest_gcc: dict[str, int]
    """By CUDA version; one that is not listed is not known to refuse any."""
    cuda_headers: dict[str, dict[str, str]]
    repositories: dict[str, str]
    cutlass: dict[str, CutlassRelease]
    runtime: dict[str, tuple[str, ...]]
    tools: dict[str, str]
    environment: dict[str, tuple[str, ...]]
    defines: dict[str, tuple[str, ...]]
    openmp: str
    tvm_ffi: dict[str, str]
    sycl: Sycl
    sycl_tla: SyclTla

    def torch_release(self, torch: str) -> str:
        """The exact release of a minor version: `2.13` is `2.13.0`."""
        minor = Version.parse(torch).minor_text
        return self.torch.get(minor, f"{minor}.0")

    def cxx_standard(self, torch: str) -> int:
        """The C++ standard that a torch's headers are written for (docs/format.md#flags)."""
        before = Version.parse(torch) < Version.parse("2.12")
        return self.cxx["before-2-12" if before else "from-2-12"]

    def torch_defines(self, backend: str) -> list[str]:
        """What torch's own CMake targets define for whoever compiles against them."""
        return [f"-D{name}" for name in (*self.defines["torch"], *self.defines.get(backend, ()))]

    def flavour(self, backend: str, compute: str | None) -> str:
        """The last part of a wheel index, which also names the flavour of torch there: `cpu`, `cu130`, `rocm7.1`."""
        pattern = self.index.get(backend, self.index["cpu"])
        if compute is None:
            return pattern if "{" not in pattern else self.index["cpu"]
        version = Version.parse(compute)
        return pattern.format(digits=digits(version), dotted=version.minor_text)

    def index_url(self, flavour: str) -> str:
        """The wheel index of a flavour of torch."""
        base = os.environ.get(TORCH_INDEX)
        return (base.rstrip("/") + "/" if base else self.index["base"]) + flavour


toolchains = shipped("build/toolchains/data/toolchains.toml", Toolchains)
"""The toolchain data that is shipped with kci."""
