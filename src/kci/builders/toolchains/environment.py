"""Environments with torch: cached ones per release and flavour, or this Python's.

Torch has no dependencies there and is never imported: `torch/version.py` is read as text.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from kci.builders.process.run import Log, own_program, run
from kci.builders.toolchains.data import TORCH_INDEX, toolchains
from kci.builders.toolchains.downloads import (
    FetchedTool,
    extract,
    find_wheel,
    install,
    is_reachable,
    pip_install,
    uv,
)
from kci.config.facts import BACKENDS, HOST
from kci.config.values import Version
from kci.errors import MissingToolError
from kci.matrix.variants import cpu_of, this_system
from kci.utils.atomic import locked, writing
from kci.utils.cache import CACHE_VARIABLE
from kci.utils.frozen import Frozen


class TorchVersion(Frozen):
    """The content of `torch/version.py`."""

    release: str
    toolkits: dict[str, str]
    """Major and minor version by backend; empty for the CPU."""

    @property
    def minor(self) -> str:
        return ".".join(self.release.split(".")[:2])

    @property
    def device(self) -> str:
        """The device, for messages."""
        built = (
            f"{BACKENDS[backend].title} {version}" for backend, version in self.toolkits.items()
        )
        return next(built, "the CPU")

    @property
    def test_limitation(self) -> str:
        """The reason why a GPU torch cannot test CPU kernels; empty for a CPU torch."""
        without = f"`kci test` cannot import it without the libraries of {self.device}"
        return f"torch {self.release} is for {self.device}: `kci run` builds with it, and {without}"


TO_TEST = (
    f"make torch's index reachable, name a mirror of it with {TORCH_INDEX}, or a folder with "
    "torch's wheel for the CPU with PIP_FIND_LINKS"
)


_ASSIGNED = re.compile(r"""^(\w+)\b[^=\n]*= *["']([^"'\n]*)["']""", re.MULTILINE)


def read_torch_version(torch: Path) -> TorchVersion:
    """Read the version of a torch package directory. Raises MissingToolError."""
    path = torch / "version.py"
    try:
        values = dict(_ASSIGNED.findall(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise MissingToolError(
            f"cannot read the torch version of: {path}", "install torch again"
        ) from error
    release = values.get("__version__")
    if release is None:
        raise MissingToolError(f"{path} does not state the torch version", "install torch again")
    found = {str(backend): values.get(facts.torch_version) for backend, facts in BACKENDS.items()}
    # `hip` has more parts than ROCm
    toolkits = {backend: ".".join(text.split(".")[:2]) for backend, text in found.items() if text}
    return TorchVersion(release, toolkits)


def same_version(first: str | None, second: str) -> bool:
    """True for equal major and minor; 13 equals 13.0."""
    try:
        return Version.parse(first or "").minor_text == Version.parse(second).minor_text
    except ValueError:
        return False


COMPLETE = ".kci-complete"
_RUNTIME = ".kci-runtime"
_SMALL = (
    "torch/lib/libc10.so",
    "torch/lib/libc10_cuda.so",
    "torch/lib/libgomp.so.1",
    "torch/lib/libtorch.so",
    "torch/version.py",
)
"""Copied as they are; the other libraries are a gigabyte, so stubs replace them."""


class Environment(FetchedTool):
    """A torch with the programs beside it."""

    python: Path
    torch: Path
    """Directory of the torch package, or of `requirement`."""
    ninja: Path
    root: Path | None
    """None for this Python's own torch."""
    release: str | None = None
    """Requested torch release, `2.13.0`."""
    flavour: str = str(HOST)
    own_index: str = ""
    """The index of an overlay's release, which no other has; else empty."""
    requirement: str = ""
    """Installed in place of torch."""
    headers_only: bool = False
    """True for headers and small libraries only; stubs replace the large ones."""

    @property
    def place(self) -> Path | None:
        return self.root

    @property
    def complete(self) -> bool:
        return not self.root or ((self.root / COMPLETE).is_file() and self.python.exists())

    @property
    def index(self) -> str:
        return self.own_index or toolchains().index_url(self.flavour)

    @property
    def wheel(self) -> str:
        """The version of the wheel in the index."""
        return str(self.release) if self.own_index else f"{self.release}+{self.flavour}"

    @property
    def by_kci(self) -> str:
        what = f"takes the headers out of the wheel of torch {self.wheel}"
        return what if self.headers_only else ""

    def setup(
        self, _python: Path | None = None, _target: Path | None = None, *, from_index: bool = True
    ) -> list[list[str]]:
        if not self.root:
            return []
        if self.requirement:
            torch = [self.requirement]
        elif from_index:
            torch = ["--index-url", self.index, f"torch=={self.wheel}"]
        else:
            # `===` excludes local versions such as +cpu: the build on PyPI
            torch = [f"torch{'==' if self.flavour == HOST else '==='}{self.release}"]
        pip = pip_install(self.python)
        return [
            uv("venv", "--no-project", "--python", base_python(), str(self.root)),
            *([] if self.headers_only else [[*pip, "--no-deps", *torch]]),
            [*pip, "--no-deps", toolchains().ninja],
        ]

    def ensure(self, python: Path, log: Log) -> None:
        """Made in place, because a Python environment cannot be moved; one without marker file is
        made again.
        """
        if not self.root or self.complete:
            return
        with writing(self.root), locked(self.root, log):
            if not self.complete:
                shutil.rmtree(self.root, ignore_errors=True)
                try:
                    self.fetch(python, self.root, log)
                except BaseException:
                    shutil.rmtree(self.root, ignore_errors=True)
                    raise
                (self.root / COMPLETE).write_text(
                    f"torch {self.release} {self.flavour}\n", encoding="utf-8"
                )

    def fetch(self, _python: Path, place: Path, log: Log) -> None:
        index = self.index
        reachable = bool(self.requirement) or is_reachable(index)
        only = (
            facts.title
            for name, facts in BACKENDS.items()
            if facts.only_index and self.flavour.startswith(name)
        )
        if not reachable and (title := self.release if self.own_index else next(only, "")):
            raise MissingToolError(
                f"{index} cannot be reached, and no other index has torch for {title}",
                f"make {index} reachable, or build with --no-isolation where this Python has that "
                "torch",
            )
        if not reachable:
            log(f"{index} cannot be reached: taking torch {self.release} from pip's default index")
        venv, *torch, ninja = self.setup(from_index=reachable)
        install(venv, "a Python environment", log, place)
        if self.headers_only:
            # ten of the wheel's five hundred megabytes
            release, where = (self.wheel, index) if reachable else (str(self.release), None)
            wheel = find_wheel("torch", release, cpu_of(this_system()), where)
            log(f"taking the headers out of {wheel.name} into {place}")
            extract(wheel, needed_to_compile, self.torch.parent)
        for command in torch:
            what = self.requirement or f"torch {self.release} ({self.flavour})"
            log(f"installing {what} into {place}")
            install(command, what, log, place)
        if self.flavour == HOST and not (self.requirement or self.headers_only):
            version = read_torch_version(self.torch)
            if version.toolkits:
                log(f"warning: {version.test_limitation}. To test, {TO_TEST}")
        _check_flavour(self)
        install(ninja, "ninja", log, place)


