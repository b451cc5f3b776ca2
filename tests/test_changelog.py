"""Fragments become an entry of the changelog, and a tag is released only if it, the code and the
changelog agree.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import kci
from conftest import ROOT, load_script

check_release = load_script("check_release")

ENTRY = "# Changelog\n\n## 0.2.0 - 2026-12-24\n\n### Added\n\n- Something.\n"


def test_fragments_become_an_entry(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / ".changes", tmp_path / ".changes")
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", kci.__version__]
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    text = (tmp_path / "CHANGELOG.md").read_text()
    left = [path.name for path in (tmp_path / ".changes").glob("*.md")]
    assert check_release.release_problems(f"v{kci.__version__}", text, kci.__version__, left) == []
    for fragment in (ROOT / ".changes").glob("*.md"):
        assert fragment.read_text().splitlines()[0] in text, (
            f"{fragment.name} is of no kind in pyproject.toml"
        )


def test_a_release_needs_the_tag_of_its_version_and_an_entry() -> None:
    problems = check_release.release_problems
    assert check_release.code_version() == kci.__version__, "it is read without importing"
    assert problems("v0.2.0", ENTRY, "0.2.0", []) == []
    assert problems("v0.3.0", ENTRY, "0.2.0", []) == ["the tag is v0.3.0, and the code says 0.2.0"]
    (problem,) = problems("v0.3.0", ENTRY, "0.3.0", [])
    assert "not about 0.3.0" in problem
    (problem,) = problems("v0.2.0", ENTRY, "0.2.0", ["12.added.md"])
    assert problem.startswith("12.added.md is in no entry")
