"""The report of a history: what it says, that nothing in it can do harm, and that it stays small."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cli.runner import kci
from growth import assert_in_proportion
from kci.config.settings import Decisions
from kci.watch import report_page
from kci.watch.history import Failure, RecordedRun, append, leg_key
from kci.watch.leg_grid import CellState, GridCell, LegGrid, Trend, grid_of
from kci.watch.report_page import file_stems, markdown_report, svg_badge, whole_page

HOSTILE = "</pre></article><script>alert(1)</script><img src=x onerror=alert(1)>\"'&|`@everyone` -->"
VARIANT, SYSTEM = "torch213-cxx11-cpu-x86_64-linux", "x86_64-linux"


def key(kernel: str = "relu", torch: str = "2.13", compute: str = "", part: str = "cpu") -> str:
    return leg_key(kernel, f"torch{torch.replace('.', '')}-cxx11-{part}-{SYSTEM}", SYSTEM, torch, compute)


def run(
    number: int, outcomes: dict[str, str], *, commit: str = "c0ffee", catalog: str = "one", day: int | None = None
) -> RecordedRun:
    """A run from `pass`, `unknown`, or an error's text for each leg."""
    return RecordedRun(
        number,
        f"2026-11-{day or number:02d}T03:17:00+00:00",
        catalog=catalog,
        commit=commit,
        passed=tuple(leg for leg, what in outcomes.items() if what == "pass"),
        unknown=tuple(leg for leg, what in outcomes.items() if what == "unknown"),
        failed=tuple(
            Failure(leg, what, "https://example.invalid/log", f"kci build {leg.split(' ')[0]}", f"one\n{what}")
            for leg, what in outcomes.items()
            if what not in ("pass", "unknown")
        ),
    )


def grid(*runs: RecordedRun) -> LegGrid:
    return grid_of(runs, Decisions())


def only(made: LegGrid) -> GridCell:
    (kernel,) = made.kernels
    (cell,) = kernel.cells
    return cell


# --- what a history says ----------------------------------------------------------------------------------------------


def test_a_cell_says_since_when_a_leg_fails_and_what_was_new_then() -> None:
    runs = [run(1, {key(): "pass"}), run(2, {key(): "pass"}, commit="aaa")]
    runs += [run(number, {key(): "error: x"}, commit="bbb", catalog="two") for number in (3, 4, 6)]
    cell = only(grid(*runs))
    assert cell.since is not None
    assert cell.before is not None
    assert (cell.state, cell.trend, cell.recent) == (CellState.FAILS, Trend.WORSE, "ppfff")
    assert (cell.since.run, cell.before.run, cell.runs, cell.days) == (3, 2, 3, 3)
    assert cell.changed == "commit aaa to bbb; catalog one to two"
    assert cell.failure is not None
    assert cell.failure.excerpt == "one\nerror: x"


@pytest.mark.parametrize(
    ("recent", "trend"),
    [
        ("pppfffffp", Trend.BETTER),  # fixed in the last run, and so worse in the later half than in the earlier one
        ("fppppp", Trend.BETTER),
        ("ffffpf", Trend.WORSE),
        ("ppp", Trend.STEADY),
        ("fff", Trend.STEADY),
    ],
)
def test_the_trend_is_about_how_a_leg_is_today(recent: str, trend: Trend) -> None:
    results = {"p": "pass", "f": "error"}
    cell = only(grid(*(run(number, {key(): results[one]}) for number, one in enumerate(recent, start=1))))
    assert (cell.recent, cell.trend) == (recent, trend)
    assert cell.state is (CellState.PASSES if recent.endswith("p") else CellState.FAILS)


def test_an_outage_keeps_the_last_known_state() -> None:
    runs = [run(1, {key(): "pass"}), run(2, {key(): "unknown"}), run(3, {})]
    cell = only(grid(*runs))
    assert (cell.state, cell.recent, cell.runs) == (CellState.PASSES, "pu-", 1)
    assert "latest known result is of run 1" in whole_page(grid(*runs), "t")


def test_a_flaky_leg_is_told_as_one() -> None:
    runs = [run(number, {key(): "pass" if number % 2 else "error: x"}) for number in range(1, 9)]
    made = grid(*runs)
    assert only(made).state is CellState.FLAKY
    assert [cause.cause for cause in made.causes] == ["flaky: x"]


def test_a_leg_that_the_catalog_no_longer_has_is_left_out() -> None:
    gone = [run(number, {key(): "pass", key(torch="2.12"): "error"}) for number in (1, 2)]
    later = [run(number, {key(): "pass"}) for number in range(3, 17)]
    made = grid(*gone, *later)
    assert made.size == 1
    assert made.causes == ()
    assert grid(*gone, *later[:-1]).size == 2


def test_dates_that_cannot_be_read_leave_the_number_of_results() -> None:
    strange = [RecordedRun(1, "yesterday", passed=(key(),)), RecordedRun(2, "today", passed=(key(),))]
    assert only(grid(*strange)).days is None
    assert "2 runs" in whole_page(grid(*strange), "t")


