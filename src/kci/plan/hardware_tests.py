"""Test jobs: one for each kernel and machine, unless the same tree has passed the same
tests there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from kci.config.facts import needs_device
from kci.matrix.catalog.runners import Runner, Runners, max_job_minutes
from kci.matrix.variants import parse_variant_name
from kci.plan.inputs.kernel_inputs import MARKER
from kci.plan.plan import KernelPlan, Leg, TestLeg, runs_on
from kci.utils.frozen import Frozen

_MINUTES = 60

_Hash = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]


class TestPass(Frozen):
    """A passed test leg."""

    __test__ = False  # pytest would take it for a test

    tree: _Hash
    inputs: _Hash


class CarriedTree(Frozen):
    """The tree of a kernel from an earlier run."""

    run: str
    digests: Mapping[str, str]
    passed: Mapping[str, TestPass] = {}


class TestMachine(Frozen):
    """A machine that tests, and the variants of a kernel for it."""

    __test__ = False  # pytest would take it for a test

    name: str
    backend: str
    system: str
    runner: Runner
    variants: tuple[str, ...]

    def inputs(self, tests: str) -> str:
        """The hash of tests and runner labels; empty without `tests`; see `Fingerprints.tests`."""
        return _hashed([tests, self.runner.group or "", *self.runner.labels]) if tests else ""


def machines_for(
    variants: Iterable[str], runners: Runners, marked: bool | None = True
) -> Iterator[TestMachine]:
    """The machines that suit some of the variants; those for the CPU only if tests are `marked` for
    CI.
    """
    variants, seen = tuple(variants), set[str]()
    for (backend, system), runner in sorted(
        runners.test.items(), key=lambda item: (item[1].spare, item[0])
    ):
        names = tuple(name for name in variants if _is_for(name, backend, system))
        tests = backend != "noarch" and (marked or needs_device(backend))
        if names and tests and not (runner.spare and backend in seen):
            seen.add(backend)
            yield TestMachine(f"{backend}-{system}", backend, system, runner, names)


def why_untested(variants: Collection[str], runners: Runners, marked: bool | None) -> str:
    """The reason why no job runs a kernel's tests; empty if one can, or without tests (`marked` is
    None).
    """
    if marked is None or not variants or any(machines_for(variants, runners, marked)):
        return ""
    device = all(needs_device(parse_variant_name(name).backend) for name in variants)
    machine = f"no machine {'with a GPU' if device else 'for the CPU'} is named"
    return f"tests: not run, {machine if marked else f'none is marked `{MARKER}`'}"


def plan_tests(
    kernels: Sequence[KernelPlan],
    legs: Sequence[Leg],
    runners: Runners,
    tests: Mapping[str, str] | None = None,
    trees: Mapping[str, CarriedTree] | None = None,
    whole: Collection[str] = (),
    marked: Mapping[str, bool | None] | None = None,
) -> tuple[TestLeg, ...]:
    """The test legs of a run.

    A kernel that is built is tested on all its machines; another one where its tree in `trees` has
    not passed these `tests` (both by kernel name). Of kernels in `whole`, all variants of the
    earlier tree are tested. Without a tree there is no test. `marked` is that of `PlanOptions`.
    """
    built = {leg.kernel for leg in legs}
    test_legs = []
    for kernel in kernels:
        tree = (trees or {}).get(kernel.name)
        more = tree.digests if tree is not None and kernel.name in whole else ()
        for_ci = (marked or {}).get(kernel.name, True)
        for machine in machines_for(sorted({*kernel.planned, *more}), runners, for_ci):
            inputs, run = machine.inputs((tests or {}).get(kernel.name, "")), ""
            if kernel.name not in built:
                if tree is None or not tree.digests.keys() >= {*machine.variants}:
                    continue
                run, now = (
                    tree.run,
                    TestPass(tree_under_test(tree.digests, machine.variants), inputs),
                )
                if inputs and tree.passed.get(machine.name) == now:
                    continue
            limit = runners.limit(kernel.name, machine.backend)
            test_legs.append(
                TestLeg(
                    kernel=kernel.name,
                    path=kernel.path,
                    name=machine.name,
                    backend=machine.backend,
                    system=machine.system,
                    variants=machine.variants,
                    runner=runs_on(machine.runner),
                    timeout=min(limit.timeout_minutes or _MINUTES, max_job_minutes(machine.runner)),
                    inputs=inputs,
                    run=run,
                )
            )
    return tuple(test_legs)


def tree_under_test(digests: Mapping[str, str], variants: Collection[str] = ()) -> str:
    """The hash of these variants in a tree, as a test leg sees it, or of the whole tree; absent
    ones are skipped.
    """
    return _hashed(
        [f"{name} {digests[name]}" for name in sorted(variants or digests) if name in digests]
    )


def needs_hardware(variant: str, runners: Runners) -> bool:
    """True if a machine with a device under `[test]` suits the variant."""
    return any(
        needs_device(backend) and _is_for(variant, backend, system)
        for backend, system in runners.test
    )


def _is_for(variant: str, backend: str, system: str) -> bool:
    name = parse_variant_name(variant)
    return name.backend == backend and name.system in (None, system)


def _hashed(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
