"""The rendered workflow that publishes, run by act with a Hub on this machine: builds, trees,
tests, commits.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from act.harness import NEEDS_ACT, Run, commit_all, copy_actions, installed
from act.test_workflow import Runner, add_kernel, place, render
from action_inputs import inputs_of, outputs_in
from buildkit import write_tree
from cli.runner import ended, kci
from conftest import ran, read_yaml
from publish.fake_hub import TOKEN, FakeHub, serving
from publish.test_publish import hub_environment, there
from run.cuda_python import python_with_cuda
from tree.own_sigstore import OwnSigstore, serving_sigstore

pytestmark = [pytest.mark.network, *NEEDS_ACT]

PUSH, PUBLISH = ".github/workflows/kci.yml", ".github/workflows/kci-publish.yml"
SETTINGS = '[publish]\nrepo-prefix = "acme"\n'
TESTED = f'{SETTINGS}[test.cuda.x86_64-linux]\nlabels = ["ubuntu-24.04"]\n'
SIGNED = f"""{SETTINGS}sign = true
[signing]
repository = "example/kernels"
workflow = "example/kernels/{PUBLISH}@refs/tags/v1.0"
trust-config = "sigstore.json"
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    ours = ("acme/some-kernel", "acme/other-kernel", "acme/broken-kernel")
    with serving(FakeHub(*ours, "theirs/other-kernel")) as running:
        yield running


@pytest.fixture
def runner(
    hub: FakeHub, tmp_path_factory: pytest.TempPathFactory, shared_by_workers: Path, tmp_path: Path
) -> Runner:
    checkout = copy_actions(tmp_path_factory.mktemp("checkout"))
    env = installed(shared_by_workers, "publish") | hub_environment(hub, tmp_path / "home")
    return Runner(checkout, env | {"HF_TOKEN": TOKEN})


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = tmp_path / "repository"
    add_kernel(made, "some-kernel", ("cpu", "cuda"))
    add_kernel(made, "other-kernel", ("cuda",))
    (made / "kci.toml").write_text(SETTINGS)
    commit_all(made)
    render(made)
    return made


def action(
    name: str, runner: Runner, scratch: Path, cwd: Path, **inputs: str
) -> tuple[int, str, dict[str, str]]:
    """An action on its own: act runs no job that needs a called workflow which failed, whatever its
    `if` says.
    """
    output = scratch / f"output-{name}-{len(list(scratch.iterdir()))}"
    env = {key: os.environ[key] for key in ("PATH", "HOME")} | runner.env
    env |= {"GITHUB_OUTPUT": str(output), "RUNNER_TEMP": str(scratch)}
    env |= {"GITHUB_RUN_ID": "1", "GITHUB_RUN_ATTEMPT": "1", **inputs_of(**inputs)}
    python = Path(runner.env["KCI_ACT_INSTALLED"]) / "bin" / "python"
    done = ran(python, *["-E", "-P", "-u", "-m", "kci.actions"], name, env=env, cwd=cwd)
    return done.returncode, done.stdout + done.stderr, outputs_in(output)


def ready(
    repository: Path, runner: Runner, run: Run, scratch: Path
) -> tuple[list[dict[str, str]], str]:
    """What a run that publishes would publish, and what its gate says; act leaves out both if a
    called job failed.
    """
    (scratch / "kci-records").symlink_to(run.artifacts)
    (step,) = read_yaml((repository / PUBLISH).read_text())["jobs"]["ready"]["steps"]
    given = {**step["with"], "results": "plan=success"}
    code, said, outputs = action("gate", runner, scratch, repository, **given)
    assert code == 0, said
    results = "plan=success kernels=failure ready=success publish=skipped"
    code, said, _ = action("gate", runner, scratch, repository, results=results)
    assert code == 1, "the gate is red"
    return json.loads(outputs["releases"])["include"], said


VARIANTS = {"some-kernel": ("torch-cpu", "torch-cuda"), "other-kernel": ("torch-cuda",)}
BUILDS = [f"build {name} {variant}" for name, variants in VARIANTS.items() for variant in variants]


def published(hub: FakeHub) -> set[str]:
    return {name for name, repository in hub.repositories.items() if "v1" in repository.branches}


