"""The report of a history: what it says, that nothing in it can do harm, and that it
stays small.
"""

from __future__ import annotations

import re

from kci.config.settings import Decisions
from kci.watch.decide import FailureTracker, decide
from kci.watch.history import Failure, RecordedRun, leg_key
from kci.watch.report import CellState, GridCell, LegGrid, make_grid, markdown_report

HOSTILE = (
    "</pre></article><script>alert(1)</script><img src=x onerror=alert(1)>\"'&|`@everyone` -->"
)
VARIANT, SYSTEM = "torch213-cxx11-cpu-x86_64-linux", "x86_64-linux"


def key(kernel: str = "relu", torch: str = "2.13", compute: str = "", part: str = "cpu") -> str:
    variant = f"torch{torch.replace('.', '')}-cxx11-{part}-{SYSTEM}"
    return leg_key(kernel, variant, SYSTEM, torch, compute)


def run(
    number: int, outcomes: dict[str, str], *, commit: str = "c0ffee", catalog: str = "one"
) -> RecordedRun:
    """A run from `pass`, `unknown`, or an error's text for each leg."""

    def failure(leg: str, what: str) -> Failure:
        replay = f"kci build {leg.split(' ', maxsplit=1)[0]}"
        return Failure(leg, what, "https://example.invalid/log", replay, f"one\n{what}")

    failed = [failure(*item) for item in outcomes.items() if item[1] not in ("pass", "unknown")]
    return RecordedRun(
        number,
        f"2026-11-{number:02d}T03:17:00+00:00",
        catalog=catalog,
        commit=commit,
        passed=tuple(leg for leg, what in outcomes.items() if what == "pass"),
        unknown=tuple(leg for leg, what in outcomes.items() if what == "unknown"),
        failed=tuple(failed),
    )


def grid(*runs: RecordedRun) -> LegGrid:
    watch = FailureTracker(Decisions())
    decide(runs, watch)
    return make_grid(watch)


def only(made: LegGrid) -> GridCell:
    ((cell,),) = made.kernels.values()
    return cell


# --- what a history says --------------------------------------------------------------------------


def test_a_cell_says_since_when_a_leg_fails_and_what_was_new_then() -> None:
    runs = [run(1, {key(): "pass"}), run(2, {key(): "pass"}, commit="aaa")]
    runs += [run(number, {key(): "error: x"}, commit="bbb", catalog="two") for number in (3, 4, 6)]
    cell = only(grid(*runs))
    assert cell.failure is not None
    assert (cell.state, cell.failure.excerpt) == (CellState.FAILS, "one\nerror: x")
    began = "Since run 3 (2026-11-03), 3 results in a row. It last differed in run 2."
    assert cell.began == f"{began} New then: commit aaa to bbb; catalog one to two."
    assert cell.days == 3


def test_a_leg_that_the_catalog_no_longer_has_is_left_out() -> None:
    gone = [run(number, {key(): "pass", key(torch="2.12"): "error"}) for number in (1, 2)]
    later = [run(number, {key(): "pass"}) for number in range(3, 17)]
    made = grid(*gone, *later)
    assert only(made).column.torch == "2.13"
    assert made.causes == []
    (cells,) = grid(*gone, *later[:-1]).kernels.values()
    assert len(cells) == 2


def test_kernels_that_fail_come_first_and_numbers_in_names_count() -> None:
    names = {"kernel-10": "pass", "kernel-2": "pass", "a": "unknown"}
    names |= {"z-10": "error: x", "z-9": "error: y"}
    made = grid(run(1, {key(name): what for name, what in names.items()}))
    assert [*made.kernels] == ["z-9", "z-10", "a", "kernel-2", "kernel-10"]


def test_failures_of_one_cause_are_one_line() -> None:
    legs = {key("relu"): "a.cu:3: error: gone", key("norm"): "b.cu:8: error: gone"}
    legs[key("other")] = "error: else"
    made = grid(*[run(number, legs) for number in (1, 2, 3)])
    causes = [(cause.cause, cause.kernels, cause.is_open) for cause in made.causes]
    assert causes == [("gone", ("norm", "relu"), True), ("else", ("other",), True)]
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
    assert cause.legs == 3
    page = markdown_report(grid(*runs), "t")
    assert page.count("`x`") == 1
    assert "flaky: x" not in page


# --- the report -----------------------------------------------------------------------------------


def hostile_runs(kernels: int, columns: int) -> list[RecordedRun]:
    legs = {
        key(f"kernel-{kernel}", f"2.{column}"): f"error {kernel} {column}: {HOSTILE * 20}"
        for kernel in range(kernels)
        for column in range(columns)
    }
    failed = tuple(
        Failure(leg, error, f"javascript:{HOSTILE}", HOSTILE * 9, f"{error}\n{HOSTILE}")
        for leg, error in legs.items()
    )
    return [RecordedRun(1, HOSTILE, catalog=HOSTILE, commit=HOSTILE, failed=failed)]


def test_markdown_cannot_be_broken_out_of() -> None:
    text = markdown_report(grid(*hostile_runs(1, 2)), HOSTILE)
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    outside = re.sub(r"`[^`]*`", "", "\n".join(lines))
    assert "<script" not in outside
    assert "<img" not in outside
    assert "@everyone" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}


def test_markdown_has_a_table_for_each_backend_and_the_failures() -> None:
    legs = {key(): "pass", key(compute="13.0", part="cu130"): "error: x"}
    text = markdown_report(grid(run(1, legs)), "t")
    head = "| kernel | cpu torch 2.13 x86\\_64-linux |\n| --- | --- |\n"
    assert f"\n## cpu\n\n{head}| relu | ✓ 0 d |\n" in text
    assert "\n## cuda\n" in text
    assert "    error: x\n" in text
    assert "    kci build relu\n" in text
