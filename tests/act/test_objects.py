"""Objects that go from run to run, from attempt to attempt and from part to link: compiled once, by real compilers.

Each job has a cache of its own, as a fresh runner has.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from act.harness import FIRST_RUN, Run, act_path, commit_all, copy_actions, installed, pull_request, run_workflow
from cli.runner import kci
from conftest import ROOT
from kci.builders.object_packs import read_head
from kci.tree.manifest import Manifest, read_manifest
from kci.tree.unpack import read_leg

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(act_path() is None, reason="act is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="act's host mode stands in for a Linux runner"),
]

RELEASE = ".github/workflows/kci.yml"
VARIANT = "torch-stable-abi211-cpu-x86_64-linux"
SMALL = 8
OBJECTS = SMALL + 2  # and those of rms-norm
NAMED = 1
"""The one that registers ops: the kernel's id is in it, and that is another one with each commit."""
ONE_VARIANT = """
catalog = "2026-08-20"

[[overlay]]
keep = ["backend == cpu and system == x86_64-linux"]
"""
FRESH_CACHE = """
- name: A cache of its own, with what is fetched once
  shell: bash
  env:
    PART: ${{ matrix.part }}
  run: |
    set -euo pipefail

    if [ -e many/lost ] && [ "$PART" = 2 ]; then exit 1; fi # its machine is lost
    mkdir "$RUNNER_TEMP/own-cache"
    for part in "$ACT_CACHE"/*; do ln -s "$(readlink -f "$part")" "$RUNNER_TEMP/own-cache/"; done
    echo "KCI_CACHE=$RUNNER_TEMP/own-cache" >> "$GITHUB_ENV"
"""


class Project:
    """A repository with one kernel of several small objects, and its runs."""

    def __init__(self, place: Path, cache: Path, shared: Path) -> None:
        self.place, self.repository = place, place / "repository"
        self.kernel = self.repository / "many"
        ignored = shutil.ignore_patterns("build", "__pycache__")
        shutil.copytree(ROOT / "examples" / "rms-norm", self.kernel, ignore=ignored)
        text = (self.kernel / "build.toml").read_text()
        small = ", ".join(f'"csrc/small{number}.cpp"' for number in range(SMALL))
        text = text.replace('src = ["csrc/rms_norm_cpu', f'src = [{small}, "csrc/rms_norm_cpu')
        (self.kernel / "build.toml").write_text(text)
        (self.kernel / "csrc").mkdir(exist_ok=True)
        for number in range(SMALL):
            self.source(number).write_text(f"int small{number}() {{ return {number}; }}\n")
        (self.repository / "kci.toml").write_text(ONE_VARIANT)
        own = self.repository / ".github" / "kci"
        own.mkdir(parents=True)
        (own / "before-build.yml").write_text(FRESH_CACHE)
        self.checkout = copy_actions(place / "checkout")
        self.env = {"ACT_CACHE": str(cache), **installed(shared)}
        self.count = 0

    def source(self, number: int) -> Path:
        return self.kernel / "csrc" / f"small{number}.cpp"

    def render(self) -> None:
        done = kci("render", "--output", self.repository, self.repository)
        assert done.code == 0, done.stderr
        commit_all(self.repository)

    def git(self, *words: str) -> None:
        subprocess.run(["git", "-C", str(self.repository), *words], check=True)

    def run(self, event: str, *earlier: Run, **payload: Any) -> Run:
        """Run the workflow; a push has everything that there is."""
        if event == "push":
            self.git("checkout", "--quiet", "main")
            commit_all(self.repository)
        self.count += 1
        scratch = self.place / f"scratch-{self.count}"
        scratch.mkdir()
        return run_workflow(
            self.repository, RELEASE, event, scratch,
            checkout=self.checkout, env=self.env | {"GITHUB_RUN_ID": str(FIRST_RUN + len(earlier))},
            earlier=earlier, payload=payload,
        )  # fmt: skip


@pytest.fixture
def project(torch_cache: Path, shared_by_workers: Path, tmp_path: Path) -> Project:
    return Project(tmp_path, torch_cache, shared_by_workers)


def used(run: Run, attempt: int = 1) -> tuple[int, int, tuple[str, ...]]:
    """How many objects were found and made, and in which runs, by the leg's record."""
    (artifact,) = (run.artifacts / f"kci-rms-norm.{VARIANT}-{attempt}").glob("*.tar*")
    objects = read_leg(artifact).objects
    assert objects is not None
    return objects.found, objects.made, objects.runs


def manifest(run: Run, into: Path) -> Manifest:
    with tarfile.open(run.artifacts / "tree.rms-norm.1" / "kci-tree.tar") as archive:
        archive.extractall(into, filter="data")
    found = read_manifest(into)
    assert found is not None
    return found


