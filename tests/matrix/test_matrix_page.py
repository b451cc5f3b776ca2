"""`kci matrix --format html`: what is on the page, that nothing in it is believed, and how it behaves."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from cli.runner import kci
from conftest import ROOT, torch_kernel
from kci.matrix.catalog.rows import Catalog
from kci.matrix.grid_page import Chip, PageSection, matrix_page, table_page
from kci.matrix.selection import compute_matrix
from watch.browser import Browser

EXAMPLES = ROOT / "examples"
EDITION = ("--catalog", "2026-08-20")


class Rows(HTMLParser):
    """The rows of the tables of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.keys: list[dict[str, str]] = []
        self.links: list[str] = []
        self._open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag == "tr":
            self.rows.append([])
            self.keys.append({name: value or "" for name, value in attrs})
        if tag in ("td", "th"):
            self._open = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data


def test_every_candidate_is_in_a_cell_and_its_reason_is_said_once(catalog: Catalog) -> None:
    matrix = compute_matrix([torch_kernel(["cpu", "cuda"])], catalog, explain=True)
    text = matrix_page(matrix)
    page = Rows(text)
    (kernel,) = matrix.kernels
    heads, *rows = page.rows
    assert heads == ["compute", "torch 2.11", "torch 2.12", "torch 2.13"]
    cells = {(row[0], head): cell for row in rows for head, cell in zip(heads[1:], row[1:], strict=True)}
    for variant in kernel.variants:
        cell = cells[f"{variant.backend} {variant.compute or ''}".strip(), f"torch {variant.torch}"]
        assert "✓" in cell
        assert variant.system in cell
        assert set(variant.archs or ()) <= set(cell.split())
        assert f"<code>{variant.name}</code>" in text
    for item in kernel.dropped:
        cell = cells[f"{item.backend} {item.compute or ''}".strip(), f"torch {item.torch}"]
        assert item.rule in cell
        assert item.system in cell
    for reason in {item.reason for item in (*kernel.dropped, *kernel.kept)}:
        assert html.unescape(text).count(f"<p>{reason}</p>") == len(
            {item.rule for item in kernel.dropped if item.reason == reason} or {""}
        ), reason
    assert re.search(r"<p>catalog/2026-08-20\.toml:\d+", text)
    assert all(link.startswith("#") and f'id="{link[1:]}"' in text for link in page.links)


def test_three_hundred_kernels_are_a_page_that_opens(catalog: Catalog) -> None:
    (kernel,) = compute_matrix([torch_kernel(["cpu", "cuda", "rocm"])], catalog, explain=True).kernels
    many = tuple(msgspec.structs.replace(kernel, name=f"kernel-{number}") for number in range(300))
    text = matrix_page(msgspec.structs.replace(compute_matrix([], catalog), kernels=many))
    assert len(text) < 4_000_000
    assert text.count("<details>") == 300, "closed, until one is asked for"
    assert len(re.findall(r"td:nth-child\(2\)::before", text)) == 1, "what stands before a cell is said once for all"


def test_what_a_file_says_is_text_on_the_page() -> None:
    bad = "<script>alert(1)</script>"
    chip = Chip(bad, bad, 0, {"backend": f'"{bad}'})
    page = table_page(bad, bad, [PageSection(bad, (bad,), (bad,), ((bad, ((chip,),)),))], {})
    assert bad not in page
    assert page.count("<script>") == 1
    assert "default-src 'none'" in page


def test_a_page_ends_where_it_ends() -> None:
    assert kci("matrix", EXAMPLES / "relu", *EDITION, "--format", "html").stdout.endswith("</html>")


@pytest.mark.programs
@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(kci("matrix", EXAMPLES / "relu", EXAMPLES / "rms-norm", *EDITION, "--format", "html").stdout)
    with Browser(tmp_path / "profile") as browser:
        browser.open(file)
        rows = "[...document.querySelectorAll('tbody li')].filter((row) => row.offsetParent !== null)"
        everything = browser.do(f"{rows}.length")
        assert everything > 20
        choose = "const one = document.querySelector('select[data-key=backend]'); one.value = 'cuda';"
        browser.do(f"(() => {{ {choose} one.dispatchEvent(new Event('input', {{bubbles: true}})); }})()")
        shown = browser.do(f"{rows}.map((row) => row.dataset.backend)")
        assert set(shown) == {"cuda"}
        assert 0 < len(shown) < everything
        for width, dark in ((1280, False), (1280, True), (400, False), (400, True)):
            browser.open(file, width=width, dark=dark)
            assert browser.do("document.documentElement.scrollWidth") <= width
            right = (
                "Math.max(...[...document.querySelectorAll('tbody td')].map(td => td.getBoundingClientRect().right))"
            )
            assert width > 400 or browser.do(right) <= 400, "every column is there without scrolling"
            assert browser.axe() == []
        assert browser.do("[...document.querySelectorAll('input, select')].every((one) => one.labels.length === 1)")
        browser.open(file, script=False)
        assert browser.do("document.querySelector('article').offsetParent") is None
        browser.click("tbody li a")
        browser.until("document.querySelector('article:target')")
        assert browser.console == []
        assert [url for url in browser.requests if not url.startswith(("file:", "about:"))] == []
