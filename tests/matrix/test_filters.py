"""Filters by choice, expression and scope: what they leave, and what they say of the rest."""

from __future__ import annotations

import pytest

from conftest import torch_kernel
from kci.config.values import Tier
from kci.matrix.catalog.expressions import parse_where
from kci.matrix.catalog.loading import subject
from kci.matrix.catalog.rows import Catalog
from kci.matrix.selection import Narrow, select
from kci.matrix.tiers import FIELDS, by_choice, by_expression, by_scope

MADE = torch_kernel(["cpu", "cuda", "rocm"], torch="stable-abi = { cpu = '2.11' }")


def left(catalog: Catalog, *narrow: Narrow, tier: Tier = Tier.RELEASE) -> set[str]:
    return {variant.name for variant in select(MADE, catalog, tier, narrow=narrow).variants}


def test_several_of_one_choice_widen_and_different_ones_narrow(catalog: Catalog) -> None:
    everything = left(catalog)
    linux = left(catalog, by_choice(systems=["x86_64-linux"]))
    assert linux == {name for name in everything if name.endswith("-x86_64-linux")}
    both = left(catalog, by_choice(systems=["x86_64-linux", "aarch64-linux"], backends=["cuda"]))
    assert both == {name for name in everything if "-cu" in name}
    assert left(catalog, by_choice(only=["*-cu130-*", "torch-stable-abi*"])) == {
        name for name in everything if "-cu130-" in name or name.startswith("torch-stable-abi")
    }
    assert left(catalog, by_choice()) == everything


@pytest.mark.rule("KCI211", triggers=True)
def test_a_choice_says_which_option_left_a_variant_out(catalog: Catalog) -> None:
    narrow = by_choice(systems=["x86_64-linux"], backends=["cpu", "cuda"], only=["*cu126*"])
    dropped = select(MADE, catalog, narrow=[narrow], explain=True).dropped
    reasons = {item.reason for item in dropped if item.rule == "KCI211"}
    assert reasons == {
        "--system x86_64-linux excludes it",
        "--backend cpu cuda excludes it",
        "--only *cu126* excludes it",
    }
    assert {(item.path, item.line) for item in dropped if item.rule == "KCI211"} == {("", 0)}, (
        "the command line decided"
    )


@pytest.mark.rule("KCI211", triggers=False)
def test_a_choice_that_every_variant_fits_drops_nothing(catalog: Catalog) -> None:
    narrow = by_choice(backends=["cpu", "cuda", "rocm"], only=["torch*"])
    assert select(MADE, catalog, narrow=[narrow], explain=True) == select(
        MADE, catalog, explain=True
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "cuda >= 13.0 and torch == newest",
            {"torch213-cxx11-cu130-{}", "torch213-cxx11-cu132-{}"},
        ),
        ("stable-abi >= 2.11", {"torch-stable-abi211-cpu-{}"}),
        ("kind == stable-abi", {"torch-stable-abi211-cpu-{}"}),
        ("rocm == oldest and torch == oldest", {"torch212-cxx11-rocm71-{}"}),
        ("name ~ *rocm72*", {"torch212-cxx11-rocm72-{}", "torch213-cxx11-rocm72-{}"}),
    ],
)
def test_an_expression_sees_every_field(catalog: Catalog, text: str, expected: set[str]) -> None:
    narrow = [by_choice(systems=["x86_64-linux"]), by_expression(parse_where(text, FIELDS))]
    assert left(catalog, *narrow) == {name.format("x86_64-linux") for name in expected}


def test_a_subject_has_the_documented_fields_and_no_others(catalog: Catalog) -> None:
    for variant in select(MADE, catalog, Tier.ALL).variants:
        assert subject(variant).keys() <= {*FIELDS, "cpu"}
        assert ("cuda" in subject(variant)) == (variant.backend == "cuda")


@pytest.mark.rule("KCI211", triggers=True)
def test_a_scope_holds_for_its_kernel_only(catalog: Catalog) -> None:
    assert left(catalog, by_scope({"elsewhere": ["cpu"]})) == left(catalog)
    scoped = select(MADE, catalog, narrow=[by_scope({".": ["rocm"]})], explain=True)
    assert {variant.backend for variant in scoped.variants} == {"rocm"}
    assert {item.reason for item in scoped.dropped if item.rule == "KCI211"} == {
        ".[rocm] excludes it"
    }
