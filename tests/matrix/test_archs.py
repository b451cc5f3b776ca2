"""Which archs a component is built for (docs/format.md#cuda-capabilities), and custom tiers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import failure, many, noarch_kernel, refusal, torch_kernel
from kci.config.discovery import RepositorySettings
from kci.config.document import parse_document
from kci.config.model import Build
from kci.config.reader import read_as
from kci.config.settings import Settings
from kci.config.values import SYSTEMS, Backend, Tier, Version
from kci.errors import UsageError
from kci.matrix.archs import component_archs, intersect_capabilities, variant_archs
from kci.matrix.catalog.loading import editions, load_catalog
from kci.matrix.catalog.rows import Catalog, arch_tables
from kci.matrix.lints import lint_matrix
from kci.matrix.selection import select
from kci.matrix.tiers import choose, pairs, tier_of
from kci.matrix.variants import Kind, Variant

# What the reference's own code gives at 12.6, 12.8 and 13.0, before it intersected exactly
# (docs/format.md#cuda-capabilities).
LOOSE = [
    ("8.0 9.0a 12.0+PTX", "8.0 9.0a", "8.0 9.0a 12.0+PTX", "8.0 9.0a 12.0+PTX"),
    ("7.5 8.0 8.6 9.0 9.0a", "7.5 8.0 8.6 9.0a", "7.5 8.0 8.6 9.0a", "7.5 8.0 8.6 9.0a"),
    ("10.0a 10.0", "", "10.0 10.0a", "10.0a"),
    ("6.0+PTX", "6.0+PTX", "6.0+PTX", "6.0+PTX"),
    ("5.0 8.0 12.0a+PTX", "8.0", "8.0 12.0a+PTX", "8.0 12.0a+PTX"),
    ("10.0a 10.0f 10.0", "", "10.0 10.0a 10.0f", "10.0a 10.0f"),
]
# What its own test of the exact intersection expects at 13.0, and what follows from that.
EXACT = [
    ("8.0 9.0a 12.0+PTX", "8.0 9.0a 12.0+PTX"),
    ("7.5 8.0 9.0 9.0a", "7.5 8.0 9.0a"),
    ("9.0+PTX 9.0a", "9.0a"),
    ("10.0a 10.0f", "10.0a 10.0f"),
    ("9.1a 9.0a+PTX", "9.0a+PTX"),
    ("8.0 8.0+PTX", "8.0+PTX"),
    ("8.0 10.0 10.1 11.8 12.0", "8.0 10.0 12.0"),  # as megablocks: 10.1 is not for 10.3
    ("7.0 7.2 7.5", "7.5"),
    ("6.0+PTX", ""),
    ("10.3a 12.1+PTX", "10.3a 12.1+PTX"),
]


@pytest.mark.parametrize(
    ("toolkit", "wanted", "kept", "exact"),
    [
        *(("13.0", *row, True) for row in EXACT),
        *((at, row[0], kept, False) for row in LOOSE
            for at, kept in zip(("12.6", "12.8", "13.0"), row[1:], strict=True)),
    ],
)  # fmt: skip
def test_the_intersection(toolkit: str, wanted: str, kept: str, exact: bool) -> None:
    default = arch_tables(None if exact else "2026-08-20").cuda_default(Version.parse(toolkit))
    assert " ".join(intersect_capabilities(tuple(wanted.split()), default, exact=exact)) == kept


def built(*keys: str, backend: str = "cuda") -> Build:
    """A kernel with a component for each of these keys."""
    parts = (
        f'[kernel.part{number}]\nbackend = "{backend}"\ndepends = []\nsrc = []\n{more}\n'
        for number, more in enumerate(keys)
    )
    return torch_kernel([backend], components="".join(parts)).build


@pytest.mark.parametrize(
    ("day", "since", "kept"),
    [("2026-08-20", None, ("7.0", "8.0")), ("2026-08-25", "2026-08-25", ("7.0", "8.0", "10.1")),
     ("2026-09-17", "2026-08-26", ("8.0",))],
)  # fmt: skip
def test_the_day_of_the_edition_says_how_lists_are_intersected(
    day: str, since: str | None, kept: tuple[str, ...]
) -> None:
    part = built('cuda-capabilities = ["7.0", "8.0", "10.1"]').kernel["part0"]
    tables = arch_tables(day)
    assert tables.since == since
    assert component_archs(part, Version.parse("13.0"), tables) == kept


@pytest.mark.parametrize(
    ("toolkit", "first", "last"),
    [("11.8", "7.0", "9.0+PTX"), ("12.6", "7.0", "9.0+PTX"), ("12.8", "7.0", "12.0+PTX"),
        ("12.9", "7.0", "12.0+PTX"),
     ("13.0", "7.5", "12.1+PTX"), ("13.2", "7.5", "12.1+PTX"), ("14.0", "7.5", "12.1+PTX")],
)  # fmt: skip
def test_the_default_list_follows_the_toolkit(toolkit: str, first: str, last: str) -> None:
    default = arch_tables().cuda_default(Version.parse(toolkit))
    assert (default[0], default[-1]) == (first, last)


@pytest.mark.parametrize(
    ("backend", "key"), [("cuda", "cuda-capabilities"), ("rocm", "rocm-archs")]
)
def test_an_empty_list_counts_as_none(backend: str, key: str) -> None:
    """The reference's templates and its CMake code test lists for being true."""
    parts = f'[kernel.one]\nbackend = "{backend}"\ndepends = []\nsrc = []\n{key} = []\n'
    empty, none = torch_kernel([backend], components=parts), torch_kernel([backend])
    assert select(empty, load_catalog()).variants == select(none, load_catalog()).variants
    assert lint_matrix(empty, load_catalog()) == []


