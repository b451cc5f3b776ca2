"""What a run leaves out, from the plan's summary to the gate: said, with the decision that it asks
for, and not red.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from act.harness import commit_all
from action_inputs import begin_job, inputs_of
from buildkit import write_tree
from conftest import failure, write_noarch, write_torch
from kci.actions import gate, plan
from kci.actions.common import run_action
from kci.run.records import RECORD_FILE, KernelRecord, write_record

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