def test_kernels_that_fail_come_first_and_numbers_in_names_count() -> None:
    names = {"kernel-10": "pass", "kernel-2": "pass", "a": "unknown", "z-10": "error: x", "z-9": "error: y"}
    made = grid(run(1, {key(name): what for name, what in names.items()}))
    assert [kernel.kernel for kernel in made.kernels] == ["z-9", "z-10", "a", "kernel-2", "kernel-10"]


def test_failures_of_one_cause_are_one_line() -> None:
    legs = {key("relu"): "a.cu:3: error: gone", key("norm"): "b.cu:8: error: gone", key("other"): "error: else"}
    made = grid(*[run(number, legs) for number in (1, 2, 3)])
    assert [(cause.cause, cause.kernels, cause.is_open) for cause in made.causes] == [
        ("gone", ("norm", "relu"), True),
        ("else", ("other",), True),
    ]
    assert not grid(run(1, legs)).causes[0].is_open


def test_an_error_is_told_once_whatever_has_it() -> None:
    """Legs with an issue, one that fails too seldom for one, and one that is flaky."""
    steady, new, flaky = key("relu"), key("norm"), key("other")
    runs = [
        run(number, {steady: "error: x", new: "error: x" if number == 8 else "pass",
                     flaky: "pass" if number % 2 else "error: x"})
        for number in range(1, 9)
    ]  # fmt: skip
    (cause,) = grid(*runs).causes
    assert (cause.cause, cause.is_open, cause.kernels) == ("x", True, ("norm", "other", "relu"))
    assert len(cause.legs) == 3
    page = markdown_report(grid(*runs), "t")
    assert page.count("`x`") == 1
    assert "flaky: x" not in page


# --- the page ---------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.stack: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.stack.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.stack[-1] if self.stack else "", []).append(data)

    def having(self, name: str) -> list[str]:
        return [value or "" for _, attributes in self.tags for key, value in attributes.items() if key == name]


def hostile_runs(kernels: int, columns: int) -> list[RecordedRun]:
    legs = {
        key(f"kernel-{kernel}", f"2.{column}"): f"error {kernel} {column}: {HOSTILE * 20}"
        for kernel in range(kernels)
        for column in range(columns)
    }
    failed = tuple(
        Failure(leg, error, f"javascript:{HOSTILE}", HOSTILE * 9, f"{error}\n{HOSTILE}") for leg, error in legs.items()
    )
    return [RecordedRun(1, HOSTILE, catalog=HOSTILE, commit=HOSTILE, failed=failed)]


def test_nothing_from_a_log_becomes_markup() -> None:
    text = whole_page(grid(*hostile_runs(2, 2)), HOSTILE)
    page = Page(text)
    assert [tag for tag, _ in page.tags if tag in ("script", "img")] == ["script"]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert [link for link in page.having("href") if not link.startswith("#")] == []
    assert any(HOSTILE in data for data in page.texts["pre"])
    policy = next(value for value in page.having("content") if "default-src" in value)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_a_page_asks_for_nothing_and_works_without_script() -> None:
    page = Page(whole_page(grid(run(1, {key(): "error: x", key("norm"): "pass"})), "t"))
    assert page.having("src") == []
    ids = page.having("id")
    assert len(ids) == len(set(ids))
    inside = [link.removeprefix("#") for link in page.having("href") if link.startswith("#")]
    assert inside
    assert set(inside) <= set(ids)
    assert [link for link in page.having("href") if not link.startswith("#")] == ["https://example.invalid/log"]
    assert dict(page.tags)["form"].keys() >= {"hidden"}, "the filter would do nothing without script"
    assert dict(page.tags)["html"] == {"lang": "en"}
    assert {"col", "row"} == set(page.having("scope"))


def test_a_state_is_told_by_a_symbol_and_a_word_beside_its_color() -> None:
    text = whole_page(grid(run(1, {key(): "error: x", key("norm"): "pass"})), "t")
    assert re.search(r"<a class=f [^>]*>✗<b class=v> fails</b>", text)
    assert re.search(r"<a class=p [^>]*>✓<b class=v> passes</b>", text)


def page_of(kernels: int) -> str:
    legs = {
        key(f"some-kernel-{kernel}", f"2.{column}", "13.0", "cu130"): (
            "src/op.cu:7: error: no member named 'x'" if column == 39 else "pass"
        )
        for kernel in range(kernels)
        for column in range(40)
    }
    made = grid(*[run(number, legs) for number in range(1, 15)])
    assert made.size == kernels * 40
    return whole_page(made, "t")


def test_a_page_of_two_thousand_cells_is_small() -> None:
    assert len(page_of(50).encode()) < 1_000_000


def test_making_a_page_takes_time_in_proportion_to_its_cells() -> None:
    page_of(1)
    assert_in_proportion(page_of, 40)


