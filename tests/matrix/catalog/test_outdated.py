"""`kci catalog outdated`: how old the catalog in force is, and whether kci has a newer edition."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from cli.runner import kci
from kci.matrix.catalog.loading import freshness, load_catalog


@pytest.mark.parametrize(
    ("edition", "today", "days", "outdated"),
    [
        ("2026-09-17", "2026-10-01", 14, False),
        ("2026-09-17", "2026-11-21", 65, True),
        ("2026-08-20", "2026-09-18", 29, True),
        ("2026-08-20", "2026-09-01", 12, False),
    ],
)
def test_a_catalog_is_outdated_if_it_is_old_or_a_newer_one_is_there(
    edition: str, today: str, days: int, outdated: bool
) -> None:
    found = freshness(load_catalog(edition), date.fromisoformat(today))
    assert (found.days, found.outdated) == (days, outdated)


def test_outdated_looks_at_the_catalog_of_kci_toml(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "kci.toml").write_text('catalog = "2026-08-20"\n')
    done = kci("catalog", "outdated", tmp_path, "--format", "json")
    answer = json.loads(done.stdout)
    assert (done.code, answer["outdated"], answer["freshness"]["name"]) == (1, True, "2026-08-20")
    assert "newer: 2026-09-02" in kci("catalog", "outdated", tmp_path).stdout