LISTS = 'cuda_capabilities = ["9.0", "11.8", "8.0"]\nrocm_archs = ["gfx942", "gfx1"]'
UNION = built('cuda-capabilities = ["7.5", "10.0"]', 'cuda-capabilities = ["8.0", "7.5"]')
ROCM = built('rocm-archs = ["gfx942", "gfx90a", "gfx940"]', backend="rocm")
MINVER = built('cuda-capabilities = ["8.0"]', 'cuda-capabilities = ["9.0a"]\ncuda-minver = "13.0"')


@pytest.mark.parametrize(
    ("made", "backend", "compute", "archs"),
    [
        # Textual, as a union; under 12.8 the 10.1 of the default list picks 10.0 as well, which is
        # there once.
        (UNION, "cuda", "13.0", "10.0 7.5 8.0"),
        (MINVER, "cuda", "12.6", "8.0"),  # a component below its cuda-minver counts for nothing
        (MINVER, "cuda", "13.0", "8.0 9.0a"),
        (ROCM, "rocm", "7.1", "gfx90a gfx942"),
        (torch_kernel(["rocm"]).build, "rocm", "7.2",
         "gfx1030 gfx1100 gfx1101 gfx1200 gfx1201 gfx906 gfx908 gfx90a gfx942 gfx950"),
        # of noarch, verbatim and only for its backend
        (noarch_kernel(["cpu", "cuda", "rocm"], LISTS).build, "cuda", "12.6", "9.0 11.8 8.0"),
        (noarch_kernel(["cpu", "cuda", "rocm"], LISTS).build, "rocm", "7.1", "gfx942 gfx1"),
        (noarch_kernel(["cpu", "cuda", "rocm"], LISTS).build, "cpu", "1", None),
    ],
)  # fmt: skip
def test_archs_of_the_metadata(made: Build, backend: str, compute: str, archs: str | None) -> None:
    kind = Kind.NOARCH if made.torch_noarch else Kind.FULL
    found = variant_archs(made, kind, backend, Version.parse(compute))
    assert found == (archs and tuple(archs.split()))


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


def test_a_tier_that_does_not_exist_is_wrong_usage() -> None:
    assert failure(UsageError, "", tier_of, "nihgtly", found()).hint == "did you mean `nightly`?"
    failure(UsageError, "", tier_of, "nightly", RepositorySettings())


@pytest.mark.rule("KCI128", triggers=True)
def test_a_bad_expression_is_told_with_its_place() -> None:
    (problem,) = refusal(tier_of, "nightly", found(KCI_TOML.replace("not cuda", "not cdua")))
    assert (problem.rule, problem.line, problem.column) == ("KCI128", 6, 32)


@pytest.mark.rule("KCI214", "KCI215", triggers=True)
def test_a_tier_narrows_its_base_and_says_so(catalog: Catalog) -> None:
    base, filters = tier_of("nightly", found(), thinned=True)
    _, unthinned = tier_of("nightly", found(), thinned=False)
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
    gone = len(whole.variants) - len(thinned.variants)
    assert [item.rule for item in thinned.dropped].count("KCI215") == gone


@pytest.mark.rule("KCI214", "KCI215", triggers=False)
def test_a_tier_that_asks_for_nothing_drops_nothing(catalog: Catalog) -> None:
    base, filters = tier_of("plain", found())
    made = torch_kernel(["cpu", "cuda", "rocm"])
    assert base is Tier.RELEASE
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
def test_each_pair_is_covered_none_twice_in_any_order(variants, random) -> None:
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
    every = itertools.product(torches, computes, systems)
    places = [place for place in every if random.random() < share]
    return [cell(x, y, z, SYSTEMS[z]) for x, y, z in random.sample(places, min(most, len(places)))]


@pytest.mark.parametrize("seed", range(60))
def test_no_smaller_selection_covers_all_pairs(seed: int) -> None:
    variants = grid(seed, 16)
    chosen = choose(variants)
    each = [set(pairs(variant)) for variant in variants]
    for fewer in itertools.combinations(each, max(0, len(chosen) - 1)):
        assert set().union(*fewer) != pairs_of(variants)


def test_a_large_grid_takes_no_long_search() -> None:
    variants = [cell(x, y, z, z) for x, y, z in itertools.product(range(12), range(12), SYSTEMS)]
    assert len(choose(variants)) == 12 * 12, "every pair of torch and CUDA takes one"


@pytest.mark.parametrize("name", editions())
def test_the_editions_are_covered_with_a_good_deal_less(name: str) -> None:
    made = torch_kernel(["cpu", "cuda", "rocm", "xpu", "metal"])
    full = select(made, load_catalog(name)).variants
    assert len(choose(full)) <= 0.8 * len(full)
