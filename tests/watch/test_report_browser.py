"""The report in a real browser: what a person sees, clicks and types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kci.watch.history import Failure, RecordedRun
from kci.watch.report_page import whole_page
from watch.browser import Browser
from watch.test_report import HOSTILE, grid, key, run

pytestmark = [
    pytest.mark.programs,
    pytest.mark.slow,
]

OPENED = "document.querySelector('article:target')"
VISIBLE = "[...document.querySelectorAll('tbody tr')].filter(r => r.offsetParent).map(r => r.cells[0].textContent)"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "profile") as made:
        yield made


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """50 kernels by 40 columns; relu fails with the newest torch."""
    names = ["relu", "rms-norm", *(f"kernel-{number}" for number in range(48))]
    parts = [("cpu", ""), ("cu130", "13.0")]
    legs = {
        key(name, f"2.{torch}", compute, part): "pass"
        for name in names
        for torch in range(20)
        for part, compute in parts
    }
    failing = key("relu", "2.19", "13.0", "cu130")
    failed = (
        Failure(failing, f"error: {HOSTILE}", "https://example.invalid/", "kci build relu", f"one\nerror: {HOSTILE}"),
    )
    broken = RecordedRun(2, "2026-11-02T03:17:00+00:00", passed=tuple(set(legs) - {failing}), failed=failed)
    place = tmp_path / "page.html"
    place.write_text(whole_page(grid(run(1, legs), broken), "Kernels"), encoding="utf-8")
    return place


def clean(browser: Browser, page: Path) -> None:
    assert browser.console == []
    assert {url for url in browser.requests if not url.startswith("about:")} == {page.as_uri()}


def test_two_thousand_cells_open_and_ask_for_nothing(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.do("document.querySelectorAll('td a').length") == 2000
    clean(browser, page)


def test_the_filter_keeps_the_rows_that_match(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("/")
    for char in "NORM":
        browser.press(char)
    assert browser.do(VISIBLE) == ["rms-norm"]
    assert browser.do("document.getElementById('shown').value") == "1 of 50 rows"
    browser.press("Escape")
    assert len(browser.do(VISIBLE)) == 50
    choose = "(e => { e.value = %r; e.dispatchEvent(new Event('input')) })(document.getElementById(%r))"
    browser.do(choose % ("f", "state"))
    assert browser.do(VISIBLE) == ["relu"]
    browser.do(choose % ("cpu", "backend"))
    assert browser.do(VISIBLE) == []
    clean(browser, page)


def test_a_cell_opens_by_keyboard_and_gives_the_focus_back(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.do("document.querySelector('td a').focus()")
    where = "[document.activeElement.closest('tr').rowIndex, document.activeElement.parentNode.cellIndex]"
    for name in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowDown", "ArrowLeft"):
        browser.press(name)
    assert browser.do(where) == [2, 2]
    browser.press("End")
    assert browser.do(where) == [2, 40]
    browser.press("Home")
    assert browser.do(where) == [2, 1]
    assert browser.do("document.querySelectorAll('td a[tabindex=\"0\"]').length") == 1
    browser.press("Enter")
    browser.until(f"{OPENED} && {OPENED} === document.activeElement")
    browser.press("Escape")
    browser.until(f"!{OPENED} && document.activeElement.matches('td a')")
    assert browser.do(where) == [2, 1]
    clean(browser, page)


def test_a_failing_cell_shows_the_error_as_text(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click("td a.f")
    browser.until(OPENED)
    text = browser.do(f"{OPENED}.innerText")
    assert HOSTILE in text
    assert "kci build relu" in text
    assert "relu fails with cuda 13.0, torch 2.19" in text
    browser.click("article:target a.close")
    browser.until(f"!{OPENED}")
    clean(browser, page)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_narrow_screen_shows_every_cell_and_names_those_that_fail(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, width=360, height=740, dark=dark)
    assert browser.do("document.documentElement.scrollWidth") == 360
    inside = "[...document.querySelectorAll('td a')].filter(a => a.getBoundingClientRect().right <= 360).length"
    assert browser.do(inside) == 2000
    assert "cuda 13.0 torch 2.19" in browser.do("document.querySelector('td a.f').innerText")
    assert browser.do("document.querySelector('td a.p').innerText.length") < 10
    assert browser.do("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    contrast = browser.do("getComputedStyle(document.body).backgroundColor")
    assert contrast == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    clean(browser, page)


def test_without_script_a_cell_opens_and_the_filter_is_not_shown(browser: Browser, page: Path) -> None:
    browser.open(page, script=False)
    browser.click("td a.f")
    browser.until(OPENED)
    assert browser.do("document.querySelector('form').offsetParent") is None
    clean(browser, page)


def test_axe_finds_nothing(browser: Browser, tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    place.write_text(whole_page(grid(run(1, {key(): f"error: {HOSTILE}", key("norm"): "pass"})), "t"), encoding="utf-8")
    for width, dark in ((1280, False), (1280, True), (400, False), (400, True)):
        browser.open(place, width=width, dark=dark)
        assert browser.axe() == []
        browser.do("document.querySelector('td a.f').click()")
        assert browser.axe() == []