def record(run: Run) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((run.artifacts / "run-record.rms-norm.1" / "kci-record.json").read_text())
    return read


def test_a_change_of_a_line_compiles_one_object(project: Project, tmp_path: Path) -> None:
    project.render()
    first = project.run("push")
    jobs = dict.fromkeys([f"build rms-norm {VARIANT}", "kci", "merge", "plan"], "success")
    assert first.jobs == jobs, first.log
    assert used(first) == (0, OBJECTS, ())
    assert {path.name for path in first.artifacts.iterdir()} == {
        f"kci-rms-norm.{VARIANT}-1", f"objects.rms-norm.{VARIANT}-1",
        "run-plan.1", "run-record.rms-norm.1", "tree.rms-norm.1",
    }  # fmt: skip

    # A pull request of a fork takes what its base has, and says another thing about every object.
    project.source(3).write_text("int small3() { return 33; }\n")
    commit_all(project.repository)
    project.git("branch", "base", "HEAD~1")
    change = pull_request(project.repository, "base", by="somebody/kernels")
    fork = project.run("pull_request", first, **change)
    assert fork.jobs == jobs, fork.log
    assert used(fork) == (OBJECTS - 1 - NAMED, 1 + NAMED, ("41",))
    fork = fork._replace(event="pull_request")

    # Main takes nothing of it, although that run is newer.
    second = project.run("push", first, fork)
    assert second.jobs == jobs, second.log
    assert used(second) == (OBJECTS - 1 - NAMED, 1 + NAMED, ("41",))
    (present,) = manifest(second, tmp_path / "tree").present
    assert present.objects is not None
    assert (present.objects.runs, present.objects.made) == (("41",), 1 + NAMED)
    (kept,) = record(second)["objects"]
    assert (kept["artifact"], kept["found"], kept["made"]) == (
        f"objects.rms-norm.{VARIANT}-1",
        OBJECTS - 1 - NAMED,
        1 + NAMED,
    )


def test_a_leg_that_failed_keeps_what_it_compiled(project: Project) -> None:
    project.render()
    project.source(5).write_text("int small5() { return nothing; }\n")
    first = project.run("push")
    assert first.jobs[f"build rms-norm {VARIANT}"] == "failure"
    (kept,) = record(first)["objects"]
    assert kept["made"] >= 1
    project.source(5).write_text("int small5() { return 5; }\n")
    second = project.run("push", first)
    assert second.jobs["kci"] == "success", second.log
    found, made, runs = used(second)
    assert (found + made, runs) == (OBJECTS, ("41",))
    assert kept["made"] - NAMED <= found <= kept["made"]


def compiled(run: Run) -> dict[str, tuple[int, int]]:
    """How many objects each leg has found and made, by its name without the variant."""
    found = {}
    for pack in run.artifacts.glob("objects.*/*.tar"):
        use = read_head(pack).use
        assert use is not None
        found[pack.parent.name.removeprefix(f"objects.rms-norm.{VARIANT}").removesuffix("-1")] = (use.found, use.made)
    return found


def test_a_variant_is_made_of_parts(project: Project) -> None:
    with (project.repository / "kci.toml").open("a") as file:
        file.write('[[limits]]\nkernel = "rms-norm"\nparts = 4\n')
    project.render()
    first = project.run("push")
    parts = [f"parts rms-norm {VARIANT}.part{number}of4" for number in range(1, 5)]
    jobs = dict.fromkeys([*parts, f"link rms-norm {VARIANT}", "kci", "merge", "plan"], "success")
    assert first.jobs == jobs, first.log
    assert used(first) == (OBJECTS, 0, ("41",))
    made = compiled(first)
    assert made.pop("") == (OBJECTS, 0)
    assert sum(each for _, each in made.values()) == OBJECTS
    assert made.keys() == {f".part{number}of4" for number in range(1, 5)}

    # What a part has lost the link compiles.
    (project.kernel / "lost").touch()
    project.source(3).write_text("int small3() { return 33; }\n")
    project.source(4).write_text("int small4() { return 44; }\n")
    second = project.run("push", first)
    assert second.jobs["kci"] == "success", second.log
    made = compiled(second)
    assert ".part2of4" not in made
    assert sum(each for _, each in made.values()) == 2 + NAMED

    # Nothing is lost by it, and a change of a line compiles one object.
    (project.kernel / "lost").unlink()
    project.source(5).write_text("int small5() { return 55; }\n")
    third = project.run("push", first, second)
    assert third.jobs == jobs, third.log
    assert sum(each for _, each in compiled(third).values()) == 1 + NAMED
    assert used(third)[:2] == (OBJECTS, 0)
