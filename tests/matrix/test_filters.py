"""Filters by choice, expression and scope: what they mean, leave, and say of the rest."""

from __future__ import annotations

import pytest

from conftest import failure, torch_kernel
from kci.config.values import Tier
from kci.matrix.catalog.expressions import WhereError, parse_where
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
    options = ("--system x86_64-linux", "--backend cpu cuda", "--only *cu126*")
    assert reasons == {f"{option} excludes it" for option in options}
    places = {(item.path, item.line) for item in dropped if item.rule == "KCI211"}
    assert places == {("", 0)}, "the command line decided"


@pytest.mark.rule("KCI211", triggers=False)
def test_a_choice_that_every_variant_fits_drops_nothing(catalog: Catalog) -> None:
    narrow = by_choice(backends=["cpu", "cuda", "rocm"], only=["torch*"])
    narrowed = select(MADE, catalog, narrow=[narrow], explain=True)
    assert narrowed == select(MADE, catalog, explain=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda >= 13.0 and torch == newest", "torch213-cxx11-cu130 torch213-cxx11-cu132"),
        ("stable-abi >= 2.11", "torch-stable-abi211-cpu"),
        ("kind == stable-abi", "torch-stable-abi211-cpu"),
        ("rocm == oldest and torch == oldest", "torch212-cxx11-rocm71"),
        ("name ~ *rocm72*", "torch212-cxx11-rocm72 torch213-cxx11-rocm72"),
    ],
)
def test_an_expression_sees_every_field(catalog: Catalog, text: str, expected: str) -> None:
    narrow = [by_choice(systems=["x86_64-linux"]), by_expression(parse_where(text, FIELDS))]
    assert left(catalog, *narrow) == {f"{name}-x86_64-linux" for name in expected.split()}


def test_a_subject_has_the_documented_fields_and_no_others(catalog: Catalog) -> None:
    for variant in select(MADE, catalog, Tier.ALL).variants:
        assert subject(variant).keys() <= {*FIELDS, "cpu"}
        assert ("cuda" in subject(variant)) == (variant.backend == "cuda")


@pytest.mark.rule("KCI211", triggers=True)
def test_a_scope_holds_for_its_kernel_only(catalog: Catalog) -> None:
    assert left(catalog, by_scope({"elsewhere": ["cpu"]})) == left(catalog)
    scoped = select(MADE, catalog, narrow=[by_scope({".": ["rocm"]})], explain=True)
    assert {variant.backend for variant in scoped.variants} == {"rocm"}
    reasons = {item.reason for item in scoped.dropped if item.rule == "KCI211"}
    assert reasons == {".[rocm] excludes it"}


KNOWN = {"torch": (), "cuda": (), "compute": (), "backend": ("cpu", "cuda", "rocm"), "name": ()}
ON_CPU = {"name": "c", "torch": "2.10", "backend": "cpu"}
CUDA_126 = {"name": "cu126", "torch": "2.9", "backend": "cuda", "cuda": "12.6", "compute": "12.6"}
CUDA_130 = {"name": "cu130", "torch": "2.10", "backend": "cuda", "cuda": "13.0", "compute": "13.0"}
ROCM = {"name": "rocm72", "torch": "2.10", "backend": "rocm", "compute": "7.2"}
ALL = [ON_CPU, CUDA_126, CUDA_130, ROCM]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cuda == 13", ["cu130"]),
        ("cuda==13.0.0", ["cu130"]),
        ("cuda != 13.0", ["c", "cu126", "rocm72"]),
        ("cuda < 13.0", ["cu126"]),
        ("cuda <= 13.0", ["cu126", "cu130"]),
        ("cuda > 12.6", ["cu130"]),
        ("cuda >= 12.6", ["cu126", "cu130"]),
        ("torch > 2.9", ["c", "cu130", "rocm72"]),
        ("torch == newest", ["c", "cu130", "rocm72"]),
        ("torch == oldest", ["cu126"]),
        ("torch < newest", ["cu126"]),
        ("compute == newest", ["cu130", "rocm72"]),
        ("compute == oldest", ["cu126", "rocm72"]),
        ("cuda ~ 12.*", ["cu126"]),
        ("name ~ 'cu1[23]*'", ["cu126", "cu130"]),
        ('name ~ "c?130"', ["cu130"]),
        ("backend == cpu", ["c"]),
        ("backend != cpu", ["cu126", "cu130", "rocm72"]),
        ("not backend == cpu", ["cu126", "cu130", "rocm72"]),
        ("not not backend == cpu", ["c"]),
        ("backend == cpu or backend == cuda and torch == 2.9", ["c", "cu126"]),
        ("(backend == cpu or backend == cuda) and torch == 2.9", ["cu126"]),
        ("not backend == cpu and torch == 2.10", ["cu130", "rocm72"]),
        ("not (backend == cpu or torch == 2.9)", ["cu130", "rocm72"]),
        ("cuda>=13.0 and torch==newest", ["cu130"]),
        ("name == 'and'", []),
    ],
)
def test_what_an_expression_chooses(text: str, names: list[str]) -> None:
    test = parse_where(text, KNOWN).over(ALL)
    assert [subject["name"] for subject in ALL if test(subject)] == names


@pytest.mark.parametrize(
    ("text", "column", "said", "hint"),
    [
        ("", 0, "expected a field, got the end", "one of: torch"),
        ("tocrh == 2", 0, "expected a field, got `tocrh`", "did you mean `torch`?"),
        ("torch", 5, "expected an operator after `torch`, got the end", "one of: =="),
        ("torch = 2", 6, "expected an operator after `torch`, got `=`", "one of: =="),
        ("torch >=", 8, "expected a value after `>=`, got the end", ""),
        ("torch >= and", 9, "expected a value after `>=`, got `and`", ""),
        ("torch == 2.x", 9, "expected a version such as '2.12', got '2.x'", "`newest`"),
        ("torch == 2.*", 9, "expected a version such as '2.12', got '2.*'", "with ~"),
        ("backend < cpu", 8, "`backend` has no order, so `<` cannot be used", "use =="),
        ("backend == cdua", 11, "'cdua' is not a backend", "did you mean `cuda`?"),
        ("(torch == 2", 11, "expected `)`, got the end", ""),
        ("torch == 2)", 10, "nothing can follow here, got `)`", ""),
        ("torch == 2 cuda == 3", 11, "nothing can follow here, got `cuda`",
            "join comparisons with"),
        ("torch == 2 &&", 11, "unexpected '&'", ""),
        ("torch == ２", 9, "unexpected '２'", ""),
        ("and torch == 2", 0, "expected a field, got `and`", ""),
        ("name == 'x", 8, 'unexpected "\'"', ""),
        ("(" * 200, 51, "the expression is nested too deeply", ""),
        ("not " * 200 + "torch == 2", 204, "the expression is nested too deeply", ""),
        ("torch == 2 or " * 200 + "torch == 2", 2000,
            "the expression is longer than 2000 characters", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_column(text: str, column: int, said: str, hint: str) -> None:
    caught = failure(WhereError, "", parse_where, text, KNOWN)
    assert (caught.message, caught.column) == (said, column)
    assert hint in caught.hint
