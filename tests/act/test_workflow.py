"""Rendered workflows, run by act on this machine with the real kci: which jobs ran, and what came of them.

The kernels are Python only, so that every leg is built in seconds; runs of compilers are tested elsewhere.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from act.harness import Run, act_path, commit_all, copy_checkout, installed, offline_pip, run_workflow
from cli.runner import kci
from conftest import AT_TOP, ROOT

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(act_path() is None, reason="act is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="act's host mode stands in for a Linux runner"),
]

RELEASE, COMPAT = ".github/workflows/kci.yml", ".github/workflows/kci-compat.yml"
LEGS = ["build some-kernel torch-cpu", "build some-kernel torch-cuda"]


class Runner(NamedTuple):
    """The checkout of kci's actions, and where it is installed."""

    checkout: Path
    env: dict[str, str]

    def run(
        self, repository: Path, workflow: str, event: str, scratch: Path, earlier: Run | None = None, **payload: Any
    ) -> Run:
        """One run of a workflow; see `run_workflow`."""
        return run_workflow(
            repository, workflow, event, scratch, checkout=self.checkout, payload=payload, env=self.env, earlier=earlier
        )


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory, shared_by_workers: Path) -> Runner:
    """Jobs find kci installed; see `installing`."""
    checkout = copy_checkout(tmp_path_factory.mktemp("checkout"))
    return Runner(checkout, installed(checkout, shared_by_workers))


@pytest.fixture
def installing(runner: Runner, tmp_path: Path) -> Runner:
    """Each job installs kci from the checkout, as on GitHub, but from local files."""
    return Runner(runner.checkout, offline_pip(runner.checkout, tmp_path / "wheels"))


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    place = tmp_path / "scratch"
    place.mkdir()
    return place


