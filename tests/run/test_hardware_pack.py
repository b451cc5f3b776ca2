"""`kci test --pack`: one archive for a machine with the hardware, and what runs there out of it."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildkit import warm_cache, write_tree
from cli.runner import Result, kci
from conftest import ROOT
from kci.ci.run_records import TestRecord
from kci.files.bounded_json import read_json
from kci.run import hardware_pack
from kci.run.kernel_tests import TestState
from podmankit import IMAGE, podman_for_tests
from variants import CPU, CUDA, leg_of, make_variant

STABLE = "torch-stable-abi211-cu130-x86_64-linux"
BUILD_TOML = """
[general]
name = "gated-norm"
version = 1
edition = 5
license = "MIT"
backends = ["cpu", "cuda"]

[torch-noarch]
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    tests = "import pytest\n@pytest.mark.kernels_ci\ndef test_a(): pass\n"
    return write_tree(tmp_path / "kernel", {"build.toml": BUILD_TOML, "tests/test_a.py": tests, ".git/x": "no"})


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...]]]:
    """Stands in for the package index; has the systems and Pythons that wheels were wanted for."""
    found: list[tuple[str, tuple[str, ...]]] = []

    def wheels(wanted: list[str], system: str, pythons: tuple[str, ...], *_: object) -> list[Path]:
        found.append((system, tuple(pythons)))
        folder = write_tree(tmp_path / "index", {"pip-1-py3-none-any.whl": "\n".join(wanted)})
        return [folder / "pip-1-py3-none-any.whl"]

    monkeypatch.setattr(hardware_pack, "_wheels", wheels)
    return found


def packed(kernel: Path, place: Path | str, into: Path, *words: str) -> Result:
    return kci("test", kernel, "--tree", place, "--pack", into / "day.tar", "--cache", into / "cache", *words)


def names(into: Path) -> set[str]:
    with tarfile.open(into / "day.tar") as archive:
        assert all(member.isfile() and member.name.startswith("kci-hardware/") for member in archive)
        return {member.name.removeprefix("kci-hardware/") for member in archive}


def test_the_archive_has_all_that_tests_need_and_its_size_is_told_first(
    kernel: Path, tmp_path: Path, asked: list[tuple[str, tuple[str, ...]]]
) -> None:
    for name in (CUDA, STABLE):
        make_variant(tmp_path / "tree", name, archs=("9.0",))
    done = packed(kernel, tmp_path / "tree", tmp_path)
    assert done.code == 0, done.stderr
    found = names(tmp_path)
    expected = {"run.py", "pack.json", "kernel/build.toml", "kernel/tests/test_a.py", f"tree/{CUDA}/metadata.json"}
    assert expected | {f"tree/{STABLE}/metadata.json", "wheels/pip-1-py3-none-any.whl"} <= found
    assert any(name.startswith("wheels/kci-") for name in found)
    assert "kernel/.git/x" not in found
    assert asked == [("x86_64-linux", ("3.11", "3.12", "3.13", "3.14"))]
    wanted = (tmp_path / "index" / "pip-1-py3-none-any.whl").read_text()
    assert "kernels==" in wanted
    assert "pytest" in wanted
    assert "torch" not in wanted, "it is there, and large"
    with tarfile.open(tmp_path / "day.tar") as archive:
        size = sum(member.size for member in archive)
    assert f"day.tar will have {size / 1e6:.1f} MB: " in done.stderr
    assert f"{CUDA}: it needs the backend cuda 13.0 and torch 2.13\n" in done.stdout
    assert f"{STABLE}: it needs the backend cuda 13.0 and torch 2.11 or newer\n" in done.stdout


@pytest.mark.parametrize("kind", ["tree", "variant", "artifact", "folder", "run"])
def test_what_was_built_anywhere(kernel: Path, tmp_path: Path, asked: object, kind: str) -> None:
    variant = make_variant(tmp_path / "tree", CPU)
    make_variant(tmp_path / "tree" / "other", CPU, name="other")
    run = tmp_path / "cache" / "runs" / "20261123-010203-abcdef"
    fetched = run / "fetched" / "job" if kind == "run" else tmp_path / "fetched"
    if kind not in ("tree", "variant"):
        fetched.mkdir(parents=True)
        artifact = fetched / f"kci-gated-norm-{CPU}.tar"
        assert kci("pack", variant, "--output", artifact).code == 0
    if kind == "run":
        fields = {"id": run.name, "legs": [], "engines": {}, "planned": {"kernels": {}}, "trees": {}}
        (run / "run.json").write_text(json.dumps(fields))
    places = {"tree": tmp_path / "tree", "variant": variant, "folder": fetched, "run": run.name}
    done = packed(kernel, places.get(kind) or artifact, tmp_path)
    assert done.code == 0, done.stderr
    assert {name.split("/")[1] for name in names(tmp_path) if name.startswith("tree/")} == {CPU}
    with tarfile.open(tmp_path / "day.tar") as archive:
        archive.extractall(tmp_path / "there", filter="data")
    assert leg_of(tmp_path / "there" / "kci-hardware" / "tree" / CPU).digest == leg_of(variant).digest


