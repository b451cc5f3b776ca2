"""The scheduled workflow of a kernel of C++ and of one of Python, run after run: an API goes,
and is mended.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from act.harness import NEEDS_ACT, Run, commit_all, copy_actions, installed
from act.test_objects import COUNTED
from act.test_workflow import Runner, add_kernel, place
from buildkit import OLDER_SYSTEM, program, write_tree
from cli.runner import ended, kci
from planning import git
from run.cuda_python import python_with_cuda
from split_kernel import sources

pytestmark = [pytest.mark.network, *NEEDS_ACT]

CATALOG = """
name = "test"
as-of = 2026-11-20
source = "torch 2.13 is next"

[[row]]
torch = "2.12"
backend = "cpu"
systems = ["x86_64-linux"]

[[row]]
torch = "2.13"
backend = "cpu"
systems = ["x86_64-linux"]
bundled = false

[[row]]
torch = "2.13"
backend = "cuda"
compute = ["13.4"]
systems = ["x86_64-linux"]
bundled = false
"""
SETTINGS = """
catalog = "catalog.toml"

[[schedule.issues.tell]]
who = ["@acme/kernels"]

[test.cuda.x86_64-linux]
labels = ["self-hosted", "h100"]
"""
COMPAT = ".github/workflows/kci-compat.yml"
AFTER = ["keep-schedule-enabled", "plan", "plan-retry", "record", "report"]
SPLIT = "split torch213-cxx11-cpu-x86_64-linux"
LEGS = ["build some-kernel torch-cuda", "watch-test some-kernel cuda-x86_64-linux", *AFTER]
PARTS = [f"parts {SPLIT}.part1of2", f"parts {SPLIT}.part2of2", f"link {SPLIT}"]
OBJECTS = 2
TEST = "import pytest\n@pytest.mark.kernels_ci\ndef test_it():\n    import split\n"


class Scheduled:
    """A repository whose scheduled workflow is run again and again."""

    def __init__(self, folder: Path, shared: Path, cache: Path) -> None:
        """Render and commit what is in `repository`."""
        self.folder = folder
        self.repository = folder / "repository"
        self.origin = folder / "origin.git"
        (self.repository / "catalog.toml").write_text(CATALOG)
        self.render(SETTINGS)
        git(folder, "init", "--quiet", "--bare", str(self.origin))
        config = folder / "gitconfig"
        name = "https://github.com/example/kernels"
        config.write_text(f'[url "{self.origin}"]\n\tinsteadOf = {name}\n')
        self.checkout = copy_actions(folder / "checkout")
        self.env = {
            "KCI_CACHE": str(cache), "KCI_ACT_ISSUES": str(folder / "issues.json"),
            "GIT_CONFIG_GLOBAL": str(config), **installed(shared),
        }  # fmt: skip
        self.count = 0

    def render(self, settings: str) -> None:
        (self.repository / "kci.toml").write_text(settings)
        ended(kci("render", "--output", self.repository, self.repository), 0)
        commit_all(self.repository)

    def run(self, python: str) -> Run:
        """One scheduled run; this Python tests."""
        self.count += 1
        env = {**self.env, "GITHUB_RUN_NUMBER": str(self.count)}
        runner = Runner(self.checkout, env, {"KCI_TEST_PYTHON": python})
        scratch = place(self.folder, f"run-{self.count}")
        return runner.run(self.repository, COMPAT, "schedule", scratch)

    def history(self) -> list[dict[str, Any]]:
        """The files on the branch, oldest first."""
        listed = git(self.origin, "ls-tree", "-r", "--name-only", "kci-history").split()
        return [json.loads(git(self.origin, "show", f"kci-history:{name}")) for name in listed]

    def issues(self) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = self._told()["issues"]
        return told

    def changes(self) -> list[str]:
        """The requests that change an issue, of the last run."""
        told = [one for one in self._told()["requests"] if re.search("/issues|/actions/", one)]
        last = max(number for number, one in enumerate(told) if one.startswith("GET"))
        changing = [one for one in told[last:] if "/issues" in one and not one.startswith("GET")]
        return [one.partition(" ")[0] for one in changing]

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.folder / "issues.json").read_text())
        return told


@pytest.mark.torch
def test_what_broke_becomes_an_issue_and_a_repair_closes_it(
    torch_cache: Path, shared_by_workers: Path, tmp_path: Path
) -> None:
    """An API goes from torch, for a real compiler, and a test fails on a machine with a GPU. The
    second look opens the issues in the run that broke.

    The machine that tests is this one under its label, and its Python says of itself that it has
    torch for CUDA.
    """
    files = sources(["one"], "struct Tensor {{}};\nvoid {name}(Tensor &input) {{ ; }}\n")
    files["build.toml"] = files["build.toml"].replace('stable-abi = "2.11"\n', "")
    kernel = write_tree(tmp_path / "repository" / "split", files | {"tests/test_it.py": TEST})
    other = add_kernel(tmp_path / "repository", "some-kernel", ("cuda",))
    test_file = write_tree(other, {"tests/test_it.py": "BROKEN = True"}) / "tests" / "test_it.py"
    source = kernel / "csrc" / "one.cpp"
    good = source.read_text()
    source.write_text(good.replace("{ ;", "{ input.removed_in_this_torch();"))
    scheduled = Scheduled(tmp_path, shared_by_workers, torch_cache)
    counted = f"{OLDER_SYSTEM}{COUNTED.replace('HERE', str(tmp_path))}"
    scheduled.env["CXX"] = str(program(tmp_path, "counted-g++", counted))
    python = str(python_with_cuda(tmp_path))
    built = "some-kernel torch-cuda x86_64-linux 2.13 13.4"
    on_hardware = "some-kernel torch-cuda x86_64-linux+hardware 2.14 13.0"

    first = scheduled.run(python)
    assert first.jobs == dict.fromkeys([f"build {SPLIT}", *LEGS], "success"), first.log
    run, again = sorted(scheduled.history(), key=lambda item: item.get("look", 1))
    failed = {failure["leg"]: failure for failure in run["failed"]}
    removed = "split torch213-cxx11-cpu-x86_64-linux x86_64-linux 2.13 -"
    assert failed.keys() == {item["leg"] for item in again["failed"]} == {removed, on_hardware}
    assert run["passed"] == [built]
    assert "has no member named" in failed[removed]["error"]
    assert "removed_in_this_torch" in failed[removed]["error"]
    replay = "kci build --variant=torch213-cxx11-cpu-x86_64-linux"
    assert failed[removed]["replay"].startswith(replay)
    told = {issue["title"].partition(": ")[0]: issue for issue in scheduled.issues()}
    assert {name: issue["state"] for name, issue in told.items()} == {
        "split": "open", "some-kernel": "open",
    }  # fmt: skip
    assert "removed_in_this_torch" in told["split"]["title"]
    assert all("cc @acme/kernels" in issue["body"] for issue in told.values())
    assert scheduled.changes() == ["POST", "POST"]
    (tmp_path / "made").unlink()

    source.write_text(good)
    test_file.write_text("")
    scheduled.render(f'{SETTINGS}[[limits]]\nkernel = "split"\nparts = 2\n')
    second = scheduled.run(python)
    assert second.jobs == dict.fromkeys([*PARTS, *LEGS], "success"), second.log
    made = (tmp_path / "made").read_text().split()
    assert len(made) == len(set(made)) == OBJECTS, "the link compiles nothing"
    assert scheduled.changes() == ["PATCH", "PATCH"]
    for issue in scheduled.issues():
        assert issue["state"] == "closed"
        assert issue["body"].count("Every leg below passes again.") == 1
    last = scheduled.history()[-1]
    assert (last["run"], last.get("failed", [])) == (2, [])
    assert last["passed"] == sorted([built, on_hardware, removed])
    assert "with torch 2.13: passed, 1 passed" in second.log
