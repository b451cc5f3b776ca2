"""Repositories of many kernels under act, with stubs in place of compilers: what is planned is built and merged."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from act.harness import Run, act_path, commit_all, copy_actions, installed, run_workflow
from cli.runner import kci
from conftest import AT_TOP
from kci import Plan, PlanRequest, open_workspace, plan_run
from kci.tree.kernel_id import GitState
from many_kernels import REAL, make_repository
from variants import make_artifact, make_variant

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(act_path() is None, reason="act is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="act's host mode stands in for a Linux runner"),
]

RUNS = '-m kci.actions "$action"'
UNVERIFIED = """-c '
import sys
from importlib import import_module
from kci.actions import common, merge
merge.verify_merged = lambda *_: ()  # a stub has no native module to look into
common.run_action(import_module("kci.actions." + sys.argv[1]).main)
' "$action\""""
SMALL = (4, 3, 8)
"""Few legs, for the runs of every day."""
RELEASE = ".github/workflows/kci.yml"
STUB = """
name: Stub of kci/build
description: Takes what was built beforehand
inputs: {kernel: {required: true}, variant: {required: true}, leg: {}, tier: {}, container: {}, jobs: {}, upload: {}}
runs:
  using: composite
  steps:
    - shell: bash
      run: |
        set -euo pipefail
        kept=$KCI_ACT_STORE/kci-$(basename "$KERNEL").$LEG-1
        mkdir "$kept"
        for variant in $VARIANT; do cp "$KCI_ACT_PREBUILT/kci-$(basename "$KERNEL")-$variant.tar" "$kept"; done
      env: {KERNEL: "${{ inputs.kernel }}", VARIANT: "${{ inputs.variant }}", LEG: "${{ inputs.leg }}"}
"""


class Many:
    """A rendered repository of many kernels, and what its legs would build."""

    def __init__(self, place: Path, shared: Path, count: int, settings: str = "") -> None:
        self.root, self.prebuilt = place / "repository", place / "prebuilt"
        self.root.mkdir()
        make_repository(self.root, count, REAL if count > len(SMALL) else SMALL)
        if settings:
            (self.root / "kci.toml").write_text(settings)
        rendered = kci("render", "--output", self.root, self.root)
        assert rendered.code == 0, rendered.stderr
        commit_all(self.root)
        self.checkout = copy_actions(place / "checkout")
        self.env = {**installed(shared), "KCI_ACT_PREBUILT": str(self.prebuilt)}
        (self.checkout / "action.yml").write_text(STUB)
        script = self.checkout / "actions" / "run.sh"
        text = script.read_text(encoding="utf-8")
        assert text.count(RUNS) == 1
        script.write_text(text.replace(RUNS, UNVERIFIED), encoding="utf-8")

    def plan(self, **request: Any) -> Plan:
        """What a run plans; everything in it is built beforehand."""
        plan = plan_run(open_workspace([self.root]), PlanRequest(**request)).plan
        source = GitState(head(self.root), dirty=False)
        for leg in plan.legs:
            for name in leg.variants:
                place, files = self.prebuilt / "made" / leg.kernel, {"__init__.py": "x = 1\n"}
                made = make_variant(place, name, name=leg.kernel, unique="abc1234", source=source, files=dict(files))
                make_artifact(self.prebuilt, made, system=leg.system)
        return plan

    def run(self, scratch: Path, event: str, **payload: Any) -> Run:
        """One run of the release workflow."""
        scratch.mkdir()
        return run_workflow(self.root, RELEASE, event, scratch, checkout=self.checkout, payload=payload, env=self.env)


def expected(plan: Plan) -> dict[str, str]:
    legs = [f"build {leg.kernel} {leg.name}" for leg in plan.legs]
    merges = [f"merge {kernel}" for kernel in {leg.kernel for leg in plan.legs}]
    return dict.fromkeys(sorted([*legs, *merges, "kci", "plan"]), "success")


def assert_trees(run: Run, plan: Plan) -> None:
    """Every kernel has one tree, flat, with all that was planned of it and nothing else."""
    wanted: dict[str, set[str]] = {}
    for leg in plan.legs:
        wanted.setdefault(leg.kernel, set(AT_TOP)).update(leg.variants)
    assert {path.name for path in run.artifacts.glob("tree.*")} == {f"tree.{kernel}.1" for kernel in wanted}
    for kernel, names in wanted.items():
        with tarfile.open(run.artifacts / f"tree.{kernel}.1" / "kci-tree.tar") as archive:
            assert {name.split("/")[0] for name in archive.getnames()} == names


def head(root: Path) -> str:
    done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (3, '[plan]\ngroup = "image"\n'),
        # 388 and 229 jobs, which take minutes: KCI_MANY=1 runs them too.
        *([(52, ""), (75, '[plan]\ngroup = "backend"\n')] if os.environ.get("KCI_MANY") else []),
    ],
)
def test_a_push_builds_all(tmp_path: Path, shared_by_workers: Path, count: int, settings: str) -> None:
    many = Many(tmp_path, shared_by_workers, count, settings)
    plan = many.plan()
    run = many.run(tmp_path / "scratch", "push")
    assert run.jobs == expected(plan), run.log[-20_000:]
    assert run.ok
    assert_trees(run, plan)
    print(f"{count} kernels, {len(plan.legs)} legs, {len(run.jobs)} jobs")