def test_one_archive_is_for_one_machine(kernel: Path, tmp_path: Path, asked: object) -> None:
    for name in (CPU, CPU.replace("x86_64", "aarch64")):
        make_variant(tmp_path / "tree", name)
    done = packed(kernel, tmp_path / "tree", tmp_path)
    assert done.code == 2
    assert "for aarch64-linux and x86_64-linux, and one machine tests them" in done.stderr
    assert packed(kernel, tmp_path / "tree", tmp_path, "--variant", CPU).code == 0
    missing = packed(kernel, tmp_path / "tree", tmp_path, "--variant", CUDA)
    assert (missing.code, "has no variant" in missing.stderr) == (2, True)
    mac = make_variant(tmp_path / "mac", "torch213-metal-aarch64-darwin")
    assert "kci packs for Linux" in packed(kernel, mac, tmp_path).stderr


def test_what_cannot_be_packed(kernel: Path, tmp_path: Path, asked: object) -> None:
    variant = make_variant(tmp_path / "tree", CPU)
    assert "there is no run 'no-such'" in packed(kernel, "no-such", tmp_path).stderr
    assert "there is no variant of gated-norm" in packed(kernel, kernel, tmp_path).stderr
    (kernel / "tests" / "secret.py").symlink_to("/etc/passwd")
    outside = packed(kernel, variant, tmp_path)
    assert (outside.code, "leads out of the kernel" in outside.stderr) == (5, True)
    (kernel / "tests" / "secret.py").unlink()
    (variant / "__init__.py").write_text("changed")
    assert "was not sealed" in packed(kernel, variant, tmp_path).stderr
    assert not (tmp_path / "day.tar").exists()
    no_kernel = kci("test", variant, "--pack", tmp_path / "day.tar")
    assert (no_kernel.code, "the tests are the kernel's" in no_kernel.stderr) == (2, True)
    both = kci("test", kernel, "--tree", variant, "--pack", tmp_path / "x.tar", "--check", tmp_path / "r.json")
    assert (both.code, "two steps" in both.stderr) == (2, True)


def test_a_full_disk_leaves_nothing(
    kernel: Path, tmp_path: Path, asked: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = make_variant(tmp_path / "tree", CPU)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    done = packed(kernel, variant, tmp_path)
    assert done.code == 1
    assert "day.tar: No space left on device" in done.stderr
    assert not list(tmp_path.glob("*day*"))


@pytest.fixture
def there(kernel: Path, tmp_path: Path, asked: object) -> Path:
    """The unpacked archive of a variant, on a machine where kci is installed with no wheels: this one."""
    variant = make_variant(tmp_path / "tree", CPU)
    assert packed(kernel, variant, tmp_path).code == 0
    with tarfile.open(tmp_path / "day.tar") as archive:
        archive.extractall(tmp_path / "there", filter="data")
    return tmp_path / "there" / "kci-hardware"


def run_there(there: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, there / "run.py"], capture_output=True, text=True, check=False)


def test_a_damaged_file_is_refused_and_an_old_record_is_gone(there: Path) -> None:
    """A record of an earlier run must not be brought back for one that failed."""
    (there / "record.json").write_text("{}")
    (there / "kernel" / "tests" / "test_a.py").write_text("")
    done = run_there(there)
    assert done.returncode == 5
    assert "kernel/tests/test_a.py is not what was packed: unpack the archive again" in done.stderr
    assert not (there / "record.json").exists()


@pytest.mark.programs
def test_wheels_that_cannot_be_installed_make_no_record(there: Path) -> None:
    """As on a full disk: and a second run tries again."""
    for _ in range(2):
        done = run_there(there)
        assert done.returncode == 3
        assert "cannot make an environment" in done.stderr
        assert not (there / "record.json").exists()


