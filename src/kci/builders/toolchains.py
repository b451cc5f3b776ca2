"""Reads `data/toolchains.toml`: wheels, C++ standards and toolkits."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kci.config.values import Version
from kci.files.dated_data import Dated, load_dated
from kci.matrix.names import digits


class Toolchains(Dated, frozen=True):
    """The data file, as it is."""

    index: dict[str, str]
    torch: dict[str, str]
    cxx: dict[str, int]
    cuda: dict[str, tuple[str, ...]]
    cutlass: dict[str, str]
    runtime: dict[str, tuple[str, ...]]
    tools: dict[str, str]
    environment: dict[str, tuple[str, ...]]

    def torch_release(self, torch: str) -> str:
        """The exact torch release of a minor version: `2.13` is `2.13.0`."""
        minor = Version.parse(torch).minor_text
        return self.torch.get(minor, f"{minor}.0")

    def cxx_standard(self, torch: str) -> int:
        """The C++ standard that a torch's headers are written for (docs/format.md#flags)."""
        before = Version.parse(torch) < Version.parse("2.12")
        return self.cxx["before-2-12" if before else "from-2-12"]

    def flavour(self, backend: str, compute: str | None) -> str:
        """The last part of a wheel index, which also names the flavour of torch there: `cpu`, `cu130`, `rocm7.1`."""
        pattern = self.index.get(backend, self.index["cpu"])
        if compute is None:
            return pattern if "{" not in pattern else self.index["cpu"]
        version = Version.parse(compute)
        return pattern.format(digits=digits(version), dotted=version.minor_text)

    def index_url(self, flavour: str) -> str:
        """The wheel index of a flavour of torch."""
        return self.index["base"] + flavour


@cache
def toolchains() -> Toolchains:
    """The toolchain data that is shipped with kci."""
    return load_dated(Path(__file__).parent / "data" / "toolchains.toml", Toolchains)
