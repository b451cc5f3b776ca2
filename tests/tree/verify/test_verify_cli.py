"""`kci pack`, `kci merge` and `kci verify` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from cli.runner import kci
from kci.tree.manifest import Manifest
from variants import make_variant, tree_plan


@pytest.fixture(autouse=True)
def no_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_RUN_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)


def test_pack_then_merge_then_verify(tmp_path: Path) -> None:
    variant = make_variant(tmp_path, "torch-cpu")
    done = kci("pack", variant, "-o", tmp_path / "out/kci-gated-norm-torch-cpu.tar.zst")
    assert (done.code, done.stdout) == (0, f"{tmp_path}/out/kci-gated-norm-torch-cpu.tar.zst\n")
    plan = tmp_path / "plan.json"
    plan.write_bytes(msgspec.json.encode(tree_plan("torch-cpu")))
    build = tmp_path / "build"
    done = kci("merge", tmp_path / "out", "--into", build, "--plan", plan, "--json")
    answer = json.loads(done.stdout)
    assert done.code == 0
    assert (answer["schema"], answer["complete"]) == (1, True)
    msgspec.convert(answer["manifests"][0], Manifest)
    done = kci("verify", build)
    told = f"{build}: tree (1 variant)\n1 verified: 0 errors, 0 warnings, 0 infos\n"
    assert (done.code, done.stdout, done.stderr) == (0, told, "")


def test_a_variant_that_was_changed_can_be_sealed_anew(tmp_path: Path) -> None:
    variant = make_variant(tmp_path)
    (variant / "_ops.py").write_text("x = 1\n")
    done = kci("pack", variant, "-o", tmp_path / "x.tar")
    assert (done.code, done.stdout) == (1, "")
    assert "KCI603" in done.stderr
    done = kci("pack", variant, "-o", tmp_path / "x.tar", "--seal")
    assert (done.code, done.stdout) == (0, f"{tmp_path}/x.tar\n")


def test_exit_codes_of_safety_and_usage(tmp_path: Path) -> None:
    variant = make_variant(tmp_path)
    (variant / "link").symlink_to("/etc/passwd")
    assert kci("pack", variant, "-o", tmp_path / "x.tar", "--seal").code == 5
    assert kci("merge", tmp_path / "none", "--into", tmp_path / "build").code == 2
    assert kci("verify", tmp_path / "none").code == 2
    assert kci("verify", variant, "--select", "KCI999").code == 2
    assert kci("merge").code == 2


def test_findings_in_every_format(tmp_path: Path) -> None:
    variant = make_variant(tmp_path, "torch-cpu", files={"__init__.py": "import numpy  # <b>|\n"})
    done = kci("verify", variant)
    told = f"{variant}: variant\n1 verified: 1 error, 0 warnings, 0 infos\n"
    assert (done.code, done.stdout) == (1, told)
    assert "__init__.py:1:1: error[KCI771]: it imports numpy" in done.stderr
    done = kci("verify", variant, "--format", "json")
    assert done.code == 1
    assert json.loads(done.stdout)["looked_at"] == [{"kind": "variant", "path": str(variant)}]
    (item,) = json.loads(done.stdout)["diagnostics"]
    assert (item["rule"], item["severity"], item["line"]) == ("KCI771", "error", 1)
    done = kci("verify", variant, "--format", "github")
    assert done.stdout.startswith("::error title=KCI771,file=")
    assert kci("verify", variant, "--ignore", "KCI77").code == 0
