"""Test jobs: one for each kernel and machine, unless the same tree has passed the same
tests there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from kci.config.facts import needs_device
from kci.matrix.catalog.runners import Runners, max_job_minutes
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


def machine_tests(
    kernel: str,
    path: str,
    variants: Iterable[str],
    runners: Runners,
    tests: str = "",
    marked: bool | None = True,
) -> Iterator[TestLeg]:
    """The test legs for some variants of a kernel: one for each machine that suits any of them.

    Machines for the CPU test only if tests are `marked` for CI. `tests` is the hash of the tests;
    see `Fingerprints.tests`.
    """
    variants, seen = tuple(variants), set[str]()
    for (backend, system), runner in sorted(
        runners.test.items(), key=lambda item: (item[1].spare, item[0])
    ):
        names = tuple(name for name in variants if _is_for(name, backend, system))
        suits = backend != "noarch" and (marked or needs_device(backend))
        if names and suits and not (runner.spare and backend in seen):
            seen.add(backend)
            limit = runners.limit(kernel, backend)
            yield TestLeg(
                kernel=kernel,
                path=path,
                name=f"{backend}-{system}",
                backend=backend,
                system=system,
                variants=names,
                runner=runs_on(runner),
                timeout=min(limit.timeout_minutes or _MINUTES, max_job_minutes(runner)),
                inputs=_hashed([tests, runner.group or "", *runner.labels]) if tests else "",
            )


def why_untested(variants: Collection[str], runners: Runners, marked: bool | None) -> str:
    """The reason why no job runs a kernel's tests; empty if one can, or without tests (`marked` is
    None).
    """
    if marked is None or not variants or any(machine_tests("", "", variants, runners, "", marked)):
        return ""
    device = all(needs_device(parse_variant_name(name).backend) for name in variants)
    machine = f"no machine {'with a GPU' if device else 'for the CPU'} is named"
    return f"tests: not run, {machine if marked else f'none is marked `{MARKER}`'}"


def plan_tests(
    kernels: Sequence[KernelPlan],
    legs: Sequence[Leg],
    runners: Runners,
    tests: Mapping[str, str],
    trees: Mapping[str, CarriedTree],
    whole: Collection[str] = (),
    marked: Mapping[str, bool | None] | None = None,
) -> tuple[TestLeg, ...]:
    """The test legs of a run.

    A kernel that is built is tested on all its machines; another one where its tree in `trees` has
    not passed these `tests` (both by kernel name). Of kernels in `whole`, all variants of the
    earlier tree are tested. Without a tree there is no test. `marked` is that of `PlanOptions`.
    """
    built = {leg.kernel for leg in legs}
    planned = []
    for kernel in kernels:
        name, tree = kernel.name, trees.get(kernel.name)
        more = tree.digests if tree is not None and name in whole else ()
        facts = runners, tests.get(name, ""), (marked or {}).get(name, True)
        for test in machine_tests(name, kernel.path, sorted({*kernel.planned, *more}), *facts):
            if name in built:
                planned.append(test)
            elif tree is not None and tree.digests.keys() >= {*test.variants}:
                now = TestPass(tree_under_test(tree.digests, test.variants), test.inputs)
                if not test.inputs or tree.passed.get(test.name) != now:
                    planned.append(replace(test, run=tree.run))
    return tuple(planned)


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
