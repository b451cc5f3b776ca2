"""The recipes of docs/recipes.md that can run here, by act: they do what the page says."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from act.harness import (
    FIRST_RUN,
    NEEDS_ACT,
    ROOT,
    Run,
    commit_all,
    copy_actions,
    installed,
    pull_request,
    run_workflow,
)
from act.test_workflow import Runner, add_kernel, place, render
from buildkit import program
from publish.fake_hub import TOKEN, FakeHub, serving
from publish.test_publish import hub_environment
from wheels import make_wheel

pytestmark = [pytest.mark.network, *NEEDS_ACT]

FOLDER = ".github/workflows"
PIPX = """# Hosted runners have pipx; here uv does the same.
test "$1" = run && shift
package=$1 && shift
exec uv tool run --from "$package" griffe "$@"
"""


def recipe(repository: Path, name: str) -> str:
    """Copy a recipe to where workflows are."""
    target = repository / FOLDER / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "examples" / "recipes" / name, target)
    return f"{FOLDER}/{name}"


@pytest.mark.parametrize(
    ("change", "fine"), [("def double(x, y):", False), ("def double(x, y=1):", True)]
)
def test_a_call_that_breaks_is_found(
    change: str, fine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = [str(place(tmp_path, "tools")), str(Path(sys.executable).parent), os.environ["PATH"]]
    program(tmp_path / "tools", "pipx", PIPX)
    monkeypatch.setenv("PATH", os.pathsep.join(tools))
    repository = tmp_path / "repository"
    package = add_kernel(repository, "relu") / "torch-ext" / "relu" / "__init__.py"
    workflow = recipe(repository, "api.yml")
    base = commit_all(repository)
    package.write_text(package.read_text().replace("def double(x):", change))
    commit_all(repository)
    payload = pull_request(repository, base)
    scratch, checkout = place(tmp_path, "scratch"), place(tmp_path, "checkout")
    run = run_workflow(
        repository, workflow, "pull_request", scratch, checkout=checkout, payload=payload, own=""
    )
    assert run.jobs == {"api": "success" if fine else "failure"}, run.log
    assert ("Parameter was added as required" in run.log) is not fine


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub("acme-staging/relu")) as running:
        yield running


def test_what_a_run_built_is_staged_and_packed_for_a_machine_without_a_network(
    hub: FakeHub, shared_by_workers: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    add_kernel(repository, "relu", ("cpu",))
    staging, offline = recipe(repository, "staging.yml"), recipe(repository, "offline.yml")
    commit_all(repository)
    render(repository)
    for name in ("kci", "kernels", "pytest"):
        make_wheel(tmp_path / "wheels", name, "9.9", {})
    env = {**installed(shared_by_workers, "publish"), **hub_environment(hub, tmp_path / "home")}
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    runner = Runner(copy_actions(tmp_path / "actions"), env | index)
    push = runner.run(repository, f"{FOLDER}/kci.yml", "push", place(tmp_path, "push"))
    assert push.ok, push.log

    def dispatch(workflow: str) -> Run:
        scratch = place(tmp_path, Path(workflow).stem)
        return run_workflow(
            repository, workflow, "workflow_dispatch", scratch, checkout=runner.checkout,
            payload={"inputs": {"run": str(FIRST_RUN), "branch": "pr-7"}}, env=runner.env,
            earlier=[push], secrets={"HF_TOKEN": TOKEN},
        )  # fmt: skip

    staged = dispatch(staging)
    assert staged.jobs == {"staging": "success"}, staged.log
    assert "build/torch-cpu/metadata.json" in hub["acme-staging/relu"].files("pr-7")

    packed = dispatch(offline)
    assert packed.jobs == {"pack": "success"}, packed.log
    there = packed.artifacts / "offline"
    assert (there / "build" / "torch-cpu" / "metadata.json").is_file()
    names = {file.name.partition("-")[0] for file in (there / "wheels").iterdir()}
    assert names == {"kci", "kernels", "pytest"}
