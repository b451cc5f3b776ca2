"""The unique id and the provenance of a kernel's source, and the digest of a variant."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

import outside_tools
from kci.errors import FindingsError
from kci.tree.identity import (
    GitState,
    file_hashes,
    kernel_id,
    make_digest,
    provenance,
    unique_id,
    validate_dir,
)
from variants import variant_digest

pytestmark = pytest.mark.usefixtures("no_git_environment")


def git(directory: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    command = ["git", *who, "-C", str(directory), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def head(repository: Path, dirty: bool = False) -> GitState:
    """The commit that is checked out, changed or not."""
    return GitState(git(repository, "rev-parse", "HEAD"), dirty)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "kernels" / "relu").mkdir(parents=True)
    (root / "kernels" / "relu" / "build.toml").write_text("x")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def test_a_kernel_id_names_kernel_backend_and_source() -> None:
    assert kernel_id("gated-norm", "rocm", "1a2b3c4") == "_gated_norm_rocm_1a2b3c4"


def test_in_git_the_id_is_the_root_tree_and_not_the_commit(repository: Path) -> None:
    kernel, index = repository / "kernels" / "relu", repository / ".git" / "index"
    clean = git(repository, "rev-parse", "HEAD^{tree}")[:7]
    assert unique_id(kernel) == clean != git(repository, "rev-parse", "HEAD")[:7]
    git(repository, "commit", "-q", "--allow-empty", "-m", "same tree, other commit")
    (repository / "untracked").write_text("x")
    (kernel / "build.toml").touch()
    before = index.read_bytes(), index.stat().st_mtime_ns
    assert unique_id(kernel) == clean
    assert provenance(kernel) == head(repository)
    assert (index.read_bytes(), index.stat().st_mtime_ns) == before, "reading writes no index"
    (kernel / "build.toml").write_text("changed")
    assert unique_id(kernel) == f"{clean}_dirty"
    assert provenance(kernel) == head(repository, dirty=True)


def test_a_submodule_at_another_commit_makes_the_record_dirty_and_not_the_id(
    repository: Path, tmp_path: Path
) -> None:
    """The id is as the reference's; the record of the source must not name a commit that was not
    what was built.
    """
    git(tmp_path, "init", "-q", "upstream")
    upstream = tmp_path / "upstream"
    for number in range(2):
        (upstream / "scale.h").write_text(f"int scale = {number};\n")
        git(upstream, "add", ".")
        git(upstream, "commit", "-q", "-m", str(number))
    kernel = repository / "kernels" / "relu"
    add = ("submodule", "add", "-q", str(upstream), "kernels/relu/up")
    git(repository, "-c", "protocol.file.allow=always", *add)
    git(repository, "commit", "-q", "-a", "-m", "submodule")
    clean = unique_id(kernel)
    assert provenance(kernel) == head(repository)
    (kernel / "up" / "notes").write_text("untracked")
    assert provenance(kernel) == head(repository)
    git(kernel / "up", "checkout", "-q", "HEAD~1")
    assert provenance(kernel) == head(repository, dirty=True)
    git(kernel / "up", "checkout", "-q", "-")
    (kernel / "up" / "scale.h").write_text("int scale = 3;\n")
    assert provenance(kernel) == head(repository, dirty=True)
    assert unique_id(kernel) == clean


def test_neither_environment_nor_configuration_nor_owner_lead_elsewhere(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, mark, hook = unique_id(repository), tmp_path / "ran", tmp_path / "hook"
    git(tmp_path, "init", "-q", "other")
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(hook))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert unique_id(repository) == expected
    assert not mark.exists(), "what a repository configures runs no program"
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(FindingsError, match="belongs to another user") as caught:
        unique_id(repository)
    assert "safe.directory" in caught.value.hint


@pytest.mark.parametrize("without_git", [False, True])
def test_outside_git_the_id_comes_from_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_git: bool
) -> None:
    if without_git:
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for name in ("one", "two"):
        (tmp_path / name / "csrc").mkdir(parents=True)
        (tmp_path / name / "csrc" / "a.cu").write_text("a")
    first = unique_id(tmp_path / "one")
    assert re.fullmatch("[a-z2-7]{13}", first)
    assert unique_id(tmp_path / "two") == first
    assert provenance(tmp_path / "one") is None
    for ignored in ("build/torch-cpu/x", ".cache/x", "csrc/__pycache__/x.py", "a.pyc"):
        path = tmp_path / "two" / ignored
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert unique_id(tmp_path / "two") == first
    (tmp_path / "two" / "csrc" / "b.cu").write_text("")
    assert unique_id(tmp_path / "two") != first
    if not without_git:  # a repository without a commit counts as none
        git(tmp_path / "one", "init", "-q")
        assert (unique_id(tmp_path / "one"), provenance(tmp_path / "one")) == (first, None)


def test_a_linked_directory_counts_by_where_it_points_and_is_not_walked(tmp_path: Path) -> None:
    ids = []
    for target in ("/", ".", "nowhere"):
        (tmp_path / "csrc").unlink(missing_ok=True)
        (tmp_path / "csrc").symlink_to(target)
        ids.append(unique_id(tmp_path))
    assert len(set(ids)) == 3


def fill(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.fixture
def variant(tmp_path: Path) -> Path:
    root = fill(
        tmp_path / "v",
        {
            "__init__.py": b"from ._ops import ops\n", "a.b": b"", "a/b.py": b"1",
            ".hidden": b"2", "x.pyo": b"3", "metadata.json": b"4", "metadata.json.sigstore": b"5",
            "sub/metadata.json": b"6", "sub/x.pyc": b"7", "sub/__pycache__/deep/f": b"8",
        },
    )  # fmt: skip
    (root / "link.py").symlink_to("__init__.py")
    (root / "dirlink").symlink_to("sub")
    os.mkfifo(root / "fifo")
    return root


def test_the_digest_covers_what_the_reference_covers(variant: Path) -> None:
    files = make_digest(file_hashes(variant)).files
    covered = [".hidden", "__init__.py", "a.b", "a/b.py", "link.py", "sub/metadata.json", "x.pyo"]
    assert list(files) == covered
    digest = "oJkKRxmymMxOBcRXhqsfbO0E+ZiDfCQ2pRXm7qmMTA8="
    assert files["__init__.py"] == digest == files["link.py"]
    other = make_digest(file_hashes(variant, "sha512"), "sha512")
    assert other.files["a.b"] == base64.b64encode(hashlib.sha512(b"").digest()).decode()
    assert validate_dir(variant, other, file_hashes(variant)) == []


@pytest.mark.torch
@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_the_reference_computes_the_same_digest(variant: Path, algorithm: str) -> None:
    reference = outside_tools.reference()
    kind = getattr(reference.DigestAlgorithm, algorithm.upper())
    theirs = reference.Digest.hash_variant(kind, str(variant))
    ours = make_digest(file_hashes(variant, algorithm), algorithm)  # type: ignore[arg-type]
    assert list(theirs.files.items()) == list(ours.files.items())


def test_the_variant_digest_covers_metadata_but_no_bytecode_or_times(tmp_path: Path) -> None:
    one = fill(tmp_path / "one", {"a.py": b"1", "metadata.json": b"2"})
    two = fill(tmp_path / "two", {"a.py": b"1", "metadata.json": b"2", "__pycache__/a.pyc": b"x"})
    os.utime(two / "a.py", (1, 1))
    assert variant_digest(one) == variant_digest(two)
    (two / "metadata.json").write_bytes(b"3")
    assert variant_digest(one) != variant_digest(two)