def kci_environment(
    cache: Path, torch: str, flavour: str, *, headers_only: bool = False
) -> Environment:
    """An environment of kci for a torch minor version and flavour (`cpu`, `cu130`), perhaps not
    made yet.
    """
    release, index = toolchains().torch_wheel(torch, flavour)
    place = re.sub(r"[^\w.]+", "-", torch.partition("@")[2])
    name = (
        f"torch-{release}-{f'{place}-' * bool(place)}{flavour}{'-headers' if headers_only else ''}"
    )
    facts = {"own_index": index if "@" in torch else "", "headers_only": headers_only}
    return _cached_environment(cache, name, "torch", release=release, flavour=flavour, **facts)


def _cached_environment(cache: Path, name: str, package: str, **facts: Any) -> Environment:
    # it points at the Python that made it, and containers share the cache
    base = hashlib.sha256(sys.base_prefix.encode()).hexdigest()[:6]
    root = cache / "envs" / f"{name}-cp{sys.version_info.major}{sys.version_info.minor}-{base}"
    packages = Path(
        sysconfig.get_path("platlib", "venv", {"base": str(root), "platbase": str(root)})
    )
    programs = root / "bin"
    return Environment(programs / "python", packages / package, programs / "ninja", root, **facts)


def tvm_ffi_environment(cache: Path, version: str) -> Environment:
    """The same with tvm-ffi, such as `0.1`, in place of torch. Raises MissingToolError."""
    release = toolchains().tvm_ffi.get(version)
    if not release:
        known = ", ".join(sorted(toolchains().tvm_ffi))
        raise MissingToolError(f"kci does not know tvm-ffi {version}", f"it knows {known}")
    requirement = f"apache-tvm-ffi=={release}"
    return _cached_environment(
        cache, f"tvm-ffi-{release}", "tvm_ffi", release=release, requirement=requirement
    )


