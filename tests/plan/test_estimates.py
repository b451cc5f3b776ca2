"""Estimates: what was recorded of a variant, else a range for its backend and number of objects."""

from __future__ import annotations

import msgspec
import pytest

from conftest import kernel, torch_kernel
from kci.config.model import Build
from kci.matrix.catalog.rows import Catalog
from kci.matrix.catalog.runners import default_runners
from kci.matrix.selection import select
from kci.matrix.variants import Variant
from kci.plan.estimates import Duration, Minutes, Size, estimate_minutes, estimates, size_of
from kci.plan.legs import PlanOptions, make_plan
from planning import matrix

CUDA = "torch213-cxx11-cu130-x86_64-linux"
CPU = "torch213-cxx11-cpu-x86_64-linux"


def build(sources: int, depends: str = "") -> Build:
    listed = ", ".join(f'"csrc/k{number}.cu"' for number in range(sources))
    return kernel(f"""
[general]
name = "some-kernel"
version = 1
edition = 5
license = "MIT"
backends = ["cuda", "cpu"]
[torch]
src = ["torch-ext/binding.cpp", "torch-ext/binding.h"]
[kernel.a]
backend = "cuda"
depends = [{depends}]
src = [{listed}, "csrc/host.cpp", "csrc/k.cuh"]
[kernel.again]
backend = "cuda"
depends = []
src = ["csrc/host.cpp"]
[kernel.b]
backend = "cpu"
depends = []
src = ["csrc/b.cpp"]
""").build


def variants(catalog: Catalog) -> dict[str, Variant]:
    return {item.name: item for item in select(torch_kernel(["cuda", "cpu"]), catalog).variants}


def minutes(size: Size | None, backend: str = "cuda", max_jobs: int | None = None, gigabytes: int = 16) -> Minutes:
    """On a hosted machine of 4 cores."""
    runners = default_runners()
    runner = msgspec.structs.replace(runners.runner["x86_64-linux"], memory_gb=gigabytes)
    return estimate_minutes(size, backend, runners.build[backend], runner, max_jobs)


def test_sources_are_counted_once_and_headers_never(catalog: Catalog) -> None:
    found = variants(catalog)
    assert size_of(build(3), found[CUDA]) == Size(5)
    assert size_of(build(3, '"cutlass_4_0"'), found[CUDA]) == Size(5, 4), "host.cpp is the first component's"
    assert size_of(build(3), found[CPU]) == Size(2)


def test_the_range_is_that_of_the_table() -> None:
    each, fixed = estimates().object["cuda"], estimates().fixed
    found = minutes(Size(240))
    assert (found.least, found.most) == (fixed + each[0], fixed + each[1]), "240 objects, four at once"
    assert found.least < found.about < found.most
    assert minutes(Size(1)).most == fixed + each[1] / 60


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (minutes(Size(8)), minutes(Size(80))),
        (minutes(Size(80)), minutes(Size(80, 80))),
        (minutes(Size(80)), minutes(Size(80), max_jobs=1)),
        (minutes(Size(80), "cpu"), minutes(Size(80))),
        (minutes(Size(80, 80), gigabytes=64), minutes(Size(80, 80))),
    ],
    ids=["objects", "cutlass", "jobs", "backend", "memory"],
)
def test_what_makes_it_longer(less: Minutes, more: Minutes) -> None:
    assert less.about < more.about
    assert less.most < more.most


def test_of_a_variant_of_which_nothing_is_known_the_backend_tells() -> None:
    usual = default_runners().build["cuda"].minutes
    assert minutes(None) == Minutes(usual, round(usual / 4), usual * 4)


def test_a_record_is_one_number_and_goes_before_the_range(catalog: Catalog) -> None:
    wanted = variants(catalog)[CUDA]
    of, known = matrix({"some": [wanted]}), PlanOptions(sizes={("some", CUDA): Size(60)})
    (guessed,) = make_plan(of, options=known).legs
    assert not guessed.measured
    assert guessed.ends[0] < guessed.minutes < guessed.ends[1]
    (took,) = make_plan(of, options=known, durations=[Duration("some", CUDA, 900.0)]).legs
    assert (took.measured, took.minutes, took.ends) == (True, 19, (19, 19)), "15 minutes, and 4 to begin with"
    (other,) = make_plan(of, options=known, durations=[Duration("some", CPU, 900.0)]).legs
    assert other == guessed, "a record says nothing about another variant"
