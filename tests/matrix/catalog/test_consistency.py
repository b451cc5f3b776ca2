"""The editions that kci ships are consistent: their toolkits exist, and a job can build them."""

from __future__ import annotations

import pytest

from kci.config.values import SYSTEMS, Backend, Version
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


def test_every_edition_is_sound(edition: Catalog) -> None:
    assert edition.source
    assert len({row.key for row in edition.rows}) == len(edition.rows), "a row stands twice"
    assert all(load_catalog(neighbor) for neighbor in edition.neighbors)
    named = {
        variant_name(Kind.FULL, row.backend, row.system, row.torch, row.compute)
        for row in edition.rows
    }
    assert len(named) == len(edition.rows), "two rows have one variant name"
    for row in edition.rows:
        path, line = row.line()
        assert edition.document.text.split("\n")[line - 1] == "[[row]]", path


def test_each_toolkit_is_known_and_can_build_what_is_built_by_default(edition: Catalog) -> None:
    known = [entry.version for entry in toolkits().toolkit]
    last = Version.parse(f"{known[-1].minor_text}.999")
    for row in edition.rows:
        if row.backend is Backend.CUDA and (version := row.compute):
            assert known[0] <= version <= last
            assert all(
                toolkits().builds(arch, version) for arch in edition.archs.cuda_default(version)
            )


def test_a_job_can_build_every_row(edition: Catalog) -> None:
    assert {row.system for row in edition.rows} <= set(SYSTEMS)
    assert {row.system for row in edition.rows if row.bundled} <= default_runners().runner.keys()
    for row in edition.rows:
        build = default_runners().build.get(str(row.backend))
        if build and row.compute and row.backend in IMAGES and row.system in build.image:
            assert row.compute.minor_text in IMAGES[row.backend]
