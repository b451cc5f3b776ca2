"""The actions behind the legs of a scheduled run, each in a process of its own: what is recorded,
and what is done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from act.harness import STAND_INS
from action_inputs import inputs_of, outputs_in
from buildkit import write_tree
from cli.runner import Result
from conftest import ran
from forked import forked_program, looked_at
from kci.matrix.variants import Kind
from kci.run.records import PLAN_FILE, write_record
from kci.watch.history import LegOutcome, LegResult
from planning import hardware_leg, leg, plan

FAILED, PASSED = LegOutcome.FAILED, LegOutcome.PASSED
PROGRAMS = [str(STAND_INS / "bin"), str(STAND_INS / "here")]


class Watch:
    """A repository with an empty remote, and what a job's steps are told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_tree(folder, {"temp/x": "", "repository/x": ""})
        origin = folder / "origin.git"
        subprocess.run(["git", "init", "--quiet", "--bare", str(origin)], check=True)
        config = f'[url "{origin}"]\n\tinsteadOf = https://github.com/example/kernels\n'
        (folder / "gitconfig").write_text(config)
        self.env = looked_at(os.environ) | {
            "PATH": os.pathsep.join([*PROGRAMS, os.environ["PATH"]]),
            "KCI_ACT_PYTHON": sys.executable,
            "GIT_CONFIG_GLOBAL": str(folder / "gitconfig"),
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_REPOSITORY": "example/kernels",
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
            "RUNNER_TEMP": str(folder / "temp"),
            "KCI_ACT_ISSUES": str(folder / "issues.json"),
            "GH_TOKEN": "token",
        }

    def step(self, name: str, run: int = 0) -> Result:
        """A step, with what the legs of a run have uploaded where the step before puts it."""
        (self.folder / "output").write_text("")
        if run:
            place = self.folder / "temp" / "kci-results"
            place.unlink(missing_ok=True)
            place.symlink_to(self.folder / f"results-{run}")
        env = self.env | inputs_of(step=name)
        python, folder = forked_program(in_tests=True), self.folder / "repository"
        done = ran(python, "-m", "kci.actions", "schedule", cwd=folder, env=env)
        return Result(done.returncode, done.stdout, done.stderr)

    def outputs(self) -> dict[str, str]:
        return outputs_in(self.folder / "output")

    def record(self, run: int, *outcomes: LegOutcome) -> Result:
        """Record a run of a kernel for each outcome."""
        for number, outcome in enumerate(outcomes):
            made = LegResult(
                run=run, at="2026-11-21T03:17:00+00:00", kernel=f"kernel-{number}",
                variant="torch-cpu", system="x86_64-linux", outcome=outcome,
                error="error: gone" if outcome is FAILED else "",
            )  # fmt: skip
            write_record(self.folder / f"results-{run}" / f"{number}.json", made)
        return self.step("record", run)

    def planned(self, *kernels: str) -> None:
        """The plan of a run, as its job uploads it; each kernel has one leg for the CPU and a test
        on a machine.
        """
        cpu = {"name": "cpu-x86_64-linux", "backend": "cpu"}
        found = (hardware_leg(name, "torch-cpu") for name in kernels)
        tests = tuple(msgspec.structs.replace(test, **cpu) for test in found)
        made = plan([leg("torch-cpu", name, kind=Kind.NOARCH) for name in kernels], tests=tests)
        write_record(self.folder / "temp" / "kci-records" / "run-plan.1" / PLAN_FILE, made)


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def test_results_become_issues_a_summary_and_a_report(watch: Watch) -> None:
    for run in (1, 2):
        done = watch.record(run, FAILED, PASSED)
        assert done.stdout == "2 results, 1 new file in the history\n", done.stderr
    done = watch.step("report")
    assert done.code == 0, done.stderr
    assert done.stdout == "opened: kernel-0: gone\n"
    (issue,) = json.loads((watch.folder / "issues.json").read_text())["issues"]
    assert (issue["state"], issue["title"]) == ("open", "kernel-0: gone")
    assert "| kernel-0 | ✗ 0 d |" in (watch.folder / "summary").read_text()
    assert watch.step("report").stdout == ""
    watch.record(3, PASSED, PASSED)
    assert watch.step("report").stdout == "closed #1: kernel-0: gone\n"


def test_what_failed_in_a_new_way_is_looked_at_again(watch: Watch) -> None:
    watch.planned("kernel-0", "kernel-1")
    for run in (1, 2):
        watch.record(run, PASSED, PASSED)
    assert watch.step("retry", 2).stdout == "0 suspects, 0 jobs to look again\n"
    assert watch.outputs()["has-work"] == "false"
    watch.record(3, FAILED, PASSED)
    done = watch.step("retry", 3)
    assert done.code == 0, done.stderr
    assert done.stdout == "kernel-0 torch-cpu x86_64-linux - -\n1 suspect, 1 job to look again\n"
    (caller,) = json.loads(watch.outputs()["callers"])["include"]
    assert (caller["kernel"], len(caller["work"]["matrix"]["include"])) == ("kernel-0", 1)
    on_hardware = watch.folder / "results-3" / "0.json"
    on_hardware.write_text(json.dumps(json.loads(on_hardware.read_text()) | {"hardware": True}))
    assert watch.step("retry", 3).code == 0
    assert watch.outputs()["has-work"] == "true"
    (caller,) = json.loads(watch.outputs()["callers"])["include"]
    assert (caller["kernel"], caller["work"]["matrix"]["include"]) == ("kernel-0", [])
    assert len(caller["work"]["tests"]["include"]) == 1
    watch.record(4, FAILED, PASSED)
    # The run before was the first look.
    assert watch.step("retry", 4).stdout == "0 suspects, 0 jobs to look again\n"


def test_without_a_plan_or_a_history_that_can_be_read_it_says_so(watch: Watch) -> None:
    watch.record(1, FAILED)
    done = watch.step("retry", 1)
    assert (done.code, "there is no plan of this run" in done.stdout + done.stderr) == (1, True)
    watch.planned("kernel-0")
    watch.env["GIT_CONFIG_GLOBAL"] = os.devnull
    watch.env["GITHUB_SERVER_URL"] = "http://127.0.0.1:9"
    done = watch.step("retry", 1)
    assert (done.code, "127.0.0.1" in done.stdout + done.stderr) == (1, True)
