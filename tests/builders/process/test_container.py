"""Building inside an image: the exact command, and what becomes of how it ends. What an engine does
with it is in test_real_engine.py.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from buildkit import Bare, noarch_kernel, only_these, program, quiet
from conftest import failure
from kci.builders.process import container
from kci.builders.process.container import (
    ContainerBuild,
    build_command,
    choose_image,
    run_in_container,
    running_wheel,
)
from kci.errors import (
    BuildFailedError,
    FindingsError,
    MissingToolError,
    UnfinishedBuildError,
    UsageError,
)
from planning import git

IMAGE = "registry.example/builder:1"
DOCKER = f"""
    case "$1" in version) echo 28.0.0; exit ;; image) exit ;; esac
    until [ "$1" = {IMAGE} ]; do
      [ $# -gt 0 ] || {{ echo "pull access denied" >&2; exit 125; }}
      shift
    done
    shift
    exec "$@"
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A docker on the PATH, whose only image is this machine."""
    folder = tmp_path / "engine"
    folder.mkdir()
    program(folder, "docker", DOCKER)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.fixture(autouse=True)
def _no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine's own pip is told is no part of these tests."""
    for name in container.PATH_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def command_of(kernel: Path, tmp_path: Path, **more: Sequence[Path]) -> list[str]:
    """The command that builds a kernel in the image."""
    places: Any = {"writable": (), "cache": tmp_path / "cache"} | more
    return build_command(ContainerBuild(IMAGE, kernel, ["build"], **places))


def written(path: Path) -> str:
    """How a place of this machine is mounted that may be written."""
    return f"--mount=type=bind,source={path},target={path}"


def seen(path: Path) -> str:
    """How one is mounted that may only be read."""
    return f"{written(path)},readonly"


def test_launchers_and_pip_are_told_what_their_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, so that no key is on a command line; but no place of this machine that the container
    does not see, and it sees those that are there.
    """
    places = [tmp_path / name for name in ("sccache.conf", "wheels", "ca.crt")]
    for place in places:
        place.touch()
    said = {"CCACHE_REMOTE_STORAGE": "redis://:key@host", "AWS_SECRET_ACCESS_KEY": "key"}
    said |= {"SCCACHE_CONF": f"{places[0]}", "PIP_CERT": f"{places[2]}"}
    said["PIP_FIND_LINKS"] = f"{places[1]} https://example.org/wheels /not/there"
    for name, value in (said | {"CCACHE_DIR": "/mine", "SCCACHE_ERROR_LOG": "~/log"}).items():
        monkeypatch.setenv(name, value)
    kernel = noarch_kernel(tmp_path / "k")
    command = command_of(kernel, tmp_path)
    assert {*map(seen, places), *(f"--env={name}" for name in said)} <= set(command)
    left_out = ("key", "_DIR", "ERROR_LOG", "/not/there")
    assert not any(part in word for part in left_out for word in command)
    monkeypatch.delenv("SCCACHE_CONF")
    assert "--env=AWS_SECRET_ACCESS_KEY" not in command_of(kernel, tmp_path), "nobody asks for it"


def test_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that is written is not also read, and a place in another comes behind it."""
    for name in (*container.FORWARDED_VARIABLES, *container._cache_variables()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MAX_JOBS", "3")
    cache, kernel, wheel = tmp_path / "cache", noarch_kernel(tmp_path / "k"), Path("/w/kci.whl")
    monkeypatch.setattr(container, "running_wheel", lambda _cache: (wheel, b""))
    command = command_of(kernel, tmp_path, readable=[cache], writable=[kernel / "build"])
    assert command == [
        "docker", "run", "--rm", "--init", "--cap-drop=ALL", "--security-opt=no-new-privileges",
        f"--user={os.getuid()}:{os.getgid()}", written(cache), seen(kernel),
        written(kernel / "build"),
        "--env=MAX_JOBS", f"--env=HOME={cache}/home", f"--env=KCI_CACHE={cache}",
        f"--workdir={kernel}", IMAGE, "sh", "-c", container.SCRIPT, "kci-in-container", str(wheel),
        command[-2], "build",
    ]  # fmt: skip
    assert re.fullmatch("[0-9a-f]{16}", command[-2])


@pytest.mark.parametrize("image", ["", "--privileged", "-v/:/host", "a b", "a\nb", "a;b", "$(id)"])
def test_a_flag_is_not_taken_for_an_image(image: str, tmp_path: Path) -> None:
    build = ContainerBuild(image, tmp_path, [], writable=[], cache=tmp_path)
    failure(UsageError, "image", build_command, build)


@pytest.mark.parametrize("path", ["/a,readonly=false", '/a"b', "/a\nb"])
def test_a_path_cannot_change_the_mount(path: str, tmp_path: Path) -> None:
    failure(UsageError, "mounted", command_of, tmp_path, tmp_path, readable=[Path(path)])


def test_a_repository_is_seen_and_variables_are_told_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_JOBS", "KCI_RUN", "KCI_ATTEMPT"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@index.example/simple")
    kernel, overlay = noarch_kernel(tmp_path / "all" / "kernels" / "k"), tmp_path / "overlay.toml"
    (tmp_path / "all" / "kci.toml").write_text("")  # outside of git, the folder of kci.toml
    command = command_of(kernel, tmp_path, readable=[overlay], writable=[kernel / "build"])
    assert {seen(tmp_path / "all"), seen(overlay), written(kernel / "build")} <= set(command)
    # The artifact is of the run that asked for it.
    told = {"KCI_RUN", "KCI_ATTEMPT", "MAX_JOBS", "PIP_INDEX_URL"}
    assert {f"--env={word}" for word in told} <= set(command)
    assert not any("secret" in word for word in command)
    (kernel.parent / ".git").mkdir()
    assert seen(kernel.parent) in command_of(kernel, tmp_path)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.usefixtures("no_git_environment")
def test_the_git_data_of_a_worktree_is_seen_as_well(tmp_path: Path) -> None:
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "-q")
    git(main, "commit", "-q", "--allow-empty", "-m", "first")
    git(main, "worktree", "add", "-q", str(tmp_path / "side"))
    kernel = noarch_kernel(tmp_path / "side" / "k")
    assert seen(main / ".git") in command_of(kernel, tmp_path)


