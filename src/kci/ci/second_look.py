"""What of a scheduled run is looked at again: the jobs of its plan that have what failed in a way that is new."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from kci.ci.run_records import RunPlan
from kci.plan.plan import Plan, Role
from kci.watch.history import HARDWARE

MOST = 200
"""So many jobs look again at most; what is left is a suspect until the next run."""


def second_look(plan: RunPlan, suspects: Iterable[str]) -> Plan:
    """The jobs for some legs, by their keys in the history: those that built them, and those that tested them.

    There are at most `MOST` of each kind. What is compiled in parts is not among them: the next run is its second look.
    """
    built: set[tuple[str, str]] = set()
    tested: set[tuple[str, str]] = set()
    for key in suspects:
        kernel, variant, system = key.split(" ")[:3]
        (tested if system.endswith(HARDWARE) else built).add((kernel, variant))
    legs = []
    for leg in plan.legs:
        if leg.role is Role.WHOLE and (again := tuple(name for name in leg.variants if (leg.kernel, name) in built)):
            legs.append(replace(leg, variant=" ".join(again), variants=again, shard=0))
    tests = [test for test in plan.tests if any((test.kernel, name) in tested for name in test.variants)]
    return Plan(plan.tier, "", "", plan.kernels, tuple(legs[:MOST]), (), tests=tuple(tests[:MOST]))
