"""Two years of runs: one issue for each cause, in the run in which it breaks, and none for what is no break."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

from kci.config.settings import Decisions
from kci.diagnostics import Diagnostic
from kci.watch.causes import cause_of
from kci.watch.decide import ActionKind, FailureTracker, IssueAction, latest_decisions
from kci.watch.history import append, each_run
from kci.watch.issue_tracker import carry_out
from watch.test_issue_tracker import Tracker
from watch.two_years import KERNELS, Break, Leg, Says, legs_of, make_world, sometimes

POLICY = Decisions()


def test_two_years(tmp_path: Path) -> None:
    assert len(legs_of(0)) == 52 * 30
    watch, history = FailureTracker(POLICY), tmp_path / "history"
    world, recorded = make_world(1, watch.suspects)
    by_cause = {_said(item.says, item.name): item for item in world.breaks}
    opened: dict[str, list[tuple[int, IssueAction]]] = defaultdict(list)
    flaky: list[IssueAction] = []
    ids: dict[tuple[str, int], Break | None] = {}
    for number, parts in enumerate(recorded):
        folder = history / str(number)
        append(folder, reversed(parts))  # the second look can be there first
        problems: list[Diagnostic] = []
        (run,) = each_run(folder, problems.append)
        assert problems == []
        for action in watch.step(run):
            if action.flaky:
                flaky.append(action)
            elif action.kind is ActionKind.OPEN:
                cause = watch.open[action.id].cause
                opened[cause].append((number, action))
                # Words that two breaks share are told apart by the kernel.
                same = [item for item in world.breaks if _said(item.says, item.name) == cause]
                item = next((item for item in same if item.start <= number <= item.end), None)
                ids[action.id, action.since] = item
                if item is not None:
                    item.opened.append(number)
            elif action.kind is ActionKind.CLOSE:
                item = ids[action.id, action.since]
                if item is not None:
                    item.closed.append(number)
    for item in world.breaks:
        assert item.seen is not None, item.name
        assert len(item.opened) == 1, f"{item.name}: one issue, not {item.opened}"
        assert item.opened[0] - item.seen <= 1, f"{item.name}: open within one run"
        assert len(item.closed) == 1, f"{item.name}: closed once"
        assert item.end <= item.closed[0] <= item.end + 4, f"{item.name}: closed when all are fixed"
    flakes = {_said(sometimes, kernel, kernel) for kernel in KERNELS}
    others = set(opened) - set(by_cause)
    assert others <= flakes, "an issue about an outage"
    of_flakes = sum(len(opened[cause]) for cause in others)
    assert of_flakes <= 2 * len(world.flaky), "a flake that failed twice before it was known as one"
    named = {leg for action in flaky for leg in action.legs}
    assert named <= world.flaky, "a leg that an outage hit is not flaky"
    assert len(named) >= len(world.flaky) - 1
    assert not watch.open, "open after two years"


def test_two_runs_at_once_and_a_run_that_is_late(tmp_path: Path) -> None:
    """Run 1031 is recorded and decided about before run 1030, in which the catalog moved, is."""
    _, recorded = make_world(1, FailureTracker(POLICY).suspects)
    runs = [part for number, parts in enumerate(recorded) if 28 <= number < 43 for part in parts]
    tracker = Tracker()
    late = [part for part in runs if part.run == 1030]
    append(tmp_path, [part for part in runs if part.run < 1032 and part.run != 1030])
    decided(tmp_path, tracker)
    assert about_the_break(tracker) == [True]
    append(tmp_path, late)
    append(tmp_path, late)
    decided(tmp_path, tracker)
    decided(tmp_path, tracker)
    assert about_the_break(tracker) == [True], "one cause is one issue, in whatever order runs end"
    append(tmp_path, runs)
    decided(tmp_path, tracker)
    assert about_the_break(tracker) == [False]


def about_the_break(tracker: Tracker) -> list[bool]:
    """Whether each issue about the symbol is open."""
    return [issue.is_open for issue in tracker.all if "torchCheckFail" in issue.title]


def decided(history: Path, tracker: Tracker) -> None:
    runs = list(each_run(history, lambda problem: pytest.fail(str(problem))))
    carry_out(latest_decisions(runs, POLICY), tracker, (runs[0].run, runs[-1].run))  # type: ignore[arg-type]


def _said(says: Says, name: str, kernel: str = "kernel-0") -> str:
    """The cause that a break has: the same in every leg and build, or the simulation means nothing."""
    legs = [leg for leg in legs_of(85) if leg.kernel == kernel]
    if name == "yanked wheel":
        legs = [leg for leg in legs if leg.torch == "2.15"]
    causes = {_cause(leg, says(leg, random.Random(number))) for number, leg in enumerate(legs)}
    assert len(causes) == 1, f"{name}: {causes}"
    return causes.pop()


def _cause(leg: Leg, error: str) -> str:
    return cause_of(error, leg.kernel, leg.variant)
