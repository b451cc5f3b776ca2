"""Staging: which trees of a pull request are taken, what the comment says, and what is removed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from actions.test_common import load
from ci.test_gate import CPU, planned, record
from ci.test_pull_comment import SHA, World
from kci.ci.run_records import PLAN_FILE, RECORD_FILE
from kci.ci.staging import StagedTree, staged_before, staged_section, to_stage
from kci.errors import FindingsError
from kci.plan.plan import KernelPlan
from planning import leg


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    plan = planned(legs=(leg(CPU, "relu"),), kernels=(KernelPlan("relu", "relu", 1, (CPU,)),))
    made.upload("run-plan.1", PLAN_FILE, plan)
    made.upload("run-record.relu.1", RECORD_FILE, record("relu", CPU, complete=True))
    for attempt in (2, 10, 9):
        made.upload(f"tree.relu.{attempt}", "kci-tree.tar", b"")
    return made


def staged(world: World) -> list[StagedTree]:
    return to_stage(world.pulls, 7, SHA, world.records)


def test_the_newest_tree_of_each_complete_kernel_is_staged(world: World) -> None:
    world.upload("tree.norm.1", "kci-tree.tar", b"of no plan")
    assert staged(world) == [StagedTree("relu", "41", "tree.relu.10")]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda state: state["pulls"][0].update(state="closed"), "#7 is closed"),
        (lambda state: state["pulls"][0]["head"].update(sha="b" * 40), "is at bbbbbbbbbbbb now"),
        (lambda state: state["runs"][0].update(conclusion=None), "has not ended"),
        (lambda state: state["runs"][0].update(path=".github/workflows/other.yml"), "has not ended"),
    ],
)
def test_nothing_is_staged_of_what_is_not_the_newest(world: World, change: object, why: str) -> None:
    change(world.state)  # type: ignore[operator]
    with pytest.raises(FindingsError, match=why):
        staged(world)


def test_what_is_incomplete_or_unreadable_is_not_staged(world: World) -> None:
    world.upload("run-record.relu.1", RECORD_FILE, record("relu", complete=False, missing=(CPU,)))
    with pytest.raises(FindingsError, match="no kernel that is complete"):
        staged(world)
    world.upload("run-plan.2", PLAN_FILE, b"x" * (5 * 1024 * 1024))
    (world.uploads / "run-bad").write_bytes(b"no archive")
    with pytest.raises(FindingsError, match="cannot be read"):
        staged(world)


def test_the_comment_keeps_what_is_staged_and_only_kcis_own_is_removed(world: World) -> None:
    run = world.pulls.run(41)
    said = staged_section("acme-staging", 7, SHA, ["relu"], "failure", "[run](https://example.invalid/1)")
    assert f"{SHA} is not staged as a whole ([run](https://example.invalid/1)). " in said
    assert "to load what is there, if anything is:" in said
    text = staged_section("acme-staging", 7, SHA, ["relu", "rms-norm"], "success", "")
    world.pulls.keep_staged(7, run, text)
    (first,) = world.state["comments"]
    world.pulls.keep_comment(7, world.comment())
    world.pulls.keep_staged(7, run, text)
    (comment,) = world.state["comments"]
    assert comment["id"] == first["id"]
    assert comment["body"].count("rms_norm = get_kernel(") == 1
    assert comment["body"].startswith("<!-- kci-pull-request: run 41 attempt 1 -->\n### kci")
    found = [StagedTree("relu"), StagedTree("rms-norm")]
    assert staged_before(world.pulls, 7, "acme-staging") == found
    assert staged_before(world.pulls, 7, "acme") == []
    comment["user"] = {"login": "stranger"}
    assert staged_before(world.pulls, 7, "acme-staging") == []


def test_closed_at_any_moment_one_of_the_two_runs_removes_what_is_staged(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of a closed pull request goes by the comment; the run that stages writes it, and then looks again."""
    talk = load("talk")
    given = {"NUMBER": "7", "COMMIT": SHA, "STAGING": "acme-staging", "NAMES": "relu", "ENDED": "success"}
    given = {f"KCI_INPUT_{name}": value for name, value in given.items()}
    given |= {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_RUN_ID": "1", "GITHUB_OUTPUT": str(tmp_path / "out")}
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    def close() -> list[StagedTree]:
        world.state["pulls"][0]["state"] = "closed"
        return staged_before(world.pulls, 7, "acme-staging")

    assert close() == [], "the comment says nothing yet"
    talk.tell_staged("acme/kernels", world.pulls)
    assert (tmp_path / "out").read_text().splitlines()[1] == "true"
    assert world.asked.index("GET pulls/7") > world.asked.index("POST issues/7/comments")
    world.state["pulls"][0]["state"] = "open"
    talk.tell_staged("acme/kernels", world.pulls)
    assert (tmp_path / "out").read_text().splitlines()[4] == "false"
    assert close() == [StagedTree("relu")]
