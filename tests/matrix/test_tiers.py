"""Custom tiers, and pairwise coverage."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import many, refusal, torch_kernel
from kci.config.discovery import RepositorySettings
from kci.config.document import parse_document
from kci.config.reader import read_as
from kci.config.settings import Settings
from kci.config.values import SYSTEMS, Backend, Tier, Version
from kci.errors import UsageError
from kci.matrix.catalog.loading import editions, load_catalog
from kci.matrix.catalog.rows import Catalog
from kci.matrix.selection import select
from kci.matrix.tiers import choose, pairs, tier_of
from kci.matrix.variants import Kind, Variant

KCI_TOML = """\
[tiers.nightly]
base = "all"
backends = ["cpu", "cuda"]
systems = ["x86_64-linux", "aarch64-linux"]
only = ["torch21*"]
where = "torch >= 2.12 and not cuda == 12.6"
pairwise = true

[tiers.plain]
"""


def found(text: str = KCI_TOML) -> RepositorySettings:
    document = parse_document(text.encode(), "kci.toml")
    return RepositorySettings(read_as(document, Settings), Path(), document)


def test_a_tier_of_kci_toml_is_read_with_its_place() -> None:
    (base, filters), (_, whole) = (
        tier_of("nightly", found(), thinned=thinned) for thinned in (True, False)
    )
    assert (base, len(filters), len(whole)) == (Tier.ALL, 3, 2)
    plain, filters = tier_of("plain", found())
    assert (plain, len(filters)) == (Tier.RELEASE, 1)


def test_a_tier_that_does_not_exist_is_wrong_usage() -> None:
    with pytest.raises(UsageError) as caught:
        tier_of("nihgtly", found())
    assert caught.value.hint == "did you mean `nightly`?"
    with pytest.raises(UsageError):
        tier_of("nightly", RepositorySettings())


@pytest.mark.rule("KCI128", triggers=True)
def test_a_bad_expression_is_told_with_its_place() -> None:
    (problem,) = refusal(tier_of, "nightly", found(KCI_TOML.replace("not cuda", "not cdua")))
    assert (problem.rule, problem.line, problem.column) == ("KCI128", 6, 32)


@pytest.mark.rule("KCI214", "KCI215", triggers=True)
def test_a_tier_narrows_its_base_and_says_so(catalog: Catalog) -> None:
    (base, filters), (_, unthinned) = (
        tier_of("nightly", found(), thinned=thinned) for thinned in (True, False)
    )
    made = torch_kernel(["cpu", "cuda", "rocm"])
    whole = select(made, catalog, base, narrow=unthinned, explain=True)
    assert {variant.backend for variant in whole.variants} == {"cpu", "cuda"}
    assert {variant.system for variant in whole.variants} == {"x86_64-linux", "aarch64-linux"}
    assert {str(variant.compute) for variant in whole.variants} == {"None", "13.0", "13.2"}
    assert {str(variant.torch) for variant in whole.variants} == {"2.12", "2.13", "2.14"}
    left_out = [item for item in whole.dropped if item.rule == "KCI214"]
    assert {(item.path, item.line) for item in left_out} == {("kci.toml", 1)}
    assert "tier nightly: backend cpu cuda excludes it" in {item.reason for item in left_out}
    thinned = select(made, catalog, base, narrow=filters, explain=True)
    assert set(thinned.variants) < set(whole.variants)
    assert [item.rule for item in thinned.dropped].count("KCI215") == len(whole.variants) - len(
        thinned.variants
    )


@pytest.mark.rule("KCI214", "KCI215", triggers=False)
def test_a_tier_that_asks_for_nothing_drops_nothing(catalog: Catalog) -> None:
    base, filters = tier_of("plain", found())
    made = torch_kernel(["cpu", "cuda", "rocm"])
    whole = select(made, catalog, base, explain=True)
    assert select(made, catalog, base, narrow=filters, explain=True) == whole


def pairs_of(variants: Iterable[Variant]) -> set[tuple[str, str]]:
    return {pair for variant in variants for pair in pairs(variant)}


TORCH = st.sampled_from(["2.9", "2.10", "2.13"])
VARIANTS = st.lists(
    st.builds(
        lambda torch, backend, compute, system: Variant(
            f"torch{torch}-{backend}{compute}-{system}", Kind.FULL, Backend(backend), system,
            Version.parse(torch),
            Version.parse(compute) if backend == "cuda" else None, None, None, None, True,
        ),
        TORCH, st.sampled_from(["cpu", "cuda"]), st.sampled_from(["12.6", "13.0", "13.2"]),
        st.sampled_from(["x86_64-linux", "aarch64-linux", "x86_64-windows"]),
    ),
    max_size=20,
    unique_by=lambda variant: (variant.torch, variant.backend, variant.compute, variant.system),
)  # fmt: skip


@settings(max_examples=many(200))
@given(VARIANTS, st.randoms(use_true_random=False))
def test_every_pair_is_covered_nothing_is_superfluous_and_order_does_not_matter(
    variants, random
) -> None:
    chosen = choose(variants)
    assert pairs_of(variants) == pairs_of(chosen)
    assert [variant for variant in variants if variant in chosen] == chosen
    for variant in chosen:
        others = [other for other in chosen if other is not variant]
        assert pairs_of(variants) != pairs_of(others), "each one is needed"
    shuffled = list(variants)
    random.shuffle(shuffled)
    assert set(choose(shuffled)) == set(chosen)


def cell(x: int, y: int, z: object, system: str) -> Variant:
    torch, compute = Version.parse(f"2.{x}"), Version.parse(f"13.{y}")
    return Variant(
        f"{x}-{y}-{z}", Kind.FULL, Backend.CUDA, system, torch, compute, None, None, None, True
    )


def grid(seed: int, most: int) -> list[Variant]:
    """Most variants of a few torches, CUDAs and systems."""
    random = Random(seed)
    sizes = [random.randint(2, 5), random.randint(2, 5), random.randint(1, 3)]
    share, (torches, computes, systems) = random.choice([0.5, 0.7, 0.9]), map(range, sizes)
    places = [
        place for place in itertools.product(torches, computes, systems) if random.random() < share
    ]
    return [cell(x, y, z, SYSTEMS[z]) for x, y, z in random.sample(places, min(most, len(places)))]


@pytest.mark.parametrize("seed", range(60))
def test_no_smaller_selection_covers_all_pairs(seed: int) -> None:
    variants = grid(seed, 16)
    chosen = choose(variants)
    wanted = {pair for variant in variants for pair in pairs(variant)}
    for fewer in itertools.combinations(
        [set(pairs(variant)) for variant in variants], max(0, len(chosen) - 1)
    ):
        assert set().union(*fewer) != wanted


def test_a_large_grid_takes_no_long_search() -> None:
    variants = [cell(x, y, z, z) for x, y, z in itertools.product(range(12), range(12), SYSTEMS)]
    assert len(choose(variants)) == 12 * 12, "every pair of torch and CUDA takes one"


@pytest.mark.parametrize("name", editions())
def test_the_editions_are_covered_with_a_good_deal_less(name: str) -> None:
    made = torch_kernel(["cpu", "cuda", "rocm", "xpu", "metal"])
    full = select(made, load_catalog(name)).variants
    assert len(choose(full)) <= 0.8 * len(full)
