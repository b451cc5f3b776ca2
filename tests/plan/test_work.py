"""Estimates by what there is to compile, and what earlier runs say about it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import kernel
from kci.catalog.rows import Catalog
from kci.config.model import Build
from kci.inputs.header_names import HeaderNames
from kci.inputs.kernel_inputs import KernelInputs
from kci.matrix.names import Kind
from kci.matrix.selection import select
from kci.matrix.variants import Matrix, Variant
from kci.plan.durations import Duration, Durations
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.measured_objects import measured_like, measured_table
from kci.plan.object_work import ObjectWork, Work, shares, work_data, work_of, works
from planning import matrix

CUDA = "torch213-cxx11-cu130-x86_64-linux"
CPU = "torch213-cxx11-cpu-x86_64-linux"


def work(kind: Kind, cxx: int, device: int = 0, codes: int = 0) -> Work:
    """So many C++ sources, and sources of device code, for so many architectures in all."""
    each = work_data().stable_abi if kind is Kind.STABLE_ABI else work_data().full
    of_device = [each.device + each.per_arch * (codes // device + (at < codes % device)) for at in range(device)]
    seconds = [each.cxx] * cxx + of_device
    return Work(kind, tuple(ObjectWork(f"{at}.cu", took) for at, took in enumerate(seconds)))


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
    made = work_of(build(3, 'cuda-capabilities = ["8.0", "9.0"]'), found[CUDA])
    assert sorted(each.seconds for each in made.objects) == sorted(
        each.seconds for each in work(Kind.FULL, 2, 3, 6).objects
    )
    assert [each.source for each in work_of(build(3), found[CPU]).objects] == ["torch-ext/binding.cpp", "csrc/b.cpp"]
    assert Work(Kind.NOARCH).seconds(4) == work(Kind.NOARCH, 9, 9, 9).seconds(1), "nothing is compiled"


@pytest.mark.parametrize(
    ("less", "more", "cores"),
    [
        (work(Kind.FULL, 1, 1, 1), work(Kind.FULL, 1, 430, 1), 4),
        (work(Kind.FULL, 1, 1, 1), work(Kind.FULL, 1, 1, 6), 4),
        (work(Kind.STABLE_ABI, 1, 1, 6), work(Kind.FULL, 1, 1, 6), 4),
    ],
)
def test_more_work_takes_longer_and_more_cores_less(less: Work, more: Work, cores: int) -> None:
    assert less.seconds(cores) < more.seconds(cores)
    assert more.seconds(64) <= more.seconds(cores) < more.seconds(1)


def test_no_unit_is_shared_by_cores() -> None:
    assert work(Kind.FULL, 1).seconds(1) == work(Kind.FULL, 1).seconds(64)


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
    both_works = {("small", CUDA): work_of(build(1), wanted), ("large", CUDA): work_of(build(430), wanted)}
    minutes = {leg.kernel: leg.minutes for leg in make_plan(both, options=PlanOptions(works=both_works)).legs}
    assert minutes["small"] < 10 < 100 < minutes["large"]
    unknown = {leg.kernel: leg.minutes for leg in make_plan(both).legs}
    assert unknown["small"] == unknown["large"]


def test_works_of_a_matrix_are_those_of_its_kernels(catalog: Catalog) -> None:
    general = '[general]\nname = "kk"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
    made = kernel(f"{general}[torch-noarch]\n")
    chosen = select(made, catalog)
    found = works([made], Matrix("release", "c", "d", (chosen,)))
    assert found == {("kk", "torch-cpu"): Work(Kind.NOARCH)}


HEAVY = """
[general]
name = "some-kernel"
version = 1
edition = 5
license = "MIT"
backends = ["cuda"]
[torch]
src = ["torch-ext/binding.cpp"]
[kernel.a]
backend = "cuda"
cuda-capabilities = ["8.0", "9.0"]
depends = ["torch", "cutlass_4_0"]
include = ["csrc"]
src = ["csrc/heavy.cu", "csrc/light.cu", "csrc/own.cu"]
"""
SOURCES = {
    "torch-ext/binding.cpp": "#include <torch/library.h>\n",
    "csrc/heavy.cu": '#include "below.h"\n',
    "csrc/below.h": "#include <cutlass/cutlass.h>\n",
    "csrc/light.cu": "#include <cuda_runtime.h>\n",
    "csrc/own.cu": '#include "deeper.h"\n',
    "csrc/deeper.h": "#include <ATen/ATen.h>\n",
}


def headers_of(place: Path, sources: dict[str, str]) -> HeaderNames:
    for name, text in sources.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HeaderNames(KernelInputs(kernel(HEAVY).build, place))


def test_cutlass_is_known_by_includes_and_without_them_by_what_a_component_depends_on(
    catalog: Catalog, tmp_path: Path
) -> None:
    wanted, data = variants(catalog)[CUDA], work_data()
    guessed = {each.source: each for each in work_of(kernel(HEAVY).build, wanted).objects}
    assert {each.memory for source, each in guessed.items() if source.endswith(".cu")} == {data.cutlass.memory}
    assert all(each.torch for each in guessed.values()), "what is not known may read torch"
    found = {each.source: each for each in work_of(kernel(HEAVY).build, wanted, headers_of(tmp_path, SOURCES)).objects}
    assert {source for source, each in found.items() if each.memory} == {"csrc/heavy.cu"}
    assert found["csrc/heavy.cu"].seconds == data.full.device + 2 * data.cutlass.per_arch
    assert found["csrc/light.cu"].seconds == data.full.device + 2 * data.full.per_arch
    assert {source for source, each in found.items() if each.torch} == {"torch-ext/binding.cpp", "csrc/own.cu"}


def test_a_source_that_is_not_there_may_include_anything(catalog: Catalog, tmp_path: Path) -> None:
    sources = {name: text for name, text in SOURCES.items() if name != "csrc/light.cu"}
    work = work_of(kernel(HEAVY).build, variants(catalog)[CUDA], headers_of(tmp_path, sources))
    (light,) = (each for each in work.objects if each.source == "csrc/light.cu")
    assert light.torch
    assert light.memory


def test_memory_decides_how_many_run_at_once() -> None:
    objects = tuple(ObjectWork(f"{number}.cu", 600.0, memory=7) for number in range(8))
    fixed = work_data().fixed
    assert Work(Kind.FULL, objects).seconds(4, 16) == fixed + 2400
    assert Work(Kind.FULL, objects).seconds(4, 6) == fixed + 4800
    assert Work(Kind.FULL, objects).seconds(4, 64) == fixed + 1200
    light = ObjectWork("l.cu", 100.0)
    assert Work(Kind.FULL, (*objects, light)).seconds(4, 16) == fixed + 2400 + 25


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), max_size=40), st.integers(1, 20))
def test_each_name_is_in_one_share(seconds: dict[str, float], parts: int) -> None:
    made = shares(seconds, parts)
    assert len(made) == parts
    assert sorted(name for names in made for name in names) == sorted(seconds)
    loads = [sum(seconds[name] for name in names) for names in made]
    longest = max(seconds.values(), default=0)
    assert max(loads) - min(loads) <= longest + 1e-6, "the longest first, each into the lightest"


def test_the_shares_do_not_depend_on_the_order_of_the_sources() -> None:
    objects = tuple(ObjectWork(f"{number:02}.cu", 100.0 + number % 7) for number in range(40))
    made = Work(Kind.FULL, objects).shares(4)
    assert Work(Kind.FULL, objects[::-1]).shares(4) == made
    assert sorted(each.source for share in made for each in share.objects) == [each.source for each in objects]


@pytest.mark.parametrize(
    ("source", "stable", "device", "seconds", "memory"),
    [
        ("x/flash_fwd_hdim64_fp16_split_sm90.cu", True, True, 179 * 2, 7),
        ("x/flash_fwd_hdim64_fp16_split_sm90.cu", False, True, 179 * 2, 7),
        ("csrc/cuda/hopper_fmha/source_3.cu", False, True, 285 * 2, 9),
    ],
)
def test_a_source_that_is_called_like_a_measured_one_takes_as_long(
    source: str, stable: bool, device: bool, seconds: float, memory: int
) -> None:
    known = measured_like(source, stable=stable, device=device)
    assert known is not None
    assert (known.seconds(2, stable, lambda archs, _: archs), known.memory) == (seconds, memory)


def test_measured_ones_grow_with_architectures_as_counted_ones_do() -> None:
    """relu.cu took 185 seconds for two: most of that is not the device code, and stays for nine."""
    known = measured_like("relu_cuda/relu.cu", stable=False, device=True)
    assert known is not None

    def counted(archs: int, stable: bool) -> float:
        return 3 + 2 * archs if stable else 30 + 35 * archs

    assert known.seconds(2, False, counted) == 185
    assert known.seconds(9, False, counted) == pytest.approx(185 * 345 / 100)
    assert known.seconds(2, True, counted) == pytest.approx(185 * 7 / 100), "most were torch's own headers"


def test_the_table_has_objects_of_many_kernels_and_all_are_found_by_their_own_name() -> None:
    rows = measured_table().object
    assert len(rows) > 30
    assert len({row.kernel for row in rows}) > 12
    for row in rows:
        known = measured_like(row.source, stable=row.stable, device=bool(row.archs))
        assert known is not None, row.source
        assert row in known.rows


def test_what_is_called_otherwise_is_counted_and_its_range_is_wider(catalog: Catalog) -> None:
    assert measured_like("csrc/my_own.cu", stable=False, device=True) is None
    assert measured_like("flash_fwd_hdim64_sm90.cpp", stable=False, device=False) is None
    wanted = variants(catalog)[CUDA]
    capabilities = 'cuda-capabilities = ["9.0"]'
    counted = build(1, capabilities)
    like = msgspec.structs.replace(
        counted,
        kernel={**counted.kernel, "a": msgspec.structs.replace(counted.kernel["a"], src=["flash_fwd_x_sm90.cu"])},
    )
    found = [work_of(each, wanted) for each in (counted, like)]
    assert [sum(item.measured for item in each.objects) for each in found] == [0, 1]
    (low, high), (least, most) = (each.ends for each in found)
    assert low < least < 1 < most < high
    recorded = Work(Kind.FULL, tuple(ObjectWork(item.source, 9.0, recorded=True) for item in found[0].objects))
    assert least < recorded.ends[0] < 1 < recorded.ends[1] < most


def test_a_leg_says_the_range_that_is_left_by_what_is_known(catalog: Catalog) -> None:
    wanted = variants(catalog)[CUDA]
    of = matrix({"some": [wanted]})
    known = {("some", CUDA): work_of(build(60), wanted)}
    other = "torch212-cxx11-cu130-x86_64-linux"

    def width(works: dict[tuple[str, str], Work], *took: Duration) -> float:
        (leg,) = make_plan(of, options=PlanOptions(works=works), durations=Durations(took)).legs
        return leg.ends[1] / leg.ends[0]

    assert width({}) > width(known) > width(known, Duration("some", other, 900.0)) > 1.5
    assert width(known, Duration("some", CUDA, 900.0)) == 1, "its own record is no range"
