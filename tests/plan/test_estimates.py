"""Estimates: what was recorded of a variant, else a range for its backend and number of objects."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from conftest import torch_kernel
from kci.config.model import Build
from kci.config.settings import Limit
from kci.matrix.catalog.loading import load_catalog
from kci.matrix.catalog.rows import Catalog
from kci.matrix.catalog.runners import default_runners
from kci.matrix.selection import select
from kci.matrix.variants import Variant
from kci.plan.durations import Duration
from kci.plan.estimates import Size, estimates, size_of
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.plan import Leg
from planning import matrix

CUDA = "torch213-cxx11-cu130-x86_64-linux"
CPU = "torch213-cxx11-cpu-x86_64-linux"


def build(sources: int, depends: str = "") -> Build:
    listed = ", ".join(f'"csrc/k{number}.cu"' for number in range(sources))
    parts = [
        ("a", "cuda", depends, f'{listed}, "csrc/host.cpp", "csrc/k.cuh"'),
        ("again", "cuda", "", '"csrc/host.cpp"'),
        ("b", "cpu", "", '"csrc/b.cpp"'),
    ]
    component = '[kernel.{}]\nbackend = "{}"\ndepends = [{}]\nsrc = [{}]\n'
    text = "".join(component.format(*part) for part in parts)
    made = torch_kernel(["cuda", "cpu"], components=text).build
    binding = ["torch-ext/binding.cpp", "torch-ext/binding.h"]
    return msgspec.structs.replace(made, torch=msgspec.structs.replace(made.torch, src=binding))


def variants(catalog: Catalog) -> dict[str, Variant]:
    return {item.name: item for item in select(torch_kernel(["cuda", "cpu"]), catalog).variants}


def leg(
    size: Size | None,
    variant: str = CUDA,
    max_jobs: int | None = None,
    gigabytes: int = 16,
    took: int = 0,
) -> Leg:
    """On a hosted machine of 4 cores."""
    runners = default_runners()
    runner = msgspec.structs.replace(runners.runner["x86_64-linux"], memory_gb=gigabytes)
    own = {(backend, "x86_64-linux"): runner for backend in ("cpu", "cuda")}
    runners = msgspec.structs.replace(runners, own=own, limits=(Limit(max_jobs=max_jobs),))
    options = PlanOptions(sizes={("some", variant): size} if size else {})
    durations = [Duration("some", CUDA, float(took))] * bool(took)
    planned = matrix({"some": [variants(load_catalog())[variant]]})
    return make_plan(planned, runners, options, durations=durations).legs[0]


def test_sources_are_counted_once_and_headers_never(catalog: Catalog) -> None:
    found = variants(catalog)
    assert size_of(build(3), found[CUDA]) == Size(5)
    # host.cpp is the first component's.
    assert size_of(build(3, '"cutlass_4_0"'), found[CUDA]) == Size(5, 4)
    assert size_of(build(3), found[CPU]) == Size(2)


def test_the_minutes_are_those_of_the_table_and_the_range_is_one_factor() -> None:
    data = estimates()
    found, sure = leg(Size(240)), default_runners().build["cuda"].setup + data.fixed
    hour = data.object["cuda"]
    assert found.minutes == sure + hour, "240 objects, four at once"
    assert found.ends == (sure + hour / data.spread, sure + hour * data.spread)
    assert leg(Size(1)).minutes == sure + 1


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({}, {"size": Size(160)}),
        ({}, {"size": Size(80, 80)}),
        ({}, {"max_jobs": 1}),
        ({"variant": CPU}, {}),
        ({"size": Size(80, 80), "gigabytes": 64}, {"size": Size(80, 80)}),
    ],
    ids=["objects", "cutlass", "jobs", "backend", "memory"],
)
def test_what_makes_it_longer(less: dict[str, Any], more: dict[str, Any]) -> None:
    assert leg(**{"size": Size(80)} | less).minutes < leg(**{"size": Size(80)} | more).minutes


def test_of_a_variant_of_which_nothing_is_known_the_backend_tells() -> None:
    usual = default_runners().build["cuda"]
    assert leg(None).minutes == usual.setup + usual.minutes


def test_a_record_is_one_number_and_goes_before_the_range() -> None:
    guessed, took, other = leg(Size(60)), leg(Size(60), took=900), leg(Size(60), CPU, took=900)
    assert guessed.ends[0] < guessed.minutes < guessed.ends[1]
    assert took.measured
    assert (took.minutes, took.ends) == (15 + 4, (19, 19)), "4 to begin with"
    assert not guessed.measured
    assert other == leg(Size(60), CPU), "a record says nothing about another variant"