def test_the_short_file_publishes_what_the_last_push_has_built(
    repository: Path, runner: Runner, hub: FakeHub, tmp_path: Path
) -> None:
    """One of the two kernels is on the Hub in somebody else's name, who gets a pull
    request there.
    """
    (repository / "kci.toml").write_text(f'{SETTINGS}pull-request = ["other-kernel"]\n')
    build_toml = repository / "other-kernel" / "build.toml"
    place_of_theirs = '[general.hub]\nrepo-id = "theirs/other-kernel"\n[torch-noarch]'
    build_toml.write_text(build_toml.read_text().replace("[torch-noarch]", place_of_theirs))
    head = hub["theirs/other-kernel"].write("v1", {"README.md": b"theirs"}, "version 1")
    commit_all(repository)
    render(repository, "--short")
    files = (repository / PUBLISH).parent.iterdir()
    assert sorted(file.name for file in files) == ["kci-compat.yml", "kci-publish.yml", "kci.yml"]
    push = runner.run(repository, PUSH, "push", place(tmp_path, "1"))
    assert push.ok, push.log
    package = repository / "other-kernel" / "torch-ext" / "other_kernel" / "__init__.py"
    package.write_text("VALUE = 1\n")
    commit_all(repository)
    scratch = place(tmp_path, "2")
    others = [("dry run of other-kernel", "success"), ("publish other-kernel-2", "success")]
    newer_runs(scratch, [("publish other-kernel", "failure")], others)
    run = runner.run(repository, PUBLISH, "push", scratch, [push], ref="refs/tags/v1.0")
    jobs = [BUILDS[-1], "merge other-kernel", "publish other-kernel", "publish some-kernel"]
    assert run.jobs == dict.fromkeys([*jobs, "kci", "plan", "ready"], "success"), run.log
    assert "kci" not in run.checks
    assert published(hub) == {"acme/some-kernel", "theirs/other-kernel"}
    theirs = hub["theirs/other-kernel"]
    assert theirs.branches["v1"] == head, "nothing is written before they accept it"
    proposed = theirs.commits[theirs.proposals["refs/pr/1"]]
    assert {"README.md", "build/torch-cuda/metadata.json"} <= proposed.keys()


def newer_runs(scratch: Path, *ended: list[tuple[str, str]]) -> None:
    """What newer runs that publish have done, job by job; runs build side by side, so an older one
    may come last.
    """
    numbers = [len(ended) + 1 - index for index in range(len(ended))]
    runs = [{"databaseId": 90 + number, "number": number} for number in (*numbers, 1, 0)]
    (scratch / "publish-runs.json").write_text(json.dumps(runs))  # this run is number 1
    for number, listed in zip(numbers, ended, strict=True):
        told = []
        for name, result in listed:
            told.append({"name": name, "conclusion": result, "html_url": f"{90 + number} {name}"})
        (scratch / f"publish-jobs-{90 + number}.json").write_text(json.dumps({"jobs": told}))


