"""The action that plans, for a run on machines of one's own and for the pull request of a fork."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from act.harness import commit_all
from actions.test_common import load
from buildkit import write_tree
from cli.runner import kci
from conftest import add_package
from kci.ci.gate import Releasable
from kci.ci.run_records import PLAN_FILE, RunPlan
from kci.files.bounded_json import read_json

BUILD = """
[general]
name = "some-kernel"
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]
[torch]
src = ["a.cpp"]
[kernel.on_cpu]
backend = "cpu"
depends = ["torch"]
src = ["a.cpp"]
[kernel.on_cuda]
backend = "cuda"
depends = ["torch"]
src = ["a.cpp"]
"""
OWN = '[pull-request]\nforks = "dispatch"\n[runners.cuda.x86_64-linux]\nlabels = ["self-hosted", "gpu"]\n'
OWN += '[test.cuda.x86_64-linux]\nlabels = ["self-hosted", "gpu"]\n'
MACHINES = {"everywhere": {"cpu", "cuda"}, "of ones own": {"cuda"}, "for a fork": {"cpu"}}


@pytest.mark.programs
@pytest.mark.parametrize("where", MACHINES)
def test_legs_are_planned_for_the_machines_that_are_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_git_environment: None,
    where: str,
) -> None:
    files = {"build.toml": BUILD, "a.cpp": "", "kci.toml": OWN}
    repository = add_package(write_tree(tmp_path / "repository", files))
    commit_all(repository)
    (tmp_path / "temp").mkdir()
    given = {
        "RUNNER_TEMP": tmp_path / "temp",
        "GITHUB_OUTPUT": tmp_path / "output",
        "KCI_INPUT_ONLY": "torch213-*x86_64-linux",
        "KCI_INPUT_MACHINES": "own" if where == "of ones own" else "all",
        "KCI_FORK": str(where == "for a fork").lower(),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(repository)
    script = load("plan")
    with pytest.raises(SystemExit) as ended:
        script.run_action(script.main)
    assert ended.value.code == 0
    said = "".join(capsys.readouterr())
    assert ("KCI317" in said) is (where == "for a fork"), "what is not tested there is said"
    matrix = re.search(r"^matrix<<(\S+)\n(.*)\n\1$", (tmp_path / "output").read_text(), re.MULTILINE)
    assert matrix is not None
    assert {leg["backend"] for leg in json.loads(matrix[2])["include"]} == MACHINES[where]


@pytest.mark.programs
def test_where_a_release_is_measured_does_not_depend_on_what_is_built_or_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_git_environment: None
) -> None:
    """The plan has a job for each machine and kernel with benchmarks; the gate keeps those of what is released."""
    settings = OWN + '[test.cpu.aarch64-linux]\nlabels = ["arm"]\n[publish]\nrepo-prefix = "acme"\nbenchmarks = true\n'
    repository = tmp_path / "repository"
    for name in ("first", "second", "third"):
        files = {"build.toml": BUILD.replace("some-kernel", name), "a.cpp": ""}
        add_package(write_tree(repository / name, files))
        if name != "third":
            write_tree(repository / name, {"benchmarks/benchmark_a.py": ""})
    write_tree(repository, {"kci.toml": settings})
    commit_all(repository)
    (tmp_path / "temp").mkdir()
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path / "temp"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("KCI_INPUT_KERNELS", "first\nsecond\nthird")
    monkeypatch.setenv("KCI_INPUT_KERNEL", "first second third")
    monkeypatch.setenv("KCI_INPUT_ONLY", "torch213-*cu130-x86_64-linux")
    monkeypatch.setenv("KCI_INPUT_CALLERS", "1")
    monkeypatch.chdir(repository)
    script = load("plan")
    with pytest.raises(SystemExit) as ended:
        script.run_action(script.main)
    assert ended.value.code == 0
    plan = read_json(tmp_path / "temp" / "kci-plan" / PLAN_FILE, RunPlan)
    assert [(leg.kernel, leg.name) for leg in plan.benchmarks] == [
        ("first", "cuda-x86_64-linux"),
        ("second", "cuda-x86_64-linux"),
    ]
    (tmp_path / "output").unlink()
    gate = load("gate")
    gate.offer([Releasable("second", "second", "41"), Releasable("third", "third", "42")], plan.benchmarks)
    said = (tmp_path / "output").read_text()
    assert '"kernel":"second"' in said.partition("benchmarks")[2]
    assert '"run":"41"' in said.partition("benchmarks")[2]
    assert '"kernel":"first"' not in said
    gate.offer([Releasable("third", "third", "42")], plan.benchmarks)
    assert "benchmarks" in (tmp_path / "output").read_text()


def test_a_release_that_nothing_can_measure_is_refused(tmp_path: Path) -> None:
    files = {"build.toml": BUILD, "a.cpp": "", "kci.toml": '[publish]\nrepo-prefix = "acme"\nbenchmarks = true\n'}
    done = kci("render", add_package(write_tree(tmp_path, files)), "--output", tmp_path)
    assert (done.code, "name the machines that test and measure under `[test]`" in done.stderr) == (2, True), done
