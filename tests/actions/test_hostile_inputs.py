"""Every input of every action with values that would be code, options or workflow commands
somewhere else.
"""

from __future__ import annotations

import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from act.harness import commit_all
from act.test_workflow import add_kernel
from action_inputs import begin_job
from actions.test_inputs import ACTIONS, NAMES, read
from conftest import failure
from kci.actions.common import INPUTS, run_action

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
