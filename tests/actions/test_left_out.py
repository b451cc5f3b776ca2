"""What a run leaves out, from the plan's summary to the gate: said, with the decision that it asks
for, and not red.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from act.harness import commit_all
from action_inputs import inputs_of
from buildkit import write_tree
from kci.actions import gate, plan
from kci.actions.common import run_action
from kci.run.records import RECORD_FILE, KernelRecord, write_record

HEAD = '[general]\nname = "{}"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = [{}]\n'
METAL = '[torch]\n[kernel.a]\nbackend = "metal"\ndepends = ["torch"]\nsrc = ["a.mm"]\n'
FILES = {
    "some-kernel/build.toml": HEAD.format("some-kernel", '"cpu", "cuda"') + "[torch-noarch]\n",
    "some-kernel/torch-ext/some_kernel/__init__.py": "",
    "mac-kernel/build.toml": HEAD.format("mac-kernel", '"metal"') + METAL,
    "mac-kernel/a.mm": "",
    "mac-kernel/torch-ext/mac_kernel/__init__.py": "",
}
SAID = "2 of 4 variants of the tier release are left out"


def run_of(script: ModuleType) -> object:
    with pytest.raises(SystemExit) as ended:
        run_action(script.main)
    return ended.value.code


@pytest.mark.programs
@pytest.mark.parametrize(
    ("settings", "then"),
    [
        ("", "\n"),
        (
            '[publish]\nrepo-prefix = "acme"\n',
            'in [publish] of kci.toml keeps ("allow") or removes ("remove") those\n',
        ),
        (
            '[publish]\nleave-out = "allow"\n',
            "older builds of them stay on the Hub, as `leave-out` in kci.toml says\n",
        ),
        (
            '[publish]\nleave-out = "remove"\n',
            "a release removes older builds of them from the Hub, as `leave-out` in kci.toml "
            "says\n",
        ),
    ],
)
def test_plan_and_gate_say_what_the_release_leaves_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_git_environment: None,
    capsys: pytest.CaptureFixture[str],
    settings: str,
    then: str,
) -> None:
    repository = write_tree(tmp_path / "repository", {**FILES, "kci.toml": settings})
    commit_all(repository)
    monkeypatch.chdir(repository)
    (tmp_path / "temp").mkdir()
    records, summary = tmp_path / "temp" / "kci-records", tmp_path / "summary"
    given = {
        "RUNNER_TEMP": tmp_path / "temp",
        "GITHUB_OUTPUT": tmp_path / "output",
        "GITHUB_STEP_SUMMARY": summary,
        **inputs_of(results="plan=success"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
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
    (notice,) = [
        line
        for line in printed.splitlines(keepends=True)
        if line.startswith("::notice title=Left out::")
    ]
    assert SAID in notice
    assert notice.endswith(then)
    assert "all that was planned is there: 2 variants of 1 kernel\n" in printed
    row = "| 2 | KCI303 | kci's builders do not compile for metal on aarch64-darwin; "
    assert row in told
    assert row in summary.read_text()
