"""The action that plans: for machines of one's own, for the pull request of a fork, and what it
leaves out, which plan and gate say.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from act.harness import commit_all
from action_inputs import begin_job, inputs_of, outputs_in
from buildkit import write_tree
from conftest import failure, write_noarch, write_torch
from kci.actions import gate, merge, plan
from kci.actions.common import run_action
from kci.config.settings import PullRequest, Schedule, Settings
from kci.plan.plan import read_plan
from kci.run.records import RECORD_FILE, KernelRecord, write_record

SOURCES = {"cpu": "a.cpp", "cuda": "a.cpp"}
LABELS = 'labels = ["self-hosted", "gpu"]\n'
OWN = (
    f'[pull-request]\nforks = "dispatch"\n[runners.cuda.x86_64-linux]\n{LABELS}'
    f"[test.cuda.x86_64-linux]\n{LABELS}"
)
BOTH = {"cpu", "cuda"}
MACHINES = {
    "everywhere": BOTH, "of ones own": {"cuda"}, "for a fork": {"cpu"}, "on a schedule": BOTH,
}  # fmt: skip


@pytest.mark.parametrize("upload", ["true", "false"])
def test_a_plan_that_is_larger_than_a_variable_goes_through_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], upload: str
) -> None:
    """GitHub gives an action its inputs in the environment."""
    repository = write_torch(tmp_path / "repository", SOURCES)
    monkeypatch.setattr(plan, "MAX_INPUT", 100)
    monkeypatch.chdir(repository)
    for attempt in (1, 2):
        temp = tmp_path / f"run-plan.{attempt}"
        temp.mkdir()
        inputs = inputs_of(only="torch213-*x86_64-linux", upload=upload)
        attempts = {"RUNNER_TEMP": temp, "GITHUB_RUN_ATTEMPT": attempt}
        begin_job(monkeypatch, tmp_path, **attempts, **inputs)
        ended = failure(SystemExit, "", run_action, plan.main)
    if upload == "false":
        assert (ended.code, "larger than an input" in capsys.readouterr().out) == (1, True)
        return
    assert ended.code == 0
    said = outputs_in(tmp_path / "output")["plan"]
    assert merge.plan_file(str(tmp_path)) == tmp_path / "run-plan.2" / "kci-plan" / "kci-plan.json"
    for wrong in (said, str(repository)):
        ended = failure(SystemExit, "", merge.plan_file, wrong)
        assert ended.code == 2


@pytest.mark.programs
@pytest.mark.parametrize("where", MACHINES)
def test_legs_are_planned_for_the_machines_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    no_git_environment: None, where: str,
) -> None:  # fmt: skip
    scheduled = {"callers": "1", "watch": "true"} if where == "on a schedule" else {}
    marked = "@pytest.mark.kernels_ci\ndef test_it(): pass\n"
    repository = write_torch(tmp_path / "repository", SOURCES)
    write_tree(repository, {"kci.toml": OWN, "tests/test_it.py": marked})
    commit_all(repository)
    machines = "own" if where == "of ones own" else "all"
    inputs = inputs_of(only="torch213-*x86_64-linux", machines=machines, **scheduled)
    fork = str(where == "for a fork").lower()
    begin_job(monkeypatch, tmp_path, KCI_FORK=fork, **inputs)
    monkeypatch.chdir(repository)
    ended = failure(SystemExit, "", run_action, plan.main)
    assert ended.code == 0
    said = "".join(capsys.readouterr())
    assert ("KCI317" in said) is (where == "for a fork"), "what is not tested there is said"
    planned = read_plan(tmp_path / "temp" / "kci-plan" / "kci-plan.json")
    assert {leg.backend for leg in planned.legs} == MACHINES[where]
    untested = {"some-kernel": "tests: not run, a common matrix has none"}
    assert planned.untested == (untested if where in ("everywhere", "for a fork") else {})
    # No job of a common matrix tests, and the gate would wait for one; legs of a scheduled run test
    # for the CPU.
    assert [test.name for test in planned.tests] == (["cuda-x86_64-linux"] if scheduled else [])
    if not scheduled:
        matrix = json.loads(outputs_in(tmp_path / "output")["matrix"])
        assert len(matrix["include"]) == len(planned.legs)


def test_auto_is_the_tier_that_kci_toml_says_for_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(pull_request=PullRequest(tier="quick"), schedule=Schedule(tier="nightly"))
    tiers = {"push": "release", "workflow_dispatch": "release", "schedule": "nightly"}
    for event, tier in (tiers | {"pull_request": "quick", "merge_group": "quick"}).items():
        monkeypatch.setenv("GITHUB_EVENT_NAME", event)
        assert plan.tier_of(settings, "auto") == tier
        assert plan.tier_of(settings, "all") == "all"


SAID = "2 of 4 variants of the tier release are left out"
AS_SAID = "as `leave-out` in kci.toml says"


def run_of(script: ModuleType) -> object:
    return failure(SystemExit, "", run_action, script.main).code


@pytest.mark.programs
@pytest.mark.parametrize(
    ("settings", "then"),
    [
        ("", ""),
        ('repo-prefix = "acme"', 'of kci.toml keeps ("allow") or removes ("remove") those'),
        ('leave-out = "allow"', f"older builds of them stay on the Hub, {AS_SAID}"),
        ('leave-out = "remove"', f"a release removes older builds of them from the Hub, {AS_SAID}"),
    ],
)
def test_plan_and_gate_say_what_the_release_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_git_environment: None,
    capsys: pytest.CaptureFixture[str], settings: str, then: str,
) -> None:  # fmt: skip
    repository = tmp_path / "repository"
    write_noarch(repository / "some-kernel", backends=("cpu", "cuda"))
    write_torch(repository / "mac-kernel", {"metal": "a.mm"}, "mac-kernel")
    write_tree(repository, {"kci.toml": f"[publish]\n{settings}\n" if settings else ""})
    commit_all(repository)
    monkeypatch.chdir(repository)
    records, summary = tmp_path / "temp" / "kci-records", tmp_path / "summary"
    begin_job(monkeypatch, tmp_path, **inputs_of(results="plan=success"))
    assert run_of(plan) == 0
    (tmp_path / "temp" / "kci-plan").rename(records)
    assert f"\n{SAID}" in capsys.readouterr().out
    told = summary.read_text()
    assert SAID in told
    summary.unlink()
    whole = KernelRecord("some-kernel", 1, complete=True, present=("torch-cpu", "torch-cuda"))
    write_record(records / "some-kernel" / RECORD_FILE, whole)
    assert run_of(gate) == 0, "it is said, and nothing is wrong"
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    (notice,) = (line for line in lines if line.startswith("::notice title=Left out::"))
    assert (SAID in notice, notice.endswith(then)) == (True, True)
    assert "all that was planned is there: 2 variants of 1 kernel\n" in printed
    row = "| 2 | KCI303 | kci's builders do not compile for metal on aarch64-darwin; "
    assert row in told
    assert row in summary.read_text()
