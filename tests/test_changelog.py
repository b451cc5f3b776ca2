"""CHANGELOG.md keeps its form, and a tag is released only if it, the code and the changelog agree."""

from __future__ import annotations

import pytest

import kci
from conftest import ROOT, load_script

check_release = load_script("check_release")

GOOD = """# Changelog

Some words.

## 0.2.0 - unreleased

### Added

- Something that takes
  two lines.

### Fixed

- Something.

## 0.1.0 - 2026-11-30

### Added

- Everything.
"""


def test_the_changelog_is_in_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert check_release.problems(text, kci.__version__) == []


def test_the_version_is_read_without_importing() -> None:
    assert check_release.code_version() == kci.__version__


def test_a_good_one() -> None:
    assert check_release.problems(GOOD, "0.2.0") == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("# Changelog", "# Changes", "the first line"),
        ("## 0.2.0 - unreleased", "## 0.2.0 (unreleased)", "is headed"),
        ("## 0.2.0 - unreleased", "## Unreleased", "is headed"),
        ("2026-11-30", "unreleased", "only the newest"),
        ("2026-11-30", "2026-11-31", "is no day"),
        ("## 0.1.0", "## 0.2.0", "not newer"),
        ("### Fixed", "### Bugs", "none of"),
        ("### Fixed", "### Added", "comes before"),
        ("### Fixed\n", "", ""),
        ("### Added\n\n- Something that", "- Something that", "in a section"),
        ("- Something.", "- something.", "like a sentence"),
        ("two lines.", "two lines", "full stop"),
        ("- Something.", "- Something", "full stop"),
        ("0.2.0 - ", "0.3.0 - ", "not about 0.2.0"),
        ("unreleased", "2026-01-01", "dated after"),
    ],
)
def test_what_is_wrong_is_said(old: str, new: str, said: str) -> None:
    found = check_release.problems(GOOD.replace(old, new, 1), "0.2.0")
    assert any(said in problem for problem in found) if said else found == []


def test_a_release_needs_a_date_and_the_tag_of_its_version() -> None:
    assert check_release.release_problems("v0.2.0", GOOD, "0.2.0") == [
        "the entry of 0.2.0 in CHANGELOG.md has no date yet"
    ]
    dated = GOOD.replace("unreleased", "2026-12-24")
    assert check_release.release_problems("v0.2.0", dated, "0.2.0") == []
    assert check_release.release_problems("v0.3.0", dated, "0.2.0") == ["the tag is v0.3.0, and the code says 0.2.0"]
