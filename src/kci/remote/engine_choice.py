"""Which engines a run has, what their machines are, and to which of them each leg goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import msgspec

from kci.config.engine_settings import EngineKind, EngineSettings
from kci.config.values import Backend
from kci.errors import UsageError
from kci.files.dated_data import Dated, load_dated
from kci.matrix.names import Kind, this_system
from kci.plan.plan import Leg
from kci.remote.job import HardwareNeed
from kci.suggest import suggestion

_DATA = Path(__file__).parent / "data"
BY_BACKEND = "auto"
"""In place of an engine's name: each leg goes to the engine of kci.toml that takes its backend."""


def choose_engines(known: Mapping[str, EngineSettings], asked: str) -> dict[str, EngineSettings]:
    """The engines that legs may go to, in the order in which they are asked. One that is named brings its fallback.

    Raises:
        UsageError: there is no such engine.
    """
    for name, engine in known.items():
        if engine.fallback is not None and (engine.fallback == name or engine.fallback not in known):
            hint = suggestion(engine.fallback, [item for item in known if item != name])
            raise UsageError(
                f"[engines.{name}] of kci.toml: the fallback {engine.fallback!r} is no other engine", hint=hint
            )
    if asked == BY_BACKEND and known:
        return dict(known)
    if asked in known:
        named = msgspec.structs.replace(known[asked], backends=(), builds=True)
        return {asked: named, **({named.fallback: known[named.fallback]} if named.fallback else {})}
    if asked in list(EngineKind):
        return {asked: EngineSettings(EngineKind(asked))}
    names = [*known, *EngineKind]
    hint = f"there are {', '.join(dict.fromkeys(names))}; kci.toml adds others: [engines.<name>]"
    raise UsageError(f"there is no engine {asked[:60]!r}", hint=hint)


def sent_to(engines: Mapping[str, EngineSettings], asked: str) -> dict[str, EngineSettings]:
    """Those of a run's engines to which legs go at first: all, or the one that was named."""
    return {asked: engines[asked]} if asked in engines else dict(engines)


def share_out(
    legs: Iterable[Leg],
    engines: Mapping[str, EngineSettings],
    takes: Callable[[EngineSettings, Leg], bool] | None = None,
) -> Iterator[tuple[Leg, str | None]]:
    """Where each leg goes; None where no engine takes it.

    Of several that do, it is the one that would be done with it first, by the minutes and by how many legs each runs
    at once. A plan has the longest legs first, so no long one is left for the end.
    """
    taken = takes or builds
    busy = dict.fromkeys(engines, 0.0)
    for leg in legs:
        after = {
            name: busy[name] + (leg.minutes + item.queue_minutes) / at_once(item)
            for name, item in engines.items()
            if taken(item, leg)
        }
        chosen = min(after, key=lambda name: after[name], default=None)
        if chosen is not None:
            busy[chosen] = after[chosen]
        yield leg, chosen


def at_once(engine: EngineSettings) -> int:
    """How many legs an engine may have at the same time."""
    return max(1, engine.at_once)


def builds(engine: EngineSettings, leg: Leg) -> bool:
    """Whether a leg is sent to an engine to be built."""
    return engine.builds and can_build(engine, leg)


def can_build(engine: EngineSettings, leg: Leg) -> bool:
    """Whether a leg can be built on an engine. What is Python only is built on any system."""
    if engine.backends and leg.backend not in engine.backends:
        return False
    return leg.kind is Kind.NOARCH or leg.system in systems(engine)


def systems(engine: EngineSettings) -> tuple[str, ...]:
    """What an engine's machines are."""
    return engine.systems or ((this_system(),) if engine.type is EngineKind.LOCAL else ("x86_64-linux",))


def price_of(engine: EngineSettings, need: HardwareNeed | None = None) -> tuple[float | None, str]:
    """What an hour of a leg costs, None if that is not known; and in which currency."""
    if engine.price is None and engine.type is EngineKind.HF_JOBS:
        flavor = engine.flavor or hf_flavors().cheapest_for(engine.cores, engine.memory_gb, need)
        known = hf_flavors().flavor.get(flavor or "")
        return (known.price if known else None), hf_flavors().currency
    return engine.price, engine.currency


def tests(engine: EngineSettings, leg: Leg, need: HardwareNeed) -> bool:
    """Whether variants can be tested on an engine."""
    return has_hardware(engine, need) and (not leg.system or leg.system in systems(engine))


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
