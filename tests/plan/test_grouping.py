"""Which variants share a leg, what the leg is called, and its times."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import torch_kernel
from kci.config.settings import Limit
from kci.config.values import Backend, Grouping
from kci.matrix.catalog.rows import Catalog
from kci.matrix.catalog.runners import default_runners
from kci.matrix.selection import compute_matrix
from kci.matrix.variants import Matrix, artifact_stem
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.plan import Plan
from kci.utils.walk import duplicate_names


@pytest.fixture
def matrix(catalog: Catalog) -> Matrix:
    return compute_matrix([torch_kernel(["cpu", "cuda", "rocm"])], catalog)


def grouped(matrix: Matrix, grouping: str, **runners: object) -> Plan:
    own = msgspec.structs.replace(default_runners(), **runners)
    return make_plan(matrix, own, PlanOptions(grouping=Grouping(grouping)))


@pytest.mark.parametrize("grouping", ["variant", "image", "backend"])
def test_every_variant_is_in_one_leg(matrix: Matrix, grouping: str) -> None:
    plan = grouped(matrix, grouping)
    built = sorted(name for leg in plan.legs for name in leg.variants)
    assert built == list(plan.kernels[0].planned)
    assert all(leg.variant.split() == list(leg.variants) for leg in plan.legs)
    assert len({leg.artifact for leg in plan.legs}) == len(plan.legs)


def test_variants_of_one_image_share_a_leg(matrix: Matrix) -> None:
    legs = {leg.name: leg for leg in grouped(matrix, "image").legs}
    leg = legs["cu130-x86_64-linux"]
    assert leg.variants == tuple(f"torch21{minor}-cxx11-cu130-x86_64-linux" for minor in "23")
    assert leg.artifact == "kci-some-kernel.cu130-x86_64-linux"
    assert len({leg.image for leg in legs.values()}) == len(legs)
    alone = {leg.variant: leg for leg in grouped(matrix, "variant").legs}
    assert leg.minutes == 2 * alone[leg.variants[0]].minutes - default_runners().build["cuda"].setup
    assert leg.timeout == 360, "the sum of both, but no more than GitHub gives a job"


def test_a_group_that_would_take_too_long_is_split(matrix: Matrix) -> None:
    usual = default_runners().build
    slow = usual | {"cuda": msgspec.structs.replace(usual["cuda"], minutes=80)}
    legs = grouped(matrix, "backend", build=slow).legs
    sizes = {leg.name: len(leg.variants) for leg in legs if leg.name.startswith("cuda-x86_64")}
    assert sizes == {f"cuda-x86_64-linux{number}": 2 for number in ("", "-2", "-3")}


def test_what_has_other_limits_is_in_another_leg(matrix: Matrix, catalog: Catalog) -> None:
    limits = (
        Limit(kernel="some-kernel", backend=Backend.ROCM, max_jobs=1, timeout_minutes=200),
        Limit(cores=2),
    )
    plan = grouped(matrix, "variant", limits=limits)
    by_backend = {leg.backend: leg for leg in plan.legs}
    rocm, cuda = by_backend["rocm"], by_backend["cuda"]
    assert (rocm.max_jobs, rocm.cores, rocm.timeout) == (1, None, 200)
    assert (cuda.max_jobs, cuda.cores) == (None, 2), "only nvcc has threads"


def test_backends_of_one_image_share_a_leg_if_their_limits_are_the_same(matrix: Matrix) -> None:
    one = {"x86_64-linux": "docker.io/some/image:1"}
    usual = default_runners().build.items()
    build = {name: msgspec.structs.replace(item, image=one) for name, item in usual}
    together = {leg.name for leg in grouped(matrix, "image", build=build).legs}
    name = "cpu-cuda-rocm-x86_64-linux"
    assert together == {name, f"{name}-2"}, "and it is split by time"
    limits = (Limit(backend=Backend.ROCM, max_jobs=1),)
    apart = grouped(matrix, "image", build=build, limits=limits).legs
    assert {leg.max_jobs for leg in apart if "rocm" in leg.name} == {1}
    assert {leg.max_jobs for leg in apart if "rocm" not in leg.name} == {None}
    shared = {leg.name for leg in apart if len(leg.variants) > 1}
    assert shared == {"cpu-cuda-x86_64-linux", "rocm-x86_64-linux"}


@pytest.mark.parametrize("char", list('":<>|*?\r\n\\/ %\x00é'))
def test_an_artifact_name_has_no_character_that_github_refuses(char: str) -> None:
    name = artifact_stem("k", f"a{char}b")
    assert not set(name) & set('":<>|*?\r\n\\/\x00 ')
    assert name.isascii()


@given(st.text(max_size=20), st.text(max_size=20))
def test_two_names_never_become_one(one: str, other: str) -> None:
    assert (artifact_stem("k", one) == artifact_stem("k", other)) == (one == other)


def test_names_that_differ_in_case_only_are_twins() -> None:
    assert duplicate_names(["a", "b", "A", "c"]) == ["A", "a"]
    assert duplicate_names(["a", "b"]) == []
