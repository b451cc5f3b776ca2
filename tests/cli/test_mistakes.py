"""What `kci check` says of mistakes that people make: the page is read and rated by people."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runner import Result, kci
from config.mistakes import FILES, KERNEL, WRONG


def checked(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "build.toml").write_text(text)
    (folder / "kci.toml").write_text('catalog = "2026-08-20"\n')
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return kci("check", "--color", "never")


def test_without_a_mistake_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = checked(tmp_path, KERNEL, monkeypatch)
    assert (result.code, result.stderr) == (0, "")


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_is_said_once_with_its_place_and_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = checked(tmp_path, WRONG[name], monkeypatch).stderr
    heads = [line for line in said.splitlines() if line.startswith("build.toml:")]
    assert heads, said
    assert len(heads) == len(set(heads)), said
    assert "hint: " in said
