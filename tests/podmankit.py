"""A real podman for tests, set up so that it runs inside of a container too, without a network; and
images in it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT, ran
from kci.utils.atomic import locked
from kci.utils.cache import default_cache

IMAGE = "localhost/kci-debian:12"
WHEELS: tuple[str, ...] = (
    *tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"],
)
MORE_WHEELS = ("apache-tvm-ffi==0.1.15.post2", "ninja==1.13.2")


def podman_for_tests(
    folder: Path, monkeypatch: pytest.MonkeyPatch, network: str = "none"
) -> Iterator[None]:
    """Podman for one test; nothing of it may be left.

    One test at a time, or each would see the other's containers.

    Args:
        folder: for its settings.
        monkeypatch: the test's.
        network: of the containers; `host` is this machine's.
    """
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed (bin/container_image.sh --install, as root on Debian)")
    limits = '["nofile=1024:1024", "nproc=1024:1024"]'
    text = f'[containers]\nnetns = "{network}"\ndefault_ulimits = {limits}\n'
    text += '[engine]\nruntime = "runc"\n' if shutil.which("runc") else ""
    (folder / "containers.conf").write_text(text)
    monkeypatch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
    monkeypatch.setenv("KCI_CONTAINER_ENGINE", "podman")
    if subprocess.run(["podman", "image", "exists", IMAGE], check=False).returncode != 0:
        pytest.skip(f"podman has no image {IMAGE} (bin/container_image.sh makes it)")
    tried = ran("podman", "run", "--rm", IMAGE, "true")
    if tried.returncode != 0:
        pytest.skip(f"podman does not run containers here: {tried.stderr.strip()[-200:]}")
    with locked(default_cache() / "test-tools" / "podman"):
        before = containers()
        yield
        assert containers() == before  # nothing is left, whatever a test did


def containers() -> set[str]:
    """The containers that kci or a test of it has made."""
    listed = ["podman", "ps", "--all", "--format", "{{.Names}}"]
    names = subprocess.check_output(listed, text=True).split()
    return {name for name in names if name.startswith("kci-")}


def wheels_for_container() -> Path:
    """The wheels of what kci and a tvm-ffi build need, so that the container can do without a
    network.
    """
    folder = default_cache() / "test-tools" / "engine-wheels"
    complete, wanted = folder / "complete", "\n".join((*WHEELS, *MORE_WHEELS))
    with locked(folder):
        if not complete.is_file() or complete.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
            pip += ["--python-version", "3.11", "--dest", str(folder)]
            subprocess.run([*pip, *WHEELS, *MORE_WHEELS], check=True)
            complete.write_text(wanted)
    return folder
