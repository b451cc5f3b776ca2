"""What a pull request changes for users: from kci.toml over the plan's record to the gate."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from act.harness import commit_all
from actions.test_common import load
from actions.test_left_out import run_of
from buildkit import write_tree
from kci.ci.run_records import INTERFACE_FILE, RECORD_FILE, InterfaceRecord, KernelRecord, write_record
from kci.files.bounded_json import read_record

BUILD = '[general]\nname = "silu"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n[torch-noarch]\n'
BEFORE = {"silu/build.toml": BUILD, "silu/torch-ext/silu/__init__.py": "def silu(x, out=None): ...\n"}
BROKEN = {"silu/torch-ext/silu/__init__.py": "def silu(x): ...\n"}
NEW_VERSION = {"silu/build.toml": BUILD.replace("version = 1", "version = 2")}
GATE = '[pull-request]\napi = "gate"\n'
WRONG = "1 breaking change without a new version: `silu` has no parameter `out` any more"

pytestmark = pytest.mark.programs


class Pull:
    """The plan job and the gate of a pull request, in this process."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.repository, self.records = place / "repository", place / "temp" / "kci-plan"
        self.output, self.summary = place / "output", place / "summary"
        (place / "temp").mkdir()
        self.set = monkeypatch.setenv
        self.enter = monkeypatch.chdir
        self.set("RUNNER_TEMP", str(place / "temp"))
        self.set("GITHUB_OUTPUT", str(self.output))
        self.set("GITHUB_STEP_SUMMARY", str(self.summary))
        self.set("KCI_INPUT_RESULTS", "plan=success")
        self.set("KCI_INPUT_RECORDS", str(self.records))

    def commit(self, files: dict[str, str]) -> str:
        commit_all(write_tree(self.repository, files))
        self.enter(self.repository)
        return subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()

    def plan(self, base: str) -> str:
        """Plan, and compare if the plan says what with, which is returned."""
        self.set("KCI_INPUT_AFFECTED_BASE", base)
        self.output.write_text("")
        assert run_of(load("plan")) == 0
        told = self.output.read_text().partition("interface-base<<")[2].splitlines()[1]
        told = "" if told.startswith("kci-") else told
        self.set("KCI_INPUT_BASE", told)
        if told:
            assert run_of(load("interfaces")) == 0
        write_record(
            self.records / "silu" / RECORD_FILE, KernelRecord("silu", 1, complete=True, present=("torch-cpu",))
        )
        return told

    def told(self) -> InterfaceRecord:
        return read_record(self.records / INTERFACE_FILE, InterfaceRecord)


@pytest.fixture
def pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_git_environment: None) -> Pull:
    return Pull(tmp_path, monkeypatch)


def test_a_break_without_a_new_version_makes_the_gate_red(pull: Pull, capsys: pytest.CaptureFixture[str]) -> None:
    base = pull.commit({**BEFORE, "kci.toml": GATE})
    pull.commit(BROKEN)
    assert pull.plan(base) == base
    assert "| silu | 1 | silu | has no parameter &#96;out&#96; any more | breaking |" in pull.summary.read_text()
    capsys.readouterr()
    assert run_of(load("gate")) == 1
    printed = capsys.readouterr().out
    assert f"silu -, job plan: {WRONG}\n  kci diff --api {base} -- silu\n" in printed
    assert "1 kernel would break users without a new version" in printed
    assert "What would break users" in pull.summary.read_text()


@pytest.mark.parametrize(
    ("settings", "change", "gate", "breaks"),
    [
        (GATE, BROKEN | NEW_VERSION, True, 0),
        (GATE, {"silu/torch-ext/silu/__init__.py": "def silu(x, out=None): ...\ndef gelu(x): ...\n"}, True, 0),
        (GATE.replace("gate", "tell"), BROKEN, False, 1),
    ],
)
def test_what_is_told_and_not_red(pull: Pull, settings: str, change: dict[str, str], gate: bool, breaks: int) -> None:
    base = pull.commit({**BEFORE, "kci.toml": settings})
    pull.commit(change)
    assert pull.plan(base) == base
    told = pull.told()
    assert (told.gate, len(told.breaks), len(told.kernels)) == (gate, breaks, 1)
    assert run_of(load("gate")) == 0


def test_a_moved_kernel_keeps_its_users(pull: Pull) -> None:
    base = pull.commit({**BEFORE, "kci.toml": GATE})
    (pull.repository / "silu").rename(pull.repository / "moved")
    pull.commit({"moved/torch-ext/silu/__init__.py": "def silu(x): ...\n"})
    pull.plan(base)
    assert [item.message for item in pull.told().breaks] == [WRONG]


def test_a_build_toml_that_the_base_has_wrong_is_told_and_hides_no_other(
    pull: Pull, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {name.replace("silu", "gelu"): text.replace("silu", "gelu") for name, text in BEFORE.items()}
    base = pull.commit({**BEFORE, **other, "gelu/build.toml": "[general\n", "kci.toml": GATE})
    pull.commit({**BROKEN, "gelu/build.toml": other["gelu/build.toml"]})
    pull.plan(base)
    told = pull.told()
    assert (len(told.unread), [item.kernel for item in told.breaks]) == (1, ["silu"])
    assert f"1 build.toml of {base[:12]} cannot be read, and is not compared" in capsys.readouterr().out


@pytest.mark.parametrize("settings", ["", '[pull-request]\ntier = "pr"\n'])
def test_nobody_who_does_not_ask_pays_for_it(pull: Pull, settings: str) -> None:
    base = pull.commit({**BEFORE, "kci.toml": settings})
    pull.commit(BROKEN)
    assert pull.plan(base) == ""
    assert not (pull.records / INTERFACE_FILE).exists()


def test_a_push_has_nothing_to_compare_with(pull: Pull) -> None:
    pull.commit({**BEFORE, "kci.toml": GATE})
    assert pull.plan("") == ""