def test_only_what_is_built_and_passes_its_tests_where_a_machine_is_declared_is_published(
    repository: Path, runner: Runner, hub: FakeHub, tmp_path: Path
) -> None:
    """One kernel is built and does not load, the tests of one fail on the machine; neither stops
    the third.
    """
    shutil.rmtree(repository / "other-kernel")
    build = repository / "some-kernel" / "build.toml"
    build.write_text(build.read_text().replace('"cpu", ', ""))
    broken = add_kernel(repository, "broken-kernel", ("cpu",))
    (broken / "torch-ext" / "broken_kernel" / "__init__.py").write_text("double = not_defined\n")
    add_kernel(repository, "failing-kernel", ("cuda",))
    texts = {"some-kernel": "# fine\n", "failing-kernel": "# BROKEN\n"}
    write_tree(repository, {f"{name}/tests/test_it.py": text for name, text in texts.items()})
    (repository / "kci.toml").write_text(f'{TESTED}[plan]\nload = ["cpu"]\n')
    commit_all(repository)
    render(repository)
    scratch = place(tmp_path, "scratch")
    variables = {"KCI_TEST_PYTHON": str(python_with_cuda(tmp_path))}
    machine = Runner(runner.checkout, runner.env, variables)
    run = machine.run(repository, PUBLISH, "push", scratch, ref="refs/tags/v1.0")
    good = [job for name in texts for job in (f"build {name} torch-cuda", f"merge {name}")]
    good += ["test some-kernel cuda-x86_64-linux", "plan"]
    bad = ["build broken-kernel torch-cpu", "merge broken-kernel"]
    bad += ["test failing-kernel cuda-x86_64-linux"]
    assert run.jobs == dict.fromkeys(good, "success") | dict.fromkeys(bad, "failure"), run.log
    assert "NameError: name 'not_defined' is not defined" in run.log
    assert "KCI785" in run.log
    (release,), said = ready(repository, runner, run, scratch)
    assert release["kernel"] == "some-kernel"
    assert all(name in said for name in ("broken-kernel", "failing-kernel"))
    folder = scratch / "release" / "tree"
    folder.mkdir(parents=True)
    shutil.copy(run.artifacts / "tree.some-kernel.1" / "kci-tree.tar", folder)
    given = {"tree": str(folder.parent), "kernel": release["path"]}
    code, said, _ = action("publish", runner, scratch, repository, **given)
    assert code == 0, said
    assert published(hub) == {"acme/some-kernel"}


@pytest.fixture
def sigstore(repository: Path, hub: FakeHub) -> Iterator[OwnSigstore]:
    """Kernels that are signed, and what GitHub, Sigstore and the Hub say to the workflow that
    publishes them.
    """
    workflow = f"example/kernels/{PUBLISH}@refs/tags/v1.0"
    claims = {"repository": "example/kernels", "job_workflow_ref": workflow}
    claims |= {"sha": "a" * 40, "ref": "refs/tags/v1.0"}

    def trusts(identity: str, resource: str) -> bool:
        said = running.read(identity, hub.url)
        return said["job_workflow_ref"] == workflow and resource.startswith("kernels/acme/")

    with serving_sigstore(OwnSigstore(**claims)) as running:
        hub.trusts = trusts
        files = {"kci.toml": SIGNED, "sigstore.json": running.trust_config()}
        write_tree(repository, files | {".github/kci/before-merge.yml": BEFORE_MERGE})
        commit_all(repository)
        render(repository)
        yield running


def without_token(runner: Runner, sigstore: OwnSigstore) -> Runner:
    """Jobs that have GitHub's word for who they are, and no secret."""
    known = {"GITHUB_WORKFLOW_REF": sigstore.claims["job_workflow_ref"]}  # which act does not say
    return Runner(runner.checkout, {**runner.env, **sigstore.environment, **known, "HF_TOKEN": ""})


def test_kernels_are_signed_as_the_run_and_published_without_a_stored_token(
    repository: Path, runner: Runner, hub: FakeHub, sigstore: OwnSigstore, tmp_path: Path
) -> None:
    scratch = place(tmp_path, "scratch")
    machine = without_token(runner, sigstore)
    run = machine.run(repository, PUBLISH, "push", scratch, ref="refs/tags/v1.0")
    jobs = [*BUILDS, *(f"{job} {name}" for job in ("merge", "publish") for name in VARIANTS)]
    assert run.jobs == dict.fromkeys([*jobs, "kci", "plan", "ready"], "success"), run.log
    assert run.checks["kci-publish"] == "success"
    assert "kci" not in run.checks, "branch protection would take it for the pull request's"
    assert run.log.count("attested: /") == 2
    assert published(hub) == {"acme/some-kernel", "acme/other-kernel"}
    for name, variants in VARIANTS.items():
        there = hub[f"acme/{name}"].files("v1")
        assert {f"build/{variant}/metadata.json" for variant in variants} <= there.keys()
        assert json.loads(there["build/kci-manifest.json"])["complete"] is True
        assert len(hub.asked(rf"POST .*{name}/commit/v1")) == 1
        signed = {f"build/{variant}/metadata.json.sigstore" for variant in variants}
        assert {*signed, "build/kci-attestation.sigstore.json"} <= there.keys()
        fetched = repository / f"fetched-{name}"
        tree = fetched / "build"
        for path, data in there.items():
            (fetched / path).parent.mkdir(parents=True, exist_ok=True)
            (fetched / path).write_bytes(data)
        workflow = f"example/kernels/{PUBLISH}@refs/tags/v1.0"
        trusted = ("--repository", "example/kernels", "--workflow", workflow)
        trusted += ("--trust-config", str(repository / "sigstore.json"))
        ended(kci("verify", tree, "--signatures", *trusted), 0)
        (tree / "torch-cuda" / "added.py").write_text("")
        checked = kci("verify", tree, "--signatures", *trusted)
        assert "added.py is there and was not signed" in checked.stderr
        assert run.log.count(f"before the merge: {name}.") == 1


