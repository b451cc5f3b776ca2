"""The table of what the community's CI does: no row is empty, and what it names of kci is there."""

from __future__ import annotations

import re

import click
import pytest

from conftest import ROOT
from kci.cli import COMMANDS, kci
from kci.config import settings
from kci.workflows.extensions import POINTS

PAGE = ROOT / "docs" / "community.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| what their")
]
OURS = [span for _, ours in ROWS for span in re.findall(r"`([^`]+)`", ours)]


@pytest.mark.parametrize("line", sorted({span for span in OURS if span.startswith("kci ")}))
def test_a_command_that_is_named_exists_with_its_options(line: str) -> None:
    words = line.split()[1:]
    assert words[0] in COMMANDS
    command = kci.get_command(click.Context(kci), words[0])
    if isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words[1])
    assert command is not None, line
    known = {name for option in command.params for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("key", sorted({span for span in OURS if re.fullmatch(r"[a-z-]+ = .*", span)}))
def test_a_key_that_is_named_is_one_of_kci_toml(key: str) -> None:
    assert f"{key.partition(' ')[0]}" in {
        name for struct in vars(settings).values() for name in getattr(struct, "__struct_encode_fields__", ())
    }


@pytest.mark.parametrize("table", sorted({match[1] for span in OURS if (match := re.match(r"\[+([a-z-]+)[].]", span))}))
def test_a_table_that_is_named_is_one_of_kci_toml(table: str) -> None:
    assert table in settings.Settings.__struct_encode_fields__


@pytest.mark.parametrize("file", sorted({span for span in OURS if span.endswith(".yml")}))
def test_a_workflow_that_is_named_is_rendered_or_read(file: str) -> None:
    golden = {path.name for path in (ROOT / "tests" / "golden").glob("*/*.yml")}
    parts = {f".github/kci/{name}.yml" for name in (*POINTS, "jobs")}
    assert file in golden | parts
