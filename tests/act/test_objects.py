"""Objects that go from run to run, from attempt to attempt and from part to link: compiled once, by
real compilers.

Each job has a cache of its own, as a fresh runner has.
"""

from __future__ import annotations

import collections
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from act.harness import (
    FIRST_RUN,
    NEEDS_ACT,
    Run,
    commit_all,
    copy_actions,
    installed,
    pull_request,
    run_workflow,
)
from buildkit import OLDER_SYSTEM, program, write_tree
from cli.runner import kci
from kci.builders.native.objects import read_head
from kci.tree.manifest import Manifest, read_manifest
from kci.tree.pack import read_leg
from planning import git
from split_kernel import sources

pytestmark = [pytest.mark.torch, *NEEDS_ACT]

RELEASE = ".github/workflows/kci.yml"
VARIANT = "torch-stable-abi211-cpu-x86_64-linux"
SMALL = 8
OBJECTS = SMALL + 1
NAMED = 1
"""The one that registers ops: the kernel's id is in it, and that is another one with each
commit."""
ONE_VARIANT = """
catalog = "2026-08-20"

[test]
cpu = false

[plan]
load = []

[[overlay]]
keep = ["backend == cpu and system == x86_64-linux"]
"""
# A compiler that notes each object which it has made, and may fail at one of them.
COUNTED = """
made=; last=; for word; do test "$last" = -o && made=$word; last=$word; done
here=HERE
case "$made" in */small5.cpp.o) if [ -e $here/broken ]; then exit 1; fi ;; esac
g++ "$@" || exit $?
case "$made" in obj/[0-9]*) echo "$made" >> $here/made ;; *) exit 0 ;; esac
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
        write_tree(
            self.kernel, sources([f"small{number}" for number in range(SMALL)], "int {name};\n")
        )
        (self.repository / "kci.toml").write_text(ONE_VARIANT)
        own = self.repository / ".github" / "kci"
        own.mkdir(parents=True)
        (own / "before-build.yml").write_text(FRESH_CACHE)
        self.checkout = copy_actions(place / "checkout")
        (place / "bin").mkdir()
        counted = program(
            place / "bin", "counted-g++", OLDER_SYSTEM + COUNTED.replace("HERE", str(place))
        )
        self.env = {"ACT_CACHE": str(cache), "CXX": str(counted), **installed(shared)}
        self.count = 0

    def source(self, number: int) -> Path:
        return self.kernel / "csrc" / f"small{number}.cpp"

    def render(self) -> None:
        done = kci("render", "--output", self.repository, self.repository)
        assert done.code == 0, done.stderr
        commit_all(self.repository)

    def settings(self, text: str) -> None:
        """More of kci.toml."""
        with (self.repository / "kci.toml").open("a") as file:
            file.write(text)

    def made(self) -> collections.Counter[str]:
        """How often each object was compiled, since this was asked last."""
        notes = self.place / "made"
        found = (
            collections.Counter(notes.read_text().split())
            if notes.exists()
            else collections.Counter[str]()
        )
        notes.unlink(missing_ok=True)
        return found

    def run(self, event: str, *earlier: Run, attempt: int = 1, **payload: Any) -> Run:
        """Run the workflow; a push has everything that there is.

        A further attempt has what those before uploaded.
        """
        if event == "push" and attempt == 1:
            git(self.repository, "checkout", "--quiet", "main")
            commit_all(self.repository)
        self.count += attempt == 1
        scratch = self.place / f"scratch-{self.count}"
        scratch.mkdir(exist_ok=True)
        numbers = {
            "GITHUB_RUN_ID": str(FIRST_RUN + len(earlier)),
            "GITHUB_RUN_ATTEMPT": str(attempt),
        }
        return run_workflow(
            self.repository, RELEASE, event, scratch, checkout=self.checkout,
            env=self.env | numbers,
            earlier=earlier, payload=payload,
        )  # fmt: skip


@pytest.fixture
def project(
    torch_cache: Path, as_users_compile: None, shared_by_workers: Path, tmp_path: Path
) -> Project:
    return Project(tmp_path, torch_cache, shared_by_workers)


def used(run: Run, attempt: int = 1) -> tuple[int, int, tuple[str, ...]]:
    """How many objects were found and made, and in which runs, by the leg's record."""
    (artifact,) = (run.artifacts / f"kci-split.{VARIANT}-{attempt}").glob("*.tar*")
    objects = read_leg(artifact).objects
    assert objects is not None
    return objects.found, objects.made, objects.runs


