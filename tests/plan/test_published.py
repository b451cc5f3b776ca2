"""Skipping what is published already."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from act.harness import commit_all
from cli.runner import kci
from kci.plan.fingerprint import unchanged_variants
from kci.plan.planning import PlanRequest, plan_run
from kci.plan.workspace import open_workspace
from planning import git

REPO = Path(__file__).parent / "affected" / "repo"


@pytest.fixture
def norm(tmp_path: Path, no_git_environment: None) -> Path:
    return Path(shutil.copytree(REPO / "norm", tmp_path / "norm"))


def test_only_equal_fingerprints_are_skipped() -> None:
    now = {("k", "a"): "1" * 64, ("k", "b"): "2" * 64, ("other", "a"): "1" * 64}
    known = {("k", name): value * 64 for name, value in (("a", "1"), ("b", "3"), ("c", "4"))}
    assert list(unchanged_variants(now, known)) == [("k", "a")]


def test_a_release_builds_what_a_change_touches_and_plans_all(norm: Path) -> None:
    first = plan_run(open_workspace([str(norm)]), PlanRequest(fingerprints=True)).plan
    (kernel,) = first.kernels
    known = {("norm", name): text for name, text in (kernel.fingerprints or {}).items()}
    assert sorted(kernel.planned) == sorted(name for leg in first.legs for name in leg.variants)

    def again() -> tuple[set[str], set[str]]:
        request = PlanRequest(published=known, fingerprints=True)
        plan = plan_run(open_workspace([str(norm)]), request).plan
        assert plan.kernels[0].planned == kernel.planned, "what is skipped is planned all the same"
        for item in plan.skipped:
            assert "published already with the same fingerprint" in item.reason
        built = {name for leg in plan.legs for name in leg.variants}
        return built, {item.variant for item in plan.skipped}

    (norm / "README.md").write_text("# better words")
    assert again() == (set(), {*kernel.planned})
    (norm / "csrc/cuda/hopper.cu").write_text("// faster")
    built, skipped = again()
    assert built
    assert all("-cu13" in name for name in built)
    assert built | skipped == {*kernel.planned}


def test_fingerprints_hold_for_a_commit_only_if_nothing_else_changed(norm: Path) -> None:
    def commit() -> object:
        return json.loads(kci("plan", norm, "--fingerprints", "--format", "json").stdout)["commit"]

    assert commit() is None
    commit_all(norm)
    assert commit() == git(norm, "rev-parse", "HEAD")
    (norm / "csrc/shared.h").write_text("// changed")
    assert commit() is None
