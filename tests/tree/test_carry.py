"""Variants that stay are neither copied nor hashed again, unless something about their files
changed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kci.errors import FindingsError
from kci.tree import identity
from kci.tree import merge as carry
from kci.tree.manifest import read_manifest
from kci.tree.merge import merge
from kci.tree.verify import verify
from variants import CPU, CUDA, STABLE, artifact_of


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


def test_without_a_record_everything_is_hashed(
    tree: Path, hashed: list[str], tmp_path: Path
) -> None:
    for path in (tmp_path / "cache" / "trees").iterdir():
        path.write_text("{")
    add(tree)
    assert f"{CPU}/_ops.py" in hashed


def test_a_file_system_without_links_gets_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_checksums_cover_the_tree(tree: Path) -> None:
    sums = (tree / "SHA256SUMS").read_text().splitlines()
    lines = dict(reversed(line.split("  ")) for line in sums)
    files = {path.relative_to(tree).as_posix(): path for path in tree.rglob("*") if path.is_file()}
    assert set(lines) == set(files) - {"SHA256SUMS"}
    assert all(identity.file_hash(files[name]) == value for name, value in lines.items())


def test_checksums_that_lie_are_not_believed(tree: Path) -> None:
    sums = tree / "SHA256SUMS"
    lines = sums.read_text().splitlines()
    sums.write_text("\n".join([*lines[:-1], f"{'0' * 64}  {lines[-1].split('  ')[1]}"]) + "\n")
    add(tree)
    assert "0" * 64 not in sums.read_text()
