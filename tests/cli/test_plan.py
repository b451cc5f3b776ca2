"""`kci plan` as a user calls it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from act.harness import commit_all
from buildkit import copy_example, write_tree
from cli.runner import ended, kci, kci_process
from conftest import ROOT
from planning import git, replace

RELU = ROOT / "examples" / "relu"
REPO = ROOT / "tests" / "plan" / "affected" / "repo"


def test_a_budget_that_is_too_small_fails_with_advice() -> None:
    done = kci("plan", RELU, "--max-jobs", "4")
    assert ended(done, 1, "error[KCI309]", "hint: narrow with `--tier pr`") == ""
    assert done.stderr.count("error") == 1, "it is said once"
    assert kci("plan", RELU, "--max-cost", "0.5").code == 1
    assert kci("plan", RELU, "--max-jobs", "100", "--max-cost", "100").code == 0


@pytest.fixture
def repository(tmp_path: Path, no_git_environment: None) -> Path:
    root = Path(shutil.copytree(REPO, tmp_path / "r"))
    commit_all(root)
    return root


def planned(*words: str | Path) -> Any:
    return json.loads(kci("plan", *words, "--format", "json").stdout)


def test_affected_plans_what_changed_and_says_why(repository: Path) -> None:
    assert planned(repository / "norm")["commit"] == git(repository, "rev-parse", "HEAD")
    changes = {"norm/csrc/cuda/hopper.cu": "// faster", "README.md": "# new"}
    write_tree(repository, changes)
    plan = planned(repository, "--affected", "HEAD")
    assert plan["commit"] is None
    assert {leg["kernel"] for leg in plan["legs"]} == {"norm"}
    assert all("-cu13" in leg["name"] for leg in plan["legs"])
    assert [kernel["name"] for kernel in plan["kernels"]] == ["norm"]
    assert [item["path"] for item in plan["affected"]] == sorted(changes)
    shown = kci("plan", repository, "--affected", "HEAD").stdout
    assert "an input of these variants" in shown
    assert "and 1 file outside of the planned kernels" in shown
    write_tree(repository, {"norm/README.md": "new"})
    done = kci("plan", repository, "--affected", "HEAD", "--format", "github", "-v")
    ended(done, 0, "no `src` of build.toml lists it")
    assert "no `src`" not in kci("plan", repository, "--affected=HEAD", "--format=github").stderr


def test_affected_with_a_filter_compares_under_the_same_filter(repository: Path) -> None:
    replace("norm/build.toml", 'minver = "12.6"', 'minver = "12.0"')(repository)
    plan = planned(repository, "--affected", "HEAD", "--only", "*cu13*")
    assert (plan["legs"], plan["has_work"]) == ([], False)
    shown = kci("plan", repository, "--affected", "HEAD", "--only", "*cu13*").stdout
    assert shown.startswith("nothing to build\n")


@pytest.mark.parametrize(
    ("old", "new", "backends"),
    [
        ("# nothing", "# a comment", set()),
        ("# nothing", '[runners.cuda.x86_64-linux]\nlabels = ["big"]', set()),
        ("# nothing", '[actions.pins."actions/checkout"]\nsha = "' + "a" * 40 + '"', set()),
        ("# nothing", '[images.cuda]\nx86_64-linux = "acme/cuda:1"', {"cuda"}),
        ("# nothing", '[[overlay]]\nkernel = "pyonly"\ndrop = ["backend == cpu"]', set()),
        ('[[overlay]]\ndrop = ["backend == cpu"]', "# nothing", {"cpu"}),
        ('catalog = "2026-03-25"', "# nothing", {"cpu", "cuda", "rocm"}),
    ],
)
def test_of_kci_toml_the_keys_that_changed_decide(
    repository: Path, old: str, new: str, backends: set[str]
) -> None:
    file = repository / "kci.toml"
    file.write_text(f"{old}\n")
    commit_all(repository)
    file.write_text(f"{new}\n")
    plan = planned(repository / "norm", "--affected", "HEAD")
    found = {leg["backend"] for leg in plan["legs"]}
    assert found <= backends if "catalog" in old else found == backends
    changed = "these variants changed" if backends else "the planned variants is unchanged"
    assert [item["reason"] for item in plan["affected"]] == [f"what it says of {changed}"]


@pytest.mark.usefixtures("no_git_environment")
def test_every_command_of_the_documentation_works(tmp_path: Path) -> None:
    examples = copy_example("", tmp_path / "r")
    commit_all(examples)
    commands = re.findall("(?m)^[$] kci (.*)", (ROOT / "docs" / "plan.md").read_text())
    assert len(commands) > 4
    for command in commands:
        assert ended(kci_process(*command.split(), cwd=examples), 0), command