def base_python() -> str:
    """This Python outside of its virtual environment, which may be deleted before the cache."""
    return getattr(sys, "_base_executable", "") or sys.executable


def python_environment() -> Environment:
    """This Python's torch and ninja, for `--no-isolation`. Raises MissingToolError."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise MissingToolError(
            f"torch is not installed for {sys.executable}",
            "pip install torch, or leave out --no-isolation",
        )
    ninja = own_program("ninja")
    if not ninja:
        raise MissingToolError(
            "ninja is not installed", "pip install ninja, or leave out --no-isolation"
        )
    torch = Path(spec.origin).parent
    return Environment(Path(sys.executable), torch, Path(ninja).absolute(), root=None)


def ensure_runtime(torch: str, *, cache: Path, log: Log, flavour: str = str(HOST)) -> Path:
    """Python of an environment with torch and the loader. Raises MissingToolError."""
    environment = kci_environment(cache, torch, flavour)
    root = environment.root
    assert root  # noqa: S101  - `kci_environment` always sets it
    if flavour != HOST and not environment.complete:
        _require_gpu_torch(torch, flavour, cache)
    environment.ensure(environment.python, log)
    version = read_torch_version(environment.torch)
    if (
        flavour == HOST
        and version.toolkits
        and run([str(environment.python), "-c", "import torch"]).code != 0
    ):
        # the same torch, with the libraries that it lacks here
        gpu = kci_environment(cache, torch, toolchains().pypi.get(torch, HOST))
        if gpu.root and (gpu.root / _RUNTIME).is_file():
            return gpu.python
        raise MissingToolError(
            version.test_limitation, f"{TO_TEST}; then remove this one: rm -r {root}"
        )
    # torch is there, and pip adds what the one for a GPU needs
    own = f"torch=={environment.release}" if environment.own_index else "torch"
    packages = [*toolchains().runtime_packages, *([] if flavour == HOST else [own])]
    installed, known = "".join(f"{package}\n" for package in packages), root / _RUNTIME
    with locked(root, log):
        if not known.is_file() or known.read_text(encoding="utf-8") != installed:
            log(f"installing the packages that load kernels into {root}")
            command = pip_install(environment.python)
            if flavour != HOST and is_reachable(environment.index):
                command += ["--extra-index-url", environment.index]
            install([*command, *packages], "the runtime packages", log, root)
            known.write_text(installed, encoding="utf-8")
    return environment.python


GPU_ROOM = 10
"""Gigabytes for torch for a GPU with its libraries, and for their wheels while they are
unpacked."""


def _require_gpu_torch(torch: str, flavour: str, cache: Path) -> None:
    # before gigabytes of another toolkit's are downloaded
    index = toolchains().torch_wheel(torch, flavour)[1]
    if not is_reachable(index) and toolchains().pypi.get(torch) != flavour:
        raise MissingToolError(
            f"{index} cannot be reached, and PyPI has no torch {torch} for {flavour}",
            f"make it reachable, or name a mirror of torch's indexes with {TORCH_INDEX}",
        )
    cache.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(cache).free // 10**9) < GPU_ROOM:
        raise MissingToolError(
            f"torch for {flavour} needs {GPU_ROOM} GB of disk while it is installed, and {cache} "
            f"has {free}",
            f"make room, or set {CACHE_VARIABLE} to another disk",
        )


def python_include() -> Path:
    """Directory of a `Python.h`, of any version: modules use the limited API.

    Raises MissingToolError.
    """
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise MissingToolError(
            f"Python.h is missing (looked in {include})",
            f"install Python's headers, for example: apt-get install python{version}-dev",
        )
    return include


def needed_to_compile(path: str) -> str | None:
    """Target paths of the wheel files that a build reads."""
    return path if path in _SMALL or path.startswith("torch/include/") else None


def _check_flavour(environment: Environment) -> None:
    # the default index may have another toolkit's build
    if environment.requirement or environment.flavour == HOST:
        return
    torch = read_torch_version(environment.torch)
    known = {
        toolchains().flavour(backend, Version.parse(version))
        for backend, version in torch.toolkits.items()
    }
    # version.py names no toolkit of XPU
    if environment.flavour not in (known or {torch.release.partition("+")[2]}):
        raise MissingToolError(
            f"the index has torch {torch.release} for {torch.device}, not for "
            f"{environment.flavour}",
            f"make {environment.index} reachable",
        )
