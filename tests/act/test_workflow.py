"""Rendered workflows, run by act on this machine with the real kci: which jobs ran, and what came
of them.

The kernels are Python only, so that every leg is built in seconds; runs of compilers are tested
elsewhere.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from act.harness import (
    NEEDS_ACT,
    Run,
    commit_all,
    copy_actions,
    copy_whole_actions,
    installed,
    offline_pip,
    pull_request,
    run_workflow,
)
from cli.runner import kci
from conftest import AT_TOP, ROOT, read_yaml, write_noarch
from planning import git

pytestmark = [pytest.mark.network, *NEEDS_ACT]

RELEASE = ".github/workflows/kci.yml"
LEGS = ["build some-kernel torch-cpu", "build some-kernel torch-cuda"]


class Runner(NamedTuple):
    """The checkout of kci's actions, and where it is installed."""

    checkout: Path
    env: dict[str, str]
    variables: dict[str, str] | None = None

    def run(
        self,
        repository: Path,
        workflow: str,
        event: str,
        scratch: Path,
        earlier: Sequence[Run] = (),
        **payload: Any,
    ) -> Run:
        """One run of a workflow; see `run_workflow`."""
        return run_workflow(
            repository,
            workflow,
            event,
            scratch,
            checkout=self.checkout,
            payload=payload,
            env=self.env,
            earlier=earlier,
            variables=self.variables,
        )


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory, shared_by_workers: Path) -> Runner:
    """Jobs find kci installed; see `installing`."""
    checkout = copy_actions(tmp_path_factory.mktemp("checkout"))
    return Runner(checkout, installed(shared_by_workers))


@pytest.fixture
def installing(tmp_path: Path) -> Runner:
    """Each job installs kci from the checkout, as on GitHub, but from local files."""
    return Runner(copy_whole_actions(tmp_path / "checkout"), offline_pip(tmp_path / "wheels"))


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    place = tmp_path / "scratch"
    place.mkdir()
    return place


