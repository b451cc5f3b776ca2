"""Skipping what a tree has already, from the first release to one where a single CUDA file changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kci.matrix.variants import parse_variant_name
from kci.plan.fingerprint import unchanged_variants
from kci.plan.planning import PlanRequest, plan_run
from kci.plan.workspace import open_workspace
from kci.tree.manifest import Manifest, Origin, Present, encode, read_published
from variants import make_variant, variant_digest

REPO = Path(__file__).parent / "affected" / "repo"


def test_only_equal_fingerprints_are_skipped() -> None:
    now = {("k", "a"): "1" * 64, ("k", "b"): "2" * 64, ("other", "a"): "1" * 64}
    known = {("k", name): value * 64 for name, value in (("a", "1"), ("b", "3"), ("c", "4"))}
    assert list(unchanged_variants(now, known)) == [("k", "a")]


# --- from the command line ---


@pytest.fixture
def norm(tmp_path: Path, no_git_environment: None) -> Path:
    shutil.copytree(REPO / "norm", tmp_path / "norm")
    return tmp_path / "norm"


def write_published(tree: Path, prints: dict[str, str | None]) -> None:
    """The tree that merging would make."""
    present = []
    for name, fingerprint in sorted(prints.items()):
        if not (tree / name).exists():
            make_variant(tree, name, name="norm")
        backend = parse_variant_name(name).backend
        present.append(Present(name, variant_digest(tree / name), backend, Origin(""), fingerprint))
    manifest = Manifest("norm", 1, tuple(sorted(prints)), tuple(present), (), complete=True)
    (tree / "kci-manifest.json").write_bytes(encode(manifest))


def planned(norm: Path, tree: Path | None) -> tuple[Any, list[str]]:
    """The plan as JSON, skipping what the tree has, and the rules of what was found about the tree."""
    known, problems = read_published([tree] if tree is not None and tree.exists() else [])
    made = plan_run(open_workspace([str(norm)]), PlanRequest(published=known, fingerprints=True))
    return json.loads(msgspec.json.encode(made.as_json())), [item.rule for item in problems]


def release(norm: Path, tree: Path | None) -> dict[str, list[str]]:
    """Plan a release, pretend that all of it was built, and write the manifest that merging it would make."""
    plan, _ = planned(norm, tree)
    if tree is not None:
        write_published(tree, plan["kernels"][0]["fingerprints"])
    assert sorted(plan["kernels"][0]["planned"]) == sorted(
        [name for leg in plan["legs"] for name in leg["variants"]] + [item["variant"] for item in plan["skipped"]]
    ), "what is skipped is planned all the same"
    return {
        "built": sorted(name for leg in plan["legs"] for name in leg["variants"]),
        "skipped": sorted(item["variant"] for item in plan["skipped"]),
    }


def test_a_release_without_a_relevant_change_builds_nothing(norm: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    first = release(norm, tree)
    assert first["built"]
    (norm / "README.md").write_text("# better words")
    again = release(norm, tree)
    assert again == {"built": [], "skipped": first["built"]}
    plan, _ = planned(norm, tree)
    assert all("published already with the same fingerprint" in item["reason"] for item in plan["skipped"])


def test_one_cuda_file_rebuilds_no_cpu_or_rocm_variant(norm: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    release(norm, tree)
    (norm / "csrc/cuda/hopper.cu").write_text("// faster")
    built = release(norm, tree)["built"]
    assert built
    assert all("-cu13" in name for name in built)
