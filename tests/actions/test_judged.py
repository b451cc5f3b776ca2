"""From judging to publishing: each job takes the very tree that was judged, and says what became of
it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from action_inputs import begin_job, inputs_of, outputs_in
from buildkit import write_tree
from conftest import failure, write_noarch
from kci.actions import common, gate, merge, plan, publish
from kci.actions import test as test_action
from kci.errors import FindingsError
from kci.plan.plan import KernelPlan, Leg, Plan
from kci.run.gate import INDEX_FILE, RunUploads, TreeIndex, TreePlace, read_uploads
from kci.run.kernel_tests import TestReport, TestState
from kci.run.records import (
    PLAN_FILE,
    RECORD_FILE,
    TEST_FILE,
    KernelRecord,
    TestRecord,
    kernel_record,
    write_record,
)
from kci.tree.manifest import Manifest, read_manifest
from kci.tree.merge import merge as merge_tree
from kci.utils.bounded_json import read_record
from kci.watch.issue_tracker import GitHubApi
from planning import leg
from variants import COMMIT, make_artifact, make_variant

CPU, CUDA = "torch-cpu", "torch-cuda"
Give = Callable[..., dict[str, str]]


@pytest.fixture
def give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Give:
    """Gives an action its inputs, in the surroundings of a job; returns the file of its outputs."""
    begin_job(monkeypatch, tmp_path, GITHUB_RUN_ID=7, GITHUB_RUN_ATTEMPT=2)

    def given(**inputs: object) -> dict[str, str]:
        for name, value in inputs_of(**inputs).items():
            monkeypatch.setenv(name, value)
        return outputs_in(tmp_path / "output")

    return given


def make_tree(
    place: Path, text: str = "", variants: tuple[str, ...] = (CPU, CUDA), version: int = 1
) -> Manifest:
    """A merged tree, whose files have this text."""
    parts, artifacts = (place.parent / f"{place.name}-{name}" for name in ("parts", "artifacts"))
    for variant in variants:
        files: dict[str, str | bytes] = {
            "__init__.py": f"# {text}\n",
            "_ops.py": f"ops = None  # _gated_norm_{variant}\n",
        }
        made = make_variant(parts, variant, files=files, version=version)
        make_artifact(artifacts / variant, made)
    merge_tree([artifacts], place, plan_of("gated-norm", variants, version=version, commit=COMMIT))
    manifest = read_manifest(place)
    assert manifest is not None
    return manifest


def plan_of(
    name: str, variants: tuple[str, ...], *legs: Leg, version: int = 1, **keys: Any
) -> Plan:
    """A plan of one kernel."""
    return Plan(1, "release", (KernelPlan(name, "k", version, variants),), legs, **keys)


def upload(tree: Path, downloads: Path, attempt: int) -> Path:
    """Pack a tree as the merge of this attempt, or somebody else, uploads it."""
    tar = downloads / f"tree.gated-norm.{attempt}" / "kci-tree.tar"
    tar.parent.mkdir(parents=True)
    merge.pack(tree, tar)
    return tar


# --- the tree that was judged ---


def test_of_all_that_calls_itself_a_tree_the_judged_one_is_taken(
    give: Give, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged, downloads = make_tree(tmp_path / "judged", "judged"), tmp_path / "downloads"
    make_tree(tmp_path / "later", "of a later attempt")
    forged, bytecode = tmp_path / "forged", tmp_path / "bytecode"
    files = {forged: "__init__.py", bytecode: "__pycache__/__init__.cpython-311.pyc"}
    for place, file in files.items():
        shutil.copytree(tmp_path / "judged", place)
        text = "raise SystemExit  # under the manifest that was judged\n"
        write_tree(place / CPU, {file: text})
    give()
    taken = upload(tmp_path / "judged", downloads, 2)
    trees = {1: forged, 3: tmp_path / "later", 9: forged, 10: bytecode}
    others = [upload(tree, downloads, attempt) for attempt, tree in trees.items()]
    others.append(write_tree(downloads / "tree.gated-norm.11", {"kci-tree.tar": "no tar"}))
    others[-1] /= "kci-tree.tar"
    tree = common.fetched_tree(downloads, "to test", judged.digest)
    assert (tree / CPU / "__init__.py").read_text() == "# judged\n"
    assert taken.is_file()
    # A later step, such as an attestation, takes what is there.
    assert not any(other.exists() for other in others)
    said = capsys.readouterr().out
    assert all(f"{other} is not the tree that was judged" in said for other in others[1:])
    taken.unlink()
    upload(forged, downloads, 12)
    says = "no tree with the digest that was judged"
    for refused in (forged, tmp_path / "later", bytecode, downloads):
        failure(FindingsError, says, common.fetched_tree, refused, "to test", judged.digest)


ACTIONS = {
    "publish": (publish.main, {"tree": "{}"}, "digest", "the tree to publish is gone"),
    "test": (test_action.main, {"tree": "{}", "kernel": "kernel"}, "digest",
        "the tree to test is gone"),
    "merge": (
        merge.main, {"published": "{}", "artifacts": "none", "into": "into",
            "allow-partial": "false"},
        "published-digest", "the tree that the plan builds upon is gone",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("there", ["nothing", "an empty folder", "another tree"])
def test_what_is_gone_or_another_one_is_told_alike(
    give: Give, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    name: str, there: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_noarch(tmp_path / "kernel", "gated-norm")
    main, inputs, digest, gone = ACTIONS[name]
    downloads = tmp_path / "downloads"
    if there == "an empty folder":
        downloads.mkdir()
    elif there == "another tree":
        make_tree(tmp_path / "tree", version=2)
        upload(tmp_path / "tree", downloads, 1)
    give(**{key: value.format(downloads) for key, value in inputs.items()}, **{digest: "0" * 64})
    ended = failure((SystemExit, FindingsError), "", main)
    said = capsys.readouterr()
    told = f"{said.out}{said.err}{ended}{getattr(ended, 'hint', '')}"
    other = "has no tree with the digest that was judged, 000"
    assert (other if there == "another tree" else gone) in told
    assert "run all jobs again, or start a new run: its plan sees what is there" in told


RECORD = KernelRecord("aa", 1, complete=True)
TEST = TestRecord("aa", "cuda", 1, passed=False)


@pytest.mark.parametrize(
    ("file", "genuine", "change"),
    [
        (RECORD_FILE, RECORD, {"present": (CPU,)}),
        (TEST_FILE, TEST, {"passed": True}),
        (PLAN_FILE, Plan(1, "release", (), (leg(CPU, "aa"),)), {"legs": ()}),
        (INDEX_FILE, TreeIndex(), {"day": 5}),
    ],
    ids=["merge", "test", "plan", "trees"],
)
def test_what_another_job_uploads_in_the_name_of_a_merge_is_refused(
    tmp_path: Path, file: str, genuine: Any, change: dict[str, Any]
) -> None:
    def uploads(*items: Any) -> RunUploads:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        for number, item in enumerate(items):
            write_record(tmp_path / "run" / str(number) / file, item)
        return read_uploads(tmp_path / "run", 2)

    uploads(genuine, genuine)
    uploads(genuine, msgspec.structs.replace(genuine, **change, attempt=2))
    for forged in (change, {"attempt": 9}):
        other = msgspec.structs.replace(genuine, **forged)
        failure(FindingsError, "was not uploaded by its own job", uploads, genuine, other)


# --- trees that are still there ---


def test_the_plan_counts_on_no_tree_that_is_gone(
    give: Give, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    trees = {"aa": "41", "bb": "41", "bb-b": "41", "cc": "42", "dd": "43"}

    def answer(command: list[str], **_: object) -> Any:
        asked.append(command[-1])
        run = command[-1].split("/")[5]
        listed = [
            {"id": 1, "name": name, "size_in_bytes": 1, "expired": name.startswith("tree.bb.")}
            for name in ("tree.aa.2", "tree.bb.1", "tree.bb-b.1", "objects.cc.1")
        ]
        error = {"42": b"gh: Not Found (HTTP 404)", "43": b"gh: HTTP 502"}.get(run, b"")
        told = json.dumps({"artifacts": listed}).encode()
        return subprocess.CompletedProcess(command, bool(error), told, error)

    monkeypatch.setattr(plan, "GitHubApi", partial(GitHubApi, run=answer))
    monkeypatch.setenv("GITHUB_REPOSITORY", "o/r")
    places = {
        name: TreePlace(run, 5, Manifest(name, 1, (), (), (), True)) for name, run in trees.items()
    }
    index = TreeIndex(places, 5)
    write_record(tmp_path / "earlier" / "run-plan.1" / INDEX_FILE, index)
    monkeypatch.setattr(plan, "today", lambda: 6)
    give(earlier=tmp_path / "earlier", earlier_run="50")
    assert plan.earlier_trees().trees.keys() == trees.keys()
    assert not asked, "there is no token to ask with"
    monkeypatch.setenv("GH_TOKEN", "t")
    assert plan.earlier_trees().trees.keys() == {"aa", "bb-b", "dd"}
    said = capsys.readouterr().out
    gone = "the tree of bb, cc is gone: its artifact was deleted, or kept for less than 60 days"
    assert f"::warning::{gone}" in said
    assert "it is unknown whether the trees of run 43 are still there" in said
    kept = read_record(tmp_path / "temp/kci-plan" / INDEX_FILE, TreeIndex)
    assert kept.trees.keys() == {"aa", "bb-b", "dd"}


# --- what an action says of what it did ---


@pytest.mark.parametrize("verified", [0, 1])
def test_a_merge_records_a_tree_that_does_not_verify_as_no_tree(
    give: Give, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verified: int
) -> None:
    judged = make_tree(tmp_path / "tree")
    monkeypatch.setattr(merge, "verify", lambda *_: verified)
    given = {"artifacts": tmp_path / "tree-artifacts", "into": tmp_path / "into"}
    give(**given, kernel="gated-norm", allow_partial="false")
    if verified:
        failure(SystemExit, "", merge.main)
    else:
        merge.main()
    outputs, good = give(), not verified
    record = read_record(Path(outputs["record"]), KernelRecord)
    assert (record.complete, bool(record.manifest), not record.error) == (good, good, good)
    assert outputs["complete"] == str(good).lower()
    assert outputs.get("digest", "") == ("" if verified else judged.digest)
    assert record.attempt == 2


def test_a_merge_that_may_lack_variants_says_so(
    give: Give, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tree(tmp_path / "tree", variants=(CPU,))
    planned = msgspec.json.encode(plan_of("gated-norm", (CPU, CUDA), commit=COMMIT)).decode()
    given = {"artifacts": tmp_path / "tree-artifacts", "plan": planned}
    give(**given, into=tmp_path / "into", allow_partial="true")
    merge.main()
    assert give()["complete"] == "false"
    assert "::warning::1 variant present, 1 missing" in capsys.readouterr().out
    give(**given, into=tmp_path / "strict", allow_partial="false")
    failure(SystemExit, "", merge.main)
    assert (give()["complete"], (tmp_path / "strict").exists()) == ("false", False)


@pytest.mark.parametrize(("complete", "error"), [(True, ""), (True, "no"), (False, "")])
def test_a_record_has_a_manifest_only_of_a_tree_without_error(
    tmp_path: Path, complete: bool, error: str
) -> None:
    manifest = Manifest("aa", 1, (), (), (), complete)
    record = kernel_record("aa", [], tmp_path, manifest, error)
    assert record.complete is (complete and not error)
    assert record.manifest == (None if error else manifest)


def test_a_tree_of_another_version_makes_way(tmp_path: Path) -> None:
    for version in (1, 2):
        make_tree(tmp_path / f"tree-{version}", version=version)
        merge.make_room(tmp_path / f"tree-{version}", plan_of("gated-norm", (CPU,), version=2))
        assert (tmp_path / f"tree-{version}").is_dir() is (version == 2)


@pytest.mark.parametrize("failing", [CPU, CUDA])
def test_each_variant_of_a_leg_is_tested_and_one_failure_fails_it(
    give: Give, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_noarch(tmp_path, "gated-norm")
    judged = make_tree(tmp_path / "tree")

    def run(directory: Path, *_: object, **__: object) -> TestReport:
        state = TestState.FAILED if directory.name == failing else TestState.PASSED
        return TestReport("gated-norm", directory.name, state, output="FAILED test_x")

    monkeypatch.setattr(test_action, "run_kernel_tests", run)
    given = {"tree": tmp_path / "tree", "variant": f"{CPU} {CUDA}", "digest": judged.digest}
    for tested in ((), (CPU, CUDA)):  # one of them cannot be tested; then both can
        give(**given)
        failure(SystemExit, "", test_action.main)
        record = read_record(Path(give()["record"]), TestRecord)
        assert (record.passed, record.tested) == (False, tested)
        monkeypatch.setattr(test_action, "split_testable", lambda variants, _: (variants, {}))


EMPTY = Manifest("aa", 1, (), (), (), True)
COMPLETE = KernelRecord("aa", 1, complete=True, present=(CPU,), manifest=EMPTY)
PLANNED = plan_of("aa", (CPU,), leg(CPU, "aa"))


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ("plan=success kernels=success", ""),
        ("plan=success kernels=failure", "some jobs did not succeed: kernels (failure)"),
        ("plan=failure kernels=success", "there is no plan: the plan job ended as failure"),
        ("plan=cancelled kernels=success", "there is no plan: the plan job ended as cancelled"),
    ],
)
def test_the_gate_hears_how_the_jobs_ended(
    give: Give, tmp_path: Path, capsys: pytest.CaptureFixture[str], results: str, said: str
) -> None:
    write_record(tmp_path / "temp/kci-records/run-plan.1" / PLAN_FILE, PLANNED)
    write_record(tmp_path / "temp/kci-records/run-record.aa.1" / RECORD_FILE, COMPLETE)
    give(results=results)
    if said:
        failure(SystemExit, "", gate.main)
    else:
        gate.main()
        outputs = give()
        released = {"kernel": "aa", "path": "k", "run": "7", "digest": EMPTY.digest}
        assert json.loads(outputs["releases"]) == {"include": [released]}
        assert (outputs["has-releases"], outputs["failed"]) == ("true", "0")
    assert said in capsys.readouterr().out


def test_the_gate_lists_what_is_lacking_and_releases_none_of_it(
    give: Give, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path / "temp/kci-records" / PLAN_FILE, PLANNED)
    give(results="plan=success kernels=success", judge="false")
    gate.main()
    outputs = give(results="plan=success kernels=success")
    assert json.loads(outputs["releases"]) == {"include": []}
    assert (outputs["has-releases"], outputs["failed"]) == ("false", "1")
    assert "::error title=aa::no job that merges it left a record" in capsys.readouterr().out
    failure(SystemExit, "", gate.main)
    assert "1 of what was planned did not happen, in 1 kernels" in capsys.readouterr().out


@pytest.mark.parametrize("folder", [True, False])
def test_a_run_that_uploaded_no_plan_is_not_green(
    give: Give, tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: bool
) -> None:
    if folder:
        (tmp_path / "temp/kci-records").mkdir()
    give(results="plan=success")
    failure(SystemExit, "", gate.main)
    assert "there is no plan" in capsys.readouterr().out


def test_a_merge_takes_over_what_it_builds_upon(give: Give, tmp_path: Path) -> None:
    """One variant is built again, the other one comes from the earlier tree; nothing does where a
    tree is already.
    """
    earlier = make_tree(tmp_path / "earlier", "earlier")
    upload(tmp_path / "earlier", tmp_path / "downloads", 1)
    make_tree(tmp_path / "mine", "mine")
    planned = plan_of("gated-norm", (CPU, CUDA), commit=COMMIT)
    new = {"__init__.py": "# new\n", "_ops.py": "ops = None\n"}
    make_artifact(tmp_path / "artifacts", make_variant(tmp_path / "new", CPU, files={**new}))
    for into, other in (("into", "earlier"), ("mine", "mine")):
        give(
            artifacts=tmp_path / "artifacts", into=tmp_path / into, kernel="gated-norm",
            allow_partial="false",
            plan=msgspec.json.encode(planned).decode(),
            published=tmp_path / "downloads", published_digest=earlier.digest,
        )  # fmt: skip
        merge.main()
        read = {name: (tmp_path / into / name / "__init__.py").read_text() for name in (CPU, CUDA)}
        assert read == {CPU: "# new\n", CUDA: f"# {other}\n"}
