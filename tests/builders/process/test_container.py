"""Building inside an image: the exact command, and a run of it with a stand-in for docker (see
stand_in_docker.py).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from buildkit import noarch_kernel, only_these, program, quiet
from conftest import ROOT, failure
from kci.builders.process import container
from kci.builders.process.container import (
    ContainerBuild,
    Mount,
    build_command,
    choose_image,
    container_command,
    kci_source,
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

STAND_IN = Path(__file__).parent / "stand_in_docker.py"
IMAGE = "registry.example/builder:1"


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in on the PATH; what it saw is in the file that is returned."""
    folder = tmp_path / "engine"
    folder.mkdir()
    program(
        folder, "docker", f'exec {shlex.quote(sys.executable)} {shlex.quote(str(STAND_IN))} "$@"'
    )
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "seen.json"))
    return tmp_path / "seen.json"


@pytest.fixture(autouse=True)
def _no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine's own pip is told is no part of these tests."""
    for name in container.PATH_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def command_of(
    kernel: Path, tmp_path: Path, writable: Sequence[Path] = (), readable: Sequence[Path] = ()
) -> list[str]:
    """The command that builds a kernel in the image."""
    return build_command(
        ContainerBuild(
            IMAGE, kernel, ["build"], writable=writable, cache=tmp_path / "cache", readable=readable
        )
    )


