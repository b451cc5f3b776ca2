"""A Python of another system under qemu: what it is made of, what stops it, and the real one with a kernel's tests."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from buildkit import program, quiet
from cli.runner import kci
from conftest import ROOT
from kci.ci.run_records import TestRecord
from kci.errors import MissingToolError
from kci.files.bounded_json import read_json
from kci.files.cache import default_cache
from kci.processes.process import run
from kci.toolchains import emulation
from kci.toolchains.emulation import emulated_python, emulation_data
from kci.toolchains.toolchain_data import toolchains
from render.slurm_cluster import wait_for
from wheels import make_wheel, only_wheels, pip_of_the_tests

ARM = "aarch64-linux"
VERSION = "__version__ = '2.13.0'\ncuda: Optional[str] = {!r}\nhip = None\n"
NEEDS = (
    'nvidia-cublas==1.0; platform_machine == "aarch64"',
    'nvidia-of-x86==1.0; platform_machine == "x86_64"',
    'triton==3.7.1; platform_system == "Linux"',
    "filelock",
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="qemu's user mode is for Linux")


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for qemu, apt-get and dpkg-deb; pip is real, and has wheels of nothing."""
    folder = tmp_path / "programs"
    folder.mkdir()
    run_this = f'PYTHONPATH=$(dirname "$2")/../lib/python3.11/site-packages exec {shlex.quote(sys.executable)} "$@"'
    qemu = f'[ "$1" = --version ] && echo "qemu-aarch64 version 9.8.7 (x)" && exit\n{run_this.replace("$@", "${@:6}")}'
    program(folder, "qemu-aarch64-static", "").write_text(f"#!/usr/bin/env bash\n{qemu}\n")
    downloads = 'case "$*" in *install*) echo x > "$(dirname "${1#--config-file=}")/archives/a_1_arm64.deb";; esac'
    program(folder, "apt-get", f'echo "$@" >> {tmp_path}/asked\n{downloads}')
    program(folder, "dpkg-deb", 'mkdir -p "$3/usr/bin"')
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(emulation, "_KEYRING", Path(__file__))
    python = pip_of_the_tests(monkeypatch, tmp_path)
    monkeypatch.setattr(emulation, "base_python", lambda: str(python))
    wheels = tmp_path / "wheels"
    for requirement in toolchains().runtime["packages"]:
        name, _, version = requirement.replace("*", "0").partition("==")
        module = name.replace("-", "_")
        make_wheel(wheels, module, version or "1.0", {f"{module}.py": ""})
    only_wheels(monkeypatch, wheels)
    return wheels


def a_torch(wheels: Path, cuda: str | None, text: str = "") -> None:
    files = {"torch/__init__.py": text, "torch/version.py": VERSION.format(cuda)}
    make_wheel(wheels, "torch", "2.13.0", files, NEEDS if cuda else NEEDS[-1:])
    for name in ("nvidia_cublas", "nvidia_of_x86", "triton"):
        make_wheel(wheels, name, "1.0", {f"{name}.py": ""})


@pytest.mark.slow
def test_a_torch_for_cuda_gets_its_libraries_and_counts_as_one_for_the_cpu(tmp_path: Path, stand_ins: Path) -> None:
    """PyPI has no other. The loader asks torch for the version of CUDA, and would want variants for CUDA."""
    a_torch(stand_ins, "13.0")
    said: list[str] = []
    made = emulated_python(ARM, "2.13", cache=tmp_path / "cache", log=said.append)
    found = made.python.parents[1] / "lib" / "python3.11" / "site-packages"
    assert {path.stem for path in found.glob("*.py")} >= {"nvidia_cublas", "kernels", "pytest"}
    assert not [name for name in ("nvidia_of_x86", "triton") if (found / f"{name}.py").exists()]
    assert (found / "torch" / "version.py").read_text() == VERSION.format("13.0").replace("'13.0'", "None")
    assert "that torch is for CUDA" in "\n".join(said)
    assert made.by == "qemu-aarch64 version 9.8.7"
    again: list[str] = []
    assert emulated_python(ARM, "2.13", cache=tmp_path / "cache", log=again.append) == made
    assert again == []