def add_kernel(repository: Path, name: str = "some-kernel", backends: tuple[str, ...] = ("cpu", "cuda")) -> Path:
    package = repository / name / "torch-ext" / name.replace("-", "_")
    package.mkdir(parents=True)
    listed = ", ".join(f'"{backend}"' for backend in backends)
    general = f'name = "{name}"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = [{listed}]\n'
    (repository / name / "build.toml").write_text(f"[general]\n{general}[torch-noarch]\n")
    (package / "__init__.py").write_text("def double(x):\n    return x + x\n")
    return repository / name


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A committed repository with one kernel and the workflows that kci renders for it."""
    place = tmp_path / "repository"
    add_kernel(place)
    render(place)
    return place


def render(repository: Path, *options: str) -> None:
    done = kci("render", "--output", repository, *options, repository)
    assert done.code == 0, done.stderr
    commit_all(repository)


def dispatch(only: str = "", backends: str = "", tier: str = "release") -> dict[str, Any]:
    return {"inputs": {"tier": tier, "only": only, "backends": backends}}


def tree_names(artifacts: Path, attempt: int = 1) -> set[str]:
    with tarfile.open(artifacts / f"merged-tree-{attempt}" / "kci-tree.tar") as archive:
        return {name.split("/")[0] for name in archive.getnames()}


@pytest.mark.parametrize("mode", ["runtime", "static"])
def test_push_builds_merges_and_passes(repository: Path, runner: Runner, scratch: Path, mode: str) -> None:
    if mode == "static":
        render(repository, "--mode", "static")
    run = runner.run(repository, RELEASE, "push", scratch)
    assert run.jobs == dict.fromkeys([*LEGS, "kci", "merge", "plan"], "success"), run.log
    assert run.ok
    assert "Install kci from " not in run.log
    assert sorted(path.name for path in run.artifacts.iterdir()) == [
        "kci-some-kernel-torch-cpu-1",
        "kci-some-kernel-torch-cuda-1",
        "merged-tree-1",
    ]
    assert tree_names(run.artifacts) == {
        *AT_TOP,
        "torch-cpu",
        "torch-cuda",
    }


def place(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def test_a_second_push_builds_what_changed_and_carries_the_rest(
    repository: Path, runner: Runner, tmp_path: Path
) -> None:
    add_kernel(repository, "other-kernel", ("cpu",))
    render(repository)
    first = runner.run(repository, RELEASE, "push", place(tmp_path, "1"))
    assert first.ok, first.log
    (repository / "some-kernel" / "README.md").write_text("# better words\n")
    (repository / "some-kernel" / "flake.lock").write_text("{}\n")
    commit_all(repository)
    second = runner.run(repository, RELEASE, "push", place(tmp_path, "2"), first)
    assert second.jobs == dict.fromkeys(["kci", "merge", "plan"], "success"), second.log
    assert [path.name for path in second.artifacts.iterdir()] == ["merged-tree-1"]
    assert digests(second) == digests(first)
    (repository / "other-kernel" / "torch-ext" / "other_kernel" / "__init__.py").write_text("VALUE = 1\n")
    commit_all(repository)
    third = runner.run(repository, RELEASE, "push", place(tmp_path, "3"), second)
    ran = ["build other-kernel torch-cpu", "kci", "merge", "plan"]
    assert third.jobs == dict.fromkeys(ran, "success"), third.log
    changed = {key for key, value in digests(third).items() if digests(second)[key] != value}
    assert changed == {("other-kernel", "torch-cpu")}


def test_a_new_version_and_a_second_kernel_begin_anew_what_they_must(
    repository: Path, runner: Runner, tmp_path: Path
) -> None:
    first = runner.run(repository, RELEASE, "push", place(tmp_path, "1"))
    assert first.ok, first.log
    add_kernel(repository, "other-kernel", ("cpu",))
    commit_all(repository)
    second = runner.run(repository, RELEASE, "push", place(tmp_path, "2"), first)
    ran = ["build other-kernel torch-cpu", "kci", "merge", "plan"]
    assert second.jobs == dict.fromkeys(ran, "success"), second.log
    assert set(digests(second)) == {("other-kernel", "torch-cpu"), *digests(first)}
    file = repository / "some-kernel" / "build.toml"
    file.write_text(file.read_text().replace("version = 1", "version = 2"))
    commit_all(repository)
    third = runner.run(repository, RELEASE, "push", place(tmp_path, "3"), second)
    assert third.jobs == dict.fromkeys([*LEGS, "kci", "merge", "plan"], "success"), third.log
    assert set(digests(third)) == set(digests(second))


def digests(run: Run) -> dict[tuple[str, str], str]:
    """The digest of every variant of the tree that a run hands over."""
    found = {}
    with tarfile.open(run.artifacts / "merged-tree-1" / "kci-tree.tar") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.name.endswith("kci-manifest.json") else None
            if stream is not None:
                manifest = json.load(stream)
                assert manifest["complete"]
                found |= {(manifest["kernel"], item["variant"]): item["digest"] for item in manifest["present"]}
    return found


def test_the_workflow_of_the_readme_does_what_it_says(repository: Path, installing: Runner, scratch: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    (repository / ".github" / "workflows" / "kernel.yml").write_text(text)
    commit_all(repository)
    run = installing.run(repository, ".github/workflows/kernel.yml", "push", scratch)
    assert run.jobs == dict.fromkeys([*LEGS, "merge", "plan"], "success"), run.log
    assert run.log.count("Install kci from ") == len(run.jobs)


@pytest.mark.parametrize("mode", ["runtime", "static"])
def test_a_pull_request_from_a_fork_runs_too(repository: Path, runner: Runner, scratch: Path, mode: str) -> None:
    render(repository, "--mode", mode)
    head = {"head": {"repo": {"full_name": "somebody/kernels"}}, "base": {"sha": "0" * 40}}
    run = runner.run(repository, RELEASE, "pull_request", scratch, pull_request=head)
    job = "build" if mode == "runtime" else "build-pr"
    built = {leg.replace("build ", f"{job} "): "success" for leg in LEGS}
    assert run.jobs == {**built, "kci": "success", "merge": "success", "plan": "success"}, run.log


def test_a_pull_request_builds_only_the_kernels_that_it_touches(
    repository: Path, runner: Runner, scratch: Path
) -> None:
    other = add_kernel(repository, "other-kernel", ("cpu",))
    render(repository)
    base = head_commit(repository)
    (other / "torch-ext" / "other_kernel" / "__init__.py").write_text("def triple(x):\n    return x + x + x\n")
    commit_all(repository)
    change = {"head": {"repo": {"full_name": "example/kernels"}}, "base": {"sha": base}}
    run = runner.run(repository, RELEASE, "pull_request", scratch, pull_request=change)
    ran = ["build other-kernel torch-cpu", "kci", "merge", "plan"]
    assert run.jobs == dict.fromkeys(ran, "success"), run.log


def head_commit(repository: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_filter_that_selects_nothing_fails_the_gate(repository: Path, runner: Runner, scratch: Path) -> None:
    run = runner.run(repository, RELEASE, "workflow_dispatch", scratch, **dispatch(only="nothing*"))
    assert run.jobs == {"kci": "failure", "plan": "failure"}, run.log
    assert "nothing is selected" in run.log


def test_with_nothing_to_do_the_gate_passes_alone(repository: Path, runner: Runner, scratch: Path) -> None:
    add_kernel(repository, "other-kernel", ("cpu",))
    render(repository)
    base = head_commit(repository)
    (repository / "notes.md").write_text("Not part of any kernel.\n")
    commit_all(repository)
    change = {"head": {"repo": {"full_name": "example/kernels"}}, "base": {"sha": base}}
    run = runner.run(repository, RELEASE, "pull_request", scratch, pull_request=change)
    assert run.jobs == {"kci": "success", "plan": "success"}, run.log
    assert list(run.artifacts.iterdir()) == []


def test_a_broken_kernel_fails_the_gate_and_hides_no_other(repository: Path, runner: Runner, scratch: Path) -> None:
    broken = add_kernel(repository, "broken-kernel", ("cpu",))
    (broken / "torch-ext" / "broken_kernel" / "__init__.py").unlink()
    (broken / "torch-ext" / "broken_kernel" / "other.py").write_text("")
    render(repository)
    run = runner.run(repository, RELEASE, "push", scratch)
    assert run.jobs == {
        "build broken-kernel torch-cpu": "failure",
        **dict.fromkeys(LEGS, "success"),
        "kci": "failure",
        "plan": "success",
    }, run.log
    assert not run.ok
    assert not (run.artifacts / "merged-tree-1").exists()
    assert (
        "kci build --variant=torch-cpu --builder=auto --container=none --tier=release --output=build -- broken-kernel"
        in run.log
    )


def test_an_invalid_build_toml_fails_the_gate(repository: Path, runner: Runner, scratch: Path) -> None:
    (repository / "some-kernel" / "build.toml").write_text("[general]\nnme = 1\n")
    commit_all(repository)
    run = runner.run(repository, RELEASE, "push", scratch)
    assert run.jobs == {"kci": "failure", "plan": "failure"}, run.log
    assert "KCI101" in run.log


def test_compat_merges_what_could_be_built(repository: Path, runner: Runner, scratch: Path) -> None:
    broken = add_kernel(repository, "broken-kernel", ("cpu",))
    (broken / "torch-ext" / "broken_kernel" / "__init__.py").unlink()
    (broken / "torch-ext" / "broken_kernel" / "other.py").write_text("")
    render(repository)
    run = runner.run(repository, COMPAT, "workflow_dispatch", scratch, **dispatch())
    assert run.jobs["merge"] == "success", run.log
    assert run.jobs["build broken-kernel torch-cpu"] == "failure"
    assert "1 missing" in run.log
    with tarfile.open(run.artifacts / "merged-tree-1" / "kci-tree.tar") as archive:
        manifest = json.load(archive.extractfile("broken-kernel/kci-manifest.json"))  # type: ignore[arg-type]
        assert manifest["missing"] == ["torch-cpu"]
        assert "some-kernel/torch-cpu/__init__.py" in archive.getnames()


def test_artifact_names_can_be_used_once(repository: Path, runner: Runner, scratch: Path) -> None:
    """What the stand-ins are for: an upload under a name that is taken fails, as on GitHub."""
    (scratch / "artifacts" / "kci-some-kernel-torch-cpu-1").mkdir(parents=True)
    run = runner.run(repository, RELEASE, "workflow_dispatch", scratch, **dispatch(backends="cpu"))
    assert run.jobs == {LEGS[0]: "failure", "kci": "failure", "plan": "success"}, run.log
    assert "(409) Conflict" in run.log
