"""From a matrix to legs: runners, images, what is left out, and GitHub's limits."""

from __future__ import annotations

import json

import pytest

from conftest import noarch_kernel, torch_kernel
from kci.config.document import parse_document
from kci.config.settings import Nix, Settings
from kci.config.values import Backend, Grouping
from kci.matrix.catalog.loading import apply_overlay, read_overlay
from kci.matrix.catalog.rows import Catalog
from kci.matrix.catalog.runners import runners_from
from kci.matrix.selection import compute_matrix
from kci.plan.estimates import sizes
from kci.plan.github_limits import github_matrix
from kci.plan.legs import PlanOptions, make_plan
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
def test_a_source_without_a_compiler_leaves_its_backend_out_or_to_nix(
    source: str, catalog: Catalog
) -> None:
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
def test_what_kcis_builders_do_not_compile_is_left_to_nix_where_kci_toml_says_so(
    catalog: Catalog,
) -> None:
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
