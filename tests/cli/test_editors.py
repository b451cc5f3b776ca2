"""docs/editors.md: what it says to put into an editor reads what kci prints."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cli.runner import kci
from config.mistakes import KERNEL
from conftest import ROOT
from kci.config.schema import PUBLISHED_AT

PAGE = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")
SCHEMAS = ROOT / "schemas"


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "build.toml").write_text(KERNEL.replace('["cuda"]', '["cuda", "cuda", "rocm"]'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return kci("check", "--color", "never").stderr


def test_the_problem_matcher_reads_every_finding(said: str) -> None:
    (task,) = [json.loads(block) for block in re.findall(r"```json\n(\{\n  \"version\".*?)```", PAGE, flags=re.DOTALL)]
    pattern = task["tasks"][0]["problemMatcher"]["pattern"]
    found = [match for line in said.splitlines() if (match := re.match(pattern["regexp"], line))]
    assert {match[pattern["code"]] for match in found} >= {"KCI130", "KCI132"}
    assert len(found) == sum("[KCI" in line for line in said.splitlines())
    assert {match[pattern["file"]] for match in found} == {"build.toml"}
    assert all(int(match[pattern["line"]]) and match[pattern["message"]] for match in found)


@pytest.mark.programs
@pytest.mark.skipif(shutil.which("vim") is None, reason="vim is not installed")
def test_the_error_format_reads_every_finding(said: str, tmp_path: Path) -> None:
    (format_,) = re.findall(r"^set errorformat=.*$", PAGE, flags=re.MULTILINE)
    (tmp_path / "said.txt").write_text(said)
    shown = (
        "map(getqflist(), {_, item -> item.lnum .. ' ' .. item.type .. ' ' .. item.nr .. ' ' .. bufname(item.bufnr)})"
    )
    (tmp_path / "read.vim").write_text(
        f"set nocompatible\n{format_}\ncgetfile said.txt\ncall writefile({shown}, 'read.txt')\nqall!\n"
    )
    command = ["vim", "-u", "NONE", "-N", "-es", "-S", "read.vim"]
    subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, check=False, timeout=60)
    read = (tmp_path / "read.txt").read_text().splitlines()
    heads = [line for line in said.splitlines() if "[KCI" in line]
    assert len(read) == len(heads)
    assert any(re.fullmatch(r"6 w 132 build\.toml", line) for line in read), read


def test_the_catalog_entries_have_what_schemastore_asks_for() -> None:
    for entry in json.loads((SCHEMAS / "schemastore.json").read_text()):
        assert set(entry) == {"name", "description", "fileMatch", "url"}
        assert entry["url"].startswith(PUBLISHED_AT)
        schema = json.loads((SCHEMAS / entry["url"].removeprefix(PUBLISHED_AT)).read_text())
        assert schema["$id"] == entry["url"]
        assert schema["title"]
