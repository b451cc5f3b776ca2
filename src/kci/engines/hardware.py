"""Which machines an engine has, and which variables of them a leg sees: data, not code."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from kci.engines.job import HardwareNeed
from kci.files.dated_data import Dated, load_dated

_DATA = Path(__file__).parent / "data"


class Flavor(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """A machine that can be rented by the minute."""

    cores: int
    memory_gb: int
    price: float
    """What an hour costs."""
    backend: str = "cpu"
    capability: str = ""
    """Of its GPU, for CUDA."""

    def meets(self, need: HardwareNeed, cores: int, memory_gb: int) -> bool:
        """Whether it does for a job. A machine with a GPU does for one that needs none."""
        if self.cores < cores or self.memory_gb < memory_gb:
            return False
        if need.backend == "cpu":
            return True
        return self.backend == need.backend and _number(self.capability) >= _number(need.minimum)


class Flavors(Dated, frozen=True):
    """The machines of one provider."""

    currency: str
    flavor: dict[str, Flavor]

    def cheapest_for(self, cores: int, memory_gb: int, need: HardwareNeed | None = None) -> str | None:
        """The name of the cheapest machine that does for a job; None if there is none."""
        wanted = need or HardwareNeed()
        fitting = [(item.price, name) for name, item in self.flavor.items() if item.meets(wanted, cores, memory_gb)]
        return min(fitting)[1] if fitting else None


@cache
def hf_flavors() -> Flavors:
    """The machines of Hugging Face Jobs."""
    return load_dated(_DATA / "hf-flavors.toml", Flavors)


class _LetThrough(Dated, frozen=True):
    names: tuple[str, ...]


@cache
def let_through() -> tuple[str, ...]:
    """The variables of a machine that every leg sees."""
    return load_dated(_DATA / "let-through.toml", _LetThrough).names


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.rstrip("af").split(".") if part.isdecimal())
