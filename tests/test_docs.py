"""The generated pages of docs/ are what their sources say."""

from __future__ import annotations

import re

import pytest

from conftest import ROOT
from forked import fork_server
from kci.diagnostics import rules


def test_generated_pages_are_up_to_date() -> None:
    code, said, errors = fork_server().run(
        "--check", script=ROOT / "bin" / "gen_docs.py", folder=ROOT
    )
    assert code == 0, f"run `python bin/gen_docs.py`\n{said}{errors}"


def test_every_rule_is_on_the_page_of_its_family() -> None:
    pages = sorted((ROOT / "docs" / "rules").glob("*.md"))
    texts = [page.read_text(encoding="utf-8") for page in pages]
    found = [
        rule
        for text in texts
        for rule in re.findall(r"^\| <a id=\"kci[0-9]{3}\"></a>(KCI[0-9]{3}) ", text, re.MULTILINE)
    ]
    assert sorted(found) == sorted(rules())


def test_no_link_is_called_by_the_name_of_a_file() -> None:
    """Readers of the site do not know the files of docs/."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    named = [
        (page.name, link)
        for page in pages
        for link in re.findall(r"\[[a-z-]+\.md\]", page.read_text(encoding="utf-8"))
    ]
    assert named == []


@pytest.mark.parametrize(
    "words", ["^### Upgrade$", "^### Uninstall$", "^## Debug a test$", "LOCAL_KERNELS"]
)
def test_a_search_of_the_pages_finds(words: str) -> None:
    texts = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    assert any(re.search(words, text, re.MULTILINE) for text in texts)