def test_the_kci_that_is_running_goes_into_the_image_as_a_wheel(tmp_path: Path) -> None:
    place, data = running_wheel(tmp_path)
    command_of(noarch_kernel(tmp_path / "k"), tmp_path)
    assert not (tmp_path / "cache").exists(), "asking writes nothing"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        own = archive.read("kci/builders/process/container.py")
        assert own == Path(container.__file__).read_bytes()
        names = set(archive.namelist())
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        listed = archive.read(record).decode().splitlines()
        assert {line.partition(",")[0] for line in listed} == names
    assert running_wheel(tmp_path) == (place, data)


def test_a_kci_that_is_not_installed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [])
    failure(MissingToolError, "no container can install it", running_wheel, tmp_path)


def test_podman_is_taken_where_there_is_no_docker(bare: Bare) -> None:
    bare.patch.delenv("KCI_CONTAINER_ENGINE", raising=False)
    bare.add("podman", 'test "$*" = "version --format {{.Client.Version}}"')
    assert choose_image("auto", IMAGE, quiet) == IMAGE
    assert command_of(bare.place, bare.place)[0] == "podman"
    bare.add("docker", "exit 1")
    assert command_of(bare.place, bare.place)[0] == "docker"
    bare.set(KCI_CONTAINER_ENGINE="podman")
    assert choose_image("auto", IMAGE, quiet) == IMAGE
    bare.set(KCI_CONTAINER_ENGINE="lxc")
    failure(UsageError, "lxc", command_of, bare.place, bare.place)


