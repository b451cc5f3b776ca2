"""Whoever asks what exists gets one answer: matrix, plan, a build of one variant, and a run."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from buildkit import leg_request
from cli.runner import kci
from conftest import write_noarch, write_torch
from kci.builders.request import BuildOptions
from kci.config.values import Tier
from kci.errors import MissingToolError
from kci.plan.planning import PlanRequest, plan_run
from kci.plan.workspace import Choice, Workspace, open_workspace
from kci.run.build_leg import leg_commands
from kci.run.local import outcomes_of

SOURCES = {"cpu": "csrc/cpu.cpp", "cuda": "csrc/gpu.cu", "rocm": "csrc/gpu.cu"}


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    return write_torch(tmp_path / "some", SOURCES, binding="torch-ext/binding.cpp")


def require_one_answer(workspace: Workspace, tier: str) -> set[str]:
    """Ask everybody, and give the answer."""
    choice = Choice(tier=tier)
    listed = {variant.name for variant in workspace.matrix(choice).kernels[0].variants}
    request = PlanRequest(choice=choice, allow_empty=True)
    plan = plan_run(workspace, request).plan
    (planned,) = plan.kernels
    assert {*planned.planned, *(item.variant for item in plan.left_out)} == listed
    assert {name for leg in plan.legs for name in leg.variants} == set(planned.planned)
    if plan.legs:
        assert set(plan.tree_plan().kernels[0].planned) == set(planned.planned)
    variants = workspace.matrix(choice).kernels[0].variants
    for name in listed:
        assert workspace.variant(name, tier=tier) in variants
        assert workspace.variant(name).name == name, "without a tier it is found as well"
    if listed:
        assert {outcome.variant.name for outcome in outcomes_of(workspace, choice)} == listed
        require_commands(workspace, sorted(listed)[0], tier)
    return listed


def require_commands(workspace: Workspace, name: str, tier: str) -> None:
    """`kci build --dry-run` knows the variant; at most this machine lacks something to build it
    with.
    """
    options = BuildOptions(Path("cache"), unique_id="abc")
    request = leg_request(workspace, Path("out"), options, name=name, tier=tier)
    with suppress(MissingToolError):
        assert leg_commands(workspace, request)


ADDED = '[[overlay.row]]\ntorch = "2.13"\nbackend = "cuda"\n'
ADDED += 'compute = ["13.4"]\nsystems = ["x86_64-linux"]\n'

OVERLAYS = {
    "nothing": "",
    "a row is dropped": '[[overlay]]\ndrop = ["cuda >= 13.0"]\n',
    "a row is added": f"[[overlay]]\n{ADDED}",
    "for this kernel only": '[[overlay]]\nkernel = "some-kernel"\ndrop = ["torch == 2.12"]\n'
    f"{ADDED}",
    "for another kernel": '[[overlay]]\nkernel = "another"\ndrop = ["cuda >= 12.0"]\n',
    "everything is replaced": f"[[overlay]]\nreplace = true\n{ADDED}",
    "an edition": 'catalog = "2026-08-20"\n[[overlay]]\nkeep = ["backend == cpu"]\n',
    "a tier": '[tiers.small]\nbase = "release"\nbackends = ["cpu"]\n[tiers.pairs]\nbase = "all"\n'
    "pairwise = true\n",
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_overlay_has_one_answer(kernel_dir: Path, name: str) -> None:
    (kernel_dir / "kci.toml").write_text(OVERLAYS[name])
    workspace = open_workspace([kernel_dir])
    tiers = [*map(str, Tier), *workspace.settings.settings.tiers]
    answers = {tier: require_one_answer(workspace, tier) for tier in tiers}
    assert answers["release"], "the test would prove nothing"
    assert open_workspace([kernel_dir], catalog="2026-08-20").matrix().kernels[0].variants
    if name in ("a row is dropped", "a row is added", "everything is replaced"):
        (kernel_dir / "kci.toml").unlink()
        plain = open_workspace([kernel_dir]).matrix().kernels[0].variants
        assert {item.name for item in plain} != answers["release"]


@pytest.mark.parametrize("system", ["aarch64-linux", "x86_64-linux"])
def test_a_name_that_stands_for_several_systems_means_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setattr("kci.plan.workspace.this_system", lambda: system)
    write_noarch(tmp_path, "py-only")
    assert open_workspace([str(tmp_path)]).variant("torch-cpu").system == system


def test_a_noarch_kernel_is_built_by_name_for_a_backend_without_rows(tmp_path: Path) -> None:
    """cann and neuron have no row, and tpu none that is bundled; a package of Python needs none to
    be made.
    """
    write_noarch(tmp_path, "py-only", ("cuda", "cann", "neuron", "tpu"))
    workspace = open_workspace([str(tmp_path)])
    assert {item.name for item in workspace.matrix().kernels[0].variants} == {"torch-cuda"}
    for backend in ("cann", "neuron", "tpu"):
        made = kci("build", tmp_path, "--variant", f"torch-{backend}", "--output", tmp_path / "out")
        assert made.code == 0, made.stderr
        data = json.loads((tmp_path / "out" / f"torch-{backend}" / "metadata.json").read_text())
        assert data["backend"] == {"type": backend}
        assert not workspace.variant(f"torch-{backend}").bundled, "no release has it"
    refused = kci("build", tmp_path, "--variant", "torch-xpu", "--output", tmp_path / "out")
    assert refused.code == 2, "a backend that is not declared"
