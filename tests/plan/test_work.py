"""Estimates by what there is to compile, and what earlier runs say about it."""

from __future__ import annotations

import pytest

from conftest import kernel
from kci.catalog.rows import Catalog
from kci.config.model import Build
from kci.matrix.names import Kind
from kci.matrix.selection import select
from kci.matrix.variants import Matrix, Variant
from kci.plan.durations import Duration, Durations, Work, work_of, works
from kci.plan.legs import PlanOptions, make_plan
from planning import matrix

CUDA = "torch213-cxx11-cu130-x86_64-linux"
CPU = "torch213-cxx11-cpu-x86_64-linux"


def build(sources: int, capabilities: str = "") -> Build:
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
depends = []
src = [{listed}, "csrc/host.cpp", "csrc/k.cuh"]
{capabilities}
[kernel.b]
backend = "cpu"
depends = []
src = ["csrc/b.cpp"]
""").build


def variants(catalog: Catalog) -> dict[str, Variant]:
    made = kernel("""
[general]
name = "some-kernel"
version = 1
edition = 5
license = "MIT"
backends = ["cuda", "cpu"]
[torch]
[kernel.a]
backend = "cuda"
depends = []
src = []
[kernel.b]
backend = "cpu"
depends = []
src = []
""")
    return {item.name: item for item in select(made, catalog).variants}


def test_units_and_architectures_are_counted(catalog: Catalog) -> None:
    found = variants(catalog)
    work = work_of(build(3, 'cuda-capabilities = ["8.0", "9.0"]'), found[CUDA])
    assert work == Work(Kind.FULL, cxx=2, device=3, codes=6)
    assert work_of(build(3), found[CPU]) == Work(Kind.FULL, cxx=2)
    assert Work(Kind.NOARCH).seconds(4) == Work(Kind.NOARCH, 9, 9, 9).seconds(1), "nothing is compiled"


@pytest.mark.parametrize(
    ("less", "more", "cores"),
    [
        (Work(Kind.FULL, 1, 1, 1), Work(Kind.FULL, 1, 430, 1), 4),
        (Work(Kind.FULL, 1, 1, 1), Work(Kind.FULL, 1, 1, 6), 4),
        (Work(Kind.STABLE_ABI, 1, 1, 6), Work(Kind.FULL, 1, 1, 6), 4),
    ],
)
def test_more_work_takes_longer_and_more_cores_less(less: Work, more: Work, cores: int) -> None:
    assert less.seconds(cores) < more.seconds(cores)
    assert more.seconds(64) <= more.seconds(cores) < more.seconds(1)


def test_no_unit_is_shared_by_cores() -> None:
    assert Work(Kind.FULL, 1).seconds(1) == Work(Kind.FULL, 1).seconds(64)


def test_what_was_recorded_of_a_kernel_tells_its_other_variants() -> None:
    estimates = {("k", CUDA): 100.0, ("k", CPU): 50.0, ("k", "torch212-cxx11-cu130-x86_64-linux"): 200.0}
    durations = Durations([Duration("k", CUDA, 600.0)], estimates)
    assert durations.minutes("k", CUDA, "cuda", 100.0) == (10, True)
    assert durations.minutes("k", "torch212-cxx11-cu130-x86_64-linux", "cuda", 200.0) == (20, False)


def test_a_record_of_its_own_goes_before_its_kernel_s_and_that_before_other_kernels() -> None:
    names = [f"torch2{minor}-cxx11-cu130-x86_64-linux" for minor in (11, 12, 13)]
    estimates = {(kernel, name): 100.0 for kernel in "jk" for name in names}
    recorded = [Duration("k", names[0], 600.0), Duration("k", names[1], 1200.0), Duration("j", names[0], 60_000.0)]
    durations = Durations(recorded, estimates)
    assert durations.minutes("k", names[0], "cuda", 100.0) == (10, True)
    assert durations.minutes("k", names[2], "cuda", 100.0) == (15, False), "the median of its own two"


def test_other_kernels_tell_of_one_without_a_record_each_once() -> None:
    names = [f"torch2{minor}-cxx11-cu130-x86_64-linux" for minor in (11, 12, 13)]
    estimates = {("a", name): 10.0 for name in names} | {("b", CUDA): 10.0, ("c", CUDA): 60.0}
    recorded = [*(Duration("a", name, 100.0) for name in names), Duration("b", CUDA, 20.0)]
    durations = Durations(recorded, estimates)
    assert durations.minutes("c", CUDA, "cuda", 60.0) == (6, False), "the median of 10 and 2, once for each kernel"
    assert durations.minutes("c", CPU, "cpu", 60.0) == (1, False), "no other kernel says anything about the CPU"
    assert durations.minutes("c", CPU, "cpu") is None


def test_a_plan_goes_by_the_work(catalog: Catalog) -> None:
    wanted = variants(catalog)[CUDA]
    both = matrix({"small": [wanted], "large": [wanted]})
    seconds = {("small", CUDA): work_of(build(1), wanted).seconds, ("large", CUDA): work_of(build(430), wanted).seconds}
    minutes = {leg.kernel: leg.minutes for leg in make_plan(both, options=PlanOptions(seconds=seconds)).legs}
    assert minutes["small"] < 10 < 100 < minutes["large"]
    unknown = {leg.kernel: leg.minutes for leg in make_plan(both).legs}
    assert unknown["small"] == unknown["large"]


def test_works_of_a_matrix_are_those_of_its_kernels(catalog: Catalog) -> None:
    general = '[general]\nname = "kk"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
    made = kernel(f"{general}[torch-noarch]\n")
    chosen = select(made, catalog)
    found = works([made], Matrix("release", "c", "d", (chosen,)))
    assert found == {("kk", "torch-cpu"): Work(Kind.NOARCH)}
