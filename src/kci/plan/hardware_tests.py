"""The jobs that test: one for each kernel and kind of test machine, and none where no such machine is declared.

A tree that an earlier run has made is not tested again where that very tree has passed there with the very same tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.config.facts import needs_device
from kci.matrix.catalog.runners import Runner, Runners
from kci.matrix.variants import parse_variant_name
from kci.plan.plan import KernelPlan, Leg, RunnerGroup, TestLeg

_MINUTES = 60
"""When a test is given up, unless a limit of the kernel or backend says otherwise."""

_Hash = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]


class TestPass(msgspec.Struct, frozen=True):
    """That a test leg passed."""

    __test__ = False  # pytest would take it for a test

    tree: _Hash
    """What was tested; see `tree_under_test`."""
    inputs: _Hash
    """With which tests and where; see `TestLeg.inputs`."""


class CarriedTree(msgspec.Struct, frozen=True):
    """The tree of a kernel that an earlier run has made."""

    run: str
    """The run whose artifacts have it."""
    digests: Mapping[str, str]
    """The digest of each variant in it."""
    passed: Mapping[str, TestPass] = {}
    """The test legs that passed on it, by name."""


class TestMachine(msgspec.Struct, frozen=True):
    """A kind of machine that tests a kernel."""

    __test__ = False  # pytest would take it for a test

    name: str
    backend: str
    system: str
    runner: Runner
    variants: tuple[str, ...]
    """The kernel's that are for it."""

    def inputs(self, tests: str) -> str:
        """What a test leg of it depends on beside the tree, by a hash of the tests; see `Fingerprints.tests`."""
        return _hashed([tests, self.runner.group or "", *self.runner.labels]) if tests else ""


def machines_for(variants: Iterable[str], test: Mapping[tuple[str, str], Runner]) -> Iterator[TestMachine]:
    """Every kind of machine that tests a kernel of these variants, out of those under `[test]`."""
    variants = tuple(variants)
    for (backend, system), runner in sorted(test.items()):
        names = tuple(name for name in variants if _is_for(name, backend, system))
        if names and backend != "noarch":
            yield TestMachine(f"{backend}-{system}", backend, system, runner, names)


def plan_tests(
    kernels: Sequence[KernelPlan],
    legs: Sequence[Leg],
    runners: Runners,
    tests: Mapping[str, str] | None = None,
    trees: Mapping[str, CarriedTree] | None = None,
    whole: Collection[str] = (),
) -> tuple[TestLeg, ...]:
    """Where the trees of a run are tested.

    A kernel that is built is tested on all of its machines; any other where nothing says that this tree has passed with
    these tests. By the kernel's name: what the `tests` are made of, and the `trees` that earlier runs have made. The
    tree of a kernel in `whole` is carried over and may be published: what it has beyond the plan is tested as well.
    """
    built = {leg.kernel for leg in legs}
    found = []
    for kernel in kernels:
        tree = (trees or {}).get(kernel.name)
        more = tree.digests if tree is not None and kernel.name in whole else ()
        for machine in machines_for(sorted({*kernel.planned, *more}), runners.test):
            inputs, run = machine.inputs((tests or {}).get(kernel.name, "")), ""
            if tree is not None and kernel.name not in built and tree.digests.keys() >= {*machine.variants}:
                run, now = tree.run, TestPass(tree_under_test(tree.digests, machine.variants), inputs)
                if inputs and tree.passed.get(machine.name) == now:
                    continue
            limit = runners.limit(kernel.name, machine.backend)
            runner = machine.runner
            found.append(
                TestLeg(
                    kernel=kernel.name,
                    path=kernel.path,
                    name=machine.name,
                    backend=machine.backend,
                    system=machine.system,
                    variants=machine.variants,
                    runner=RunnerGroup(runner.group, runner.labels) if runner.group else runner.labels,
                    timeout=limit.timeout_minutes or _MINUTES,
                    inputs=inputs,
                    run=run,
                )
            )
    return tuple(found)


def tree_under_test(digests: Mapping[str, str], variants: Iterable[str]) -> str:
    """What a test leg looks at of a tree, as one hash; variants that the tree lacks are not tested."""
    return _hashed([f"{name} {digests[name]}" for name in sorted(variants) if name in digests])


def needs_hardware(variant: str, runners: Runners) -> bool:
    """True if there is a machine under `[test]` that a variant is for, and that others cannot stand in for."""
    return any(needs_device(backend) and _is_for(variant, backend, system) for backend, system in runners.test)


def _is_for(variant: str, backend: str, system: str) -> bool:
    name = parse_variant_name(variant)
    return name.backend == backend and name.system in (None, system)


def _hashed(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