BEFORE_MERGE = """\
- name: See what the legs built
  shell: bash
  env:
    PLACE: ${{ runner.temp }}/kci-artifacts
    KERNEL: ${{ inputs.kernel }}
  run: |
    if [ -n "$(find "$PLACE" -type f)" ]; then echo "before the merge: $KERNEL."; fi
"""


def test_what_a_newer_run_has_published_or_a_release_leaves_out_is_not_replaced(
    repository: Path, runner: Runner, hub: FakeHub, tmp_path: Path
) -> None:
    """An older build for cpu is published, and the release has cuda only; nobody builds for metal
    at all.
    """
    build = add_kernel(repository, "mac-kernel", ("metal",)) / "build.toml"
    component = '[torch]\n[kernel.a]\nbackend = "metal"\ndepends = ["torch"]\nsrc = ["a.mm"]\n'
    build.write_text(build.read_text().replace("[torch-noarch]\n", component))
    (repository / "mac-kernel" / "a.mm").write_text("")
    commit_all(repository)
    render(repository)
    older = there("torch-cpu", unique="9999999")
    hub["acme/some-kernel"].write("v1", older, "of other sources")
    inputs = {"tier": "release", "only": "", "backends": "cuda metal", "dry-run": "false"}
    inputs |= {"kernel": "some-kernel mac-kernel other-kernel", "older": "false"}
    scratch = place(tmp_path, "scratch")
    newer_runs(scratch, [("publish other-kernel", "success")])
    run = runner.run(repository, PUBLISH, "workflow_dispatch", scratch, inputs=inputs)
    names = ("some-kernel", "other-kernel")
    built = [job for name in names for job in (f"build {name} torch-cuda", f"merge {name}")]
    failed = dict.fromkeys(["kci", *(f"publish {name}" for name in names)], "failure")
    assert run.jobs == {**dict.fromkeys([*built, "plan", "ready"], "success"), **failed}, run.log
    for said in (
        "2 of 4 variants of the tier release are left out",
        "acme/some-kernel@v1 has 1 variant of other sources that this tree leaves out: torch-cpu",
        "KCI814",
        "a newer run has done the job 'publish other-kernel' already: 92 publish other-kernel",
    ):
        assert said in run.log
    assert hub["acme/some-kernel"].files("v1") == older
    assert published(hub) == {"acme/some-kernel"}
    assert hub.asked("POST ") == []


def test_without_a_signature_nothing_is_published(
    repository: Path, runner: Runner, hub: FakeHub, sigstore: OwnSigstore, tmp_path: Path
) -> None:
    sigstore.spoil = lambda path, answer: (503, {}) if path == "/api/v1/log/entries" else answer
    scratch = place(tmp_path, "scratch")
    inputs = {"tier": "release", "kernel": "other-kernel", "dry-run": "false"}
    machine = without_token(runner, sigstore)
    run = machine.run(repository, PUBLISH, "workflow_dispatch", scratch, inputs=inputs)
    built = ["build other-kernel torch-cuda", "merge other-kernel", "plan", "ready"]
    failed = dict.fromkeys(["publish other-kernel", "kci"], "failure")
    assert run.jobs == {**dict.fromkeys(built, "success"), **failed}, run.log
    assert "Sigstore does not sign: RekorClientError" in run.log
    assert published(hub) == set()
    assert hub.asked("POST ") == [], "not even asked for a token"
