"""A year of scheduled runs, made up from a seed: real breaks, outages, skipped legs, flaky legs, two new catalogs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from kci.watch.causes import is_outage
from kci.watch.history import Failure, RecordedRun, leg_key

KERNELS = [f"kernel-{number}" for number in range(52)]
TOOLCHAINS = [
    ("cpu", "x86_64-linux"), ("cpu", "aarch64-linux"), ("cu126", "x86_64-linux"), ("cu126", "aarch64-linux"),
    ("cu130", "x86_64-linux"), ("cu130", "aarch64-linux"), ("cu132", "x86_64-linux"), ("cu132", "aarch64-linux"),
    ("rocm71", "x86_64-linux"), ("rocm72", "x86_64-linux"),
]  # fmt: skip
ERRORS = [
    "csrc/{kernel}.cu:{line}:7: error: no member named 'scalar_type_{number}' in 'at::Tensor'",
    "/tmp/build/{kernel}/csrc/op.cpp:{line}: fatal error: c10/removed_{number}.h: No such file or directory",
    "ImportError: {variant}/_{kernel}.abi3.so: undefined symbol: _ZN3c10{number}gone",
    "AssertionError: {kernel}: max difference 0.{number} at 0x7f{line:04x}",
]
OUTAGES = [
    "Error: The runner has received a shutdown signal.",
    "Could not resolve host: download.pytorch.org",
    "OSError: [Errno 28] No space left on device",
    "Received HTTP status code 503 from https://huggingface.co",
]
MOVES = {120: 1, 250: 2}
"""Days on which the oldest torch goes and a new one comes."""


@dataclass
class Break:
    """Something that really broke, in some legs of one or more kernels, until it was repaired."""

    number: int
    start: int
    end: int
    kernels: list[str]
    compute: str
    seen: dict[str, int] = field(default_factory=dict)
    """How often each leg is known to have failed."""
    provable: int | None = None
    """The day on which a leg has failed often enough."""

    def error(self, kernel: str, variant: str, day: int) -> str:
        pattern = ERRORS[self.number % len(ERRORS)]
        return pattern.format(kernel=kernel, variant=variant, line=100 + day, number=f"x{self.number}y")

    def hits(self, kernel: str, compute: str) -> bool:
        return kernel in self.kernels and compute.startswith(self.compute)


@dataclass
class Year:
    """The runs, and what is true about them."""

    breaks: list[Break]
    flaky: set[str]
    outages: int = 0
    skipped: int = 0
    results: int = 0


def legs_of(day: int) -> list[tuple[str, str, str, str]]:
    """Kernel, variant, compute and leg key of everything that the catalog of a day asks for: 52 x 30."""
    return _legs_from(212 + sum(day >= move for move in MOVES))


@cache
def _legs_from(first: int) -> list[tuple[str, str, str, str]]:
    found = []
    for kernel in KERNELS:
        for torch in (first, first + 1, first + 2):
            for compute, system in TOOLCHAINS:
                variant = f"torch{torch}-cxx11-{compute}-{system}"
                key = leg_key(kernel, variant, system, f"2.{torch - 200}", compute)
                found.append((kernel, variant, compute, key))
    return found


def make_year(seed: int, needed: int, days: int = 365) -> tuple[Year, Iterator[RecordedRun]]:
    """A year and its runs, which are made as they are asked for; `needed` failures prove a break."""
    chance = random.Random(seed)
    free = list(KERNELS)
    chance.shuffle(free)
    breaks = []
    for number in range(30):
        start = chance.randrange(5, days - 60)
        size = chance.choice([1, 1, 1, 2, 5])
        kernels = [free[(number + step * 7) % 40] for step in range(size)]
        compute = chance.choice(["cpu", "cu", "rocm"])
        breaks.append(Break(number, start, start + chance.randrange(6, 50), sorted(set(kernels)), compute))
    flaky_kernels = free[40:46]
    flaky = {chance.choice([key for kernel, _, _, key in legs_of(0) if kernel == name]) for name in flaky_kernels}
    year = Year(_apart(breaks), flaky)
    return year, _runs(year, chance, needed, days)


def _apart(breaks: list[Break]) -> list[Break]:
    """Without those that would hide one another: one leg has one break at a time, and a repair in between."""
    kept: list[Break] = []
    for one in sorted(breaks, key=lambda item: item.start):
        if not any(
            set(one.kernels) & set(other.kernels) and one.start <= other.end + 5 and other.start <= one.end + 5
            for other in kept
        ):
            kept.append(one)
    return kept


def _runs(year: Year, chance: random.Random, needed: int, days: int) -> Iterator[RecordedRun]:
    for day in range(days):
        dark = chance.random() < 0.04  # most of a run is lost
        passed, failed, unknown = [], [], []
        broken_today = [item for item in year.breaks if item.start <= day < item.end]
        for kernel, variant, compute, key in legs_of(day):
            year.results += 1
            lot = chance.random()
            if lot < (0.9 if dark else 0.01):
                error = chance.choice(OUTAGES)
                assert is_outage(error)
                unknown.append(key)
                year.outages += 1
                continue
            if lot > 0.99:
                year.skipped += 1
                continue
            broken = next((item for item in broken_today if item.hits(kernel, compute)), None)
            if broken is not None:
                failed.append(Failure(key, broken.error(kernel, variant, day)))
                broken.seen[key] = broken.seen.get(key, 0) + 1
                if broken.seen[key] >= needed and broken.provable is None:
                    broken.provable = day
            elif key in year.flaky and 30 <= day < 110 and chance.random() < 0.4:
                failed.append(Failure(key, f"RuntimeError: timed out in {kernel}, sometimes"))
            else:
                passed.append(key)
        number = sum(day >= move for move in MOVES)
        yield RecordedRun(
            run=1000 + day,
            at=f"day {day}",
            catalog=f"catalog-{number}",
            passed=tuple(passed),
            failed=tuple(failed),
            unknown=tuple(unknown),
        )
