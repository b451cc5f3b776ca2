"""Where rendered files get kci's actions from, and what installs what they depend on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.runner import kci


@pytest.mark.rule("KCI450", triggers=True)
def test_actions_that_do_not_exist_yet_are_told_of(tmp_path: Path) -> None:
    add_kernel(tmp_path)
    done = kci("render", "--output", tmp_path, tmp_path)
    assert done.code == 0
    assert "warning[KCI450]: these workflows use kci/build@v1, which does not exist before" in done.stderr
    text = (tmp_path / ".github/workflows/kci.yml").read_text()
    assert text.count("does not exist before the first release of kci") == 1


@pytest.mark.rule("KCI450", triggers=False)
@pytest.mark.parametrize("settings", ['repository = "acme/kci"', 'ref = "main"', f'ref = "{"e" * 40}"'])
def test_actions_that_somebody_names_exist(tmp_path: Path, settings: str) -> None:
    add_kernel(tmp_path)
    (tmp_path / "kci.toml").write_text(f"[actions]\n{settings}\n")
    done = kci("render", "--output", tmp_path, tmp_path)
    assert (done.code, done.stderr) == (0, "")
    assert "does not exist" not in (tmp_path / ".github/workflows/kci.yml").read_text()
    assert kci("render", "--output", tmp_path, "--check", tmp_path).code == 0


def add_kernel(root: Path) -> None:
    package = root / "kernel" / "torch-ext" / "some_kernel"
    package.mkdir(parents=True)
    general = 'name = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
    (root / "kernel" / "build.toml").write_text(f"[general]\n{general}[torch-noarch]\n")
    (package / "__init__.py").write_text("def double(x):\n    return x + x\n")
