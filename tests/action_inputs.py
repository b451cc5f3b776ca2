"""The inputs of an action, as its file hands them to kci, and the outputs that it sets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kci.actions.common import INPUTS


def inputs_of(**given: object) -> dict[str, str]:
    """The variable that has them: an input is a word, with `_` in place of `-`."""
    return {
        INPUTS: json.dumps({name.replace("_", "-"): str(value) for name, value in given.items()})
    }


def begin_job(monkeypatch: pytest.MonkeyPatch, folder: Path, **more: object) -> None:
    """The surroundings of a job's step: its folder, and the files of its outputs and its
    summary.
    """
    (folder / "temp").mkdir(exist_ok=True)
    places = {"RUNNER_TEMP": "temp", "GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary"}
    for name, value in ({name: folder / place for name, place in places.items()} | more).items():
        monkeypatch.setenv(name, str(value))


def outputs_in(file: Path) -> dict[str, str]:
    """What was set, by name: `name<<delimiter` blocks, as the runner parses them."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    found = re.findall(r"^(\S+)<<(\S+)\n(.*?)\n\2$", text, re.MULTILINE | re.DOTALL)
    return {name: value for name, _, value in found}
