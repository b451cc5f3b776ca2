"""docs/editors.md: what it says to put into an editor reads what kci prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import kci, kci_on_path
from config.mistakes import KERNEL
from conftest import ROOT, add_package
from kci.config.schema import PUBLISHED_AT

PAGE = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")
SCHEMAS = ROOT / "schemas"


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "build.toml").write_text(KERNEL.replace('["cuda"]', '["cuda", "cuda", "rocm"]'))
    add_package(tmp_path)
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


@pytest.fixture
def findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, int, int, str, int]]:
    """Two kernels with mistakes: file, line, column, first letter of the severity, and number of the rule."""
    kci_on_path(tmp_path / "bin", monkeypatch)
    for name, backends in (("one", '["cuda", "cuda", "rocm"]'), ("two", '["rocm", "cuda"]')):
        add_package(write_tree(tmp_path / "kernels" / name, {"build.toml": KERNEL.replace('["cuda"]', backends)}))
    monkeypatch.chdir(tmp_path / "kernels")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    found = json.loads(kci("check", "--format", "json").stdout)
    found = found if isinstance(found, list) else found["diagnostics"]
    return {
        (item["path"], item["line"], item["column"], item["severity"][0], int(item["rule"].removeprefix("KCI")))
        for item in found
    }


NVIM_ANSWER = """
local function shown(items, line, column)
  return vim.tbl_map(function(item)
    local name = vim.fn.fnamemodify(vim.api.nvim_buf_get_name(item.bufnr), ":.")
    return { name, item.lnum + line, item.col + column, item.type or item.severity, item.nr or item.message }
  end, items)
end
local answer = { shown(vim.fn.getqflist(), 0, 0), shown(vim.diagnostic.get(), 1, 1) }
vim.fn.writefile({ vim.fn.json_encode(answer) }, "../answer.json")
vim.cmd("qall!")
"""


@pytest.mark.programs
@pytest.mark.skipif(shutil.which("nvim") is None, reason="nvim is not installed")
def test_neovim_shows_what_check_says(findings: set[tuple[str, int, int, str, int]], tmp_path: Path) -> None:
    (setting,) = re.findall(r"```lua\n(.*?)```", PAGE, flags=re.DOTALL)
    write_tree(tmp_path, {"init.lua": setting, "answer.lua": NVIM_ANSWER})
    command = ["nvim", "--clean", "--headless", "-u", "../init.lua", "one/build.toml", "-c", "write"]
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    subprocess.run(
        [*command, "-c", "luafile ../answer.lua"], stdin=subprocess.DEVNULL, check=False, timeout=60, env=environment
    )
    quickfix, shown = json.loads((tmp_path / "answer.json").read_text())
    assert len(findings) > 3
    assert {tuple(item) for item in quickfix} == findings
    places = {(path, line, column, "ewi".index(severity) + 1) for path, line, column, severity, _ in findings}
    assert {tuple(item[:4]) for item in shown} == places


@pytest.mark.programs
@pytest.mark.skipif(shutil.which("nvim") is None, reason="nvim is not installed")
def test_make_fills_the_quickfix_list(findings: set[tuple[str, int, int, str, int]], tmp_path: Path) -> None:
    (settings,) = re.findall(r"```vim\n(.*?)```", PAGE, flags=re.DOTALL)
    write_tree(tmp_path, {"init.vim": settings, "answer.lua": NVIM_ANSWER})
    command = [
        "nvim",
        "--clean",
        "--headless",
        "-u",
        "../init.vim",
        "-c",
        "silent make!",
        "-c",
        "luafile ../answer.lua",
    ]
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    subprocess.run(command, stdin=subprocess.DEVNULL, check=False, timeout=60, env=environment)
    assert {tuple(item) for item in json.loads((tmp_path / "answer.json").read_text())[0]} == findings


def test_the_task_of_zed_is_a_command_that_says_file_line_and_column(
    findings: set[tuple[str, int, int, str, int]],
) -> None:
    (block,) = re.findall(r"```json\n(\[.*?)```", PAGE, flags=re.DOTALL)
    (task,) = json.loads(block)
    done = subprocess.run([task["command"], *task["args"]], capture_output=True, text=True, check=False)
    places = {f"{path}:{line}:{column}" for path, line, column, _, _ in findings}
    assert places == set(re.findall(r"^\S+?:\d+:\d+(?=: )", done.stderr, flags=re.MULTILINE))


def test_the_catalog_entries_have_what_schemastore_asks_for() -> None:
    for entry in json.loads((SCHEMAS / "schemastore.json").read_text()):
        assert set(entry) == {"name", "description", "fileMatch", "url"}
        assert entry["url"].startswith(PUBLISHED_AT)
        schema = json.loads((SCHEMAS / entry["url"].removeprefix(PUBLISHED_AT)).read_text())
        assert schema["$id"] == entry["url"]
        assert schema["title"]