def manifest(run: Run, into: Path) -> Manifest:
    with tarfile.open(run.artifacts / "tree.split.1" / "kci-tree.tar") as archive:
        archive.extractall(into, filter="data")
    found = read_manifest(into)
    assert found is not None
    return found


def record(run: Run) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(
        (run.artifacts / "run-record.split.1" / "kci-record.json").read_text()
    )
    return read


def test_a_leg_that_failed_goes_on_and_a_change_of_a_line_compiles_one_object(
    project: Project, tmp_path: Path
) -> None:
    project.render()
    (project.place / "broken").touch()
    run = project.run("push")
    leg, objects = f"split {VARIANT}", f"objects.split.{VARIANT}-1"
    assert run.jobs[f"build {leg}"] == "failure", run.log
    assert {path.name for path in run.artifacts.glob("objects.*")} == {objects}
    (there,) = kept_by(run).values()
    assert 0 < there < OBJECTS
    project.made()

    (project.place / "broken").unlink()
    again = project.run("push", attempt=2)
    jobs = dict.fromkeys([f"build {leg}", "kci", "merge split", "plan"], "success")
    assert again.jobs == jobs, again.log
    assert project.made().total() == OBJECTS - there

    project.source(3).write_text("int small3() { return 33; }\n")
    second = project.run("push", again)
    assert second.jobs == jobs, second.log
    assert used(second) == (OBJECTS - 1 - NAMED, 1 + NAMED, ("41",))
    (present,) = manifest(second, tmp_path / "tree").present
    assert present.objects is not None
    assert (present.objects.runs, present.objects.made) == (("41",), 1 + NAMED)
    (kept,) = record(second)["objects"]
    assert kept["artifact"] == objects


def kept_by(run: Run) -> dict[str, int]:
    """How many objects each leg has handed on, by its name without the variant."""
    found = {}
    for pack in run.artifacts.glob("objects.*/*.tar"):
        name = pack.parent.name.removeprefix(f"objects.split.{VARIANT}").removesuffix("-1")
        found[name] = read_head(pack).objects
    return found


def test_objects_are_made_in_parts_and_main_takes_none_of_a_fork(project: Project) -> None:
    project.settings('[[limits]]\nkernel = "split"\nparts = 2\n')
    project.render()
    first = project.run("push")
    parts = [f"parts split {VARIANT}.part{number}of2" for number in (1, 2)]
    jobs = dict.fromkeys([*parts, f"link split {VARIANT}", "kci", "merge split", "plan"], "success")
    assert first.jobs == jobs, first.log
    assert used(first) == (OBJECTS, 0, ("41",))
    made = project.made()
    assert (len(made), made.total()) == (OBJECTS, OBJECTS)
    kept = kept_by(first)
    assert kept.pop("") == OBJECTS
    assert kept.keys() == {f".part{number}of2" for number in (1, 2)}
    assert sum(kept.values()) == OBJECTS

    # A pull request of a fork takes what its base has: of what it says main takes nothing, although
    # it is newer.
    project.source(3).write_text("int small3() { return 33; }\n")
    commit_all(project.repository)
    git(project.repository, "branch", "base", "HEAD~1")
    fork = project.run(
        "pull_request", first, **pull_request(project.repository, "base", by="somebody/kernels")
    )
    assert fork.jobs == jobs, fork.log
    assert project.made().total() == 1 + NAMED
    fork = fork._replace(event="pull_request")

    # Somebody has put something else in their place.
    for pack in fork.artifacts.glob("objects.*/*.tar"):
        pack.write_bytes(b"poison")

    # What a part has lost the link compiles.
    (project.kernel / "lost").touch()
    for number in range(4, SMALL):
        project.source(number).write_text(f"int small{number}() {{ return {number + 100}; }}\n")
    second = project.run("push", first, fork)
    # act does not run the gate: it takes a called job that may fail for one that must not.
    ended = {
        name.split()[0]: result
        for name, result in second.jobs.items()
        if not name.startswith("parts ")
    }
    assert ended == dict.fromkeys(["link", "merge", "plan"], "success"), second.log
    assert ".part2of2" not in kept_by(second)
    assert project.made().total() == SMALL - 3 + NAMED, (
        "what the fork has compiled is compiled once more"
    )
    assert used(second)[2] == ("41", "43")
