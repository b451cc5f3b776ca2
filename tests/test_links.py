"""The pages of docs/ and what points at them: every link and citation leads somewhere, and none to
a lost document.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from checkout import checkout_files
from conftest import ROOT

TEXTS = (".md", ".py", ".toml", ".yml", ".j2", ".sh", ".txt")
CITATION = re.compile(r"docs/([a-z-]+\.md)#([A-Za-z0-9_-]+)")
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


def texts() -> list[Path]:
    files = [ROOT / name for name in checkout_files() if name.endswith(TEXTS)]
    return [file for file in files if file != Path(__file__)]


def anchors(page: Path) -> set[str]:
    """What a link into a page may name: its explicit anchors, and those that GitHub makes of
    headings.
    """
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def explicit(page: Path) -> set[str]:
    return set(
        re.findall(r'^<a id="([^"]+)"></a>$', page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )


def test_citations_name_an_anchor_that_exists() -> None:
    cited = {
        (str(file.relative_to(ROOT)), page, anchor)
        for file in texts()
        for page, anchor in CITATION.findall(file.read_text(encoding="utf-8"))
    }
    assert len(cited) > 50
    lost = [where for where in sorted(cited) if where[2] not in anchors(ROOT / "docs" / where[1])]
    assert lost == []


def test_the_format_is_cited_by_anchors_that_outlive_a_heading() -> None:
    known = explicit(ROOT / "docs" / "format.md")
    cited = {
        anchor
        for file in texts()
        for page, anchor in CITATION.findall(file.read_text(encoding="utf-8"))
        if page == "format.md"
    }
    assert cited - known == set()


def test_every_section_of_the_format_has_an_anchor_of_its_own() -> None:
    lines = (ROOT / "docs" / "format.md").read_text(encoding="utf-8").splitlines()
    bare = [
        line
        for before, line in pairwise(lines)
        if re.match(r"##+ ", line) and "<a id=" not in before
    ]
    assert bare == []
    found = re.findall(r'<a id="([^"]+)">', "\n".join(lines))
    assert len(found) == len(set(found))


PAGES = [
    file for file in texts() if file.suffix == ".md" and "tests" not in file.relative_to(ROOT).parts
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        known = there.exists() and (not anchor or anchor in anchors(there))
        if not known:
            broken.append(target)
    assert broken == []


def quoted() -> list[str]:
    return re.findall(r"`([^`\s]+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


def test_the_files_that_the_recipes_name_exist() -> None:
    roots = (ROOT, ROOT / "src" / "kci", ROOT / "src" / "kci" / "matrix" / "catalog" / "data")
    named = {name for name in quoted() if re.fullmatch(r"[\w./-]+(\.(py|toml|md|yml)|/)", name)}
    assert len(named) > 20
    lost = {name for name in named if not any((root / name).exists() for root in roots)}
    assert lost == {"build.toml", "kci.toml"}, "those two are users' files"


def test_the_names_that_the_recipes_give_exist() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    names = [name for name in quoted() if re.fullmatch(r"_?[A-Z][A-Za-z_]{4,}", name)]
    assert len(names) >= 5
    assert [
        name for name in names if not re.search(rf"\b{name}\b", code) and name != "KCI_CACHE"
    ] == []
