"""Every input of an action is handed over, read, and in the docs; every output is set."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from actions.test_common import load
from conftest import ROOT, read_yaml

ACTIONS = sorted([ROOT / "action.yml", *ROOT.glob("[a-z]*/action.yml")])
NAMES = [file.parent.name if file.parent != ROOT else "build" for file in ACTIONS]
SCRIPT = re.compile(r'run: bash "\$GITHUB_ACTION_PATH/(?:\.\./)?actions/run\.sh" ([a-z]+)$', re.MULTILINE)


def read(file: Path) -> tuple[dict[str, Any], str, dict[str, str]]:
    """An action, the source of its scripts, and the environment that the scripts get."""
    text = file.read_text(encoding="utf-8")
    action = read_yaml(text)
    script, env = "", {}
    for name in dict.fromkeys(SCRIPT.findall(text)):
        *others, step = [step for step in action["runs"]["steps"] if step.get("run", "").endswith(f'run.sh" {name}')]
        for other in others:  # of the same action, which differ in one number
            assert {key for key, value in step["env"].items() if other["env"].get(key) != value} == {"KCI_INPUT_SLICE"}
        script += (ROOT / "actions" / f"{name}.py").read_text(encoding="utf-8")
        env |= step["env"]
    if "history_branch()" in script:  # which two of them share
        script += inspect.getsource(load("common").history_branch)
    if "watched_run(" in script:
        script += inspect.getsource(load("watched_results").watched_run)
    return action, script, env


def test_every_action_is_looked_at() -> None:
    scripts = {path.stem for path in (ROOT / "actions").glob("*.py")} - {
        "common",
        "install",
        "watched_results",
    }
    assert set(NAMES) == scripts


@pytest.mark.parametrize("file", ACTIONS, ids=NAMES)
def test_every_input_acts(file: Path) -> None:
    action, script, env = read(file)
    asked = set(re.findall(r'_input\(\s*"([a-z-]+)"', script))
    handed = {name.removeprefix("KCI_INPUT_").lower().replace("_", "-"): text for name, text in env.items()}
    for name in action["inputs"]:
        if name in asked:
            assert handed[name] == f"${{{{ inputs.{name} }}}}", name
        else:
            used = file.read_text(encoding="utf-8").count(f"inputs.{name} ")
            assert used > (name in handed), f"the input {name} has no effect"
    assert asked <= handed.keys(), "read, and never there"


@pytest.mark.parametrize("file", ACTIONS, ids=NAMES)
def test_no_step_stands_twice(file: Path) -> None:
    steps = read(file)[0]["runs"]["steps"]
    names, known = [step["name"] for step in steps], [step["id"] for step in steps if "id" in step]
    assert (len(set(names)), len(set(known))) == (len(names), len(known))


@pytest.mark.parametrize("file", ACTIONS, ids=NAMES)
def test_every_output_is_set(file: Path) -> None:
    action, script, _ = read(file)
    for name, said in action.get("outputs", {}).items():
        (step, inner) = re.fullmatch(r"\$\{\{ steps\.([a-z]+)\.outputs\.([a-z-]+) \}\}", said["value"]).groups()  # type: ignore[union-attr]
        assert step in {item.get("id") for item in action["runs"]["steps"]}
        assert inner == name
        assert f'"{name}"' in script, name


@pytest.mark.parametrize("file", ACTIONS, ids=NAMES)
def test_the_page_has_every_input_and_output(file: Path) -> None:
    """The page is generated; this is for a generator that would leave one out."""
    title = "kci/build" if file.parent == ROOT else f"kci/build/{file.parent.name}"
    page = (ROOT / "docs" / "actions.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    action = read_yaml(file.read_text(encoding="utf-8"))
    wanted = [*action["inputs"], *action.get("outputs", {})]
    assert re.findall(r"^\| `([a-z-]+)` \| \S", section, re.MULTILINE) == wanted
