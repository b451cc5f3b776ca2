"""The scheduled workflow of a kernel of C++ and of kernels of Python, run after run: an API goes,
and is mended.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from act.harness import NEEDS_ACT, Run, commit_all, copy_actions, installed, run_workflow
from act.test_workflow import add_kernel
from buildkit import OLDER_SYSTEM, program, write_tree
from cli.runner import kci
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
"""
SETTINGS = """
catalog = "catalog.toml"

[[schedule.issues.tell]]
who = ["@acme/kernels"]
"""
COMPAT = ".github/workflows/kci-compat.yml"
AFTER = ["keep-schedule-enabled", "plan", "plan-retry", "record", "report"]
LEGS = ["build split torch213-cxx11-cpu-x86_64-linux", "build some-kernel torch-cpu"]
TEST = "import pytest\n@pytest.mark.kernels_ci\ndef test_it():\n    import split\n"


class Scheduled:
    """A repository whose scheduled workflow is run again and again."""

    def __init__(
        self,
        folder: Path,
        shared: Path,
        cache: Path,
        catalog: str = CATALOG,
        settings: str = SETTINGS,
    ) -> None:
        """Render and commit what is in `repository`."""
        self.folder = folder
        self.repository = folder / "repository"
        self.origin = folder / "origin.git"
        (self.repository / "catalog.toml").write_text(catalog)
        (self.repository / "kci.toml").write_text(settings)
        rendered = kci("render", "--output", self.repository, self.repository)
        assert rendered.code == 0, rendered.stderr
        commit_all(self.repository)
        subprocess.run(["git", "init", "--quiet", "--bare", self.origin], check=True)
        config = folder / "gitconfig"
        config.write_text(
            f'[url "{self.origin}"]\n\tinsteadOf = https://github.com/example/kernels\n'
        )
        self.checkout = copy_actions(folder / "checkout")
        self.env = {
            "KCI_CACHE": str(cache),
            "KCI_ACT_ISSUES": str(folder / "issues.json"),
            "GIT_CONFIG_GLOBAL": str(config),
            **installed(shared),
        }
        self.count = 0

    def run(self, *, job: str = "", **variables: str) -> Run:
        """One scheduled run.

        Args:
            job: the only job to run, with those that it needs; empty for all.
            variables: the repository's.
        """
        self.count += 1
        scratch = self.folder / f"run-{self.count}"
        scratch.mkdir()
        number = {"GITHUB_RUN_NUMBER": str(self.count)}
        return run_workflow(
            self.repository, COMPAT, "schedule", scratch, checkout=self.checkout,
            env={**self.env, **number},
            variables=variables, job=job,
        )  # fmt: skip

    def history(self) -> list[dict[str, Any]]:
        """The files on the branch, oldest first."""
        git = ["git", "-C", str(self.origin)]
        listed = subprocess.run(
            [*git, "ls-tree", "-r", "--name-only", "kci-history"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        shown = (
            subprocess.run([*git, "show", f"kci-history:{name}"], check=True, capture_output=True)
            for name in listed
        )
        return [json.loads(done.stdout) for done in shown]

    def issues(self) -> list[tuple[str, str]]:
        """State and title of each issue."""
        return [(issue["state"], issue["title"]) for issue in self._told()["issues"]]

    def bodies(self) -> list[str]:
        return [issue["body"] for issue in self._told()["issues"]]

    def changes(self) -> list[str]:
        """The requests that change an issue, of the last run."""
        told = [
            item for item in self._told()["requests"] if "/issues" in item or "/actions/" in item
        ]
        last = max(number for number, item in enumerate(told) if item.startswith("GET"))
        return [
            item.partition(" ")[0]
            for item in told[last:]
            if "/issues" in item and not item.startswith("GET")
        ]

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.folder / "issues.json").read_text())
        return told


