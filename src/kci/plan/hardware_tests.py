"""The jobs that test: one for each kernel and kind of test machine, and none where no such machine is declared."""

from __future__ import annotations

from collections.abc import Sequence

from kci.catalog.runners import Runners
from kci.matrix.names import parse_variant_name
from kci.plan.plan import KernelPlan, Leg, RunnerGroup, TestLeg

_MINUTES = 60
"""When a test is given up, unless a limit of the kernel or backend says otherwise."""


def plan_tests(kernels: Sequence[KernelPlan], legs: Sequence[Leg], runners: Runners) -> tuple[TestLeg, ...]:
    """Where the trees of a run are tested: on every kind of machine under `[test]` that some variant is for.

    Args:
        kernels: what the trees will have.
        legs: the builds; a kernel of which nothing is built has been tested before.
        runners: the machines.
    """
    built = {leg.kernel for leg in legs}
    found = []
    for kernel in kernels if runners.test else ():
        if kernel.name not in built:
            continue
        for (backend, system), runner in sorted(runners.test.items()):
            names = tuple(name for name in kernel.planned if _is_for(name, backend, system))
            if names and backend != "noarch":
                limit = runners.limit(kernel.name, backend)
                wanted = RunnerGroup(runner.group, runner.labels) if runner.group else runner.labels
                found.append(
                    TestLeg(
                        kernel=kernel.name,
                        path=kernel.path,
                        name=f"{backend}-{system}",
                        backend=backend,
                        system=system,
                        variants=names,
                        runner=wanted,
                        timeout=limit.timeout or _MINUTES,
                    )
                )
    return tuple(found)


def needs_hardware(variant: str, runners: Runners) -> bool:
    """Whether there is a machine under `[test]` that a variant is for, and that others cannot stand in for."""
    return any(backend != "cpu" and _is_for(variant, backend, system) for backend, system in runners.test)


def _is_for(variant: str, backend: str, system: str) -> bool:
    name = parse_variant_name(variant)
    return name.backend == backend and name.system in (None, system)
