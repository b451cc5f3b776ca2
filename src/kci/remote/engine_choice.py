"""Which engines a run has, what their machines are, and to which of them each leg goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import msgspec

from kci.config.engine_settings import EngineKind, EngineSettings
from kci.config.values import Backend
from kci.errors import UsageError
from kci.files.dated_data import Dated, shipped
from kci.matrix.names import Kind, this_system
from kci.plan.plan import Leg
from kci.remote.job import HardwareNeed
from kci.suggest import suggestion

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
                f"[engines.{name}] of kci.toml: the fallback {engine.fallback!r} is not another engine", hint=hint
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


class SentLeg(msgspec.Struct, frozen=True):
    """A leg of a plan, the hardware that it needs if it tests, and the engine that it goes to."""

    leg: Leg
    need: HardwareNeed | None = None
    engine: str = ""
    """Empty where no engine takes it."""


def share_out(work: Iterable[SentLeg], engines: Mapping[str, EngineSettings]) -> Iterator[SentLeg]:
    """Give each leg an engine.

    Of several that take it, it is the one that would be done with it first, by the minutes and by how many legs each
    runs at once. A plan has the longest legs first, so no long one is left for the end.
    """
    busy = dict.fromkeys(engines, 0.0)
    for item in work:
        after = {
            name: busy[name] + (item.leg.minutes + engine.queue_minutes) / at_once(engine)
            for name, engine in engines.items()
            if (engine.builds or item.need) and takes(engine, item)
        }
        chosen = min(after, key=lambda name: after[name], default="")
        if chosen:
            busy[chosen] = after[chosen]
        yield msgspec.structs.replace(item, engine=chosen)


def at_once(engine: EngineSettings) -> int:
    """How many legs an engine may have at the same time."""
    return max(1, engine.at_once)


def takes(engine: EngineSettings, item: SentLeg) -> bool:
    """Whether a leg can build, or test, on an engine. What is Python only is built on any system."""
    leg = item.leg
    if item.need is None and engine.backends and leg.backend not in engine.backends:
        return False
    if item.need is not None and not has_hardware(engine, item.need):
        return False
    systems = engine.systems or ((this_system(),) if engine.type is EngineKind.LOCAL else ("x86_64-linux",))
    return leg.kind is Kind.NOARCH or not leg.system or leg.system in systems


def priced(item: SentLeg, engine: EngineSettings) -> Leg:
    """The leg at the price of an engine; its rate is None where that is not known."""
    price, currency = engine.price, engine.currency
    if price is None and engine.type is EngineKind.HF_JOBS:
        known = hf_flavors().flavor.get(flavor_for(engine, item.need) or "")
        price, currency = known.price if known else None, hf_flavors().currency
    return msgspec.structs.replace(item.leg, rate=None if price is None else price / 60, currency=currency)


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


hf_flavors = shipped("remote/data/hf-flavors.toml", Flavors)
"""The machines of Hugging Face Jobs."""


def flavor_for(engine: EngineSettings, need: HardwareNeed | None) -> str | None:
    """The machine that an engine names, or the cheapest that does for a job; None where no machine does."""
    wanted, known = need or HardwareNeed(), hf_flavors().flavor
    fitting = [(item.price, name) for name, item in known.items() if item.meets(wanted, engine.cores, engine.memory_gb)]
    return engine.flavor or (min(fitting)[1] if fitting else None)


class _LetThrough(Dated, frozen=True):
    names: tuple[str, ...]


@cache
def let_through() -> tuple[str, ...]:
    """The variables of a machine that every leg sees."""
    return shipped("remote/data/let-through.toml", _LetThrough)().names


def need_of(backend: str, archs: Iterable[str] | None) -> HardwareNeed:
    """The hardware on which a variant runs: for CUDA the lowest capability that it has code for, for ROCm its archs."""
    if backend == Backend.CUDA:
        return HardwareNeed(backend, min(map(_plain, archs or ()), key=_number, default=""))
    return HardwareNeed(backend, archs=tuple(sorted(archs or ())) if backend == Backend.ROCM else ())


def has_hardware(engine: EngineSettings, need: HardwareNeed) -> bool:
    """Whether an engine tests variants with this need. Hardware that it does not describe counts as enough."""
    tested = engine.tests or ((Backend.CPU,) if engine.type is EngineKind.LOCAL else ())
    if need.backend not in tested:
        return False
    if engine.type is EngineKind.HF_JOBS:
        name = flavor_for(engine, need)
        known = hf_flavors().flavor.get(name or "")
        return name is not None and (known is None or known.meets(need, 0, 0))
    if engine.capability is not None and _number(engine.capability) < _number(need.minimum):
        return False
    return not (engine.archs and need.archs) or not set(engine.archs).isdisjoint(need.archs)


def _plain(capability: str) -> str:
    return capability.removesuffix("+PTX").rstrip("af")


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _plain(capability).split(".") if part.isdecimal())
