"""An artifact is merged only as what it is: by its name, its leg, its metadata, its run and the
commit of the plan.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.runner import kci
from conftest import ids, only, refusal
from kci.diagnostics import Diagnostic
from kci.tree.artifacts import CiRun
from kci.tree.identity import GitState
from kci.tree.manifest import MAX_ATTEMPT, LegRecord, Replaced
from kci.tree.merge import merge
from kci.tree.verify import verify
from kci.utils.bounded_json import decode_json
from variants import COMMIT, CPU, CUDA, artifact_of, leg_of, make_artifact, make_variant, tree_plan

NEXT = "torch212-cxx11-cpu-x86_64-linux"


@pytest.mark.rule("KCI612", triggers=True)
def test_a_file_named_for_another_variant_or_kernel_is_refused(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "a", make_variant(tmp_path / "src"))
    rocm = CPU.replace("cpu", "rocm72")
    for name in (f"kci-gated-norm-{rocm}.tar", f"kci-other-{CPU}.tar", "kci-x.tar"):
        renamed = artifact.rename(tmp_path / "a" / name)
        found = only(refusal(merge, [tmp_path / "a"], tmp_path / "build"), "KCI612")
        assert f"kci-gated-norm-{CPU}.tar" in found.hint
        artifact = renamed.rename(artifact)
    anything = artifact.rename(tmp_path / "built.tar")
    assert merge([anything], tmp_path / "build")[0].present[0].variant == CPU


@pytest.mark.rule("KCI612", triggers=True)
def test_artifacts_of_other_commits_than_the_plan_s_are_refused(tmp_path: Path) -> None:
    files = [
        artifact_of(tmp_path, variant, source=GitState(name * 40, False))
        for name, variant in (("a", CPU), ("b", CUDA))
    ]
    found = refusal(merge, files, tmp_path / "build", tree_plan(CPU, CUDA, commit="c" * 40))
    assert ids(found) == ["KCI612", "KCI612"]
    assert "built from aaaaaaaaaaaa; cccccccccccc was planned" in found[0].message
    assert not (tmp_path / "build").exists()


@pytest.mark.rule("KCI612", "KCI613", "KCI615", triggers=False)
def test_the_artifacts_of_the_plan_s_own_run_are_merged_without_a_word(tmp_path: Path) -> None:
    files = [artifact_of(tmp_path, run="77", attempt=attempt) for attempt in (1, 2)]
    said: list[Diagnostic] = []
    planned = tree_plan(CPU, commit=COMMIT)
    (manifest,) = merge(files, tmp_path / "build", planned, run=CiRun("77", 2), report=said.append)
    assert (said, manifest.replaced) == ([], ())


@pytest.mark.rule("KCI612", triggers=True)
def test_an_attempt_that_the_run_has_not_reached_does_not_win(tmp_path: Path) -> None:
    files = [artifact_of(tmp_path), artifact_of(tmp_path, attempt=999, files={"__init__.py": ""})]
    found = refusal(merge, files, tmp_path / "build", run=CiRun("77", 2))
    only(found, "KCI612", "attempt 999; this run is at attempt 2")
    other = artifact_of(tmp_path, folder="c", run="1")
    found = refusal(merge, [other], tmp_path / "x", run=CiRun("77"))
    only(found, "KCI612", "built in the run 1; this is the run 77")


@pytest.mark.rule("KCI613", triggers=True)
def test_an_attempt_that_replaces_other_bytes_is_reported_and_recorded(tmp_path: Path) -> None:
    first = make_variant(tmp_path / "1")
    second = artifact_of(tmp_path, attempt=2, files={"__init__.py": ""})
    said: list[Diagnostic] = []
    files = [make_artifact(tmp_path / "a", first), second]
    (manifest,) = merge(files, tmp_path / "build", report=said.append)
    only(said, "KCI613")
    replaced = Replaced(CPU, f"kci-gated-norm-{CPU}.tar", 1, leg_of(first).digest)
    assert manifest.replaced == (replaced,)


def test_attempts_have_an_end() -> None:
    data = {
        "schema": 1, "kernel": "ab", "version": 1, "variant": CPU, "backend": "cpu", "kci": "1",
        "system": "x86_64-linux", "digest": "0" * 64, "builder": "x", "attempt": MAX_ATTEMPT,
    }  # fmt: skip
    assert decode_json(json.dumps(data), LegRecord).attempt == MAX_ATTEMPT
    for attempt in (MAX_ATTEMPT + 1, 10**30, 0, 1.5):
        with pytest.raises(ValueError, match="attempt"):
            decode_json(json.dumps(data | {"attempt": attempt}), LegRecord)


@pytest.mark.rule("KCI612", triggers=True)
def test_a_renamed_build_is_no_other_variant(tmp_path: Path) -> None:
    renamed = make_variant(tmp_path).rename(tmp_path / NEXT)
    only(refusal(merge, [renamed], tmp_path / "build"), "KCI612", "built as torch213")
    only(refusal(leg_of, renamed), "KCI612", "built as torch213")


@pytest.mark.rule("KCI722", triggers=True)
def test_verification_sees_a_renamed_build_too(tmp_path: Path) -> None:
    renamed = make_variant(tmp_path, "torch-cpu").rename(tmp_path / "torch-cuda")
    assert "KCI722" in ids(verify(renamed))


@pytest.mark.rule("KCI615", triggers=True)
def test_archives_with_another_name_are_not_passed_over_in_suppression(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "a", make_variant(tmp_path / "src"))
    for name in ("artifact.tar", f"kci-gated-norm-{CPU}.tar.gz", "x.ZIP", "notes.txt"):
        (tmp_path / "a" / name).write_bytes(b"")
    done = kci("merge", artifact.parent, "--into", tmp_path / "build")
    assert done.code == 0
    assert done.stderr.count("KCI615") == 3
