"""The CUDA to compile with: this machine's toolkit if its version is the variant's, else wheels from PyPI.

Full-ABI kernels need the headers of CUDA libraries such as cuBLAS as well, which small toolkits do not have.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from kci.build.process.run import Log, output_of, run
from kci.build.toolchains.data import toolchains
from kci.build.toolchains.downloads import FetchedTool, install, pip_install
from kci.build.toolchains.environment import same_version
from kci.config.values import Version
from kci.errors import MissingToolError
from kci.matrix.variants import cpu_of, this_system

# `Cuda compilation tools, release 13.0, V13.0.88`; what `nvcc --dryrun` prints of its directory
_RELEASE = re.compile(r"release (\d+\.\d+)(?:, V(\S+))?")
_RUNTIME = "nvidia-cuda-runtime"
_TOP = re.compile(r"^#\$ TOP=(.+)$", re.MULTILINE)


class Toolkit(FetchedTool, frozen=True):
    """A CUDA toolkit of one version."""

    version: str
    nvcc: Path
    root: Path
    wheels: Path | None = None
    """The folder that the wheels go into, if it is made of wheels."""
    reproducible: bool = True
    """True if its nvcc has the options that make objects independent of the directory; those of CUDA 13 have."""

    @property
    def runtime(self) -> str:
        """The SONAME of the CUDA runtime library, which carries the major version."""
        return f"libcudart.so.{self.version.partition('.')[0]}"

    @property
    def library_dir(self) -> Path:
        if self.wheels is not None:
            return self.root / "lib"
        for folder in (self.root / "lib64", self.root / "lib", *sorted(self.root.glob("targets/*/lib"))):
            if (folder / self.runtime).exists():
                return folder
        raise MissingToolError(
            f"{self.runtime} is missing from the CUDA toolkit at {self.root}", hint="install its runtime libraries"
        )

    @property
    def place(self) -> Path | None:
        return self.wheels

    @property
    def complete(self) -> bool:
        return self.wheels is None or self.nvcc.exists()

    def setup(self, python: Path, target: Path | None = None) -> list[list[str]]:
        if self.wheels is None:
            return []
        packages = toolchains().cuda[self.version]
        return [[*pip_install(python), "--no-deps", "--target", str(target or self.wheels), *packages]]

    def fetch(self, python: Path, place: Path, log: Log) -> None:
        log(f"installing nvcc {self.version} into {self.wheels}")
        install(self.setup(python, place)[0], f"nvcc {self.version}", log, place.parent)


def find_toolkit(compute: str, cache: Path, log: Log) -> Toolkit:
    """The toolkit for a CUDA version such as `13.0`; `Toolkit.ensure` makes it if it is one of wheels.

    Raises:
        MissingToolError: this machine has none of that version and PyPI has neither; or `NVCC` names another version.
    """
    version = Version.parse(compute).minor_text
    return _host_toolkit(version, log) or _wheel_toolkit(version, cache)


def nvcc_version(nvcc: Path) -> str | None:
    """The release that an nvcc says it is, or None if it says nothing useful."""
    found = _release(nvcc)
    return found[1] if found else None


def nvcc_name(toolkit: Toolkit) -> str:
    """What its nvcc is, as exactly as it says: two of one release can make different code."""
    found = _release(toolkit.nvcc)
    return f"nvcc {(found[2] or found[1]) if found else toolkit.version}"


def _release(nvcc: Path) -> re.Match[str] | None:
    return _RELEASE.search(output_of(str(nvcc), "--version"))


def _host_toolkit(version: str, log: Log) -> Toolkit | None:
    if explicit := os.environ.get("NVCC"):
        nvcc = shutil.which(explicit)
        found = nvcc_version(Path(nvcc)) if nvcc else None
        if nvcc is None or not same_version(found, version):
            what = f"is CUDA {found}" if found else "does not run"
            hint = f"set NVCC to the nvcc of CUDA {version}, or unset it"
            raise MissingToolError(f"NVCC={explicit} {what}, but the variant needs CUDA {version}", hint=hint)
        return _toolkit(version, Path(nvcc).absolute())
    for nvcc_path in _candidates(version):
        found = nvcc_version(nvcc_path)
        if same_version(found, version):
            return _toolkit(version, nvcc_path)
        if found:
            log(f"{nvcc_path} is CUDA {found}, not {version}: not used")
    return None


def _toolkit(version: str, nvcc: Path) -> Toolkit:
    help_text = run([str(nvcc), "--help"]).output
    reproducible = "--frandom-seed" in help_text and "-objtemp" in help_text
    return Toolkit(version, nvcc, _root(nvcc), reproducible=reproducible)


def _candidates(version: str) -> list[Path]:
    # in the order in which they are asked
    homes = [Path(home) for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")) if home]
    on_path = shutil.which("nvcc")
    places = [home / "bin" / "nvcc" for home in homes]
    places += [Path(on_path)] if on_path else []
    places += [Path(f"/usr/local/cuda-{version}/bin/nvcc"), Path("/usr/local/cuda/bin/nvcc")]
    places = [place.absolute() for place in places]  # nvcc is started in another directory
    return [place for place in dict.fromkeys(places) if place.is_file() and os.access(place, os.X_OK)]


def _root(nvcc: Path) -> Path:
    # nvcc is asked, because the nvcc on the PATH may be a wrapper script elsewhere
    done = run([str(nvcc), "--dryrun", "-c", "kci.cu"])
    top = _TOP.search(done.output)
    root = Path(top[1].strip()).resolve() if top else nvcc.resolve().parent.parent
    if not (root / "include" / "cuda_runtime.h").is_file():
        hint = "install the toolkit's headers, or set NVCC to the nvcc of a complete toolkit"
        raise MissingToolError(f"the CUDA toolkit of {nvcc} has no headers (looked in {root}/include)", hint=hint)
    return root


def _wheel_toolkit(version: str, cache: Path) -> Toolkit:
    if version not in toolchains().cuda:
        known = ", ".join(sorted(toolchains().cuda))
        hint = f"install the CUDA {version} toolkit and put its nvcc on the PATH (PyPI carries nvcc for {known})"
        raise MissingToolError(f"no nvcc of CUDA {version} on this machine", hint=hint)
    wheels = cache / "cuda" / version
    # Wheels of one major version share a directory, whatever the minor.
    root = wheels / "nvidia" / f"cu{version.partition('.')[0]}"
    return Toolkit(version, root / "bin" / "nvcc", root, wheels)


LINK = "cuda-headers"
"""Their link in the work directory."""

_INCLUDE = re.compile(rb'#[ \t]*include[ \t]*[<"](cublas|cufft|curand|cusolver|cusparse|nvrtc|nvToolsExt|nvtx3/)')


class WheelFiles(FetchedTool, frozen=True):
    """Headers out of NVIDIA's wheels."""

    folder: Path
    requirements: tuple[str, ...]
    """The wheels that they are in."""

    @property
    def place(self) -> Path:
        return self.folder

    @property
    def by_kci(self) -> str:
        return f"takes the headers out of {', '.join(self.requirements)}"

    def setup(self, _python: Path, _target: Path | None = None) -> list[list[str]]:
        return []

    def fetch(self, _python: Path, place: Path, log: Log) -> None:
        # about a megabyte out of wheels of hundreds
        from kci.build.toolchains.downloads import extract, find_wheel

        for requirement in self.requirements:
            package, _, version = requirement.partition("==")
            log(f"taking the headers out of {requirement}")
            extract(find_wheel(package, version, cpu_of(this_system())), wheel_path, place)


def mentions_libraries(sources: Iterable[Path]) -> bool:
    """True if sources include a header of such a library themselves; a stable-ABI kernel needs none otherwise."""
    return any(_INCLUDE.search(source.read_bytes()) for source in sources)


def find_library_headers(toolkit: Toolkit, cache: Path) -> WheelFiles | None:
    """Those that a toolkit lacks; None if it has them all, or if none are known for its version."""
    missing = [
        requirement
        for header, requirement in sorted(toolchains().cuda_headers.get(toolkit.version, {}).items())
        if not (toolkit.root / "include" / header).is_file()
    ]
    if not missing:
        return None
    few = "" if len(missing) == len(toolchains().cuda_headers[toolkit.version]) else f"-{len(missing)}"
    return WheelFiles(cache / "cuda" / f"{toolkit.version}-headers{few}", tuple(missing))


def wheel_path(path: str) -> str | None:
    """Where a file of an NVIDIA wheel goes: headers lie in `nvidia/cu13/include` or `nvidia/<library>/include`."""
    parts = path.split("/")
    return "/".join(parts[3:]) if len(parts) > 3 and (parts[0], parts[2]) == ("nvidia", "include") else None
