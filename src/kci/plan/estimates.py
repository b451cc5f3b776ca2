"""Estimates of a run's minutes, cost and wall-clock time, and their limits."""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from kci.config.facts import BACKENDS, has_compiler
from kci.config.model import Build
from kci.config.reader import Kernel
from kci.config.values import HEADER_ENDINGS
from kci.diagnostics import Diagnostic, finding
from kci.errors import rule_error
from kci.matrix.catalog.runners import OWN_MINUTES, BuildDefaults, Runner, Runners, default_prices, quotas
from kci.matrix.variants import Kind, Matrix, Variant
from kci.plan.inputs.kernel_inputs import active
from kci.plan.plan import Leg, Plan, Role
from kci.utils.bounded_json import read_json, require_schema
from kci.utils.shipped import Dated, shipped
from kci.utils.suggest import count

SCHEMA = 1
Seconds = Annotated[float, Meta(ge=0, le=5 * 24 * 3600)]
"""At most five days, in which GitHub ends a job."""


class Duration(msgspec.Struct, frozen=True, order=True):
    """The measured build time of a variant."""

    kernel: str
    variant: str
    seconds: Seconds


class _File(msgspec.Struct, frozen=True):
    schema: int
    durations: tuple[Duration, ...]


def recorded_minutes(entries: Iterable[Duration]) -> dict[tuple[str, str], int]:
    """The median build minutes of each variant, rounded up, by kernel and name."""
    by_variant: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        by_variant.setdefault((entry.kernel, entry.variant), []).append(entry.seconds)
    return {key: max(1, math.ceil(statistics.median(seconds) / 60)) for key, seconds in by_variant.items()}


def read_durations(path: Path) -> tuple[Duration, ...]:
    """Read a file of `Duration`s; FindingsError (KCI611) for any other file."""
    try:
        read = read_json(path, _File)
        require_schema(read.schema, SCHEMA)
        return read.durations
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
    except ValueError as error:
        message = f"{path} is not a file of recorded durations: {error}"
    raise rule_error("KCI611", message, hint="remove the file; the plan then uses kci's estimates", path=str(path))


def encode(earlier: Iterable[Duration], latest: Iterable[Duration]) -> bytes:
    """The bytes of a durations file in which the latest replace earlier ones."""
    entries = {(entry.kernel, entry.variant): entry for entry in (*earlier, *latest)}
    text = msgspec.json.encode(_File(SCHEMA, tuple(sorted(entries.values()))))
    return msgspec.json.format(text, indent=2) + b"\n"


_CUTLASS = "cutlass"


