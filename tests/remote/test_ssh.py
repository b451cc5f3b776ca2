"""A real sshd on loopback, with its own keys: legs run there, and a key that is not the known one stops everything."""

from __future__ import annotations

import asyncio
import getpass
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from cli.runner import Result, kci
from conftest import ROOT
from kci.config.engine_settings import EngineKind, EngineSettings
from kci.remote.job import EngineJob, JobFile
from kci.remote.protocol import Batch, EngineAwayError, EngineHome
from kci.remote.ssh import SshEngine
from kci.tree.manifest import read_manifest
from kci.verify import verify
from remote.background import Client
from remote.slurm_cluster import wait_for
from remote.split_kernel import NAMES, SplitKernel
from run.cuda_python import python_with_cuda

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
HAS_LIBRARY = importlib.util.find_spec("asyncssh") is not None

needs_sshd = pytest.mark.skipif(
    not (SSHD and HAS_LIBRARY), reason="no sshd, or no asyncssh: apt-get install openssh-server; pip install 'kci[ssh]'"
)


class Sshd:
    """The daemon, and the keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("host", "user", "other"):
            keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(keygen, check=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        (folder / "config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
            f"PidFile {folder}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
            "Subsystem sftp internal-sftp\n"
        )
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # it does not start without
        assert SSHD
        self.process: subprocess.Popen[bytes] | None = None
        self.known("host")
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = str(self.folder / "log")
        self.process = subprocess.Popen([str(SSHD), "-D", "-f", str(self.folder / "config"), "-E", log])
        wait_for(self._answers, "sshd")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """End it; connections stay."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()

    def known(self, name: str) -> None:
        """Have one of the keys be the known one."""
        key = " ".join((self.folder / f"{name}.pub").read_text().split()[:2])
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {key}\n")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    made = Sshd(tmp_path_factory.mktemp("sshd"))
    yield made
    made.stop()


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("build", "__pycache__")
    return Path(shutil.copytree(ROOT / "examples" / "swiglu", tmp_path / "swiglu", ignore=ignored))


def configure(sshd: Sshd, kernel_dir: Path, script: str = "", more: str = "") -> None:
    own = kernel_dir.parent / "kci.sh"
    source = Path(sys.modules["kci"].__path__[0]).parent
    own.write_text(f'#!/bin/sh\nexport PYTHONPATH="{source}"\n{script}\nexec "{sys.executable}" -m kci "$@"\n')
    own.chmod(0o755)
    (kernel_dir / "kci.toml").write_text(
        f'[engines.box]\npoll-seconds = 0.05\ntype = "ssh"\nhost = "127.0.0.1"\n'
        f'port = {sshd.port}\nuser = "{getpass.getuser()}"\n'
        f'identity = "{sshd.folder}/user"\nknown-hosts = "{sshd.folder}/known"\npython = "{sys.executable}"\n'
        f'folder = "{kernel_dir.parent}/on the box"\nkci = ["{own}"]\n{more}'
    )


def run(kernel_dir: Path, *arguments: str) -> Result:
    arguments = arguments or (str(kernel_dir), "--engine", "box")
    return kci("run", *arguments, "--cache", kernel_dir.parent / "cache")


@needs_sshd
@pytest.mark.programs
def test_legs_run_on_the_host_and_come_back(sshd: Sshd, kernel_dir: Path) -> None:
    configure(sshd, kernel_dir)
    result = run(kernel_dir)
    assert result.code == 0, result.stderr
    manifest = read_manifest(kernel_dir / "build")
    assert manifest is not None
    assert manifest.complete
    assert verify(kernel_dir / "build") == []
    assert len(list((kernel_dir.parent / "on the box").glob("*/jobs/*/executions"))) == 3