def test_launchers_are_told_what_their_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, so that no key is on a command line; but no place of this machine that the container
    does not see.
    """
    conf = tmp_path / "sccache.conf"
    conf.touch()
    said = {"CCACHE_REMOTE_STORAGE": "redis://:key@host", "SCCACHE_CONF": str(conf)}
    secret = {"AWS_SECRET_ACCESS_KEY": "key"}
    for name, value in {
        **said,
        **secret,
        "CCACHE_DIR": "/mine",
        "SCCACHE_ERROR_LOG": "~/log",
    }.items():
        monkeypatch.setenv(name, value)
    kernel = noarch_kernel(tmp_path / "k")
    command = command_of(kernel, tmp_path)
    assert all(f"--env={name}" in command for name in said | secret)
    assert f"--mount=type=bind,source={conf},target={conf},readonly" in command
    assert not any("key" in word or "_DIR" in word or "ERROR_LOG" in word for word in command)
    monkeypatch.delenv("SCCACHE_CONF")
    assert "--env=AWS_SECRET_ACCESS_KEY" not in command_of(kernel, tmp_path), "nobody asks for it"


def test_wheels_and_certificates_of_this_machine_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "ca.crt").touch()
    monkeypatch.setenv(
        "PIP_FIND_LINKS", f"{tmp_path / 'wheels'} https://example.org/wheels /not/there"
    )
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.crt"))
    command = command_of(noarch_kernel(tmp_path / "k"), tmp_path)
    for path in (tmp_path / "wheels", tmp_path / "ca.crt"):
        assert f"--mount=type=bind,source={path},target={path},readonly" in command
    assert {"--env=PIP_FIND_LINKS", "--env=PIP_CERT"} <= set(command)
    assert not any("/not/there" in word for word in command)


def test_the_whole_command() -> None:
    mounts = [Mount(Path("/w"), writable=True), Mount(Path("/k")), Mount(Path("/w"))]
    command = container_command(
        IMAGE, mounts, ["sh", "-c", "true"],
        workdir=Path("/k"), environment=["MAX_JOBS"], settings=[("HOME", "/h")],
    )  # fmt: skip
    assert command == [
        "docker", "run", "--rm", "--init", "--cap-drop=ALL", "--security-opt=no-new-privileges",
        f"--user={os.getuid()}:{os.getgid()}",
        "--mount=type=bind,source=/k,target=/k,readonly", "--mount=type=bind,source=/w,target=/w",
        "--env=MAX_JOBS", "--env=HOME=/h", "--workdir=/k", IMAGE, "sh", "-c", "true",
    ]  # fmt: skip


@pytest.mark.parametrize("image", ["", "--privileged", "-v/:/host", "a b", "a\nb", "a;b", "$(id)"])
def test_a_flag_is_not_taken_for_an_image(image: str) -> None:
    failure(UsageError, "image", container_command, image, [], ["true"])


@pytest.mark.parametrize("path", ["/a,readonly=false", '/a"b', "/a\nb", "relative"])
def test_a_path_cannot_change_the_mount(path: str) -> None:
    failure(UsageError, "mounted", container_command, IMAGE, [Mount(Path(path))], ["true"])


def test_the_kernels_repository_is_seen_and_only_the_output_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_JOBS", "KCI_RUN", "KCI_ATTEMPT"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@index.example/simple")
    repository = tmp_path / "repo"
    kernel = noarch_kernel(repository / "kernels" / "k")
    (repository / ".git").mkdir()
    command = command_of(kernel, tmp_path, writable=[kernel / "build"])
    mounts = [word for word in command if word.startswith("--mount")]
    writable = [word for word in mounts if not word.endswith(",readonly")]
    whole = f"--mount=type=bind,source={repository},target={repository},readonly"
    assert whole in mounts
    assert [word.rpartition("=")[2] for word in writable] == [
        str(tmp_path / "cache"),
        str(kernel / "build"),
    ]
    assert {"--env=KCI_RUN", "--env=KCI_ATTEMPT"} <= set(command), (
        "the artifact is of the run that asked for it"
    )
    assert {
        "--env=MAX_JOBS",
        "--env=PIP_INDEX_URL",
        f"--env=KCI_CACHE={tmp_path / 'cache'}",
    } <= set(command)
    assert not any("secret" in word for word in command)
    # A mount inside another one has to come after it.
    assert mounts.index(whole) < mounts.index(writable[-1])


def test_settings_outside_of_git_and_an_overlay_are_seen(tmp_path: Path) -> None:
    kernel = noarch_kernel(tmp_path / "all" / "kernels" / "k")
    (tmp_path / "all" / "kci.toml").write_text("")
    overlay = tmp_path / "overlay.toml"
    command = command_of(kernel, tmp_path, readable=[overlay])
    mounts = {word.rpartition("target=")[2] for word in command if word.startswith("--mount")}
    assert {f"{tmp_path / 'all'},readonly", f"{overlay},readonly"} <= mounts


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_git_data_of_a_worktree_is_seen_as_well(
    tmp_path: Path, no_git_environment: None
) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t.example"]
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path / "main", check=True, capture_output=True
        )

    (tmp_path / "main").mkdir()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    git("worktree", "add", "-q", str(tmp_path / "side"))
    kernel = noarch_kernel(tmp_path / "side" / "k")
    command = command_of(kernel, tmp_path)
    data = tmp_path / "main/.git"
    assert f"--mount=type=bind,source={data},target={data},readonly" in command


def test_the_kci_that_is_running_goes_into_the_image_as_a_wheel(tmp_path: Path) -> None:
    wheel = running_wheel()
    assert wheel is not None
    assert kci_source(tmp_path) == (str(wheel.place(tmp_path)), wheel.digest, [])
    assert not wheel.place(tmp_path).exists(), "asking writes nothing"
    with zipfile.ZipFile(wheel.write(tmp_path)) as archive:
        assert archive.testzip() is None
        assert (
            archive.read("kci/builders/process/container.py")
            == Path(container.__file__).read_bytes()
        )
        names = set(archive.namelist())
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        assert {
            line.partition(",")[0] for line in archive.read(record).decode().splitlines()
        } == names
    again = running_wheel()
    assert again == wheel


def test_a_kci_that_is_not_installed_comes_out_of_its_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "running_wheel", lambda: None)
    assert kci_source(tmp_path) == (str(ROOT), "", [Mount(ROOT)])


def test_podman_is_taken_where_there_is_no_docker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KCI_CONTAINER_ENGINE", raising=False)
    folder = only_these(monkeypatch, tmp_path)
    program(folder, "podman", 'test "$*" = "version --format {{.Client.Version}}"')
    assert choose_image("auto", IMAGE, quiet) == IMAGE
    assert container_command(IMAGE, [], ["true"])[0] == "podman"
    program(folder, "docker", "exit 1")
    assert container_command(IMAGE, [], ["true"])[0] == "docker"
    monkeypatch.setenv("KCI_CONTAINER_ENGINE", "podman")
    assert choose_image("auto", IMAGE, quiet) == IMAGE
    monkeypatch.setenv("KCI_CONTAINER_ENGINE", "lxc")
    failure(UsageError, "lxc", container_command, IMAGE, [], ["true"])


def test_a_user_who_is_not_root_stays_himself_in_podman(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCI_CONTAINER_ENGINE", "podman")
    for user, expected in ((0, False), (1000, True)):
        monkeypatch.setattr("os.getuid", lambda user=user: user)
        assert ("--userns=keep-id" in container_command(IMAGE, [], ["true"])) is expected


# --- which image ---


def test_none_and_an_empty_auto_mean_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these(monkeypatch, tmp_path)
    assert choose_image("none", IMAGE, quiet) is None
    assert choose_image("auto", "", quiet) is None


def test_auto_takes_the_legs_image_only_where_docker_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Path
) -> None:
    assert choose_image("auto", IMAGE, quiet) == IMAGE
    folder = only_these(monkeypatch, tmp_path)
    said: list[str] = []
    assert choose_image("auto", IMAGE, said.append) is None
    assert "docker is not installed on this machine" in said[0]
    program(folder, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    assert choose_image("auto", IMAGE, said.append) is None
    assert "Cannot connect to the Docker daemon" in said[1]


def test_an_image_by_name_needs_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_these(monkeypatch, tmp_path)
    with pytest.raises(MissingToolError, match="docker is not installed on this machine") as caught:
        choose_image(IMAGE, "", quiet)
    assert caught.value.exit_code == 3
    with pytest.raises(MissingToolError, match="docker"):
        run_in_container(
            ContainerBuild(IMAGE, tmp_path, [], writable=[], cache=tmp_path / "c"), quiet
        )


# --- running it ---


def run(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch, image: str = IMAGE
) -> list[str]:
    """Run a script of the test's own where kci would be installed and run."""
    monkeypatch.setattr(container, "SCRIPT", script)
    said: list[str] = []
    kernel = noarch_kernel(tmp_path / "k")
    places = {"writable": [tmp_path / "new" / "o"], "cache": tmp_path / "newer" / "c"}
    run_in_container(ContainerBuild(image, kernel, ["a b", "$c"], **places), said.append)  # type: ignore[arg-type]
    return said


