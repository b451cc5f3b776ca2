"""Two years of weekly runs, made up from a seed: breaks, outages of each class, flakes, new catalogs, a wrong clock.

Legs say what tools say: outages have the words of `messages.toml`, a break those of each compiler. A leg that fails is
looked at again in the same run. Everything goes through the files that a real run writes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache

from kci.watch.history import LegOutcome, LegResult, RecordedRun, gather, leg_key
from watch.test_messages import OUTAGES

KERNELS = [f"kernel-{number}" for number in range(52)]
RUNS = 104
TOOLCHAINS = [
    ("cpu", "x86_64-linux"), ("cpu", "aarch64-linux"), ("cu126", "x86_64-linux"), ("cu126", "aarch64-linux"),
    ("cu130", "x86_64-linux"), ("cu130", "aarch64-linux"), ("cu132", "x86_64-linux"), ("cu132", "aarch64-linux"),
    ("rocm71", "x86_64-linux"), ("rocm72", "x86_64-linux"),
]  # fmt: skip
MOVES = (30, 70)
"""The runs in which the oldest torch goes and a new one comes."""
DARK = {12: "http", 33: "transport", 48: "runner", 61: "index", 77: "disk", 95: "memory", 99: "device"}
"""Runs of which an outage leaves next to nothing, by its class."""
FLAKY = (10, 60)
"""The runs in which flaky legs are flaky."""

Says = Callable[["Leg", random.Random], str]


@dataclass(frozen=True)
class Leg:
    kernel: str
    variant: str
    system: str
    torch: str
    compute: str

    @property
    def key(self) -> str:
        return leg_key(self.kernel, self.variant, self.system, self.torch, self.compute)

    @property
    def backend(self) -> str:
        return {"cp": "cpu", "cu": "cuda", "ro": "rocm"}[self.compute[:2]]


@dataclass
class Break:
    """Something that really broke in some legs, until it was fixed."""

    name: str
    start: int
    end: int
    hits: Callable[[Leg], bool]
    says: Says
    seen: int | None = None
    """The first run in which a leg is known to have failed."""
    opened: list[int] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)


@dataclass
class World:
    """What is true about the runs."""

    breaks: list[Break]
    flaky: set[str]


def hashed(chance: random.Random) -> str:
    return f"{chance.randrange(16**7):07x}"


def symbol(leg: Leg, chance: random.Random) -> str:
    library = f"_{leg.kernel.replace('-', '_')}_{leg.backend}_{hashed(chance)}.abi3.so"
    place = f"/home/runner/work/_temp/{hashed(chance)}/{leg.variant}/{library}"
    return f"error: crashed: ImportError: {place}: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs"


def member(leg: Leg, chance: random.Random) -> str:
    """One removed member, as each compiler says it."""
    line = chance.randrange(10, 400)
    return {
        "cpu": f"csrc/op.cpp:{line}:7: error: ‘class at::Tensor’ has no member named ‘packed_accessor’",
        "cuda": f'csrc/op.cu({line}): error: class "at::Tensor" has no member "packed_accessor"',
        "rocm": f"csrc/op.hip:{line}:9: error: no member named 'packed_accessor' in 'at::Tensor'",
    }[leg.backend]


def header(leg: Leg, chance: random.Random) -> str:
    del leg
    return f"/tmp/{hashed(chance)}/csrc/op.h:3:10: fatal error: torch/removed_in_this_one.h: No such file or directory"


def wheel(leg: Leg, chance: random.Random) -> str:
    del chance
    return (
        f"cannot install torch {leg.torch}\npip install torch=={leg.torch}.0\n"
        f"ERROR: Could not find a version that satisfies the requirement torch=={leg.torch}.0 (from versions: 2.9.0)\n"
        f"ERROR: No matching distribution found for torch=={leg.torch}.0"
    )


def numbers(leg: Leg, chance: random.Random) -> str:
    return (
        "error: failed: AssertionError: Tensor-likes are not close!\nE   AssertionError: Tensor-likes are not close!\n"
        f"E   Greatest absolute difference: 0.{chance.randrange(10**6)} at index (1, {len(leg.kernel)})"
    )


def assertion(leg: Leg, chance: random.Random) -> str:
    del leg
    return f'/opt/{hashed(chance)}/cute/atom.hpp(158): error: static assertion failed with "No such tile on this arch."'


def sometimes(leg: Leg, chance: random.Random) -> str:
    return f"E   RuntimeError: the {leg.kernel} queue was not empty after {chance.randrange(90)} steps"


def among(*numbers: int) -> set[str]:
    return {KERNELS[number] for number in numbers}


def the_breaks() -> list[Break]:
    first, second = (f"2.{_newest(move)}" for move in MOVES)
    return [
        Break("ABI break in three kernels", 30, 41,
              lambda leg: leg.kernel in among(3, 4, 5) and leg.torch == first, symbol),
        Break("compile break", 20, 26, lambda leg: leg.kernel in among(7), member),
        Break("removed header in five kernels", 70, 82, lambda leg: leg.kernel in among(9, 10, 11, 12, 13)
              and leg.torch == second, header),
        Break("yanked wheel", 85, 88, lambda leg: leg.torch == f"2.{_newest(85) - 1}", wheel),
        Break("wrong numbers on one backend", 44, 52,
              lambda leg: leg.kernel in among(15) and leg.backend == "rocm", numbers),
        Break("the same words in another kernel", 90, 97, lambda leg: leg.kernel in among(16), numbers),
        Break("an image moved", 55, 58, lambda leg: leg.kernel in among(20, 21) and leg.compute == "cu132", assertion),
        Break("one leg", 64, 69, lambda leg: leg.kernel in among(25) and leg.compute == "cpu"
              and leg.system == "aarch64-linux" and leg.torch == "2.14", member),
    ]  # fmt: skip


def _newest(run: int) -> int:
    return 14 + sum(run >= move for move in MOVES)


def legs_of(run: int) -> list[Leg]:
    """Everything that the catalog of a run asks for: 52 x 30."""
    return _legs_to(_newest(run))


@cache
def _legs_to(newest: int) -> list[Leg]:
    return [
        Leg(kernel, f"torch2{torch}-cxx11-{compute}-{system}", system, f"2.{torch}", compute)
        for kernel in KERNELS
        for torch in (newest - 2, newest - 1, newest)
        for compute, system in TOOLCHAINS
    ]


def make_world(seed: int, suspects: Callable[[RecordedRun], list[str]]) -> tuple[World, Iterator[list[RecordedRun]]]:
    """A world and what each of its runs records: both looks, which are made as they are asked for.

    `suspects` says what is looked at again.
    """
    chance = random.Random(seed)
    flaky = {chance.choice([leg for leg in legs_of(0) if leg.kernel == name and leg.torch == "2.14"]).key
             for name in KERNELS[30:36]}  # fmt: skip
    world = World(the_breaks(), flaky)
    return world, (_recorded(world, run, chance, suspects) for run in range(RUNS))


def _recorded(
    world: World, run: int, chance: random.Random, suspects: Callable[[RecordedRun], list[str]]
) -> list[RecordedRun]:
    first = {leg: _outcome(world, run, leg, chance, look=1) for leg in legs_of(run)}
    (seen,) = _gathered(run, 1, first)
    again = set(suspects(seen))
    second = {leg: _outcome(world, run, leg, chance, look=2) for leg in first if leg.key in again}
    failed = {failure.leg for failure in seen.failed}
    for item in world.breaks:
        if item.start <= run < item.end and item.seen is None:
            item.seen = run if any(leg.key in failed for leg in first if item.hits(leg)) else None
    return [seen, *_gathered(run, 2, second)]


def _gathered(run: int, look: int, outcomes: dict[Leg, tuple[LegOutcome, str]]) -> list[RecordedRun]:
    return gather(
        LegResult(
            run=1000 + run, at=_clock(run), kernel=leg.kernel, variant=leg.variant, system=leg.system, torch=leg.torch,
            compute=leg.compute, outcome=outcome, error=error, look=look, commit=f"{run // 3:07x}",
            catalog=f"edition-{_newest(run)}", log="https://github.com/acme/kernels/actions/runs/1",
        )
        for leg, (outcome, error) in outcomes.items()
    )  # fmt: skip


def _outcome(world: World, run: int, leg: Leg, chance: random.Random, look: int) -> tuple[LegOutcome, str]:
    lot = chance.random()
    if lot < (0.9 if run in DARK else 0.01):
        some = [item for item in OUTAGES if item["outage"] == DARK[run]] if run in DARK else OUTAGES
        message = chance.choice(some)
        return LegOutcome.FAILED, message["text"]
    if lot > 0.995:
        return LegOutcome.SKIPPED, "there is no hipcc of ROCm 7.1 on this machine"
    if lot > 0.994 and look == 1:  # an outage in words that no pattern knows; another machine does not have it
        return LegOutcome.FAILED, f"the flux capacitor of host-{chance.randrange(9)} is out of phase"
    broken = next((item for item in world.breaks if item.start <= run < item.end and item.hits(leg)), None)
    if broken is not None:  # who cannot install torch skips the leg
        return LegOutcome.SKIPPED if broken.says is wheel else LegOutcome.FAILED, broken.says(leg, chance)
    if leg.key in world.flaky and FLAKY[0] <= run < FLAKY[1] and chance.random() < 0.4:
        return LegOutcome.FAILED, sometimes(leg, chance)
    return LegOutcome.PASSED, ""


def _clock(run: int) -> str:
    """When a run was, as a machine says: in two runs the clock is years off."""
    at = datetime(2026, 1, 5, 4, 17, tzinfo=UTC) + timedelta(weeks=run)
    return (at + timedelta(days={40: 800, 41: -9000}.get(run, 0))).isoformat()