@pytest.mark.torch
def test_a_removed_api_becomes_an_issue_and_a_repair_closes_it(
    torch_cache: Path, shared_by_workers: Path, tmp_path: Path
) -> None:
    """With a real compiler; the second look opens the issue in the run that broke."""
    files = sources(["one"], "struct Tensor {{}};\nvoid {name}(Tensor &input) {{ ; }}\n")
    files["build.toml"] = files["build.toml"].replace('stable-abi = "2.11"\n', "")
    kernel = write_tree(tmp_path / "repository" / "split", files | {"tests/test_it.py": TEST})
    add_kernel(tmp_path / "repository", "some-kernel", ("cpu",))
    source = kernel / "csrc" / "one.cpp"
    good = source.read_text()
    source.write_text(good.replace("{ ;", "{ input.removed_in_this_torch();"))
    place = Scheduled(tmp_path, shared_by_workers, torch_cache)
    place.env["CXX"] = str(program(tmp_path, "older-g++", f'{OLDER_SYSTEM}exec g++ "$@"'))

    first = place.run()
    ran = [*LEGS, *AFTER]
    assert first.jobs == dict.fromkeys(ran, "success"), first.log
    run, again = sorted(place.history(), key=lambda item: item.get("look", 1))
    assert [item["leg"] for item in again["failed"]] == [item["leg"] for item in run["failed"]]
    assert run["passed"] == ["some-kernel torch-cpu x86_64-linux 2.13 -"]
    (failure,) = run["failed"]
    assert failure["leg"] == "split torch213-cxx11-cpu-x86_64-linux x86_64-linux 2.13 -"
    assert "has no member named" in failure["error"]
    assert "removed_in_this_torch" in failure["error"]
    assert failure["replay"].startswith("kci build --variant=torch213-cxx11-cpu-x86_64-linux")
    ((state, title),) = place.issues()
    assert state == "open"
    assert title.startswith("split: ")
    assert "removed_in_this_torch" in title
    assert "cc @acme/kernels" in place.bodies()[0]
    assert place.changes() == ["POST"]

    source.write_text(good)
    commit_all(place.repository)
    second = place.run()
    assert second.ok, second.log
    assert place.changes() == ["PATCH"]
    assert [state for state, _ in place.issues()] == ["closed"]
    assert place.bodies()[0].count("Every leg below passes again.") == 1
    last = place.history()[-1]
    assert (last["run"], len(last["passed"]), last.get("failed", [])) == (2, 2, [])
    assert "with torch 2.13: passed, 1 passed" in second.log


def test_what_a_machine_with_a_gpu_found_gets_into_the_history(
    shared_by_workers: Path, tmp_path: Path
) -> None:
    """A kernel's tests fail as long as their file says so.

    The machine that tests is this one under its label, and its Python says of itself that it has
    torch for CUDA.
    """
    test_file = (
        add_kernel(tmp_path / "repository", "some-kernel", ("cuda",)) / "tests" / "test_it.py"
    )
    test_file.parent.mkdir()
    test_file.write_text("BROKEN = True")
    catalog = CATALOG.replace('backend = "cpu"', 'backend = "cuda"\ncompute = ["13.4"]')
    settings = f'{SETTINGS}\n[test.cuda.x86_64-linux]\nlabels = ["self-hosted", "h100"]\n'
    place = Scheduled(tmp_path, shared_by_workers, tmp_path / "cache", catalog, settings)
    python = str(python_with_cuda(tmp_path))
    built = "some-kernel torch-cuda x86_64-linux 2.13 13.4"
    on_hardware = "some-kernel torch-cuda x86_64-linux+hardware 2.14 13.0"

    broken = place.run(KCI_TEST_PYTHON=python)
    ran = ["build some-kernel torch-cuda", *AFTER]
    ran += ["watch-test some-kernel cuda-x86_64-linux"]
    assert broken.jobs == dict.fromkeys(ran, "success"), broken.log
    run, again = sorted(place.history(), key=lambda item: item.get("look", 1))
    assert [failure["leg"] for failure in again["failed"]] == [on_hardware]
    assert ([failure["leg"] for failure in run["failed"]], run["passed"]) == (
        [on_hardware],
        [built],
    )
    assert [state for state, _ in place.issues()] == ["open"]

    test_file.write_text("")
    commit_all(place.repository)
    good = place.run(KCI_TEST_PYTHON=python)
    assert good.jobs == dict.fromkeys(ran, "success"), good.log
    assert place.history()[-1]["passed"] == sorted([built, on_hardware])
    assert [state for state, _ in place.issues()] == ["closed"]