def test_a_test_that_leaves_no_record_is_no_success_whatever_it_says(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexit 0\n")
    silent.chmod(0o755)
    spec = importlib.util.spec_from_file_location("packed_run", there / "run.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "_environment", lambda *_: silent)
    assert script.main([]) == 1
    assert "error: no record was made" in capsys.readouterr().err


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.programs
def test_a_machine_without_torch_says_so(kernel: Path, tmp_path: Path) -> None:
    """The real archive, run twice in the same folder, without any index."""
    variant = make_variant(tmp_path / "tree", CPU)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    words = ("--pack", tmp_path / "day.tar", "--for-python", version)
    assert kci("test", kernel, "--tree", variant, *words).code == 0
    with tarfile.open(tmp_path / "day.tar") as archive:
        archive.extractall(tmp_path / "there", filter="data")
    there = tmp_path / "there" / "kci-hardware"
    for _ in range(2):
        command = [sys.executable, "-I", there / "run.py"]
        away = {"PATH": "/usr/bin:/bin", "PIP_INDEX_URL": "http://127.0.0.1:9/"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=away)
        assert done.returncode == 3, done.stderr
        assert "cannot load kernels: No module named 'torch'" in done.stderr
        record = read_json(there / "record.json", TestRecord)
        assert (record.passed, record.tested, record.machine) == (False, (), None)
    checked = kci("test", kernel, "--tree", variant, "--check", there / "record.json")
    assert checked.code == 1
    assert "does not say on which machine it was made" in checked.stderr
    assert "No module named 'torch'" in checked.stderr


OF_TORCH = ("torch", "torchgen", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec")
"""What the Python of a machine with torch has, and nothing that loads kernels."""


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from podman_for_tests(tmp_path, monkeypatch)


@pytest.mark.engine
@pytest.mark.torch
@pytest.mark.network
@pytest.mark.slow
@pytest.mark.usefixtures("podman")
def test_what_is_packed_passes_in_an_empty_container_without_a_network(torch_python: Path, tmp_path: Path) -> None:
    """The day on a GPU machine, with the CPU in its place: load, tests, and the record comes back."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" != "3.11":
        pytest.skip("the Python of the image is 3.11, and this torch is for another one")
    kernel, variant = ROOT / "examples" / "relu-tvm-ffi", "tvm-ffi01-cpu-x86_64-linux"
    built, cache = tmp_path / "build", warm_cache(tmp_path)
    made = kci("build", kernel, "--variant", variant, "--output", built, "--cache", cache)
    assert made.code == 0, made.stderr
    words = ("--tree", built / variant, "--pack", tmp_path / "day.tar", "--for-python", "3.11", "--cache", cache)
    assert kci("test", kernel, *words).code == 0
    there = tmp_path / "there"
    with tarfile.open(tmp_path / "day.tar") as archive:
        archive.extractall(there, filter="data")
    libraries = torch_python.parent.parent / "lib" / "python3.11" / "site-packages"
    given = [*OF_TORCH, "typing_extensions.py", *(path.name for path in libraries.glob("torch-*.dist-info"))]
    mounts = [f"--volume={libraries / name}:/given/site-packages/{name}:ro" for name in given]
    run = ["podman", "run", "--rm", "--network=none", "--env=PYTHONPATH=/given/site-packages", *mounts]
    run += [f"--volume={there}:/there", IMAGE, "python3", "/there/kci-hardware/run.py"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_json(there / "kci-hardware" / "record.json", TestRecord)
    assert (record.passed, record.tested) == (True, (variant,))
    assert record.machine is not None
    assert (record.machine.backend, record.machine.driver) == ("cpu", "")
    (one,) = record.variants
    assert (one.state, one.failed) == (TestState.PASSED, 0)
    checked = kci("test", kernel, "--tree", built / variant, "--check", there / "kci-hardware" / "record.json")
    assert checked.code == 0, checked.stdout + checked.stderr


def test_the_hash_of_each_file_is_in_the_archive(there: Path) -> None:
    pack = json.loads((there / "pack.json").read_text())
    found = {path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()}
    assert found - {"run.py", "pack.json"} == set(pack["files"])
    for name, digest in pack["files"].items():
        assert hashlib.sha256((there / name).read_bytes()).hexdigest() == digest
