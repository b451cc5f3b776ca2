"""Plan, build and merge as the steps of jobs, and how a runner starts them: `run.sh`, with kci
installed from a checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from action_inputs import begin_job, inputs_of, outputs_in
from buildkit import write_tree
from checkout import copy_checkout
from cli.runner import kci
from conftest import failure, ran, write_noarch
from kci.actions import build
from kci.actions.common import run_action
from kci.run.records import read_failures


class Done(NamedTuple):
    code: int
    log: str
    outputs: dict[str, str]
    summary: str


Step = Callable[..., Done]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = write_tree(tmp_path / "repository", {"kci.toml": "[plan]\nload = []\n"})
    return write_noarch(place / "some", backends=("cpu", "cuda")).parent


@pytest.fixture
def step(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Step:  # fmt: skip
    """Runs a step of a job in the repository; all steps share RUNNER_TEMP."""
    monkeypatch.setattr(build.signal, "signal", lambda *_: None)
    monkeypatch.chdir(repository)

    def run(action: str, **inputs: str) -> Done:
        output, summary = tmp_path / "output", write_tree(tmp_path, {"summary": ""}) / "summary"
        output.unlink(missing_ok=True)
        usual = {"kernel": "some", "variant": "torch-cpu", "container": "none"}
        given = (usual if action == "build" else {}) | inputs
        begin_job(monkeypatch, tmp_path, **inputs_of(**given))
        main = import_module(f"kci.actions.{action}").main
        code = int(failure(SystemExit, "", run_action, main).code or 0)
        return Done(code, "".join(capsys.readouterr()), outputs_in(output), summary.read_text())

    return run


@pytest.mark.network
def test_modules_in_the_repository_are_not_imported(repository: Path, tmp_path: Path) -> None:
    """The first step of a job also installs kci."""
    for name in ("json", "click", "kci", "common"):
        (repository / f"{name}.py").write_text("raise SystemExit('imported from the repository')\n")
    script = copy_checkout(tmp_path / "checkout") / "actions" / "run.sh"
    kept = ("PIP_", "SSL_", "HOME", "LANG", "PATH")
    env = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    env |= {"RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "output")}
    env |= {"PYTHONPATH": str(repository), **inputs_of()}
    for installs in (True, False):
        done = ran("bash", script, "plan", cwd=repository, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("::group::Install" in done.stdout) == installs


def test_plan_build_merge(step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"kernels": "some\n", "only": "torch-c*", "backends": "cpu, cuda"}
    plan = step("plan", tier="release", **asked)
    assert plan.code == 0, plan.log
    assert plan.outputs["has-work"] == "true"
    include = json.loads(plan.outputs["matrix"])["include"]
    assert [leg["variant"] for leg in include] == ["torch-cpu", "torch-cuda"]
    compact = json.loads(plan.outputs["plan"])
    prints = compact["kernels"][0].pop("fingerprints")
    assert set(prints) == {"torch-cpu", "torch-cuda"}
    kernel = {"name": "some-kernel", "path": "some", "version": 1, "tree": "", "elsewhere": []}
    kernel["planned"] = ["torch-cpu", "torch-cuda"]
    assert compact == {"schema": 1, "tier": "release", "kernels": [kernel]}
    assert " " not in plan.outputs["plan"]
    words = ["--only", "torch-c*", "--backend", "cpu", "--backend", "cuda", "--format", "markdown"]
    said = kci("plan", "some", *words)
    assert plan.summary.split() == said.stdout.split(), "the summary is what the command says"
    assert "| some-kernel | torch-cpu | ubuntu-24.04 |" in plan.summary

    downloads = tmp_path / "downloads"
    for leg in include:
        assert leg["path"] == "some"
        monkeypatch.setenv("GITHUB_RUN_ATTEMPT", "3")
        built = step("build", variant=leg["variant"], jobs="1", upload="true")
        assert built.code == 0, built.log
        assert f"::group::Build {leg['variant']}" in built.log
        assert built.outputs["artifact-name"] == f"{leg['artifact']}-3"
        assert Path(built.outputs["variant-dir"], "__init__.py").exists()
        assert len(built.outputs["digest"]) == 64
        assert built.outputs["digest"] in built.summary
        folder = downloads / built.outputs["artifact-name"]
        folder.mkdir(parents=True)
        shutil.copy(built.outputs["artifact"], folder)

    into = tmp_path / "tree"
    places = {"artifacts": str(downloads), "into": str(into)}
    merged = step("merge", **places, plan=plan.outputs["plan"], allow_partial="false")
    assert merged.code == 0, merged.log
    manifest = str(into / "kci-manifest.json")
    wanted = {"complete": "true", "tree": str(into), "manifest": manifest}
    assert wanted.items() <= merged.outputs.items()
    whole = "### some-kernel version 1: 2 variants\n\nall planned variants are there\n"
    verified = "### Verification\n\nVerified: 0 errors"
    for part in (verified, whole, "| torch-cuda | present | "):
        assert part in merged.summary
    with tarfile.open(merged.outputs["tar"]) as archive:
        names = archive.getnames()
        some = {"kci-manifest.json", "torch-cpu/__init__.py", "torch-cuda/metadata.json"}
        assert some <= set(names)
        assert names == sorted(names)
        assert {member.mtime for member in archive} == {0}


def test_a_failing_leg_says_how_to_do_the_same_at_home(
    step: Step, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "some" / "torch-ext" / "some_kernel" / "__init__.py").unlink()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    built = step("build", upload="false")
    assert built.code == 1, built.log
    replay = "kci build --variant=torch-cpu --builder=auto --container=none --output=build some"
    assert f"\n  {replay}\n" in built.log
    assert replay in built.summary
    assert "### Build: 0 of 1 variant" in built.summary
    assert "| some-kernel | torch-cpu | failed | " in built.summary
    assert built.outputs["artifact-name"] == "kci-some-kernel.torch-cpu-1", "to say why"
    failures = read_failures([Path(built.outputs["folder"])], "some-kernel")
    assert [(item.variant, item.replay) for item in failures] == [("torch-cpu", replay)]
    assert "there is no torch-ext/some_kernel/__init__.py" in failures[0].error
    assert built.log.count("::error") == 1
    assert "::error file=some/build.toml,line=2,col=8::torch-cpu was not built" in built.log


@pytest.mark.parametrize("path", ["some/build/**", "other/build/**"])
def test_what_kci_toml_suppresses_in_trees_holds_where_no_kci_toml_is(
    step: Step, repository: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The merge job has no checkout: the plan says what is suppressed, and why."""
    (repository / "some/torch-ext/some_kernel/__init__.py").write_text("import numpy\n")
    entry = '[[lint.ignore]]\nrule = "KCI771"\npath = "{}"\nreason = "our users have numpy"\n'
    # Its sources, which the plan and the build ask about, and trees.
    ignored = entry.format("some/torch-ext/**") + entry.format(path)
    (repository / "kci.toml").write_text(f"{ignored}[plan]\nload = []\n")
    plan = step("plan", kernels="some", only="torch-cpu")
    built = step("build")
    assert built.code == 0, built.log
    monkeypatch.chdir(repository.parent)
    given = {"artifacts": built.outputs["artifact"], "into": "tree"}
    merged = step("merge", **given, plan=plan.outputs["plan"], allow_partial="false")
    if path.startswith("some"):
        assert merged.code == 0, merged.log
        assert "KCI771 because: our users have numpy" in merged.log
    else:
        assert merged.code == 1
        assert merged.outputs["complete"] == "false"
        assert "error[KCI771]" in merged.log
        assert "does not meet the requirements" in merged.log


def test_nothing_to_do(step: Step) -> None:
    refused = step("plan", only="nothing-like-this")
    assert refused.code == 1, "a filter that selects nothing is no green run"
    assert "nothing is selected" in refused.log
    plan = step("plan", only="nothing-like-this", allow_empty="true")
    assert plan.code == 0, plan.log
    assert plan.outputs["has-work"] == "false"
    assert json.loads(plan.outputs["matrix"]) == {"include": []}
    assert json.loads(plan.outputs["plan"])["kernels"] == []
