"""An artifact is merged only as what it is; what stays is neither copied nor hashed again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.runner import kci
from conftest import ids, only, refusal
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError
from kci.tree import identity
from kci.tree import merge as carry
from kci.tree.artifacts import CiRun
from kci.tree.identity import GitState
from kci.tree.manifest import Replaced, read_manifest
from kci.tree.merge import merge
from kci.tree.verify import verify
from variants import (
    COMMIT,
    CPU,
    CUDA,
    STABLE,
    artifact_of,
    leg_of,
    make_artifact,
    make_variant,
    tree_plan,
)

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


@pytest.mark.rule("KCI612", "KCI722", triggers=True)
def test_a_renamed_build_is_no_other_variant(tmp_path: Path) -> None:
    renamed = make_variant(tmp_path).rename(tmp_path / NEXT)
    only(refusal(merge, [renamed], tmp_path / "build"), "KCI612", "built as torch213")
    only(refusal(leg_of, renamed), "KCI612", "built as torch213")
    assert "KCI722" in ids(verify(renamed))


@pytest.mark.rule("KCI615", triggers=True)
def test_archives_with_another_name_are_not_passed_over_in_suppression(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "a", make_variant(tmp_path / "src"))
    for name in ("artifact.tar", f"kci-gated-norm-{CPU}.tar.gz", "x.ZIP", "notes.txt"):
        (tmp_path / "a" / name).write_bytes(b"")
    done = kci("merge", artifact.parent, "--into", tmp_path / "build")
    assert done.code == 0
    assert done.stderr.count("KCI615") == 3


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KCI_CACHE", str(tmp_path / "cache"))
    merge([artifact_of(tmp_path, name) for name in (CPU, STABLE)], tmp_path / "build")
    return tmp_path / "build"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read to be hashed, by variant and name."""
    found: list[str] = []
    real = identity.file_hash

    def noted(path: Path, *arguments: str) -> str:
        found.append("/".join(path.parts[-2:]))
        return real(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(identity, "file_hash", noted)
    return found


def add(tree: Path) -> None:
    merge([artifact_of(tree.parent, CUDA, archs=("9.0",))], tree)


def test_what_stays_keeps_its_inodes_and_is_not_read(tree: Path, hashed: list[str]) -> None:
    before = {path: path.stat().st_ino for path in (tree / CPU).rglob("*") if path.is_file()}
    artifact = artifact_of(tree.parent, CUDA, archs=("9.0",))
    hashed.clear()
    merge([artifact], tree)
    assert {path: path.stat().st_ino for path in before} == before
    assert all(path.stat().st_nlink == 1 for path in before)
    assert not [name for name in hashed if CPU in name or STABLE in name]
    assert verify(tree, select=["KCI71", "KCI72", "KCI73"]) == []
    manifest = read_manifest(tree)
    assert manifest is not None
    assert [entry.origin.carried for entry in manifest.present] == [True, True, False]


@pytest.mark.parametrize(
    "how", ["content", "same size and times", "new file", "removed file", "touched"]
)
def test_what_was_changed_is_hashed_again(tree: Path, how: str) -> None:
    path = tree / CPU / "_ops.py"
    times = path.stat()
    match how:
        case "content":
            path.write_text("changed\n")
        case "same size and times":
            path.write_text("x" * times.st_size)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        case "new file":
            (tree / CPU / "new.py").write_text("")
        case "removed file":
            path.unlink()
        case _:
            os.utime(path)
    if how == "touched":
        add(tree)
        assert (tree / CPU / "_ops.py").exists()
    else:
        with pytest.raises(FindingsError, match="was not sealed"):
            add(tree)


def test_without_a_record_all_is_hashed(tree: Path, hashed: list[str], tmp_path: Path) -> None:
    for path in (tmp_path / "cache" / "trees").iterdir():
        path.write_text("{")
    add(tree)
    assert f"{CPU}/_ops.py" in hashed


def test_without_links_there_are_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    old, new = tmp_path / "a", tmp_path / "c"
    (old / "b").mkdir(parents=True)
    (old / "b" / "f").write_text("1")
    (old / "x.pyc").write_text("")
    monkeypatch.setattr(carry.os, "link", refuse)
    carry.copy(old, new, linked=True)
    assert (new / "b" / "f").read_text() == "1"
    assert (new / "b" / "f").stat().st_ino != (old / "b" / "f").stat().st_ino
    assert not (new / "x.pyc").exists()


def test_the_checksums_cover_the_tree_and_are_not_believed(tree: Path) -> None:
    sums = tree / "SHA256SUMS"
    lines = sums.read_text().splitlines()
    listed = dict(reversed(line.split("  ")) for line in lines)
    files = {path.relative_to(tree).as_posix(): path for path in tree.rglob("*") if path.is_file()}
    assert set(listed) == set(files) - {"SHA256SUMS"}
    assert all(identity.file_hash(files[name]) == value for name, value in listed.items())
    sums.write_text("\n".join([*lines[:-1], f"{'0' * 64}  {lines[-1].split('  ')[1]}"]) + "\n")
    add(tree)
    assert "0" * 64 not in sums.read_text()