@needs_sshd
@pytest.mark.programs
def test_the_merged_tree_is_tested_on_the_host(sshd: Sshd, kernel_dir: Path) -> None:
    """The host's Python says that it has torch for CUDA; all else is `kci test` as it is."""
    python = python_with_cuda(kernel_dir.parent)
    configure(sshd, kernel_dir, more=f'tests = ["cuda"]\ncapability = "9.0"\ntest-python = "{python}"\n')
    result = run(kernel_dir, str(kernel_dir), "--engine", "box", "--test", "--backend", "cuda")
    assert result.code == 0, result.stderr
    assert "tested torch-cuda" in result.stdout
    (job,) = [
        path for path in (kernel_dir.parent / "on the box").glob("*/jobs/*/job.json") if "test-cuda" in path.read_text()
    ]
    assert {'"backend": "cuda"', '"minimum": "7.5"'} <= {
        line.strip().rstrip(",") for line in job.read_text().splitlines()
    }


@needs_sshd
@pytest.mark.programs
def test_a_changed_host_key_is_refused_and_the_run_goes_on_once_it_is_right(sshd: Sshd, kernel_dir: Path) -> None:
    configure(sshd, kernel_dir)
    sshd.known("other")
    try:
        result = run(kernel_dir, str(kernel_dir), "--engine", "box", "--backend", "cpu")
    finally:
        sshd.known("host")
    assert result.code == 5
    assert "is not the one in" in result.stderr
    assert not (kernel_dir.parent / "on the box").exists()
    again = run(kernel_dir, "--resume", result.stderr.split()[1].rstrip(":"))
    assert again.code == 0, again.stderr


@needs_sshd
@pytest.mark.programs
def test_a_host_that_is_not_known_is_refused(sshd: Sshd, kernel_dir: Path) -> None:
    configure(sshd, kernel_dir)
    text = (kernel_dir / "kci.toml").read_text().replace(f"{sshd.folder}/known", f"{sshd.folder}/none")
    (kernel_dir / "kci.toml").write_text(text)
    result = run(kernel_dir)
    assert result.code == 2
    assert "so the key of 127.0.0.1 is not known" in result.stderr
    (sshd.folder / "none").touch()
    try:
        assert run(kernel_dir).code == 5
    finally:
        (sshd.folder / "none").unlink()


@needs_sshd
@pytest.mark.programs
def test_a_host_that_does_not_let_the_user_in(sshd: Sshd, kernel_dir: Path) -> None:
    configure(sshd, kernel_dir)
    text = (kernel_dir / "kci.toml").read_text().replace(f"{sshd.folder}/user", f"{sshd.folder}/other")
    (kernel_dir / "kci.toml").write_text(text)
    result = run(kernel_dir)
    assert result.code == 1
    assert "does not let this user in" in result.stderr


@needs_sshd
@pytest.mark.programs
def test_a_client_that_is_killed_finds_its_legs_again_and_can_cancel_them(sshd: Sshd, kernel_dir: Path) -> None:
    here = kernel_dir.parent
    stays = f'case "$*" in *torch-cpu*) touch {here}/runs; exec sleep 3600;; esac'
    configure(sshd, kernel_dir, f"{stays}\nuntil [ -e {here}/killed ]; do sleep 0.05; done")
    with Client("run", str(kernel_dir), "--engine", "box", "--cache", str(here / "cache")) as client:
        client.wait_for((here / "runs").exists, "the leg to run")
        client.kill()
    (here / "killed").touch()
    (begun,) = [path.parent for path in (here / "cache" / "runs").glob("*/run.json")]
    options = ["--cache", str(here / "cache"), "--on-interrupt", "cancel"]
    with Client("run", "--resume", begun.name, *options) as again:
        again.wait_for(lambda: again.said().count(" on box: built") == 2, "the others to be fetched")
        again.process.send_signal(signal.SIGINT)
        done = again.end()
    assert done.code == 130, done.output
    assert "1 leg cancelled" in done.output
    jobs = (here / "on the box").glob("*/jobs/*")
    (job,) = [path for path in jobs if '"torch-cpu"' in (path / "job.json").read_text()]
    wait_for((job / "result.json").exists, "the leg to end")
    assert '"cancelled"' in (job / "result.json").read_text()


