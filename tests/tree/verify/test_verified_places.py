"""What `kci verify` looks at for a path, and says that it has looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.runner import kci
from conftest import write_noarch
from kci.tree.merge import merge
from kci.tree.verify import verify
from variants import artifact_of


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A kernel of which nothing was built."""
    return write_noarch(tmp_path / "gated-norm", "gated-norm", general='hub.repo-id = "a/b"\n')


def built(place: Path, into: Path) -> Path:
    merge([artifact_of(place, "torch-cpu")], into)
    return into


def corrupt(tree: Path) -> None:
    (tree / "torch-cpu" / "_ops.py").write_text("import os\n")


def test_sources_without_binaries_are_said_to_be_that(sources: Path) -> None:
    done = kci("verify", sources)
    assert (done.code, done.stdout) == (
        0, f"{sources}: sources, no build/ or result/\n1 verified: 0 errors, 0 warnings, 0 infos\n",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["build", "result"])
def test_the_binaries_of_a_kernel_are_looked_at(sources: Path, tmp_path: Path, name: str) -> None:
    tree = built(tmp_path, sources / name)
    said = f"{sources}: sources, {name} (1 variant)\n1 verified: 0 errors"
    assert kci("verify", sources).stdout.startswith(said)
    corrupt(tree)
    done = kci("verify", sources, "--format", "json")
    assert done.code == 1
    answer = json.loads(done.stdout)
    assert {item["rule"] for item in answer["diagnostics"]} >= {"KCI718", "KCI731"}
    assert answer["looked_at"] == [
        {"kind": "sources", "path": str(sources)},
        {"kind": "tree", "path": f"{sources}/{name}", "variants": ["torch-cpu"]},
    ]


def test_another_program_s_build_folder_is_no_tree(sources: Path) -> None:
    (sources / "build" / "lib.linux-x86_64-cpython-311").mkdir(parents=True)
    done = kci("verify", sources)
    first = done.stdout.splitlines()[0]
    assert (done.code, first) == (0, f"{sources}: sources, build (no variants)")


def without_manifest(tree: Path) -> None:
    (tree / "kci-manifest.json").unlink()


@pytest.mark.parametrize("also", [lambda _tree: None, without_manifest])
def test_a_build_toml_in_a_tree_turns_nothing_off(
    sources: Path, tmp_path: Path, also: Callable[[Path], None]
) -> None:
    tree = built(tmp_path, tmp_path / "tree")
    also(tree)
    text = (sources / "build.toml").read_text()
    for place in (tree, tree / "torch-cpu"):
        (place / "build.toml").write_text(text)
    corrupt(tree)
    assert {item.rule for item in verify(tree)} >= {"KCI707", "KCI731"}
    done = kci("verify", tree / "torch-cpu")
    assert (done.code, done.stdout.splitlines()[0]) == (1, f"{tree}/torch-cpu: variant")