# --- the folder -------------------------------------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path: Path) -> Path:
    place = tmp_path / "history"
    append(place, [run(1, {key(): "pass", key("norm"): "error: x"})])
    return place


def report(history: Path, *options: str | Path) -> str:
    done = kci("compat", "report", "--history", history, *options)
    assert done.code == 0, done.stderr
    return done.stdout


def test_the_folder_has_a_page_and_a_badge_for_each_kernel(history: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert report(history, "--into", site).endswith("1 page, 2 badges\n")
    report(history, "--into", site)
    assert sorted(str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()) == [
        ".kci-report", ".nojekyll", "badges/norm.json", "badges/norm.svg", "badges/relu.json", "badges/relu.svg",
        "index.html",
    ]  # fmt: skip
    assert json.loads((site / "badges/norm.json").read_text()) == {
        "schemaVersion": 1, "label": "kci compat", "message": "✗ 0 of 1 pass", "color": "#a33a00",
    }  # fmt: skip
    assert (site / "index.html").read_text() == report(history)


def test_a_folder_with_something_else_is_not_replaced(history: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = kci("compat", "report", "--history", history, "--into", tmp_path / "mine")
    assert done.code == 5
    assert "not replaced" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def many(kernels: int, columns: int) -> Iterator[tuple[str, str]]:
    for kernel in range(kernels):
        for column in range(columns):
            yield key(f"kernel-{kernel}", f"2.{column}"), "pass" if kernel else "error: x"


def test_beyond_two_thousand_cells_each_kernel_has_a_page(tmp_path: Path) -> None:
    history, site = tmp_path / "history", tmp_path / "site"
    append(history, [run(1, dict(many(3, 667)))])
    done = kci("compat", "report", "--history", history)
    assert (done.code, done.stdout) == (2, "")
    assert "2001 cells" in done.stderr
    assert report(history, "--into", site).endswith("4 pages, 3 badges\n")
    index = Page((site / "index.html").read_text())
    pages = [link for link in index.having("href") if link.endswith(".html")]
    assert pages == ["kernels/kernel-0.html", "kernels/kernel-1.html", "kernels/kernel-2.html"]
    for name in pages:
        page = Page((site / name).read_text())
        assert len([tag for tag, _ in page.tags if tag == "article"]) == 667
        assert "../index.html" in page.having("href")


def test_texts_too_large_for_one_page_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "MAX_BYTES", 200_000)  # a whole megabyte takes a minute
    history, site = tmp_path / "history", tmp_path / "site"
    append(history, hostile_runs(4, 40))
    assert report(history, "--into", site).endswith("5 pages, 4 badges\n")
    assert max(path.stat().st_size for path in site.rglob("*.html")) < report_page.MAX_BYTES


def test_names_become_files_that_every_system_takes() -> None:
    names = ["relu", "Relu", "..", "con", ".git", "a" * 255, "b+1.x"]
    stems = file_stems(names)
    assert (stems["Relu"], stems["b+1.x"]) == ("Relu", "b+1.x")
    assert len({stem.lower() for stem in stems.values()}) == len(names)
    assert all(re.fullmatch(r"kernel-[0-9a-f]{16}", stems[name]) for name in ["relu", "..", "con", ".git", "a" * 255])


def test_a_history_with_a_damaged_file_is_shown_and_said(history: Path, tmp_path: Path) -> None:
    (history / "0000000000000000002-1-0123456789abcdef.json").write_text("{")
    done = kci("compat", "report", "--history", history, "--into", tmp_path / "site")
    assert done.code == 1
    assert "KCI801" in done.stderr
    assert (tmp_path / "site" / "index.html").exists()


# --- the other forms --------------------------------------------------------------------------------------------------


def test_markdown_cannot_be_broken_out_of() -> None:
    text = markdown_report(grid(*hostile_runs(1, 2)), HOSTILE)
    outside = re.sub(r"`[^`]*`", "", "\n".join(line for line in text.splitlines() if not line.startswith("    ")))
    assert "<script" not in outside
    assert "<img" not in outside
    assert "@everyone" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}


def test_markdown_has_a_table_for_each_backend_and_the_failures() -> None:
    legs = {key(): "pass", key(compute="13.0", part="cu130"): "error: x"}
    text = markdown_report(grid(run(1, legs)), "t")
    assert "\n## cpu\n\n| kernel | cpu torch 2.13 x86\\_64-linux |\n| --- | --- |\n| relu | ✓ 0 d |\n" in text
    assert "\n## cuda\n" in text
    assert "    error: x\n" in text
    assert "    kci build relu\n" in text


def test_a_badge_is_an_image_with_a_text() -> None:
    (kernel,) = grid(run(1, {key(): "pass", key(torch="2.14"): "pass"})).kernels
    image = ElementTree.fromstring(svg_badge(kernel))
    assert image.attrib["aria-label"] == "kci compat: ✓ 2 of 2 pass"
