"""The pages of docs/ are what their sources say, and every link and citation leads somewhere, none
to a lost document.
"""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from checkout import checkout_files
from conftest import ROOT, ran
from kci.diagnostics import rules


def test_generated_pages_are_up_to_date() -> None:
    done = ran(sys.executable, "bin/gen_docs.py", "--check")
    assert done.returncode == 0, f"run `python bin/gen_docs.py`\n{done.stdout}{done.stderr}"


def test_every_rule_is_on_the_page_of_its_family() -> None:
    pages = (ROOT / "docs" / "rules").glob("*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    found = re.findall(r"^\| <a id=\"kci[0-9]{3}\"></a>(KCI[0-9]{3}) ", text, re.MULTILINE)
    assert sorted(found) == sorted(rules())


def test_pages_have_what_people_search_and_no_link_that_is_called_like_a_file() -> None:
    """Readers of the site do not know the files of docs/."""
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")}
    called = re.compile(r"\[[a-z-]+\.md\]")
    assert [name for name, text in (pages | {"": README}).items() if called.search(text)] == []
    for words in ("^### Upgrade$", "^### Uninstall$", "^## Debug a test$", "LOCAL_KERNELS"):
        assert any(re.search(words, text, re.MULTILINE) for text in pages.values()), words


README = (ROOT / "README.md").read_text(encoding="utf-8")
ENDINGS = (".md", ".py", ".toml", ".yml", ".j2", ".sh", ".txt")
CITATION = re.compile(r"docs/([a-z-]+\.md)#([A-Za-z0-9_-]+)")
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


def texts() -> list[Path]:
    files = [ROOT / name for name in checkout_files() if name.endswith(ENDINGS)]
    return [file for file in files if file != Path(__file__)]


def anchors(page: Path) -> set[str]:
    """What a link into a page may name: its explicit anchors, and those that GitHub makes of
    headings.
    """
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_citations_name_an_anchor_that_exists() -> None:
    cited = {
        (str(file.relative_to(ROOT)), page, anchor)
        for file in texts()
        for page, anchor in CITATION.findall(file.read_text(encoding="utf-8"))
    }
    assert len(cited) > 50
    lost = [where for where in sorted(cited) if where[2] not in anchors(ROOT / "docs" / where[1])]
    assert lost == []
    page = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    outlive_a_heading = re.findall(r'(?m)^<a id="([^"]+)"></a>$', page)
    assert {where[2] for where in cited if where[1] == "format.md"} <= {*outlive_a_heading}
    sections = (pair for pair in pairwise(page.splitlines()) if pair[1].startswith("##"))
    assert [line for before, line in sections if "<a id=" not in before] == []
    assert page.count("<a id=") == len(set(re.findall(r'<a id="([^"]+)">', page)))


PAGES = [
    file for file in texts() if file.suffix == ".md" and "tests" not in file.relative_to(ROOT).parts
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in LINK.findall(text):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), target


def test_the_files_and_names_that_the_recipes_give_exist() -> None:
    quoted = re.findall(r"`([^`\s]+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    roots = (ROOT, ROOT / "src" / "kci", ROOT / "src" / "kci" / "matrix" / "catalog" / "data")
    files = {name for name in quoted if re.fullmatch(r"[\w./-]+(\.(py|toml|md|yml)|/)", name)}
    assert len(files) > 20
    lost = {name for name in files if not any((root / name).exists() for root in roots)}
    assert lost == {"build.toml", "kci.toml"}, "those two are users' files"
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    names = [name for name in quoted if re.fullmatch(r"_?[A-Z][A-Za-z_]{4,}", name)]
    assert len(names) >= 5
    assert {name for name in names if not re.search(rf"\b{name}\b", code)} <= {"KCI_CACHE"}
