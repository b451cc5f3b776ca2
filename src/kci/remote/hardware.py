"""Which machines an engine has, and which variables of them a leg sees: data, not code."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from kci.config.engine_settings import EngineKind, EngineSettings
from kci.config.values import Backend
from kci.files.dated_data import Dated, load_dated
from kci.remote.job import HardwareNeed

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


def need_of(backend: str, archs: Iterable[str] | None) -> HardwareNeed:
    """The hardware on which a variant runs: for CUDA the lowest capability that it has code for, for ROCm its archs."""
    known = tuple(archs or ())
    match backend:
        case Backend.CUDA:
            return HardwareNeed(backend, min(map(_plain, known), key=_number, default=""))
        case Backend.ROCM:
            return HardwareNeed(backend, archs=tuple(sorted(known)))
        case _:
            return HardwareNeed(backend)


def has_hardware(engine: EngineSettings, need: HardwareNeed) -> bool:
    """Whether an engine tests variants with this need. What it does not say of its hardware is taken for enough."""
    tested = engine.tests or ((Backend.CPU,) if engine.type is EngineKind.LOCAL else ())
    if need.backend not in tested:
        return False
    if engine.type is EngineKind.HF_JOBS:
        known = hf_flavors().flavor.get(engine.flavor) if engine.flavor else None
        if known is not None:
            return known.meets(need, 0, 0)
        return bool(engine.flavor or hf_flavors().cheapest_for(engine.cores, engine.memory_gb, need))
    if engine.capability is not None and _number(engine.capability) < _number(need.minimum):
        return False
    return not (engine.archs and need.archs) or not set(engine.archs).isdisjoint(need.archs)


def _plain(capability: str) -> str:
    return capability.removesuffix("+PTX").rstrip("af")


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _plain(capability).split(".") if part.isdecimal())
