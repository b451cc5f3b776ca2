"""Objects that go from run to run, from attempt to attempt and from part to link: compiled once, by
real compilers.

Each job has a cache of its own, as a fresh runner has.
"""

from __future__ import annotations

import collections
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
)
from act.test_workflow import RELEASE, Runner
from buildkit import OLDER_SYSTEM, program, write_tree
from cli.runner import ended, kci
from kci.builders.native.objects import read_head
from kci.run.records import RECORD_FILE, KernelRecord
from kci.tree.pack import read_leg
from kci.utils.bounded_json import read_record
from planning import git
from split_kernel import sources

pytestmark = [pytest.mark.torch, *NEEDS_ACT]

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
        names = [f"small{number}" for number in range(SMALL)]
        write_tree(self.kernel, sources(names, "int {name};\n"))
        write_tree(self.repository, {".github/kci/before-build.yml": FRESH_CACHE})
        self.checkout = copy_actions(place / "checkout")
        (place / "bin").mkdir()
        text = OLDER_SYSTEM + COUNTED.replace("HERE", str(place))
        counted = program(place / "bin", "counted-g++", text)
        self.env = {"ACT_CACHE": str(cache), "CXX": str(counted), **installed(shared)}
        self.count = 0

    def source(self, number: int) -> Path:
        return self.kernel / "csrc" / f"small{number}.cpp"

    def render(self, settings: str = "") -> None:
        """With more of kci.toml."""
        (self.repository / "kci.toml").write_text(ONE_VARIANT + settings)
        ended(kci("render", "--output", self.repository, self.repository), 0)
        commit_all(self.repository)

    def made(self) -> collections.Counter[str]:
        """How often each object was compiled, since this was asked last."""
        notes = self.place / "made"
        found = notes.read_text().split() if notes.exists() else []
        notes.unlink(missing_ok=True)
        return collections.Counter(found)

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
        number = str(FIRST_RUN + len(earlier))
        env = {**self.env, "GITHUB_RUN_ID": number, "GITHUB_RUN_ATTEMPT": str(attempt)}
        runner = Runner(self.checkout, env)
        return runner.run(self.repository, RELEASE, event, scratch, earlier, **payload)


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


def record(run: Run) -> KernelRecord:
    return read_record(run.artifacts / "run-record.split.1" / RECORD_FILE, KernelRecord)


def test_a_leg_that_failed_goes_on_and_a_change_of_a_line_compiles_one_object(
    project: Project,
) -> None:
    project.render()
    (project.place / "broken").touch()
    run = project.run("push")
    leg, objects = f"split {VARIANT}", f"objects.split.{VARIANT}-1"
    assert run.jobs[f"build {leg}"] == "failure", run.log
    assert {path.name for path in run.artifacts.glob("objects.*")} == {objects}
    there = record(run).objects[0].made
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
    kept = record(second)
    assert kept.manifest is not None
    (present,) = kept.manifest.present
    assert present.objects is not None
    assert (present.objects.runs, present.objects.made) == (("41",), 1 + NAMED)
    (there,) = kept.objects
    found = (there.artifact, there.found, there.made)
    assert found == (objects, OBJECTS - 1 - NAMED, 1 + NAMED)


def kept_by(run: Run) -> dict[str, int]:
    """How many objects each leg has handed on, by its name without the variant."""
    found = {}
    for pack in run.artifacts.glob("objects.*/*.tar"):
        name = pack.parent.name.removeprefix(f"objects.split.{VARIANT}").removesuffix("-1")
        found[name] = read_head(pack).objects
    return found


def test_objects_are_made_in_parts_and_main_takes_none_of_a_fork(project: Project) -> None:
    project.render('[[limits]]\nkernel = "split"\nparts = 2\n')
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
    change = pull_request(project.repository, "base", by="somebody/kernels")
    fork = project.run("pull_request", first, **change)
    assert fork.jobs == jobs, fork.log
    assert project.made().total() == 1 + NAMED

    # Somebody has put something else in their place.
    for pack in fork.artifacts.glob("objects.*/*.tar"):
        pack.write_bytes(b"poison")

    # What a part has lost the link compiles.
    (project.kernel / "lost").touch()
    for number in range(4, SMALL):
        project.source(number).write_text(f"int small{number}() {{ return {number + 100}; }}\n")
    second = project.run("push", first, fork)
    # act does not run the gate: it takes a called job that may fail for one that must not.
    results = {name.split()[0]: result for name, result in second.jobs.items()}
    results.pop("parts")
    assert results == dict.fromkeys(["link", "merge", "plan"], "success"), second.log
    assert ".part2of2" not in kept_by(second)
    assert project.made().total() == SMALL - 3 + NAMED, "what the fork has made is made once more"
    assert used(second)[2] == ("41", "43")
