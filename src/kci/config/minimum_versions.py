"""The floors: the oldest Python, torch, CUDA and loader that kernels are made for, as data.

Annotations are values here, not text; see `kci.config.model`.
"""

import msgspec

from kci.config.values import Version
from kci.utils.shipped import Dated, shipped


class LoaderFloors(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Releases of the `kernels` library, as metadata.json writes them: three numbers."""

    any: str
    """Loads any variant that asks for nothing special."""
    kernel_depends: str
    """The first that loads a variant which depends on other kernels."""
    several_upstreams: str
    """The first that reads a list of upstreams."""


class Floors(Dated, frozen=True):
    """`floors.toml`."""

    python: Version
    torch: Version
    cuda: Version
    cxx_standard: dict[str, int]
    """The oldest C++ standard that torch's headers accept, by the version of torch from which on it holds."""
    kernels: LoaderFloors


floors = shipped("matrix/catalog/data/floors.toml", Floors)
"""The data that kci ships."""
