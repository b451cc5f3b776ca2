"""Commands in comments: which are commands, whose count, and what they are about."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ci.test_gate import CUDA, planned
from ci.test_pull_comment import SHA, World
from kci.ci.comment_commands import CommandSetup, PullCommand, Said, obey, parse_command
from kci.ci.run_records import PLAN_FILE
from kci.errors import FindingsError, UsageError
from kci.plan.plan import LeftOut, Skipped
from planning import leg

LATER, EARLIER = "2026-11-23T08:00:00Z", "2026-11-23T06:59:59Z"
SETUP = CommandSetup("example/kernels", "main", several=True, publishes=True)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.may = {"metadata": "read", "actions": "write", "pull-requests": "write"}
    made.state["permissions"] = {"owner": "admin", "writer": "write", "reader": "read", "triager": "read"}
    return made


def say(world: World, text: str, by: str = "writer", at: str = LATER, setup: CommandSetup = SETUP) -> str:
    return obey(Said(7, 500, by, text, at), world.pulls, setup)


def answers(world: World) -> list[str]:
    return [item["body"] for item in world.state.get("comments", ())]


def reactions(world: World) -> list[str]:
    return [content for _, content in world.state.get("reactions", ())]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/kci", PullCommand("help")),
        ("/kci help", PullCommand("help")),
        ("/kci test", PullCommand("test")),
        ("/kci build", PullCommand("build")),
        ("/kci build relu rms-norm\r\n\r\nthanks", PullCommand("build", ("relu", "rms-norm"))),
        ("/kci  build relu[cuda,cpu] norm[cpu,cuda] ", PullCommand("build", ("relu", "norm"), ("cpu", "cuda"))),
        ("/kci publish relu", PullCommand("publish", ("relu",))),
        ("/kci explain torch-cpu", PullCommand("explain", variant="torch-cpu")),
        ("> /kci build", None),
        ("```\n/kci build\n```", None),
        ("    /kci build", None),
        (" /kci build", None),
        ("<!--\n/kci build -->", None),
        ("please\n/kci build", None),
        ("/kcibuild", None),
        ("/kci-build", None),
        ("/kci/build", None),
        ("", None),
    ],
)
def test_a_command_is_the_first_line_and_nothing_else_is_one(text: str, command: PullCommand | None) -> None:
    assert parse_command(text) == command


@pytest.mark.parametrize(
    "text",
    [
        "/kci build relu; rm -rf /", "/kci build $(id)", "/kci build `id`", "/kci build relu[]", "/kci build relu[cuda",
        "/kci build ../relu", "/kci build Relu", "/kci build relu[cuda] norm[cpu]", "/kci publish",
        "/kci publish relu[cuda]",
        "/kci explain KCI112", "/kci explain", "/kci test relu", "/kci deploy", "/kci build\trelu",
        "/kci build r\u202eelu",
        "/kci build " + "relu " * 300, "/kci build relu\x00", "/kci help me",
    ],
)  # fmt: skip
def test_what_is_said_wrongly_is_refused(world: World, text: str) -> None:
    with pytest.raises(UsageError):
        parse_command(text)
    say(world, text)
    assert reactions(world) == ["confused"]
    assert "dispatched" not in world.state
    (answer,) = answers(world)
    assert "| `/kci help` |" in answer
    assert "rm -rf" not in answer, "what a stranger writes is not repeated"


@pytest.mark.parametrize(
    "by", ["reader", "triager", "stranger-without-access", "github-actions[bot]", "", "a/../writer"]
)
@pytest.mark.parametrize("text", ["/kci build relu", "/kci help", "/kci nonsense"])
def test_only_who_may_write_is_heard(world: World, by: str, text: str) -> None:
    """GitHub answers 404 for who has left it since: a stranger like others."""
    assert say(world, text, by) == f"{by} may not write to the repository"
    assert reactions(world) == ["-1"]
    assert answers(world) == []
    assert "dispatched" not in world.state


def test_a_build_is_of_the_full_commit_and_answered(world: World) -> None:
    say(world, "/kci build relu[cuda,cpu]")
    inputs = {"commit": SHA, "kernel": "relu", "backends": "cpu,cuda"}
    assert world.state["dispatched"] == [
        ["kci-commit.yml", {"ref": "main", "inputs": inputs, "return_run_details": True}]
    ]
    assert reactions(world) == ["eyes", "rocket"]
    assert answers(world) == [f"{SHA}: started [run 77](https://github.com/example/kernels/actions/runs/77)"]


def test_a_repository_of_one_kernel_has_no_input_for_it(world: World) -> None:
    say(world, "/kci build relu", setup=msgspec.structs.replace(SETUP, several=False))
    assert world.state["dispatched"][0][1]["inputs"] == {"commit": SHA, "backends": ""}


@pytest.mark.parametrize("text", ["/kci build", "/kci test", "/kci explain torch-cpu"])
def test_a_commit_pushed_after_the_command_is_not_touched(world: World, text: str) -> None:
    assert "was pushed after the comment was written" in say(world, text, at=EARLIER)
    world.state["runs"].append(world.state["runs"][0] | {"id": 42, "created_at": "2026-11-23T08:30:00Z"})
    assert "was pushed after" in say(world, text), "the same commit, pushed again"
    world.state["pulls"][0]["head"]["sha"] = "b" * 40
    assert "kci.yml has no run for bbbb" in say(world, text)
    world.state["pulls"][0]["state"] = "closed"
    assert "the pull request is closed" in say(world, text)
    assert "dispatched" not in world.state
    assert "again" not in world.state
    assert set(reactions(world)) == {"eyes", "confused"}


def test_what_failed_runs_again(world: World) -> None:
    assert "runs again: [run 41]" in say(world, "/kci test")
    assert world.state["again"] == [41]
    world.state["runs"][0]["conclusion"] = "action_required"
    assert "nothing that failed, or has not ended" in say(world, "/kci test")
    assert world.state["again"] == [41], "a fork's run that waits for an approval gets none by this"


def test_only_what_is_merged_is_published(world: World) -> None:
    assert "merge the pull request first" in say(world, "/kci publish relu")
    assert "dispatched" not in world.state
    world.state["pulls"][0] |= {"state": "closed", "merged_at": "2026-11-23T07:30:00Z"}
    say(world, "/kci publish relu")
    assert world.state["dispatched"] == [
        ["kci-publish.yml", {"ref": "main", "inputs": {"kernel": "relu"}, "return_run_details": True}]
    ]
    assert "does not say where to" in say(
        world, "/kci publish relu", setup=msgspec.structs.replace(SETUP, publishes=False)
    )


def test_a_variant_is_explained_from_the_records(world: World) -> None:
    left = LeftOut("relu", CUDA, "cuda", "x86_64-linux", "KCI301", "no runner for @team `](x)")
    skipped = Skipped("rope", "torch-cuda-of-another", "it is published")
    world.upload("run-plan.1", PLAN_FILE, planned(legs=(leg(CUDA, "norm"),), left_out=(left,), skipped=(skipped,)))
    say(world, f"/kci explain {CUDA}")
    (answer,) = answers(world)
    assert f"`{CUDA}` at {SHA}:" in answer
    assert "- `norm`: `a job builds it on " in answer
    assert "- `relu`: `left out, KCI301: no runner for " in answer
    assert "@team" not in answer
    assert "rope" not in answer
    assert answer.count("`") % 2 == 0
    say(world, "/kci explain torch-cpu")
    assert "neither builds it nor leaves it out" in answers(world)[-1]


@pytest.mark.parametrize(
    ("lacking", "text"),
    [
        ("actions", "/kci build"),
        ("actions", "/kci test"),
        ("pull-requests", "/kci help"),
        ("contents", "/kci release relu"),
    ],
)
def test_a_token_that_may_not_starts_nothing(world: World, lacking: str, text: str) -> None:
    world.may[lacking] = "read"
    with pytest.raises(FindingsError, match="not accessible"):
        say(world, text)
    assert "dispatched" not in world.state
    assert "again" not in world.state


def test_a_release_merges_the_commit_that_was_there_and_publishes(world: World) -> None:
    """Whatever is not merged is not published; a merged one is published as by `publish`."""
    world.may["contents"] = "write"
    assert "was pushed after" in say(world, "/kci release relu", at=EARLIER)
    world.state["unmergeable"] = 'Required status check "kci" is expected for @acme.'
    told = say(world, "/kci release relu")
    assert "GitHub does not merge it: " in told
    assert "@acme" not in told
    assert "dispatched" not in world.state
    assert world.state["pulls"][0]["merged_at"] is None
    del world.state["unmergeable"]
    world.state["merges"] = ("squash",)
    say(world, "/kci release relu")
    assert world.state["pulls"][0]["merged_at"]
    say(world, "/kci release relu")
    inputs = {"ref": "main", "inputs": {"kernel": "relu"}, "return_run_details": True}
    assert world.state["dispatched"] == [["kci-publish.yml", inputs]] * 2


def test_staging_is_of_the_full_commit(world: World) -> None:
    assert "`staging` under `[pull-request]`" in say(world, "/kci stage")
    staging = msgspec.structs.replace(SETUP, stages=True)
    assert "was pushed after" in say(world, "/kci stage", at=EARLIER, setup=staging)
    say(world, "/kci stage", setup=staging)
    given = {"ref": "main", "inputs": {"number": "7", "commit": SHA}, "return_run_details": True}
    assert world.state["dispatched"] == [["kci-stage.yml", given]]