@pytest.mark.slow
def test_a_torch_for_the_cpu_is_taken_as_it_is(
    tmp_path: Path, stand_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_torch(stand_ins, None)
    made = emulated_python(ARM, "2.13", cache=tmp_path / "cache", log=quiet)
    found = made.python.parents[1] / "lib" / "python3.11" / "site-packages"
    assert not (found / "nvidia_cublas.py").exists()
    monkeypatch.setenv("LD_PRELOAD", "")  # what is set for this machine's loader is not for that system's
    told = run([str(made.python), "-c", "import os; print('LD_PRELOAD' in os.environ)"])
    assert told.output == "False\n"


@pytest.mark.slow
def test_a_torch_that_does_not_start_is_told_and_not_kept(tmp_path: Path, stand_ins: Path) -> None:
    a_torch(stand_ins, None, "import os; print('uncaught target signal 11', flush=True); os._exit(139)")
    with pytest.raises(MissingToolError, match=r"does not start under qemu-aarch64 version 9\.8\.7:\nuncaught target"):
        emulated_python(ARM, "2.13", cache=tmp_path / "cache", log=quiet)
    assert not list((tmp_path / "cache" / "envs").glob("*torch*/bin"))


def test_debian_is_asked_with_lists_of_its_own(
    tmp_path: Path, stand_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what cannot be had is no root."""
    monkeypatch.setenv("KCI_DEBIAN_MIRROR", "http://mirror.example/debian")
    fails = (
        f'cat "${{1#--config-file=}}" "$(dirname "${{1#--config-file=}}")/sources.list" > {tmp_path}/seen\n'
        "echo 'W: Failed to fetch http://mirror.example/debian'\nexit 100\n"
    )
    program(tmp_path / "programs", "apt-get", fails)
    with pytest.raises(MissingToolError, match=r"apt-get.* update failed") as caught:
        emulated_python(ARM, "2.13", cache=tmp_path / "cache", log=quiet)
    assert "http://mirror.example/debian" in caught.value.hint
    seen = (tmp_path / "seen").read_text()
    assert f"deb [signed-by={emulation._KEYRING}] http://mirror.example/debian bookworm main\n" in seen
    assert "#clear APT::Update;" in seen
    assert not re.search(r'^Dir::\S+ "(?!/?-|' + str(tmp_path / "cache") + ")", seen, re.MULTILINE)
    assert not (tmp_path / "cache" / "envs").exists()
    assert not [path for path in (tmp_path / "cache" / "roots").iterdir() if path.is_dir()]


_MAKE = """
import sys
from pathlib import Path
from kci.toolchains import emulation
emulation._KEYRING = Path(sys.executable)
emulation._root(emulation.emulation_data().systems["aarch64-linux"], Path(sys.argv[1]), print)
"""


def test_what_a_killed_kci_had_started_ends_and_the_next_one_makes_the_root(tmp_path: Path, stand_ins: Path) -> None:
    """apt would go on in the folder that the next one makes anew, and each would take the other's files away."""
    apt, cache = tmp_path / "programs" / "apt-get", tmp_path / "cache"
    works = apt.read_text()
    told = tmp_path / "pid"
    program(apt.parent, "apt-get", f"echo $$ > {told}.new\nmv {told}.new {told}\nexec sleep 600\n")
    command = [sys.executable, "-c", _MAKE, str(cache)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as killed:
        wait_for(told.exists, "apt-get has started")
        killed.kill()
    started = Path("/proc") / told.read_text().strip()
    wait_for(lambda: not started.exists(), "apt-get has ended")
    apt.write_text(works)
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert "".join(said).count("fetching ") == 1, "of two at once one makes it"
    assert "".join(said).count("removed what a kci process that was killed left") == 1
    assert [path.name for path in (cache / "roots").iterdir()] == [next((cache / "roots").glob("bookworm-*")).name]


@pytest.mark.parametrize("full", ["apt-get", "dpkg-deb"])
def test_a_full_disk_is_told_and_no_part_of_a_root_is_kept(tmp_path: Path, stand_ins: Path, full: str) -> None:
    program(tmp_path / "programs", full, "echo 'E: Write error - write (28: No space left on device)'; exit 100")
    with pytest.raises(MissingToolError, match="No space left") as caught:
        emulated_python(ARM, "2.13", cache=tmp_path / "cache", log=quiet)
    assert "free space in" in caught.value.hint
    assert "--cache or KCI_CACHE" in caught.value.hint
    assert list((tmp_path / "cache" / "roots").iterdir()) == []


@pytest.mark.parametrize(
    ("gone", "said", "hint"),
    [
        ("qemu-aarch64-static", "no qemu-aarch64-static or qemu-aarch64", "apt-get install qemu-user-static"),
        ("apt-get", "no apt-get", "Debian or Ubuntu"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, stand_ins: Path, monkeypatch: pytest.MonkeyPatch, gone: str, said: str, hint: str
) -> None:
    (tmp_path / "programs" / gone).unlink()
    for name in ("bash", "dirname", "mkdir", "cat", "env"):
        (tmp_path / "programs" / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    with pytest.raises(MissingToolError, match=said) as caught:
        emulated_python(ARM, "2.13", cache=tmp_path / "cache", log=quiet)
    assert hint in caught.value.hint


def test_every_cpu_has_a_description() -> None:
    """qemu before 8.1 shows that of this machine, at which torch 2.13 ends."""
    files = dict(emulation._files(emulation_data().systems[ARM]))
    cpus = [f"processor\t: {number}" for number in range(os.cpu_count() or 1)]
    assert [line for line in files["proc/cpuinfo"].splitlines() if line.startswith("processor")] == cpus
    assert len([name for name in files if name.endswith("midr_el1")]) == len(cpus)


KERNEL_TEST = """
import platform, subprocess, sys
import pytest
pytestmark = pytest.mark.kernels_ci
def test_the_machine_is_another_one():
    assert platform.machine() == "aarch64"
    assert "CPU implementer" in open("/proc/cpuinfo").read()
def test_a_process_of_this_python_is_one_of_that_machine_too():
    code = "import platform, torch; print(platform.machine())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "aarch64\\n"
"""


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.torch
@pytest.mark.usefixtures("cross_compilers")
@pytest.mark.skipif(not os.environ.get("KCI_MANY"), reason="an emulated torch takes minutes: KCI_MANY=1 runs it")
def test_a_crossed_kernel_passes_its_own_tests_under_qemu(tmp_path: Path) -> None:
    """tvm-ffi, because it takes any torch: 2.10 is the last that PyPI has for the CPU, of 146 MB."""
    for name, package in (
        ("qemu-aarch64-static", "qemu-user-static"),
        ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"),
    ):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed (apt-get install {package})")
    if not emulation._KEYRING.is_file():
        pytest.skip(f"{emulation._KEYRING} is missing (apt-get install debian-archive-keyring)")
    ignored = shutil.ignore_patterns("build", "__pycache__")
    kernel = Path(shutil.copytree(ROOT / "examples" / "relu-tvm-ffi", tmp_path / "kernel", ignore=ignored))
    (kernel / "tests" / "test_machine.py").write_text(KERNEL_TEST)
    name = f"tvm-ffi01-cpu-{ARM}"
    built = kci("build", kernel, "--variant", name)
    assert built.code == 0, built.stderr
    record = tmp_path / "record.json"
    words = ("--emulate", "--torch", "2.10", "--cache", default_cache(), "--record", record)
    done = kci("test", kernel, *words)
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[1].split() == ["relu-tvm-ffi", name, "passed,", "emulated", "11", "0", "0"]
    told = read_json(record, TestRecord)
    assert (told.passed, told.tested) == (True, (name,))
    assert told.emulated.startswith("qemu-aarch64 version ")
    library = next((kernel / "build" / name).glob("*.so"))
    library.write_bytes(library.read_bytes()[:4096])
    broken = kci("test", kernel, *words)
    assert broken.code == 1
    assert "not loaded, emulated" in broken.stdout
