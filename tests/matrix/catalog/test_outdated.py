"""`kci catalog outdated`: how old the catalog in force is, and whether kci has a newer edition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.runner import kci


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--today", "2026-10-01", "--catalog", "2026-09-17"], 0, "2026-09-17: 14 days old"),
        (["--today", "2026-11-21", "--catalog", "2026-09-17"], 1, "65 days old; a catalog is outdated after 56"),
        (["--today", "2026-11-21", "--days", "90", "--catalog", "2026-09-17"], 0, "outdated after 90"),
        (["--today", "2026-09-18", "--catalog", "2026-08-20"], 1, "newer: 2026-09-02, 2026-09-17"),
        (["--today", "2026-09-01", "--catalog", "2026-08-20"], 0, "2026-08-20: 12 days old"),
        (["--today", "soon"], 2, ""),
    ],
)
def test_outdated_says_how_old_the_catalog_is(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    done = kci("catalog", "outdated", tmp_path, *arguments)
    assert (done.code, said in done.stdout) == (code, True)


def test_outdated_looks_at_the_catalog_of_kci_toml(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "kci.toml").write_text('catalog = "2026-08-20"\n')
    answer = json.loads(kci("catalog", "outdated", tmp_path, "--today", "2026-09-03", "--format", "json").stdout)
    assert (answer["outdated"], answer["freshness"]["name"], answer["freshness"]["days"]) == (True, "2026-08-20", 14)