@pytest.mark.skipif(not HAS_LIBRARY, reason="no asyncssh: pip install 'kci[ssh]'")
def test_sending_much_may_take_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of some GB over the line of a home would be sent from its beginning for ever."""

    limits = []

    async def wait_for(work: Coroutine[None, None, None], seconds: float) -> None:
        limits.append(seconds)
        await work

    async def put(_engine: SshEngine, _batch: Batch) -> None:
        pass

    monkeypatch.setattr(asyncio, "wait_for", wait_for)
    monkeypatch.setattr(SshEngine, "_put", put)
    (tmp_path / "known").touch()
    settings = EngineSettings(type=EngineKind.SSH, host="127.0.0.1", known_hosts=str(tmp_path / "known"))
    engine = SshEngine(settings, EngineHome("r", tmp_path))
    job = EngineJob(
        name="kci-job-1", run="r", attempt=1, kernel="k", leg="l", variants=("v",), command=("true",), cores=1,
        memory_gb=1, timeout=1, most_bytes=1, inputs=(JobFile("tree.tar", "0" * 64, 1024**3),),
    )  # fmt: skip
    for sent in (job, msgspec.structs.replace(job, inputs=())):
        engine.put(Batch("b", (sent,)))
    assert limits[0] - limits[1] > 3600
    engine.close()


def test_without_the_library_the_command_that_gets_it_is_named(
    kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    (kernel_dir / "kci.toml").write_text('[engines.box]\npoll-seconds = 0.05\ntype = "ssh"\nhost = "x"\n')
    result = kci("run", kernel_dir, "--engine", "box", "--cache", tmp_path / "cache")
    assert result.code == 3
    assert "pip install 'kci[ssh]'" in result.stderr


def test_a_host_that_does_not_answer_is_away() -> None:
    """Its legs wait, or move; they have not failed."""

    async def step(error: Exception) -> None:
        raise error

    library = SimpleNamespace(HostKeyNotVerifiable=KeyError, PermissionDenied=PermissionError, Error=ValueError)
    with asyncio.Runner() as runner:
        engine = SimpleNamespace(settings=SimpleNamespace(host="box"), library=library, runner=runner)
        for error, said in ((OSError("no route"), "no route"), (TimeoutError(), "TimeoutError")):
            engine.connection = "open"
            with pytest.raises(EngineAwayError, match=f"^box cannot be reached: {said}$"):
                SshEngine._do(engine, step(error))  # type: ignore[arg-type]
            assert engine.connection is None, "the next question opens another one"


@needs_sshd
@pytest.mark.slow
@pytest.mark.torch
def test_parts_on_two_hosts_that_share_nothing_are_linked_on_one(sshd: Sshd, tmp_path: Path) -> None:
    """Their objects come back, and go out with the link leg: each is compiled once."""
    split = SplitKernel(tmp_path)
    tables = {
        name: f'type = "ssh"\npoll-seconds = 0.1\nhost = "127.0.0.1"\nport = {sshd.port}\n'
        f'user = "{getpass.getuser()}"\nidentity = "{sshd.folder}/user"\nknown-hosts = "{sshd.folder}/known"\n'
        f'folder = "{tmp_path}/on {name}"\nat-once = 1\n'
        for name in ("one", "two")
    }
    for name in tables:
        split.other_cache(name)
    split.engines(tables, script=f'export KCI_CACHE="{tmp_path}/$engine/cache"')
    done = split.run("auto")
    assert done.code == 0, done.stderr
    assert {host for host in tables if list((tmp_path / host / "cache").glob("objects/*"))} == {"one", "two"}
    assert list(split.made().values()) == [1] * (len(NAMES) + 1)
    assert verify(split.directory / "build", ignore=["KCI721"]) == []
