"""From a matrix to legs: runners, images, what is left out, which variants share one, its times."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import noarch_kernel, torch_kernel
from kci.config.document import parse_document
from kci.config.settings import Limit, Nix, Settings
from kci.config.values import Backend, Grouping
from kci.matrix.catalog.loading import apply_overlay, read_overlay
from kci.matrix.catalog.rows import Catalog
from kci.matrix.catalog.runners import default_runners, runners_from
from kci.matrix.selection import compute_matrix
from kci.matrix.variants import Matrix, artifact_name
from kci.plan.estimates import sizes
from kci.plan.github_limits import github_matrix
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.plan import Plan
from kci.utils.walk import duplicate_names
from planning import refused


def test_every_variant_is_a_leg_or_left_out_with_a_reason(catalog: Catalog) -> None:
    matrix = compute_matrix([torch_kernel(["cpu", "cuda", "metal", "rocm", "xpu"])], catalog)
    plan = make_plan(matrix)
    planned = [leg.variant for leg in plan.legs]
    left = [item.variant for item in plan.left_out]
    names = {variant.name for variant in matrix.kernels[0].variants}
    assert sorted(planned + left) == sorted(names)
    assert list(plan.kernels[0].planned) == sorted(planned)
    assert all(item.rule.startswith("KCI30") and item.reason for item in plan.left_out)


@pytest.mark.rule("KCI301", triggers=False)
def test_runner_and_image_follow_system_and_compute(catalog: Catalog) -> None:
    plan = make_plan(compute_matrix([torch_kernel(["cpu", "cuda", "rocm"])], catalog))
    by_name = {leg.variant: leg for leg in plan.legs}
    cuda = by_name["torch213-cxx11-cu130-x86_64-linux"]
    assert cuda.runner == ("ubuntu-24.04",)
    assert cuda.image == "docker.io/pytorch/manylinux2_28-builder:cuda13.0"
    arm = by_name["torch213-cxx11-cu126-aarch64-linux"]
    assert arm.runner == ("ubuntu-24.04-arm",)
    assert arm.image.endswith("manylinuxaarch64-builder:cuda12.6")
    assert by_name["torch212-cxx11-rocm72-x86_64-linux"].image.endswith(":rocm7.2")
    assert all(0 < leg.timeout < 360 for leg in plan.legs), "a hosted job is killed after six hours"
    own = compute_matrix([torch_kernel(["cuda"])], catalog)
    bare = make_plan(own, None, PlanOptions(container=False))
    assert {leg.image for leg in bare.legs} == {""}


@pytest.mark.rule("KCI301", "KCI303", "KCI304", triggers=False)
def test_a_noarch_variant_is_one_leg_whatever_selects_it(catalog: Catalog) -> None:
    plan = make_plan(compute_matrix([noarch_kernel(["cpu", "cuda", "metal"])], catalog))
    assert [leg.variant for leg in plan.legs] == ["torch-cpu", "torch-cuda", "torch-metal"]
    assert {leg.runner for leg in plan.legs} == {("ubuntu-24.04",)}
    assert {leg.image for leg in plan.legs} == {""}


@pytest.mark.rule("KCI303", triggers=True)
@pytest.mark.parametrize("source", ["lib.rs", "solve.f90", "a.c", "a.S", "Makefile", "a.mm"])
def test_a_source_without_compiler_is_left_out_or_to_nix(source: str, catalog: Catalog) -> None:
    parts = "".join(
        f'[kernel.{backend}]\nbackend = "{backend}"\ndepends = []\nsrc = ["{own}"]\n'
        for backend, own in (("cpu", source), ("cuda", "a.cu"))
    )
    made = torch_kernel(["cpu", "cuda"], components=parts)
    matrix = compute_matrix([made], catalog)
    options = PlanOptions(sizes=sizes([made], matrix))
    plan = make_plan(matrix, None, options)
    assert {leg.backend for leg in plan.legs} == {"cuda"}
    left = [item for item in plan.left_out if item.variant == "torch213-cxx11-cpu-x86_64-linux"]
    (item,) = left
    assert item.rule == "KCI303"
    assert f"no compiler for '{source}'" in item.reason
    with_nix = make_plan(matrix, runners_from(Settings(nix=Nix(backends=(Backend.CPU,)))), options)
    assert {leg.builder for leg in with_nix.legs if leg.backend == "cpu"} == {"nix"}


@pytest.mark.rule("KCI303", triggers=True)
def test_tvm_ffi_is_built_where_the_native_builder_compiles_it(catalog: Catalog) -> None:
    component = '[kernel.{0}]\nbackend = "{0}"\ndepends = []\nsrc = ["a.cpp"]\n'
    text = "[tvm-ffi]\nsrc = []\n" + component.format("cpu") + component.format("xpu")
    plan = make_plan(compute_matrix([noarch_kernel(["cpu", "xpu"], text)], catalog))
    built = [f"tvm-ffi01-cpu-{system}-linux" for system in ("aarch64", "x86_64")]
    assert [leg.variant for leg in plan.legs] == built
    left = {(item.rule, item.backend) for item in plan.left_out}
    assert left == {("KCI303", "cpu"), ("KCI303", "xpu")}


@pytest.mark.rule("KCI301", triggers=True)
def test_a_system_on_which_nobody_builds_is_left_out(catalog: Catalog) -> None:
    text = b'[[row]]\ntorch = "2.13"\nbackend = "cpu"\nsystems = ["aarch64-windows"]\n'
    wider = apply_overlay(catalog, read_overlay(parse_document(text, "mine.toml")))
    plan = make_plan(compute_matrix([torch_kernel(["cpu"])], wider))
    (left,) = [item for item in plan.left_out if item.system == "aarch64-windows"]
    assert (left.rule, left.reason) == ("KCI301", "no runner is known for aarch64-windows")


@pytest.mark.rule("KCI304", triggers=True)
def test_two_kernels_of_one_name_are_refused(catalog: Catalog) -> None:
    twice = compute_matrix([noarch_kernel(["cpu"]), noarch_kernel(["cpu"])], catalog)
    refused("KCI304", make_plan, twice)


@pytest.mark.rule("KCI303", triggers=False)
def test_what_kci_does_not_compile_is_left_to_nix_where_kci_toml_says_so(catalog: Catalog) -> None:
    matrix = compute_matrix([torch_kernel(["cpu", "metal", "xpu"])], catalog)
    nix = Nix(systems=("aarch64-darwin", "x86_64-windows"), backends=("xpu",))  # type: ignore[arg-type]
    plan = make_plan(matrix, runners_from(Settings(nix=nix)), PlanOptions(split=True))
    legs = {(leg.backend, leg.system): leg for leg in plan.legs}
    mac = "aarch64-darwin"
    for place in (("metal", mac), ("cpu", mac), ("xpu", "x86_64-linux")):
        leg = legs[place]
        assert (leg.builder, leg.image, leg.part) == ("nix", "", None)
    assert legs["metal", "aarch64-darwin"].runner == ("macos-26",)
    assert legs["cpu", "x86_64-linux"].builder is None, "kci builds it itself"
    assert {item.system for item in plan.left_out} <= {"x86_64-windows"}, "Nix does not run there"
    entries = {entry["variant"]: entry for entry in json.loads(github_matrix(plan))["include"]}
    xpu, cpu = (entries[legs[backend, "x86_64-linux"].variant] for backend in ("xpu", "cpu"))
    assert xpu["builder"] == "nix"
    assert "objects" not in xpu
    assert "builder" not in cpu
    by_backend = PlanOptions(grouping=Grouping.BACKEND)
    grouped = make_plan(matrix, runners_from(Settings(nix=nix)), by_backend)
    for leg in grouped.legs:
        through_nix = leg.system == "aarch64-darwin" or leg.backend == "xpu"
        assert leg.builder == ("nix" if through_nix else None)


def test_a_backend_that_only_lacks_an_image_is_said_to_lack_it(catalog: Catalog) -> None:
    parts = "".join(
        f'[kernel.{name}]\nbackend = "{name}"\ndepends = []\nsrc = []\n'
        for name in ("xpu", "metal")
    )
    plan = make_plan(compute_matrix([torch_kernel(["xpu", "metal"], components=parts)], catalog))
    reasons = {item.backend: item.reason for item in plan.left_out}
    assert "knows no image" in reasons["xpu"]
    assert "do not compile for metal" in reasons["metal"]


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
    name = artifact_name("k", f"a{char}b")
    assert not set(name) & set('":<>|*?\r\n\\/\x00 ')
    assert name.isascii()


@given(st.text(max_size=20), st.text(max_size=20))
def test_two_names_never_become_one(one: str, other: str) -> None:
    assert (artifact_name("k", one) == artifact_name("k", other)) == (one == other)


def test_names_that_differ_in_case_only_are_twins() -> None:
    assert duplicate_names(["a", "b", "A", "c"]) == ["A", "a"]
    assert duplicate_names(["a", "b"]) == []