class _Estimates(Dated, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    fixed: int
    link: int
    unknown: tuple[float, float]
    object: dict[str, tuple[float, float]]


estimates = shipped("plan/data/estimates.toml", _Estimates)


class Size(NamedTuple):
    """The number of compiled objects of a variant."""

    objects: int
    cutlass: int = 0
    """Those of CUDA components that use CUTLASS."""
    foreign: str = ""
    """A source that no compiler of kci takes."""


class Minutes(NamedTuple):
    """The estimated minutes of a leg."""

    about: int
    least: int
    most: int


def size_of(build: Build, variant: Variant) -> Size:
    """The objects of a variant; a source in several components counts once."""
    framework = build.torch or build.tvm_ffi
    if variant.kind is Kind.NOARCH:
        return Size(0)
    objects = dict.fromkeys(_compiled(framework.src) if framework is not None else (), False)
    for part in active(build, variant).values():
        heavy = BACKENDS[variant.backend].compiler == "nvcc" and any(name.startswith(_CUTLASS) for name in part.depends)
        for source in _compiled(part.src):
            objects.setdefault(source, heavy)
    foreign = next((source for source in objects if not has_compiler(source)), "")
    return Size(len(objects), sum(objects.values()), foreign)


def _compiled(sources: Iterable[str]) -> Iterable[str]:
    return (source for source in sources if not source.lower().endswith(HEADER_ENDINGS))


def sizes(kernels: Iterable[Kernel], matrix: Matrix) -> dict[tuple[str, str], Size]:
    """The objects of each variant of a matrix, by kernel and variant name."""
    by_path = {kernel.directory: kernel for kernel in kernels}
    by_variant: dict[tuple[str, str], Size] = {}
    for selected in matrix.kernels:
        cache: dict[tuple[object, ...], Size] = {}
        for variant in selected.each_once():
            alike = (variant.kind, variant.backend, variant.compute)
            if alike not in cache:
                cache[alike] = size_of(by_path[selected.path].build, variant)
            by_variant[selected.name, variant.name] = cache[alike]
    return by_variant


def estimate_minutes(
    size: Size | None, backend: str, build: BuildDefaults, runner: Runner, max_jobs: int | None
) -> Minutes:
    """The minutes of a variant on a machine, with as many compilers as memory allows; the middle is geometric."""
    data = estimates()
    each = data.object.get(backend)
    if size is None or each is None:
        least, most = (build.minutes * times for times in data.unknown)
        return Minutes(build.minutes, max(1, round(least)), math.ceil(most))
    kinds = (
        (size.objects - size.cutlass, each, build.memory),
        (size.cutlass, data.object[_CUTLASS], build.memory_cutlass or build.memory),
    )
    cores = min(runner.cpus, max_jobs or runner.cpus)
    ends = [
        data.fixed
        + math.fsum(
            count * seconds[end] / 60 / max(1, min(cores, count, runner.memory_gb // memory if memory else cores))
            for count, seconds, memory in kinds
        )
        for end in (0, 1)
    ]
    return Minutes(math.ceil(math.sqrt(ends[0] * ends[1])), max(1, round(ends[0])), math.ceil(ends[1]))


class Part(msgspec.Struct, frozen=True):
    """The share of one kernel, backend and system in an estimate."""

    kernel: str
    backend: str
    system: str
    legs: int
    minutes: int
    costs: dict[str, float]


class Estimate(msgspec.Struct, frozen=True):
    """The estimate of a plan."""

    legs: int
    minutes: int
    at_least: int
    at_most: int
    """The range of `minutes`; see `Leg`."""
    measured: int
    costs: dict[str, float]
    """By currency, of legs with a price."""
    costs_at_most: dict[str, float]
    """For `at_most`; `--max-cost` limits it."""
    prices_as_of: str
    unpriced: int
    waves: int
    """The number of times that the fullest pool is filled; pools of unknown size start all legs at once."""
    wall_minutes: int
    """From the first start to the last end, with free pools."""
    wall_at_least: int
    wall_at_most: int
    parts: tuple[Part, ...]


def estimate(legs: Sequence[Leg]) -> Estimate:
    """Estimate a run, in whole minutes, as GitHub bills each job."""
    grouped: dict[tuple[str, str, str], list[Leg]] = {}
    for leg in legs:
        grouped.setdefault((leg.kernel, leg.backend, leg.system), []).append(leg)
    parts = [
        Part(*key, legs=len(same), minutes=sum(leg.minutes for leg in same), costs=_costs(same))
        for key, same in grouped.items()
    ]
    parts.sort(key=lambda part: (-sum(part.costs.values()), -part.minutes, part.kernel, part.backend, part.system))
    waves, wall = simulate(legs)
    least, most = (simulate([msgspec.structs.replace(leg, minutes=leg.ends[end]) for leg in legs])[1] for end in (0, 1))
    return Estimate(
        legs=len(legs),
        minutes=sum(leg.minutes for leg in legs),
        at_least=sum(leg.ends[0] for leg in legs),
        at_most=sum(leg.ends[1] for leg in legs),
        measured=sum(leg.measured for leg in legs),
        costs=_costs(legs),
        costs_at_most=_costs(legs, at_most=True),
        prices_as_of=str(default_prices().as_of),
        unpriced=sum(leg.rate is None for leg in legs),
        waves=waves,
        wall_minutes=wall,
        wall_at_least=least,
        wall_at_most=most,
        parts=tuple(parts),
    )


def _costs(legs: Iterable[Leg], *, at_most: bool = False) -> dict[str, float]:
    by_currency: dict[str, list[float]] = {}
    for leg in legs:
        if leg.rate is not None:
            by_currency.setdefault(leg.currency, []).append((leg.ends[1] if at_most else leg.minutes) * leg.rate)
    return {currency: round(math.fsum(by_currency[currency]), 3) for currency in sorted(by_currency)}


def money(costs: dict[str, float]) -> str:
    """Costs as text: `12.40 USD`."""
    return " + ".join(f"{cost:.2f} {currency}" for currency, cost in costs.items()) or "nothing"


def cost_sentence(forecast: Estimate) -> str:
    """The cost of a run: `about 1.20 USD, up to 1.66 USD at the prices of 2026-01-01`."""
    few = "up to " if forecast.at_least != forecast.at_most else ""
    few = f"about {money(forecast.costs)}, {few}" if money(forecast.costs) != money(forecast.costs_at_most) else few
    free = f", {count(forecast.unpriced, 'leg')} without a known price" if forecast.unpriced else ""
    return f"{few}{money(forecast.costs_at_most)} at the prices of {forecast.prices_as_of}{free}"


def start_minutes(legs: Sequence[Leg]) -> list[int]:
    """The start minute of each leg if each pool takes its longest legs first and links after their parts."""
    start_times = [0] * len(legs)
    ends: dict[tuple[str, str], int] = {}
    machines = {pool: [0] * min(pool.size or many, many) for pool, many in Counter(leg.pool for leg in legs).items()}

    def ready(index: int) -> int:
        return max((ends.get((legs[index].kernel, name), 0) for name in legs[index].takes), default=0)

    def turn(index: int) -> tuple[int, int, str, str]:
        return ready(index), -legs[index].minutes, legs[index].kernel, legs[index].name

    linking = [index for index, leg in enumerate(legs) if leg.role is Role.LINK]
    for batch in ([index for index, leg in enumerate(legs) if leg.role is not Role.LINK], linking):
        for index in sorted(batch, key=turn):
            leg, busy = legs[index], machines[legs[index].pool]
            start_times[index] = max(busy[0], ready(index))
            ends[leg.kernel, leg.name] = start_times[index] + leg.minutes
            heapq.heapreplace(busy, ends[leg.kernel, leg.name])
    return start_times


def simulate(legs: Sequence[Leg]) -> tuple[int, int]:
    """The waves and wall-clock minutes of a run that starts legs as `start_minutes`."""
    pools = Counter(leg.pool for leg in legs)
    waves = max((-(-many // min(pool.size or many, many)) for pool, many in pools.items()), default=0)
    return waves, max((start + leg.minutes for start, leg in zip(start_minutes(legs), legs, strict=True)), default=0)


class Alternative(NamedTuple):
    """Another plan for the same kernels, for the advice on a budget."""

    option: str
    legs: Sequence[Leg]


def check_budget(
    plan: Plan,
    forecast: Estimate,
    *,
    max_jobs: int | None = None,
    max_cost: float | None = None,
    others: Iterable[Alternative] = (),
) -> list[Diagnostic]:
    """Check an estimate against a budget, else FindingsError (KCI309); KCI310 for legs without a price."""
    over = []
    if max_jobs is not None and forecast.legs > max_jobs:
        over.append(f"{count(forecast.legs, 'job')}, and {max_jobs} are allowed")
    if _too_dear(forecast.costs_at_most, max_cost):
        over.append(f"up to {money(forecast.costs_at_most)}, and {max_cost:.2f} are allowed")
    if over:
        narrower = [
            Alternative(f"--{key} {value}", [leg for leg in plan.legs if getattr(leg, key) == value])
            for key in ("backend", "system")
            for value in sorted({getattr(leg, key) for leg in plan.legs})
        ]
        fitting = _fitting([*narrower, *others], max_jobs, max_cost)
        largest = ", ".join(
            f"{part.kernel} {part.backend} on {part.system} "
            f"({count(part.legs, 'job')}, {part.minutes} min, {money(part.costs)})"
            for part in forecast.parts[:3]
        )
        message = f"the plan takes {'; '.join(over)}. The most go to {largest}"
        hint = f"this would fit: {'; '.join(fitting)}" if fitting else "narrow with --tier, --backend or --only"
        raise rule_error("KCI309", message, hint=hint)
    if max_cost is not None and forecast.unpriced:
        message = (
            f"{forecast.unpriced} of {forecast.legs} legs run on runners without a known price and are counted as free"
        )
        return [finding("KCI310", message, hint="give their runners a price in kci.toml")]
    return []


def check_time(legs: Iterable[Leg], runners: Runners) -> list[Diagnostic]:
    """KCI335 for kernels with legs that exceed their timeout (estimates: half of it), with a fitting `parts`."""
    late: dict[str, list[Leg]] = {}
    for leg in legs:
        chosen = leg.measured or runners.limit(leg.kernel, leg.backend).parts is not None
        if leg.minutes > (leg.timeout if chosen else leg.timeout // 2):
            late.setdefault(leg.kernel, []).append(leg)
    return [_late(kernel, same) for kernel, same in sorted(late.items())]


def _late(kernel: str, legs: Sequence[Leg]) -> Diagnostic:
    worst = max(legs, key=lambda leg: (leg.minutes - leg.timeout, leg.name))
    more = f"; so it is with {count(len(legs) - 1, 'other leg')} of the kernel" if len(legs) > 1 else ""
    took = f"took {worst.minutes} minutes" if worst.measured else f"is estimated to take {worst.takes_text}"
    message = f"{kernel} {worst.name} {took} on {worst.runner_text}, and its job ends after {worst.timeout}{more}"
    ways = []
    if worst.kind is not Kind.NOARCH and len(worst.variants) < 2:
        room = max(1, worst.timeout // 2 - _BESIDE)
        needed = math.ceil(worst.minutes * (worst.parts or 1) / room)
        ways.append(f'compile it in parts: `parts = {needed}` in a [[limits]] of kci.toml with `kernel = "{kernel}"`')
    ways += ["build less in a leg (`group`)"] if len(worst.variants) > 1 else []
    ways += ["name a machine with more cores under [runners] in kci.toml"]
    ways += ["build for fewer architectures"] if BACKENDS[worst.backend].archs else []
    if worst.minutes <= (quotas().max_minutes if worst.pool.queued else OWN_MINUTES):
        ways += ["raise `timeout-minutes` in [[limits]]"]
    ways += [] if worst.measured else ["or give `kci plan` measured times, with --durations FILE"]
    return finding("KCI335", message, hint="; ".join(ways))


_BESIDE = 10
"""Minutes of setup in a part leg, at most, with rounding."""


def _fitting(others: Iterable[Alternative], max_jobs: int | None, max_cost: float | None) -> list[str]:
    fits = []
    for option, legs in others:
        costs = _costs(legs, at_most=True)
        if legs and (max_jobs is None or len(legs) <= max_jobs) and not _too_dear(costs, max_cost):
            variants = sum(len(leg.variants) for leg in legs)
            fits.append((-variants, len(legs), option, money(costs)))
    return [f"{option} ({count(jobs, 'job')}, {cost})" for _, jobs, option, cost in sorted(fits)[:3]]


def _too_dear(costs: dict[str, float], max_cost: float | None) -> bool:
    return max_cost is not None and any(not cost <= max_cost for cost in costs.values())  # false for NaN