def test_a_user_who_is_not_root_stays_himself_in_podman(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCI_CONTAINER_ENGINE", "podman")
    for user, expected in ((0, False), (1000, True)):
        monkeypatch.setattr("os.getuid", lambda user=user: user)
        assert ("--userns=keep-id" in command_of(tmp_path, tmp_path)) is expected


# --- which image ---


def test_which_image_is_taken(bare: Bare) -> None:
    """`auto` is the leg's where an engine answers, and else this machine; one by name needs it."""
    bare.patch.delenv("KCI_CONTAINER_ENGINE", raising=False)
    said: list[str] = []
    build = ContainerBuild(IMAGE, bare.place, [], writable=[], cache=bare.place / "c")
    for script, says in (
        ("", "docker is not installed on this machine"),
        ("echo 'Cannot connect to the Docker daemon' >&2; exit 1", "Cannot connect to the Docker"),
    ):
        if script:
            bare.add("docker", script)
        assert choose_image("auto", IMAGE, said.append) is None
        assert says in said.pop()
        assert failure(MissingToolError, says, choose_image, IMAGE, "", quiet).exit_code == 3
        failure(MissingToolError, says, run_in_container, build, quiet)
    bare.add("docker", "echo 28.0.0")
    assert choose_image("auto", IMAGE, said.append) == choose_image(IMAGE, "", quiet) == IMAGE
    assert choose_image("none", IMAGE, quiet) is choose_image("auto", "", quiet) is None
    assert said == []


# --- running it ---


Run = Callable[..., list[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: None) -> Run:
    """Runs a script of the test's own where kci would be installed and run."""

    def done(script: str, image: str = IMAGE) -> list[str]:
        monkeypatch.setattr(container, "SCRIPT", script)
        said: list[str] = []
        kernel = noarch_kernel(tmp_path / "k")
        places: Any = {"writable": [tmp_path / "new" / "o"], "cache": tmp_path / "newer" / "c"}
        run_in_container(ContainerBuild(image, kernel, ["a b", "$c"], **places), said.append)
        return said

    return done


@pytest.mark.parametrize(
    ("code", "error"),
    [(1, FindingsError), (2, UsageError), (3, MissingToolError), (4, BuildFailedError),
        (137, BuildFailedError)],
)  # fmt: skip
def test_the_exit_code_of_kci_in_the_image_is_kept(
    run: Run, code: int, error: type[Exception]
) -> None:
    assert type(failure(error, "what it said", run, f"echo what it said; exit {code}")) is error


def test_a_build_that_is_not_finished_in_the_image_is_not_finished_here(run: Run) -> None:
    said = str(UnfinishedBuildError("torch213-cxx11-cpu-x86_64-linux", 12, 40))
    told = f"echo 'error: {said}' >&2; exit 4"
    caught = failure(UnfinishedBuildError, "12 of 40 objects", run, told)
    assert (caught.done, caught.total) == (12, 40)
    other = f"echo 'a.cu(1): warning: {said}' >&2; exit 4"
    assert type(failure(BuildFailedError, "", run, other)) is BuildFailedError


def test_what_the_engine_writes_where_it_is_started_is_not_in_the_callers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """podman's monitor does so with a file `oom` when a container runs out of memory."""
    program(tmp_path / "engine", "docker", 'if [ "$1" = run ]; then touch oom; exit 137; fi')
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    failure(BuildFailedError, "exit code 137", run, "true")
    assert not list(tmp_path.rglob("oom"))


def test_an_image_that_cannot_be_had_is_named(run: Run) -> None:
    caught = failure(MissingToolError, "cannot run other:1", run, "true", "other:1")
    assert "pull access denied" in caught.message


def test_an_image_without_a_python_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_these(monkeypatch, tmp_path, "sh", "mktemp", "rm")
    command = ["sh", "-c", container.SCRIPT, "x", "kci", "name"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "no Python 3.11 or newer" in done.stderr
