"""Kernels of a git revision, without a checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kci.config.revision import read_revision
from kci.errors import FindingsError, UsageError

BUILD = '[general]\nname = "{}"\nversion = {}\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n[torch-noarch]\n'


def git(repository: Path, *arguments: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(repository), *arguments]
    subprocess.run(command, env=environment, check=True, capture_output=True)


def commit(repository: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "x")


@pytest.fixture
def repository(tmp_path: Path, no_git_environment: None) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    commit(
        tmp_path, {"kernels/one/build.toml": BUILD.format("one", 1), "kernels/two/build.toml": BUILD.format("two", 1)}
    )
    git(tmp_path, "tag", "first")
    commit(
        tmp_path,
        {
            "kernels/one/build.toml": BUILD.format("one", 2),
            "kernels/one/inner/build.toml": BUILD.format("inner", 1),
            "kernels/.hidden/build.toml": BUILD.format("hidden", 1),
            "kernels/bad/build.toml": "x =",
        },
    )
    return tmp_path


def found(spec: str, directory: Path) -> list[tuple[str, int, str]]:
    return [
        (kernel.build.name, kernel.build.general.version, kernel.directory) for kernel in read_revision(spec, directory)
    ]


def test_a_revision_is_read_as_it_was(repository: Path) -> None:
    assert found("first:kernels", repository) == [("one", 1, "first:kernels/one"), ("two", 1, "first:kernels/two")]
    assert found("first:", repository) == found("first:kernels", repository)
    assert found("main:kernels/one", repository) == [("one", 2, "main:kernels/one")]
    assert found("HEAD~1:kernels/one/build.toml", repository) == [("one", 1, "HEAD~1:kernels/one")]


def test_the_working_tree_does_not_matter(repository: Path) -> None:
    (repository / "kernels/one/build.toml").write_text("x =")
    git(repository, "rm", "-q", "--cached", "kernels/two/build.toml")
    assert len(found("first:kernels", repository)) == 2


def test_a_path_is_relative_to_the_top_unless_it_says_otherwise(repository: Path) -> None:
    below = repository / "kernels"
    assert found("first:kernels/one", below) == found("first:./one", below) == found("first:one/../kernels/one", below)
    assert found("first:../kernels/one", below) == found("first:kernels/one", below)
    with pytest.raises(UsageError, match="is outside of the repository"):
        found("first:../../one", below)
    with pytest.raises(UsageError, match="is outside of the repository"):
        found("first:/etc", below)


def test_only_the_outermost_kernels_that_are_not_hidden_count(repository: Path) -> None:
    git(repository, "rm", "-q", "kernels/bad/build.toml")
    git(repository, "commit", "-q", "-m", "x")
    assert [name for name, _, _ in found("main:", repository)] == ["one", "two"]


def test_what_is_wrong_with_a_file_names_the_revision(repository: Path) -> None:
    with pytest.raises(FindingsError) as caught:
        read_revision("main:kernels", repository)
    (problem,) = caught.value.diagnostics
    assert (problem.rule, problem.path, problem.line) == ("KCI004", "main:kernels/bad/build.toml", 1)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("--output=/tmp/x:kernels", "is not a revision"),
        ("-h:kernels", "is not a revision"),
        (":kernels", "is not a revision"),
        ("first\n:kernels", "is not a revision"),
        ("nowhere:kernels", "there is no commit 'nowhere'"),
        ("first:nothing", "has no build.toml at or below 'nothing'"),
        ("first:kernels/one/build.toml/x", "has no build.toml"),
        ("first:--help", "has no build.toml at or below '--help'"),
    ],
)
def test_what_does_not_exist_or_looks_like_an_option_is_wrong_usage(repository: Path, spec: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_revision(spec, repository)


def test_outside_of_a_repository(tmp_path: Path, no_git_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UsageError, match="there is no commit 'HEAD'"):
        read_revision("HEAD:x", tmp_path)


def test_a_variable_cannot_point_git_elsewhere(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository / "nowhere"))
    assert len(found("first:kernels", repository)) == 2


def test_configured_programs_are_not_run(repository: Path) -> None:
    """A textconv or a file monitor of the repository's own configuration is a program of whoever wrote it."""
    ran = repository / "ran"
    git(repository, "config", "diff.evil.textconv", f"touch {ran}; cat")
    git(repository, "config", "core.fsmonitor", f"touch {ran}")
    (repository / ".git/info/attributes").write_text("*.toml diff=evil\n")
    assert len(found("first:kernels", repository)) == 2
    assert not ran.exists()


def test_a_file_that_is_too_large_is_not_read(repository: Path) -> None:
    commit(repository, {"big/build.toml": "#" * (5 * 1024 * 1024)})
    with pytest.raises(FindingsError, match="larger than 1 MiB"):
        read_revision("main:big", repository)
