"""The actions as a runner starts them: `run.sh` in a job's surroundings, with kci installed from a
checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from action_inputs import inputs_of, outputs_in
from checkout import copy_checkout
from cli.runner import kci_process
from conftest import write_noarch
from kci.run.records import read_failures

pytestmark = pytest.mark.network


class Done(NamedTuple):
    code: int
    log: str
    outputs: dict[str, str]
    summary: str


class Runner:
    """One job: its actions share RUNNER_TEMP, so that kci is installed once."""

    def __init__(self, checkout: Path, temp: Path) -> None:
        self.checkout, self.temp, self.count = checkout, temp, 0

    def run(
        self, action: str, cwd: Path, *, extra: dict[str, str] | None = None, **inputs: str
    ) -> Done:
        self.count += 1
        output, summary = self.temp / f"output-{self.count}", self.temp / f"summary-{self.count}"
        kept = ("PIP_", "SSL_", "HOME", "LANG", "PATH")
        env = {name: value for name, value in os.environ.items() if name.startswith(kept)}
        env |= {"RUNNER_TEMP": str(self.temp), "GITHUB_OUTPUT": str(output)}
        env |= {"GITHUB_STEP_SUMMARY": str(summary)} | inputs_of(**inputs) | (extra or {})
        done = subprocess.run(
            ["bash", str(self.checkout / "actions" / "run.sh"), action],
            cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False,
        )  # fmt: skip
        told = summary.read_text() if summary.exists() else ""
        return Done(done.returncode, done.stdout, outputs_in(output), told)

    def build(self, cwd: Path, variant: str = "torch-cpu", **inputs: Any) -> Done:
        """Build a variant of the kernel of the repository."""
        given = {"upload": "true"} | inputs
        return self.run("build", cwd, kernel="some", variant=variant, container="none", **given)


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    checkout = copy_checkout(tmp_path_factory.mktemp("checkout"))
    return Runner(checkout, tmp_path_factory.mktemp("temp"))


@pytest.fixture(scope="session", autouse=True)
def first(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Done]:
    """The first action of the job, which also installs kci, and the second one."""
    repository = kernels(tmp_path_factory.mktemp("repository"))
    for name in ("json", "click", "kci", "common"):
        (repository / f"{name}.py").write_text("raise SystemExit('imported from the repository')\n")
    extra = {"PYTHONPATH": str(repository)}
    return runner.run("plan", repository, extra=extra), runner.run("plan", repository, extra=extra)


def kernels(place: Path) -> Path:
    (place / "kci.toml").write_text("[plan]\nload = []\n")
    return write_noarch(place / "some", backends=("cpu", "cuda")).parent


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return kernels(tmp_path)


def test_plan_build_merge(runner: Runner, repository: Path, tmp_path: Path) -> None:
    asked = {"kernels": "some\n", "only": "torch-c*", "backends": "cpu, cuda"}
    plan = runner.run("plan", repository, tier="release", **asked)
    assert plan.code == 0, plan.log
    assert plan.outputs["has-work"] == "true"
    include = json.loads(plan.outputs["matrix"])["include"]
    assert [leg["variant"] for leg in include] == ["torch-cpu", "torch-cuda"]
    compact = json.loads(plan.outputs["plan"])
    prints = compact["kernels"][0].pop("fingerprints")
    assert set(prints) == {"torch-cpu", "torch-cuda"}
    assert compact == {
        "schema": 1,
        "tier": "release",
        "kernels": [{"name": "some-kernel", "path": "some", "version": 1,
            "planned": ["torch-cpu", "torch-cuda"],
                     "tree": "", "elsewhere": []}],
    }  # fmt: skip
    assert " " not in plan.outputs["plan"]
    words = ["--only", "torch-c*", "--backend", "cpu", "--backend", "cuda", "--format", "markdown"]
    said = kci_process("plan", "some", *words, cwd=repository)
    assert plan.summary.split() == said.stdout.split(), "the summary is what the command says"
    assert "| some-kernel | torch-cpu | ubuntu-24.04 |" in plan.summary

    downloads = tmp_path / "downloads"
    for leg in include:
        assert leg["path"] == "some"
        attempt = {"GITHUB_RUN_ATTEMPT": "3"}
        built = runner.build(repository, leg["variant"], jobs="1", extra=attempt)
        assert built.code == 0, built.log
        assert "::group::Install" not in built.log
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
    merged = runner.run(
        "merge", repository, **places, plan=plan.outputs["plan"], allow_partial="false"
    )
    assert merged.code == 0, merged.log
    assert merged.outputs["complete"] == "true"
    assert merged.outputs["tree"] == str(into)
    assert merged.outputs["manifest"] == str(into / "kci-manifest.json")
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


def test_a_failing_leg_says_how_to_do_the_same_at_home(runner: Runner, repository: Path) -> None:
    (repository / "some" / "torch-ext" / "some_kernel" / "__init__.py").unlink()
    built = runner.build(repository, upload="false")
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


def test_modules_in_the_repository_are_not_imported(first: tuple[Done, Done]) -> None:
    for done, installs in zip(first, (True, False), strict=True):
        assert done.code == 0, done.log
        assert ("::group::Install" in done.log) == installs


@pytest.mark.parametrize("path", ["some/build/**", "other/build/**"])
def test_what_kci_toml_suppresses_in_trees_holds_where_no_kci_toml_is(
    runner: Runner, repository: Path, tmp_path: Path, path: str
) -> None:
    """The merge job has no checkout: the plan says what is suppressed, and why."""
    (repository / "some/torch-ext/some_kernel/__init__.py").write_text("import numpy\n")
    entry = '[[lint.ignore]]\nrule = "KCI771"\npath = "{}"\nreason = "our users have numpy"\n'
    # Its sources, which the plan and the build ask about, and trees.
    ignored = entry.format("some/torch-ext/**") + entry.format(path)
    (repository / "kci.toml").write_text(f"{ignored}[plan]\nload = []\n")
    plan = runner.run("plan", repository, kernels="some", only="torch-cpu")
    built = runner.build(repository)
    assert built.code == 0, built.log
    elsewhere = tmp_path / "runner"
    elsewhere.mkdir()
    merged = runner.run(
        "merge", elsewhere, artifacts=built.outputs["artifact"], into=str(elsewhere / "tree"),
        plan=plan.outputs["plan"], allow_partial="false",
    )  # fmt: skip
    if path.startswith("some"):
        assert merged.code == 0, merged.log
        assert "KCI771 because: our users have numpy" in merged.log
    else:
        assert merged.code == 1
        assert merged.outputs["complete"] == "false"
        assert "error[KCI771]" in merged.log
        assert "does not meet the requirements" in merged.log


def test_nothing_to_do(runner: Runner, repository: Path) -> None:
    refused = runner.run("plan", repository, only="nothing-like-this")
    assert refused.code == 1, "a filter that selects nothing is no green run"
    assert "nothing is selected" in refused.log
    plan = runner.run("plan", repository, only="nothing-like-this", allow_empty="true")
    assert plan.code == 0, plan.log
    assert plan.outputs["has-work"] == "false"
    assert json.loads(plan.outputs["matrix"]) == {"include": []}
    assert json.loads(plan.outputs["plan"])["kernels"] == []
