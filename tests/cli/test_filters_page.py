"""Every command on docs/filters.md does what the page shows."""

from __future__ import annotations

import re
import shlex

import pytest

from cli.runner import kci
from conftest import ROOT

PAGE = ROOT / "docs" / "filters.md"
BLOCK = re.compile(r"^```console\n\$ kci (.*)\n((?:.*\n)*?)```$", re.MULTILINE)
EXAMPLES = [(found[1], found[2]) for found in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]


def answer(command: str) -> str:
    done = kci(*shlex.split(command))
    return done.stdout + done.stderr


@pytest.mark.usefixtures("november")
@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_an_example_of_the_page(command: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert answer(command) == shown


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == PAGE.read_text(encoding="utf-8").count("```console") >= 7