def test_arguments_and_surroundings_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Path
) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    said = run(
        tmp_path, 'pwd; printf "%s\\n" "$@"; echo "${A_SECRET-unset}"; touch "$HOME/h"', monkeypatch
    )
    wheel = running_wheel()
    assert wheel is not None
    assert said[:2] == [str(tmp_path / "k"), str(wheel.place(tmp_path / "newer" / "c"))]
    assert wheel.place(tmp_path / "newer" / "c").is_file()
    assert said[3:6] == ["a b", "$c", "unset"]
    assert said[6].startswith(
        f"{IMAGE} is a tag, which moves; this time it was {IMAGE.partition(':')[0]}@sha256:"
    )
    seen = json.loads(docker.read_text())
    places = {
        str(tmp_path / "k"): False,
        str(tmp_path / "newer" / "c"): True,
        str(tmp_path / "new" / "o"): True,
    }
    assert seen["mounts"] == places


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (1, FindingsError),
        (2, UsageError),
        (3, MissingToolError),
        (4, BuildFailedError),
        (137, BuildFailedError),
    ],
)
def test_the_exit_code_of_kci_in_the_image_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Path, code: int, error: type[Exception]
) -> None:
    with pytest.raises(error, match="what it said") as caught:
        run(tmp_path, f"echo what it said; exit {code}", monkeypatch)
    assert caught.type is error


def test_a_build_that_is_not_finished_in_the_image_is_not_finished_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Path
) -> None:
    said = str(UnfinishedBuildError("torch213-cxx11-cpu-x86_64-linux", 12, 40))
    with pytest.raises(UnfinishedBuildError, match="12 of 40 objects") as caught:
        run(tmp_path, f"echo 'error: {said}' >&2; exit 4", monkeypatch)
    assert (caught.value.done, caught.value.total) == (12, 40)
    with pytest.raises(BuildFailedError) as failed:
        run(tmp_path, f"echo 'a.cu(1): warning: {said}' >&2; exit 4", monkeypatch)
    assert failed.type is BuildFailedError


def test_what_the_engine_writes_where_it_is_started_is_not_in_the_callers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Path
) -> None:
    """podman's monitor does so with a file `oom` when a container runs out of memory."""
    program(tmp_path / "engine", "docker", 'if [ "$1" = run ]; then touch oom; exit 137; fi')
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    failure(BuildFailedError, "exit code 137", run, tmp_path, "true", monkeypatch)
    assert not list(tmp_path.rglob("oom"))


def test_an_image_that_cannot_be_had_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Path
) -> None:
    with pytest.raises(MissingToolError, match="cannot run other:1") as caught:
        run(tmp_path, "true", monkeypatch, image="other:1")
    assert "pull access denied" in caught.value.message


def test_an_image_without_a_python_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_these(monkeypatch, tmp_path, "sh", "mktemp", "rm")
    done = subprocess.run(
        ["sh", "-c", container.SCRIPT, "x", "kci", "name"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "no Python 3.11 or newer" in done.stderr


@pytest.mark.network
def test_a_variant_is_built_by_the_kci_that_the_image_installs(
    tmp_path: Path, docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = noarch_kernel(tmp_path / "k")
    arguments = [
        "build",
        str(kernel),
        "--variant",
        "torch-cpu",
        "--output",
        str(tmp_path / "o"),
        "--container",
        "none",
    ]
    arguments.append("--no-load")
    run_in_container(
        ContainerBuild(IMAGE, kernel, arguments, writable=[tmp_path / "o"], cache=tmp_path / "c"),
        quiet,
    )
    made = tmp_path / "o/torch-cpu"
    # A second start takes the environment of the first, and so needs no index.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/nowhere")
    run_in_container(
        ContainerBuild(IMAGE, kernel, arguments, writable=[tmp_path / "o"], cache=tmp_path / "c"),
        quiet,
    )
    assert sorted(path.name for path in made.iterdir()) == [
        "__init__.py",
        "_ops.py",
        "metadata.json",
    ]
