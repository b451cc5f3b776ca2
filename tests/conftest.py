"""What every test may use: reading a build.toml from text, and where the project's own files are."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from kci.catalog.rows import Catalog, load_catalog
from kci.config.reader import Kernel, parse_kernel

ROOT = Path(__file__).resolve().parent.parent


def kernel(text: str) -> Kernel:
    """Read a build.toml from text."""
    return parse_kernel(dedent(text).encode())


def torch_kernel(backends: list[str], *, torch: str = "", general: str = "", components: str = "") -> Kernel:
    """A `[torch]` kernel with one component per backend, unless `components` says otherwise."""
    parts = components or "".join(
        f'[kernel.{backend}_part]\nbackend = "{backend}"\ndepends = ["torch"]\nsrc = ["a.cu"]\n' for backend in backends
    )
    declared = ", ".join(f'"{backend}"' for backend in backends)
    return parse_kernel(
        f'[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = [{declared}]\n'
        f"{dedent(general)}\n[torch]\nsrc = []\n{dedent(torch)}\n{dedent(parts)}".encode()
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden`, for changing the golden files on purpose."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """The default edition."""
    return load_catalog()


@pytest.fixture
def no_git_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git commands of a test must not see an outer repository through the environment."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def torch_cache() -> Path:
    """The cache with kci's own torch environments; it is made once and shared with `make demo`."""
    from kci.builders.cache import default_cache

    return default_cache()


@pytest.fixture(scope="session")
def torch_python(torch_cache: Path) -> Path:
    """A Python that can import torch 2.13 (CPU) and load kernels."""
    from kci.builders.environment import ensure_runtime

    return ensure_runtime("2.13", cache=torch_cache, log=print)
