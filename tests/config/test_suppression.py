"""Silencing a rule for a place: comments, `[lint] ignore`, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import add_package
from kci.config.reader import parse_kernel
from kci.errors import FindingsError
from kci.matrix.catalog.rows import Catalog
from kci.plan.check import check_kernels, lint_kernel

TEXT = """\
[general]
name = "norm"
version = 1
edition = 5
license = "mit"
{above}
backends = ["cuda", "cuda"]{behind}
hub.repo-id = "acme/norm"

[torch-noarch]
"""


def rules_found(catalog: Catalog, above: str = "", behind: str = "") -> list[str]:
    made = parse_kernel(TEXT.format(above=above, behind=behind).encode())
    return [item.rule for item in lint_kernel(made, catalog, None)]


@pytest.mark.parametrize(
    ("above", "behind"),
    [
        ("", "  # kci: ignore[KCI132] on purpose"),
        ("# kci: ignore[KCI132] on purpose", ""),
        ("# kci: ignore[KCI132] on purpose\n# another comment", ""),
        ("", "#kci:ignore[ KCI132 ]: on purpose"),
    ],
)
def test_a_comment_with_a_reason_suppresses_its_place(catalog: Catalog, above: str, behind: str) -> None:
    assert rules_found(catalog, above, behind) == []


def test_several_rules_in_one_comment(catalog: Catalog) -> None:
    assert rules_found(catalog, "", "  # kci: ignore[KCI132, KCI130] on purpose") == ["KCI191"]


@pytest.mark.parametrize("behind", ["# kci: ignore[KCI132]", "# kci: ignore[KCI132]  - "])
@pytest.mark.rule("KCI190", triggers=True)
def test_without_a_reason_it_does_not_count(catalog: Catalog, behind: str) -> None:
    assert sorted(rules_found(catalog, "", behind)) == ["KCI132", "KCI190"]


@pytest.mark.rule("KCI191", triggers=True)
def test_a_comment_behind_a_line_is_not_for_the_next_one(catalog: Catalog) -> None:
    text = TEXT.format(above="", behind="").replace('"mit"\n', '"mit"  # kci: ignore[KCI132] wrong line\n')
    found = [item.rule for item in lint_kernel(parse_kernel(text.encode()), catalog, None)]
    assert sorted(found) == ["KCI132", "KCI191"] or found == ["KCI191", "KCI132"]


@pytest.mark.parametrize("behind", ["# kci: ignore all of it", "# kci: ignore[] all of it", "# kci: ignore[kci132] x"])
@pytest.mark.rule("KCI192", triggers=True)
def test_a_comment_without_a_known_rule(catalog: Catalog, behind: str) -> None:
    assert sorted(rules_found(catalog, "", behind)) == ["KCI132", "KCI192"]


def test_text_in_a_string_is_no_comment(catalog: Catalog) -> None:
    text = TEXT.format(above='upstream = "https://x/#kci:ignore[KCI132]reason"', behind="")
    assert [item.rule for item in lint_kernel(parse_kernel(text.encode()), catalog, None)] == ["KCI132"]


def test_warnings_of_reading_can_be_suppressed_and_errors_cannot(catalog: Catalog) -> None:
    suppressed = TEXT.format(above="", behind="").replace(', "cuda"]', "]").replace("edition = 5\n", "")
    suppressed = suppressed.replace("[general]", "# kci: ignore[KCI107] old tools read it too\n[general]")
    assert lint_kernel(parse_kernel(suppressed.encode()), catalog, None) == []
    broken = TEXT.format(above="", behind="").replace("version = 1", 'version = "1" # kci: ignore[KCI103] no')
    with pytest.raises(FindingsError, match="must be an integer"):
        parse_kernel(broken.encode())


def repository(tmp_path: Path, ignore: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        text = TEXT.format(above="", behind="").replace('"norm"', f'"norm-{name}"')
        (tmp_path / name / "build.toml").write_text(text)
        add_package(tmp_path / name)
    (tmp_path / "kci.toml").write_text(f"[lint]\nignore = [{ignore}]\n")
    monkeypatch.chdir(tmp_path)


def places(*directories: str) -> list[str]:
    return [f"{item.path}:{item.line}:{item.rule}" for item in check_kernels(directories).diagnostics]


@pytest.mark.rule("KCI191", triggers=False)
@pytest.mark.rule("KCI190", triggers=False)
@pytest.mark.rule("KCI192", triggers=False)
def test_an_entry_suppresses_a_rule_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path, '{ rule = "KCI132", path = "a/build.toml", reason = "on purpose" }', monkeypatch)
    assert places("a", "b") == ["b/build.toml:7:KCI132"]
    assert places("b") == ["b/build.toml:7:KCI132"], "an entry for a file that was not checked is left alone"
    monkeypatch.chdir(tmp_path / "a")
    assert places(".") == [], "paths are relative to kci.toml, wherever kci was called"


@pytest.mark.rule("KCI191", triggers=True)
@pytest.mark.parametrize("path", ["b/build.toml", "*/build.toml", "nowhere/build.toml"])
def test_an_entry_that_suppresses_nothing_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    repository(tmp_path, f'{{ rule = "KCI131", path = "{path}", reason = "x" }}', monkeypatch)
    assert "kci.toml:2:KCI191" in places("a", "b")


def test_patterns_suppress_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path, '{ rule = "KCI132", path = "*/build.toml", reason = "on purpose" }', monkeypatch)
    assert places("a", "b") == []


@pytest.mark.rule("KCI190", triggers=True)
def test_an_entry_with_an_empty_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path, '{ rule = "KCI132", path = "*", reason = " " }', monkeypatch)
    assert places("a") == ["a/build.toml:7:KCI132", "kci.toml:2:KCI190"]


@pytest.mark.rule("KCI192", triggers=True)
def test_an_entry_for_an_unknown_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path, '{ rule = "KCI131 ", path = "*", reason = "x" }', monkeypatch)
    assert "kci.toml:2:KCI192" in places("a")
