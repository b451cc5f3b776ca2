"""`--format html` and `mermaid`: what is on the pages, that nothing in them is believed, and how they behave."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cli.runner import kci
from conftest import ROOT, torch_kernel
from kci.catalog.rows import Catalog
from kci.matrix.selection import compute_matrix
from kci.matrix.table_page import PageRow, PageSection, matrix_page, table_page
from kci.plan.budget import estimate, simulate, starts
from kci.plan.legs import make_plan
from kci.plan.plan_page import mermaid, plan_page
from watch.browser import Browser, chromium_path

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
        self._open = tag in ("td", "th")
        if self._open:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data


def test_every_candidate_is_on_the_page_with_its_reason_and_line(catalog: Catalog) -> None:
    matrix = compute_matrix([torch_kernel(["cpu", "cuda"])], catalog, explain=True)
    page = Rows(matrix_page(matrix))
    (kernel,) = matrix.kernels
    names = [row[0] for row in page.rows]
    assert {variant.name for variant in kernel.variants} <= set(names)
    assert len(page.rows) == 1 + len(kernel.variants) + len(kernel.dropped)
    dropped = [row for row in page.rows if row[1].startswith("✗")]
    assert {row[1].split()[1] for row in dropped} == {item.rule for item in kernel.dropped}
    assert "cpu torch 2.11" in {row[0] for row in dropped}
    assert all(row[7] for row in page.rows[1:])
    assert any(re.fullmatch(r"catalog/2026-08-20\.toml:\d+", row[8]) for row in page.rows)
    assert page.links == []
    cuda = next(keys for keys in page.keys if keys.get("data-backend") == "cuda" and keys.get("data-arch"))
    assert "8.0" in cuda["data-arch"].split()


def test_what_a_file_says_is_text_on_the_page() -> None:
    bad = "<script>alert(1)</script>"
    page = table_page(bad, bad, [PageSection(bad, (bad,), (PageRow((bad,), {"backend": f'"{bad}'}, span=(0, 1)),))], {})
    assert bad not in page
    assert page.count("<script>") == 1
    assert "default-src 'none'" in page


def test_the_bars_begin_when_the_machines_are_free(catalog: Catalog) -> None:
    plan = make_plan(compute_matrix([torch_kernel(["cpu", "cuda", "rocm"])], catalog))
    ends = [start + leg.minutes for start, leg in zip(starts(plan.legs), plan.legs, strict=True)]
    assert max(ends) == simulate(plan.legs)[1]
    page = Rows(plan_page(plan, estimate(plan.legs)))
    assert {leg.name for leg in plan.legs} <= {row[0] for row in page.rows}
    assert {item.variant for item in plan.left_out} <= {row[0] for row in page.rows}


def test_the_graph_has_every_leg_and_one_merge(catalog: Catalog) -> None:
    plan = make_plan(compute_matrix([torch_kernel(["cpu", "cuda"])], catalog))
    graph = mermaid(plan)
    assert graph.startswith("flowchart LR\n")
    assert graph.count("[[merge]]") == 1
    assert all(leg.name in graph for leg in plan.legs)


def test_a_graph_of_many_legs_counts_them() -> None:
    graph = kci("plan", EXAMPLES, "--tier", "all", *EDITION, "--format", "mermaid").stdout
    assert re.search(r"cuda<br>\d+ legs, \d+ min", graph)
    assert len(graph.splitlines()) < 60


def test_a_name_cannot_become_markup() -> None:
    from kci.plan.plan_page import _quoted

    assert _quoted('a"]<b>&') == '"a#quot;]#lt;b>#amp;"'


@pytest.mark.programs
@pytest.mark.slow
@pytest.mark.skipif(chromium_path() is None, reason="chromium is not installed (apt-get install chromium)")
@pytest.mark.parametrize("command", ["matrix", "plan"])
def test_the_page_in_a_browser(command: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(kci(command, EXAMPLES / "relu", EXAMPLES / "rms-norm", *EDITION, "--format", "html").stdout)
    with Browser(tmp_path / "profile") as browser:
        browser.open(file)
        rows = "[...document.querySelectorAll('tbody tr')].filter((row) => row.offsetParent !== null)"
        everything = browser.do(f"{rows}.length")
        assert everything > 20
        choose = "const one = document.querySelector('select[data-key=backend]'); one.value = 'cuda';"
        browser.do(f"(() => {{ {choose} one.dispatchEvent(new Event('input', {{bubbles: true}})); }})()")
        shown = browser.do(f"{rows}.map((row) => row.dataset.backend)")
        assert set(shown) == {"cuda"}
        assert 0 < len(shown) < everything
        browser.open(file, width=360, height=740, dark=True)
        assert browser.do("document.documentElement.scrollWidth") <= 360
        assert browser.do("[...document.querySelectorAll('input, select')].every((one) => one.labels.length === 1)")
        browser.open(file, script=False)
        assert browser.console == []
        assert [url for url in browser.requests if not url.startswith(("file:", "about:"))] == []
