"""Where rendered files get kci's actions from, and what installs what they depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runner import kci
from conftest import write_noarch


@pytest.mark.rule("KCI450", triggers=True)
def test_actions_that_do_not_exist_yet_are_told_of(tmp_path: Path) -> None:
    write_noarch(tmp_path / "kernel")
    done = kci("render", "--output", tmp_path, tmp_path)
    assert done.code == 0
    told = "warning[KCI450]: these workflows use kci/build@v1, which does not exist before"
    assert told in done.stderr
    text = (tmp_path / ".github/workflows/kci.yml").read_text()
    assert text.count("does not exist before the first release of kci") == 1


@pytest.mark.rule("KCI450", triggers=False)
@pytest.mark.parametrize(
    "settings", ['repository = "acme/kci"', 'ref = "main"', f'ref = "{"e" * 40}"']
)
def test_actions_that_somebody_names_exist(tmp_path: Path, settings: str) -> None:
    write_noarch(tmp_path / "kernel")
    (tmp_path / "kci.toml").write_text(f"[actions]\n{settings}\n")
    done = kci("render", "--output", tmp_path, tmp_path)
    assert (done.code, done.stderr) == (0, "")
    assert "does not exist" not in (tmp_path / ".github/workflows/kci.yml").read_text()
    assert kci("render", "--output", tmp_path, "--check", tmp_path).code == 0
