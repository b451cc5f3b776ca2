"""`[[lint.ignore]]`: a rule that does not hold in some files."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import add_package
from kci.plan.check import check_kernels

TEXT = """\
[general]
name = "norm"
version = 1
license = "mit"
backends = ["cuda"]
hub.repo-id = "acme/norm"

[torch-noarch]
"""
ENTRY = '[[lint.ignore]]\nrule = "{}"\npath = "{}"\nreason = "{}"\n'


def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *entry: str) -> None:
    (tmp_path / ".git").mkdir()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "build.toml").write_text(TEXT.replace('"norm"', f'"norm-{name}"'))
        add_package(tmp_path / name)
    (tmp_path / "kci.toml").write_text(ENTRY.format(*entry))
    monkeypatch.chdir(tmp_path)


def places(*directories: str) -> list[str]:
    return [f"{item.path}:{item.rule}" for item in check_kernels(directories).diagnostics]


def test_an_entry_suppresses_a_rule_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(tmp_path, monkeypatch, "KCI107", "a/build.toml", "on purpose")
    assert places("a", "b") == ["b/build.toml:KCI107"]
    monkeypatch.chdir(tmp_path / "a")
    assert places(".") == [], "paths are relative to kci.toml, wherever kci was called"


@pytest.mark.parametrize(
    ("rule", "path", "said"), [("KCI107", "*/build.toml", False), ("KCI131", "*", True)]
)
def test_an_entry_is_for_all_files_that_match_and_for_its_rule_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, path: str, said: bool
) -> None:
    repository(tmp_path, monkeypatch, rule, path, "on purpose")
    assert places("a", "b") == (["a/build.toml:KCI107", "b/build.toml:KCI107"] if said else [])


@pytest.mark.rule("KCI330", triggers=True)
@pytest.mark.parametrize(
    ("rule", "reason"), [("KCI107", " "), ("KCI107 ", "on purpose"), ("KCI9999", "on purpose")]
)
def test_an_entry_without_a_reason_or_a_rule_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, reason: str
) -> None:
    repository(tmp_path, monkeypatch, rule, "*", reason)
    assert places("a") == ["a/build.toml:KCI107", "kci.toml:KCI330"]
