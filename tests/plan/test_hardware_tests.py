"""Which jobs test: one for each kernel and kind of machine that kci.toml declares, and none for a fork."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from cli.runner import kci
from kci.plan.forks import only_hosted
from kci.plan.plan import Plan, TestLeg
from planning import leg, plan


def planned(tmp_path: Path, settings: str, *options: str) -> list[dict[str, object]]:
    place = tmp_path / "norm"
    place.mkdir()
    general = 'name = "norm"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu", "cuda", "rocm"]\n'
    (place / "build.toml").write_text(f"[general]\n{general}[torch-noarch]\n")
    (place / "torch-ext" / "norm").mkdir(parents=True)
    (place / "torch-ext" / "norm" / "__init__.py").write_text("")
    (tmp_path / ".git").mkdir()
    (tmp_path / "kci.toml").write_text(settings)
    done = kci("plan", place, "--format", "json", *options)
    assert done.code == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)["tests"]
    return found


CUDA = '[test.cuda.x86_64-linux]\nlabels = ["self-hosted", "l4"]\n'


def test_nothing_is_tested_where_no_machine_is_declared(tmp_path: Path) -> None:
    assert planned(tmp_path, "") == []


def test_each_kernel_is_tested_on_each_kind_of_machine_that_it_has_variants_for(tmp_path: Path) -> None:
    settings = CUDA + '[test.xpu.x86_64-linux]\nlabels = ["arc"]\n[[limits]]\nbackend = "cuda"\ntimeout-minutes = 7\n'
    (test,) = planned(tmp_path, settings)
    assert test["name"] == "cuda-x86_64-linux"
    assert (test["variants"], test["runner"], test["timeout"]) == (["torch-cuda"], ["self-hosted", "l4"], 7)


def test_what_is_not_built_is_not_tested(tmp_path: Path) -> None:
    assert planned(tmp_path, CUDA, "--backend", "cpu") == []


def test_a_forks_code_reaches_no_machine_of_ours() -> None:
    own = TestLeg("k", "k", "cuda-x86_64-linux", "cuda", "x86_64-linux", ("torch-cuda",), ("gpu",), 60)
    hosted = msgspec.structs.replace(own, name="cpu-x86_64-linux", backend="cpu", runner=("ubuntu-24.04",))
    given: Plan = plan([leg()], tests=(own, hosted))
    assert only_hosted(given).tests == (hosted,)
