"""Every input of an action is handed over, read, and stays a value; every output is set."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from act.harness import commit_all
from act.test_workflow import add_kernel
from action_inputs import begin_job
from buildkit import program
from conftest import ROOT, failure, ran, read_yaml
from kci.actions import schedule
from kci.actions.common import INPUTS, run_action

FOLDERS = [*ROOT.glob("[a-z]*/action.yml"), *ROOT.glob("actions/*/action.yml")]
ACTIONS = sorted([ROOT / "action.yml", *FOLDERS])
SCRIPT = re.compile(
    r'run: bash "\$GITHUB_ACTION_PATH/(?:\.\./)?(?:actions/)?run\.sh" ([a-z_]+)$', re.MULTILINE
)
NAMES = [SCRIPT.findall(file.read_text(encoding="utf-8"))[0] for file in ACTIONS]


def read(file: Path) -> tuple[dict[str, Any], str, dict[str, str]]:
    """An action, the source of what it runs, and the environment that this gets."""
    text = file.read_text(encoding="utf-8")
    action = read_yaml(text)
    (name,) = SCRIPT.findall(text)
    steps = action["runs"]["steps"]
    (step,) = [step for step in steps if step.get("run", "").endswith(f'run.sh" {name}')]
    source = (ROOT / "src" / "kci" / "actions" / f"{name}.py").read_text(encoding="utf-8")
    if name != "schedule" and "scheduled_result(" in source:
        source += inspect.getsource(schedule.scheduled_result)
    elif name == "schedule":
        source = source.replace(inspect.getsource(schedule.scheduled_result), "")
    return action, source, step["env"]


def test_every_action_is_looked_at() -> None:
    modules = {path.stem for path in (ROOT / "src" / "kci" / "actions").glob("[a-z]*.py")}
    assert {*NAMES, "common"} == modules


@pytest.mark.parametrize("file", ACTIONS, ids=NAMES)
def test_every_input_acts(file: Path) -> None:
    action, source, env = read(file)
    assert env[INPUTS] == "${{ toJSON(inputs) }}"
    asked = set(re.findall(r'_input\(\s*"([a-z-]+)"', source))
    assert asked <= action["inputs"].keys(), "read, and never there"
    for name in action["inputs"].keys() - asked:
        assert f"inputs.{name} " in file.read_text(encoding="utf-8"), f"{name} has no effect"


def test_no_secret_is_an_input() -> None:
    """All inputs are in one variable of the step that runs kci."""
    names = {name for file in ACTIONS for name in read(file)[0]["inputs"]}
    assert not [name for name in names if re.search("token|secret|password", name)]


@pytest.mark.parametrize("file", ACTIONS, ids=NAMES)
def test_every_output_is_set(file: Path) -> None:
    action, script, _ = read(file)
    for name, said in action.get("outputs", {}).items():
        pattern = r"\$\{\{ steps\.([a-z]+)\.outputs\.([a-z-]+) \}\}"
        ((step, inner),) = re.findall(pattern, said["value"])
        assert step in {item.get("id") for item in action["runs"]["steps"]}
        assert inner == name
        assert f"{name.replace('-', '_')}=" in script or f'"{name}"' in script, name


def test_newer_runs_that_cannot_be_listed_stop_publishing(tmp_path: Path) -> None:
    action = read_yaml((ROOT / "publish" / "action.yml").read_text(encoding="utf-8"))
    scripts = [step.get("run", "") for step in action["runs"]["steps"]]
    (script,) = [text for text in scripts if "gh run list" in text]
    program(tmp_path, "gh", "echo 'gh: HTTP 502' >&2\nexit 1\n")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_RUN_NUMBER": "5", "JOB": "x"}
    env |= {"GITHUB_REPOSITORY": "o/r"}
    env["GITHUB_WORKFLOW_REF"] = "o/r/.github/workflows/kci-publish.yml@refs/tags/v1"
    command = ["bash", "-e", "-o", "pipefail", "-c", script]
    done = ran(*command, env=env)
    assert (done.returncode, done.stderr) == (1, "gh: HTTP 502\n")


def test_no_script_loops_over_what_a_failing_command_prints() -> None:
    """The shell goes on after a failure in the list of `for`, whatever `set -e` says."""
    for file in [*ACTIONS, *(ROOT / "templates").rglob("*.j2")]:
        assert not re.search(r"\bfor \w+ in [^;\n]*\$\(", file.read_text(encoding="utf-8")), file


# --- values that would be code, options or workflow commands somewhere else ---

VALUES = {
    "shell": "$(touch pwned)`touch pwned`';touch pwned;'\";touch pwned;\"&&touch pwned|touch pwned",
    "option": "--help",
    "path": "../../../../../../etc/passwd",
    "command": "x\n::add-mask::x\n::error::forged",
    "expression": "${{ github.token }}",
    "control": "\x1b[31mred",
    "long": "a" * 100_000,
}
FINE = {
    "kernel": "some-kernel", "variant": "torch-cpu", "artifacts": "nothing-here",
    "tree": "nothing-here", "results": "plan=success", "step": "record", "run": "7",
    "upload": "false", "allow-partial": "false", "into": "tree",
}  # fmt: skip
CASES = [
    (name, given)
    for file, name in zip(ACTIONS, NAMES, strict=True)
    for given in sorted(read(file)[0]["inputs"])
]


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository on a runner that has git and nothing else, and no network to ask."""
    repository = tmp_path / "repository"
    add_kernel(repository)
    commit_all(repository)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").symlink_to(str(shutil.which("git")))
    begin_job(
        monkeypatch, tmp_path, PATH=programs, GITHUB_SERVER_URL=f"file://{tmp_path}/nowhere",
        GITHUB_REPOSITORY="acme/kernels", GH_TOKEN="ghs_x", GITHUB_RUN_ID=1, GITHUB_RUN_ATTEMPT=1,
        HF_ENDPOINT="http://127.0.0.1:9", KCI_CACHE=tmp_path / "cache",
    )  # fmt: skip
    monkeypatch.chdir(repository)
    return repository


@pytest.mark.parametrize(
    ("action", "given"), CASES, ids=[f"{action}-{given}" for action, given in CASES]
)
def test_a_value_stays_a_value(
    runner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], action: str, given: str,
) -> None:  # fmt: skip
    module = import_module(f"kci.actions.{action}")
    for kind, value in VALUES.items():
        monkeypatch.setenv(INPUTS, json.dumps(FINE | {given: value}))
        failure(SystemExit, "", run_action, module.main)
        said = "".join(capfd.readouterr())
        for sign in ("Traceback", "\n::add-mask::", "\n::error::forged\n", "\x1b[31mred"):
            assert sign not in f"\n{said}", kind
    assert not list(tmp_path.rglob("pwned"))
    assert not (tmp_path / "output").exists() or "forged" not in (tmp_path / "output").read_text()
