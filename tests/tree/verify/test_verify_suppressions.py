"""Suppressions of verification: a kernel's own repository may, a tree that came from elsewhere may
not.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.runner import kci
from conftest import write_noarch
from kci.tree.verify import verify, verify_with_suppressions
from variants import make_variant

BAD = "import numpy\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    return write_noarch(tmp_path, "gated-norm", general='hub.repo-id = "a/b"\n', code=BAD)


def rules(path: Path) -> list[str]:
    return [item.rule for item in verify(path) if item.rule.startswith("KCI7")]


def ignored(rule: str, path: str, reason: str) -> str:
    return f'[[lint.ignore]]\nrule = "{rule}"\npath = "{path}"\nreason = "{reason}"\n'


def test_an_entry_holds_for_a_source_file(repository: Path) -> None:
    assert rules(repository) == ["KCI771"]
    (repository / "kci.toml").write_text(ignored("KCI771", "torch-ext/*", "our users have numpy"))
    assert rules(repository) == []
    (suppressed,) = verify_with_suppressions(repository).suppressed
    assert (suppressed.diagnostic.rule, suppressed.reason) == ("KCI771", "our users have numpy")
    (repository / "kci.toml").write_text(ignored("KCI771", "torch-ext/*", " "))
    assert rules(repository) == ["KCI771"], "without a reason it does not count"


def test_kci_toml_suppressions_in_trees(repository: Path) -> None:
    variant = make_variant(repository / "build", "torch-cpu", files={"__init__.py": BAD})
    assert rules(variant) == ["KCI771"]
    (repository / "kci.toml").write_text(
        ignored("KCI771", "build/*/__init__.py", "numpy is there")
        + ignored("KCI723", "build", "made by hand")
        + ignored("KCI107", "build.toml", "not about trees")
    )
    assert rules(variant) == ["KCI771"], "it may have come with the tree"
    assert verify(variant, kernel=repository) == []
    (repository / "torch-ext/gated_norm/__init__.py").write_text("")
    done = kci("verify", repository, "--format", "json")
    answer = json.loads(done.stdout)
    assert answer["diagnostics"] == []
    reasons = sorted(item["reason"] for item in answer["suppressed"])
    assert reasons == ["made by hand", "numpy is there"]
    assert "2 suppressed" in done.stderr
    assert "because: numpy is there" in kci("verify", repository, "-v").stderr


def test_a_tree_cannot_suppress_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = make_variant(tmp_path / "build", "torch-cpu", files={"__init__.py": BAD})
    ignore = ignored("KCI771", "*", "trust me")
    (variant / "kci.toml").write_text(ignore)
    for place in (tmp_path / "build", tmp_path):
        (place / "kci.toml").write_text(ignore)
        monkeypatch.chdir(place)
        assert "KCI771" in rules(tmp_path / "build")
        assert verify_with_suppressions(tmp_path / "build").suppressed == ()


def test_a_kci_toml_that_cannot_be_read_is_a_finding(repository: Path) -> None:
    (repository / "kci.toml").write_text("[lint\n")
    assert any(not item.rule.startswith("KCI7") for item in verify(repository))
