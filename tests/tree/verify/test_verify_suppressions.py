"""Suppressions of verification: a kernel's own repository may, a tree that came from elsewhere may not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.runner import kci
from kci.config.suppression import line_suppression
from kci.plan.check import check_kernels
from kci.tree.verify import verify, verify_with_suppressions
from variants import make_variant

BAD = "import numpy\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "build.toml").write_text(
        '[general]\nname = "gated-norm"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
        'hub.repo-id = "a/b"\n[torch-noarch]\n'
    )
    package = tmp_path / "torch-ext" / "gated_norm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BAD)
    return tmp_path


def rules(path: Path) -> list[str]:
    return [item.rule for item in verify(path) if item.rule.startswith("KCI7")]


def test_a_comment_of_build_toml_holds_for_the_kernel(repository: Path) -> None:
    assert rules(repository) == ["KCI771"]
    text = (repository / "build.toml").read_text()
    (repository / "build.toml").write_text(f"# kci: ignore[KCI771] our users have numpy\n{text}")
    assert rules(repository) == []
    (suppressed,) = verify_with_suppressions(repository).suppressed
    assert (suppressed.diagnostic.rule, suppressed.reason) == ("KCI771", "our users have numpy")
    assert "KCI191" not in [item.rule for item in check_kernels([str(repository)]).diagnostics]
    (repository / "build.toml").write_text(f"# kci: ignore[KCI771]\n{text}")
    assert rules(repository) == ["KCI771"]


@pytest.mark.parametrize(
    "text",
    [
        "import numpy  # kci: ignore[KCI771] always there\n",
        "# kci: ignore[KCI771, KCI773]: always there\nimport numpy\n",
    ],
)
def test_a_comment_in_a_source_file_holds_for_its_line(repository: Path, text: str) -> None:
    (repository / "torch-ext" / "gated_norm" / "__init__.py").write_text(text)
    assert rules(repository) == []
    assert verify_with_suppressions(repository).suppressed[0].reason == "always there"


@pytest.mark.parametrize("text", ["import numpy  # kci: ignore[KCI771]\n", "import numpy  # kci: ignore[KCI773] no\n"])
def test_a_comment_without_a_reason_or_for_another_rule_does_not_count(repository: Path, text: str) -> None:
    (repository / "torch-ext" / "gated_norm" / "__init__.py").write_text(text)
    assert rules(repository) == ["KCI771"]


def test_a_comment_behind_something_is_not_about_the_next_line(repository: Path) -> None:
    (repository / "torch-ext" / "gated_norm" / "__init__.py").write_text(
        "import os  # kci: ignore[KCI771] always there\nimport numpy\n"
    )
    assert rules(repository) == ["KCI771"]


def test_comments_of_c_plus_plus_count_too() -> None:
    lines = [
        "TORCH_LIBRARY(relu, m)  // kci: ignore[KCI781] shared with another kernel",
        "/* kci: ignore[KCI781] x */",
        "y",
    ]
    assert line_suppression(lines, 1, "KCI781") == "shared with another kernel"
    assert line_suppression(lines, 3, "KCI781") == "x"
    assert line_suppression(lines, 2, "KCI771") is None


def test_kci_toml_suppressions_in_trees(repository: Path) -> None:
    variant = make_variant(repository / "build", "torch-cpu", files={"__init__.py": BAD})
    assert rules(variant) == ["KCI771"]
    (repository / "kci.toml").write_text(
        '[[lint.ignore]]\nrule = "KCI771"\npath = "build/*/__init__.py"\nreason = "numpy is there"\n'
        '[[lint.ignore]]\nrule = "KCI723"\npath = "build"\nreason = "made by hand"\n'
        '[[lint.ignore]]\nrule = "KCI132"\npath = "build.toml"\nreason = "not about trees"\n'
    )
    assert rules(variant) == []
    done = kci("verify", repository / "build", "--format", "json")
    answer = json.loads(done.stdout)
    assert answer["diagnostics"] == []
    assert sorted(item["reason"] for item in answer["suppressed"]) == ["made by hand", "numpy is there"]
    assert "2 suppressed" in done.stderr
    shown = kci("verify", repository / "build", "--format", "markdown")
    assert "numpy is there" in shown.stdout
    assert "because: numpy is there" in kci("verify", repository / "build", "-v").stderr


def test_an_entry_of_kci_toml_for_verification_is_left_alone_by_check(repository: Path) -> None:
    entry = '[[lint.ignore]]\nrule = "{}"\npath = "build.toml"\nreason = "x"\n'
    (repository / "kci.toml").write_text(entry.format("KCI112") + entry.format("KCI771"))
    lines = [item.line for item in check_kernels([str(repository)]).diagnostics if item.rule == "KCI191"]
    assert lines == [2]


def test_a_tree_cannot_suppress_itself(tmp_path: Path) -> None:
    text = "# kci: ignore[KCI771] trust me\nimport numpy  # kci: ignore[KCI771] trust me\n"
    variant = make_variant(tmp_path / "build", "torch-cpu", files={"__init__.py": text})
    ignore = '[[lint.ignore]]\nrule = "KCI771"\npath = "*"\nreason = "trust me"\n'
    (variant / "kci.toml").write_text(ignore)
    (tmp_path / "build" / "kci.toml").write_text(ignore)
    assert "KCI771" in rules(tmp_path / "build")
    assert verify_with_suppressions(tmp_path / "build").suppressed == ()


def test_a_kci_toml_that_cannot_be_read_is_a_finding(repository: Path) -> None:
    (repository / "kci.toml").write_text("[lint\n")
    assert any(not item.rule.startswith("KCI7") for item in verify(repository))
