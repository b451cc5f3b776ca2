"""The editions that kci ships are consistent: their toolkits exist, and a job can build them."""

from __future__ import annotations

import pytest

from kci.config.values import Backend, Version
from kci.matrix.catalog.loading import editions, load_catalog
from kci.matrix.catalog.rows import Catalog, toolkits
from kci.matrix.catalog.runners import default_runners
from kci.matrix.variants import Kind, variant_name

IMAGES = {
    "cuda": {"12.4", "12.6", "12.8", "12.9", "13.0", "13.2", "13.4"},
    "rocm": {"7.0", "7.1", "7.2", "7.14"},
}
"""The versions of which the build images of runners.toml exist, as of 2026-11-20."""


@pytest.fixture(params=editions())
def edition(request: pytest.FixtureRequest) -> Catalog:
    return load_catalog(request.param)


def cuda_of(edition: Catalog) -> set[Version]:
    return {row.compute for row in edition.rows if row.backend is Backend.CUDA and row.compute}


def test_no_two_rows_have_the_same_variant_name(edition: Catalog) -> None:
    names = [
        variant_name(Kind.FULL, row.backend, row.system, row.torch, row.compute)
        for row in edition.rows
    ]
    assert len(names) == len(set(names))


def test_kci_knows_every_toolkit(edition: Catalog) -> None:
    known = [entry.version for entry in toolkits().toolkit]
    last = Version.parse(f"{known[-1].minor_text}.999")
    assert not [version for version in cuda_of(edition) if not known[0] <= version <= last]


def test_each_toolkit_can_build_what_is_built_by_default(edition: Catalog) -> None:
    for version in cuda_of(edition):
        assert [
            arch
            for arch in edition.archs.cuda_default(version)
            if not toolkits().builds(arch, version)
        ] == []


def test_a_runner_is_known_for_every_bundled_row(edition: Catalog) -> None:
    assert {row.system for row in edition.rows if row.bundled} <= default_runners().runner.keys()


def test_there_is_an_image_for_every_version_that_kci_compiles_for(edition: Catalog) -> None:
    for row in edition.rows:
        build = default_runners().build.get(str(row.backend))
        if build and row.compute and row.backend in IMAGES and row.system in build.image:
            assert row.compute.minor_text in IMAGES[row.backend]
