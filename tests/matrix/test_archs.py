"""Which archs a component is built for (docs/format.md#cuda-capabilities)."""

from __future__ import annotations

import pytest

from conftest import noarch_kernel, torch_kernel
from kci.config.model import Build
from kci.config.values import Version
from kci.matrix.archs import component_archs, intersect_capabilities, variant_archs
from kci.matrix.catalog.loading import load_catalog
from kci.matrix.catalog.rows import arch_tables
from kci.matrix.lints import lint_matrix
from kci.matrix.selection import select
from kci.matrix.variants import Kind

# What the reference's own code gives, by list and toolkit (docs/format.md#cuda-capabilities).
TABLE = [
    ("8.0 9.0a 12.0+PTX", "8.0 9.0a", "8.0 9.0a 12.0+PTX", "8.0 9.0a 12.0+PTX"),
    ("7.5 8.0 8.6 9.0 9.0a", "7.5 8.0 8.6 9.0a", "7.5 8.0 8.6 9.0a", "7.5 8.0 8.6 9.0a"),
    ("10.0a 10.0", "", "10.0 10.0a", "10.0a"),
    ("6.0+PTX", "6.0+PTX", "6.0+PTX", "6.0+PTX"),
    ("5.0 8.0 12.0a+PTX", "8.0", "8.0 12.0a+PTX", "8.0 12.0a+PTX"),
    ("10.0a 10.0f 10.0", "", "10.0 10.0a 10.0f", "10.0a 10.0f"),
]


@pytest.mark.parametrize("toolkit", [0, 1, 2], ids=["12.6", "12.8", "13.0"])
@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_the_loose_intersection(row: tuple[str, str, str, str], toolkit: int) -> None:
    default = arch_tables("2026-08-20").cuda_default(
        Version.parse(["12.6", "12.8", "13.0"][toolkit])
    )
    assert (
        " ".join(intersect_capabilities(tuple(row[0].split()), default, exact=False))
        == row[1 + toolkit]
    )


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ("8.0 9.0a 12.0+PTX", "8.0 9.0a 12.0+PTX"),
        ("7.5 8.0 9.0 9.0a", "7.5 8.0 9.0a"),
        ("9.0+PTX 9.0a", "9.0a"),
        ("10.0a 10.0f", "10.0a 10.0f"),
        ("9.1a 9.0a+PTX", "9.0a+PTX"),
        ("8.0 8.0+PTX", "8.0+PTX"),
        (
            "8.0 10.0 10.1 11.8 12.0",
            "8.0 10.0 12.0",
        ),  # as megablocks has it: 10.1 does not stand in for 10.3
        ("7.0 7.2 7.5", "7.5"),
        ("6.0+PTX", ""),
        ("10.3a 12.1+PTX", "10.3a 12.1+PTX"),
    ],
)
def test_the_exact_intersection(wanted: str, kept: str) -> None:
    """What the reference's own test of it expects, and what follows from that."""
    default = arch_tables().cuda_default(Version.parse("13.0"))
    assert " ".join(intersect_capabilities(tuple(wanted.split()), default, exact=True)) == kept


def built(*keys: str, backend: str = "cuda") -> Build:
    """A kernel with a component for each of these keys."""
    parts = (
        f'[kernel.part{number}]\nbackend = "{backend}"\ndepends = []\nsrc = []\n'
        for number, _ in enumerate(keys)
    )
    return torch_kernel(
        [backend], components="\n".join(map("".join, zip(parts, keys, strict=True)))
    ).build


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


def test_rocm_intersects_exactly() -> None:
    part = built('rocm-archs = ["gfx942", "gfx90a", "gfx940"]', backend="rocm").kernel["part0"]
    assert component_archs(part, Version.parse("7.1")) == ("gfx90a", "gfx942")


LISTS = 'cuda_capabilities = ["9.0", "11.8", "8.0"]\nrocm_archs = ["gfx942", "gfx1"]'
UNION = built('cuda-capabilities = ["7.5", "10.0"]', 'cuda-capabilities = ["8.0", "7.5"]')
MINVER = built('cuda-capabilities = ["8.0"]', 'cuda-capabilities = ["9.0a"]\ncuda-minver = "13.0"')


@pytest.mark.parametrize(
    ("made", "backend", "compute", "archs"),
    [
        # Textual, as a union; under 12.8 the 10.1 of the default list picks 10.0 as well, which is
        # there once.
        (UNION, "cuda", "13.0", "10.0 7.5 8.0"),
        (MINVER, "cuda", "12.6", "8.0"),  # a component below its cuda-minver counts for nothing
        (MINVER, "cuda", "13.0", "8.0 9.0a"),
        (torch_kernel(["rocm"]).build, "rocm", "7.2",
         "gfx1030 gfx1100 gfx1101 gfx1200 gfx1201 gfx906 gfx908 gfx90a gfx942 gfx950"),
        # of noarch, verbatim and only for its backend
        (noarch_kernel(["cpu", "cuda", "rocm"], LISTS).build, "cuda", "12.6", "9.0 11.8 8.0"),
        (noarch_kernel(["cpu", "cuda", "rocm"], LISTS).build, "rocm", "7.1", "gfx942 gfx1"),
        (noarch_kernel(["cpu", "cuda", "rocm"], LISTS).build, "cpu", "1", None),
    ],
)  # fmt: skip
def test_the_archs_of_the_metadata(
    made: Build, backend: str, compute: str, archs: str | None
) -> None:
    kind = Kind.NOARCH if made.torch_noarch else Kind.FULL
    assert variant_archs(made, kind, backend, Version.parse(compute)) == (
        archs and tuple(archs.split())
    )
