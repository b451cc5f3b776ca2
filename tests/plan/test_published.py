"""Skipping what a tree has already, from the first release to one where a single CUDA file changed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from cli.runner import kci
from kci.errors import FindingsError
from kci.plan.published import already, published

REPO = Path(__file__).parent / "affected" / "repo"


def test_only_equal_fingerprints_are_skipped() -> None:
    now = {("k", "a"): "1" * 64, ("k", "b"): "2" * 64, ("other", "a"): "1" * 64}
    known = {("k", "a"): "1" * 64, ("k", "b"): "3" * 64, ("k", "gone"): "4" * 64}
    assert list(already(now, known)) == [("k", "a")]


@pytest.mark.rule("KCI313", triggers=False)
def test_a_manifest_is_read_from_a_tree_or_a_file(tmp_path: Path) -> None:
    present = [{"variant": "a", "fingerprint": "f", "more": 1}, {"variant": "b"}, {"variant": "c", "fingerprint": None}]
    file = tmp_path / "kci-manifest.json"
    file.write_text(json.dumps({"schema": 1, "kernel": "k", "present": present, "new": True}))
    assert published([tmp_path]) == published([file]) == {("k", "a"): "f"}


@pytest.mark.rule("KCI313", triggers=True)
@pytest.mark.parametrize("text", ["", "{}", '{"schema": 2, "kernel": "k", "present": []}', "[" * 100_000])
def test_a_broken_manifest_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kci-manifest.json"
    file.write_text(text)
    with pytest.raises(FindingsError) as caught:
        published([tmp_path])
    assert [item.rule for item in caught.value.diagnostics] == ["KCI313"]
    with pytest.raises(FindingsError, match="cannot read"):
        published([tmp_path / "nowhere"])


# --- from the command line ---


@pytest.fixture
def norm(tmp_path: Path, no_git_environment: None) -> Path:
    shutil.copytree(REPO / "norm", tmp_path / "norm")
    return tmp_path / "norm"


def release(norm: Path, tree: Path | None) -> dict[str, list[str]]:
    """Plan a release, pretend that all of it was built, and write the manifest that merging it would make."""
    given = [f"--published={tree}"] if tree is not None and tree.exists() else []
    done = kci("plan", norm, "--format", "json", "--fingerprints", *given)
    assert done.code == 0, done.stderr
    plan = json.loads(done.stdout)
    if tree is not None:
        prints = plan["kernels"][0]["fingerprints"]
        tree.mkdir(exist_ok=True)
        present = [{"variant": name, "fingerprint": value} for name, value in prints.items()]
        text = json.dumps({"schema": 1, "kernel": "norm", "present": present})
        (tree / "kci-manifest.json").write_text(text)
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
    shown = kci("plan", norm, "--published", tree)
    assert "nothing to build" in shown.stdout
    assert "published already with the same fingerprint" in shown.stdout
    assert json.loads(kci("plan", norm, "--published", tree, "--format", "github").stdout) == {"include": []}


def test_one_cuda_file_rebuilds_no_cpu_or_rocm_variant(norm: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    release(norm, tree)
    (norm / "csrc/cuda/hopper.cu").write_text("// faster")
    built = release(norm, tree)["built"]
    assert built
    assert all("-cu13" in name for name in built)


def test_without_fingerprints_in_the_manifest_all_is_built(norm: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text('{"schema": 1, "kernel": "norm", "present": [{"variant": "torch213-cxx11-cpu-x86_64-linux"}]}')
    plan = json.loads(kci("plan", norm, "--published", file, "--format", "json").stdout)
    assert plan["skipped"] == []


def test_fingerprints_hold_for_a_commit_only_if_nothing_else_changed(norm: Path) -> None:
    def commit() -> object:
        return json.loads(kci("plan", norm, "--fingerprints", "--format", "json").stdout)["commit"]

    assert commit() is None
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *command], cwd=norm, check=True, capture_output=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=norm, check=True, capture_output=True, text=True).stdout
    assert commit() == head.strip()
    (norm / "csrc/shared.h").write_text("// changed")
    assert commit() is None