def add_kernel(
    repository: Path, name: str = "some-kernel", backends: tuple[str, ...] = ("cpu", "cuda")
) -> Path:
    return write_noarch(
        repository / name, name, backends, code="def double(x):\n    return x + x\n"
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A committed repository with one kernel and the workflows that kci renders for it."""
    place = tmp_path / "repository"
    add_kernel(place)
    render(place)
    return place


@pytest.fixture
def one_leg(tmp_path: Path) -> Path:
    """As `repository`, for tests in which it does not matter how many legs a kernel has."""
    place = tmp_path / "repository"
    add_kernel(place, backends=("cpu",))
    render(place)
    return place


def render(repository: Path, *options: str) -> str:
    """Write the workflows and commit all; the commit.

    What is built is not loaded: that takes longer than all else of a job.
    """
    settings = repository / "kci.toml"
    told = settings.read_text() if settings.exists() else ""
    settings.write_text(told if "\nload = " in told else f"{told}\n[plan]\nload = []\n")
    done = kci("render", "--output", repository, *options, repository)
    assert done.code == 0, done.stderr
    return commit_all(repository)


def dispatch(only: str = "", backends: str = "", tier: str = "release") -> dict[str, Any]:
    return {"inputs": {"tier": tier, "only": only, "backends": backends}}


def tree_names(artifacts: Path, kernel: str = "some-kernel", attempt: int = 1) -> set[str]:
    with tarfile.open(artifacts / f"tree.{kernel}.{attempt}" / "kci-tree.tar") as archive:
        return {name.split("/")[0] for name in archive.getnames()}


def place(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def test_pushes_build_what_changed_and_what_is_broken_stops_only_itself(
    runner: Runner, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    for name, backends in {"some-kernel": ("cpu", "cuda"), "other-kernel": ("cpu",)}.items():
        add_kernel(repository, name, backends)
    render(repository)
    first = runner.run(repository, RELEASE, "push", place(tmp_path, "1"))
    built = [*LEGS, "build other-kernel torch-cpu"]
    ran = [*built, "kci", "merge other-kernel", "merge some-kernel", "plan"]
    assert first.jobs == dict.fromkeys(ran, "success"), first.log
    assert first.ok
    assert gates(first) == {"kci (push)": "success"}
    assert "Install what kci depends on" not in first.log
    assert sorted(path.name for path in first.artifacts.iterdir()) == [
        "kci-other-kernel.torch-cpu-1",
        "kci-some-kernel.torch-cpu-1",
        "kci-some-kernel.torch-cuda-1",
        "run-plan.1",
        "run-record.other-kernel.1",
        "run-record.some-kernel.1",
        "tree.other-kernel.1",
        "tree.some-kernel.1",
    ]
    assert tree_names(first.artifacts) == {*AT_TOP, "torch-cpu", "torch-cuda"}

    # One of two variants changes: the other one is carried over. One kernel does not build, one has
    # a fault.
    (repository / "some-kernel" / "README.md").write_text("# better words\n")
    need_capability(repository)
    break_package(repository / "other-kernel")
    wrong = add_kernel(repository, "wrong-kernel", ("cpu",))
    (wrong / "torch-ext" / "wrong_kernel" / "__init__.py").write_text("import numpy\n")
    render(repository)  # what is wrong with sources does not keep the files from being written
    second = runner.run(repository, RELEASE, "push", place(tmp_path, "2"), [first])
    assert second.jobs == {
        **dict.fromkeys(["build other-kernel torch-cpu", "merge other-kernel"], "failure"),
        **dict.fromkeys(["build some-kernel torch-cuda", "merge some-kernel", "plan"], "success"),
    }, second.log
    assert not second.ok
    before, after = digests(first), digests(second)
    assert after[LEG_CPU] == before[LEG_CPU]
    assert set(after) == {LEG_CPU, ("some-kernel", "torch-cuda")}, "the broken one has no tree"

    done = gate(repository, second, tmp_path / "2", runner)
    assert (done.jobs, done.ok) == ({"kci": "failure"}, False), done.log
    replay = (
        "kci build --variant=torch-cpu --builder=auto --container=none --tier=release "
        "--output=build other-kernel"
    )
    assert "other-kernel torch-cpu, job other-kernel / torch-cpu: " in done.log
    assert "torch-ext/other_kernel/gone.py is a link to nothing" in done.log
    assert f"\n  {replay}\n" in done.log
    assert "job some-kernel" not in done.log
    assert "kci check wrong-kernel" in done.log
    assert done.log.count("::error") == 3, (
        "one for each of the two, and one that says how many there are"
    )

    # Mended, the kernel has its tree of the first push.
    shutil.rmtree(wrong)
    (repository / "other-kernel" / "torch-ext" / "other_kernel" / "gone.py").unlink()
    commit_all(repository)
    third = runner.run(repository, RELEASE, "push", place(tmp_path, "3"), [first, second])
    assert third.jobs == dict.fromkeys(["kci", "plan"], "success"), third.log


LEG_CPU = ("some-kernel", "torch-cpu")


def need_capability(repository: Path) -> None:
    """Commit what changes the kernel's variant for CUDA and no other."""
    file = repository / "some-kernel" / "build.toml"
    file.write_text(
        file.read_text().replace("[torch-noarch]", '[torch-noarch]\ncuda_capabilities = ["9.0"]')
    )
    commit_all(repository)


def digests(run: Run) -> dict[tuple[str, str], str]:
    """The digest of every variant of the tree that a run uploads."""
    found = {}
    for tree in run.artifacts.glob("tree.*"):
        with tarfile.open(tree / "kci-tree.tar") as archive:
            manifest = json.load(archive.extractfile("kci-manifest.json"))  # type: ignore[arg-type]
        assert manifest["complete"]
        found |= {
            (manifest["kernel"], item["variant"]): item["digest"] for item in manifest["present"]
        }
    return found


def test_the_workflow_around_the_actions_does_what_the_page_says(
    one_leg: Path, installing: Runner, scratch: Path
) -> None:
    _, page = (
        (ROOT / "docs" / "rendered.md")
        .read_text(encoding="utf-8")
        .split("## A workflow around the actions\n")
    )
    (text,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    (one_leg / ".github" / "workflows" / "kernel.yml").write_text(text)
    commit_all(one_leg)
    run = installing.run(one_leg, ".github/workflows/kernel.yml", "push", scratch)
    assert run.jobs == dict.fromkeys([LEGS[0], "merge", "plan"], "success"), run.log
    assert run.log.count("Install what kci depends on") == len(run.jobs)


def break_package(kernel: Path) -> None:
    """What `kci check` does not see and the build does."""
    package = next((kernel / "torch-ext").iterdir())
    (package / "gone.py").symlink_to("nowhere.py")


def gate(
    repository: Path,
    run: Run,
    scratch: Path,
    runner: Runner,
    workflow: str = RELEASE,
    name: str = "kci",
    commit: str = "",
) -> Run:
    """The gate job of a run, which act leaves out after a called workflow that failed, whatever
    `always()` says.

    It is the job as it is rendered, with the results of the jobs in place of its needs, on the
    artifacts of the run.
    """
    job = read_yaml((repository / workflow).read_text())["jobs"][name]
    del job["needs"]
    text = json.dumps({"on": "push", "permissions": {}, "jobs": {name: job}})
    alone = ".github/workflows/gate-alone.yml"
    text = text.replace("${{ needs.plan.result }}", run.jobs["plan"])
    text = text.replace("${{ needs.kernels.result }}", "failure").replace(
        "${{ inputs.commit }}", commit
    )
    assert "needs." not in text
    (repository / alone).write_text(text)
    return runner.run(repository, alone, "push", scratch)


def test_what_was_merged_meanwhile_is_no_part_of_a_pull_request(
    one_leg: Path, runner: Runner, tmp_path: Path
) -> None:
    """GitHub's word for the base is as old as the last push to the pull request."""
    add_kernel(one_leg, "other-kernel", ("cpu",))
    begun = render(one_leg)
    (one_leg / "some-kernel" / "torch-ext" / "some_kernel" / "__init__.py").write_text(
        "def half(x):\n    return x / 2\n"
    )
    commit_all(one_leg)
    git(one_leg, "checkout", "--quiet", "-b", "meanwhile", begun)
    break_package(one_leg / "other-kernel")
    newest = commit_all(one_leg)
    git(one_leg, "checkout", "--quiet", "main")
    change = pull_request(one_leg, newest, known_base=begun)
    run = runner.run(one_leg, RELEASE, "pull_request", place(tmp_path, "merge"), **change)
    ran = ["build some-kernel torch-cpu", "kci", "merge some-kernel", "plan"]
    assert run.jobs == dict.fromkeys(ran, "success"), run.log
    assert gates(run) == {"kci": "success"}


def gates(run: Run) -> dict[str, str]:
    """The results that branch protection sees; only what may be merged makes the check that it
    requires.
    """
    return {
        name: result for name, result in run.checks.items() if "/" not in name and name != "plan"
    }


def test_one_kernel_and_some_of_its_variants_are_dispatched(
    repository: Path, runner: Runner, scratch: Path
) -> None:
    add_kernel(repository, "other-kernel", ("cpu", "cuda", "rocm"))
    render(repository)
    inputs = {**dispatch(only="torch-c*", backends="cuda,rocm")["inputs"], "kernel": "other-kernel"}
    run = runner.run(repository, RELEASE, "workflow_dispatch", scratch, inputs=inputs)
    ran = ["build other-kernel torch-cuda", "kci", "merge other-kernel", "plan"]
    assert run.jobs == dict.fromkeys(ran, "success"), run.log
    assert gates(run) == {"kci (workflow_dispatch)": "success"}
    assert sorted(path.name for path in run.artifacts.glob("tree.*")) == ["tree.other-kernel.1"]
    assert tree_names(run.artifacts, "other-kernel") == {*AT_TOP, "torch-cuda"}


OWN = ".github/workflows/kci-own-machines.yml"
DISPATCHED = """
[pull-request]
forks = "dispatch"
[runners.cuda.x86_64-linux]
labels = ["self-hosted", "gpu"]
[runners.noarch.x86_64-linux]
labels = ["self-hosted", "gpu"]
"""


def statuses(scratch: Path) -> list[tuple[str, str]]:
    """The commit statuses that a run has set: the commit and the state."""
    kept = scratch / "statuses"
    lines = kept.read_text().splitlines() if kept.exists() else []
    found = [
        re.search(r"/statuses/(\S+) -f state=(\w+) -f context=kci/own-machines ", line)
        for line in lines
    ]
    return [(match[1], match[2]) for match in found if match]


def test_a_maintainer_starts_the_self_hosted_part_of_a_forks_pull_request(
    one_leg: Path, runner: Runner, tmp_path: Path
) -> None:
    (one_leg / "kci.toml").write_text(DISPATCHED)
    base = render(one_leg)
    package = one_leg / "some-kernel" / "torch-ext" / "some_kernel" / "__init__.py"
    package.write_text("def double(x):\n    return 2 * x\n")
    commit = commit_all(one_leg)
    fork = pull_request(one_leg, base, "somebody/kernels")
    pull = runner.run(one_leg, RELEASE, "pull_request", place(tmp_path, "pull"), **fork)
    assert pull.jobs == {"kci": "success", "plan": "success"}, (
        "nothing of it runs before somebody has looked"
    )
    assert statuses(tmp_path / "pull") == [], (
        "so the required status is missing, and the merge waits"
    )

    # The file and the commit to compare with are those of the default branch.
    git(one_leg, "checkout", "--quiet", base)
    inputs = {"inputs": {"commit": commit}}
    own = runner.run(one_leg, OWN, "workflow_dispatch", place(tmp_path, "own"), **inputs)
    assert own.jobs == dict.fromkeys([LEGS[0], "merge some-kernel", "plan", "status"], "success"), (
        own.log
    )
    assert statuses(tmp_path / "own") == [(commit, "pending"), (commit, "success")]
    judged = gate(
        one_leg, own, tmp_path / "own", runner, OWN, "status", commit
    )  # with a job that failed
    assert judged.jobs == {"status": "failure"}, judged.log
    assert statuses(tmp_path / "own")[2:] == [(commit, "failure")]


def test_a_branch_is_not_what_somebody_reviewed(
    one_leg: Path, runner: Runner, tmp_path: Path
) -> None:
    (one_leg / "kci.toml").write_text(DISPATCHED)
    render(one_leg)
    own = runner.run(
        one_leg, OWN, "workflow_dispatch", place(tmp_path, "own"), inputs={"commit": "main"}
    )
    assert own.jobs["plan"] == "failure"
    assert "a commit has 40 hexadecimal digits" in own.log
    assert (tmp_path / "own" / "artifacts").exists()
    assert not list((tmp_path / "own" / "artifacts").iterdir())


def test_a_pull_request_of_the_repository_says_that_it_has_built_all(
    one_leg: Path, runner: Runner, tmp_path: Path
) -> None:
    (one_leg / "kci.toml").write_text(DISPATCHED.partition("[runners")[0])
    base = render(one_leg)
    commit = commit_all(one_leg)
    run = runner.run(
        one_leg, RELEASE, "pull_request", place(tmp_path, "pull"), **pull_request(one_leg, base)
    )
    assert run.jobs == {"kci": "success", "plan": "success"}, run.log
    assert statuses(tmp_path / "pull") == [(commit, "success")]
