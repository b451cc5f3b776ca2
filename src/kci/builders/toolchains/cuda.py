"""CUDA toolkits: this machine's if the version fits, else wheels from PyPI; and headers of CUDA
libraries.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from kci.builders.process.run import Log, program_output, run
from kci.builders.toolchains.data import toolchains
from kci.builders.toolchains.downloads import (
    FetchedTool,
    extract,
    find_wheel,
    install,
    library_folder,
    pip_install,
)
from kci.builders.toolchains.environment import same_version
from kci.config.values import Version
from kci.errors import MissingToolError
from kci.matrix.variants import cpu_of, this_system

# `release 13.0, V13.0.88`; the directory in `nvcc --dryrun`
_RELEASE = re.compile(r"release (\d+\.\d+)(?:, V(\S+))?")
_RUNTIME = "nvidia-cuda-runtime"
_TOP = re.compile(r"^#\$ TOP=(.+)$", re.MULTILINE)


class Toolkit(FetchedTool):
    """A CUDA toolkit."""

    link: ClassVar = "cuda"
    """Link to `root` in the work directory."""
    include: ClassVar = ("include", "include/cccl")
    parts: ClassVar = (
        "bin/nvcc.profile",
        "bin/cudafe++",
        "bin/fatbinary",
        "bin/nvlink",
        "bin/ptxas",
        "nvvm/bin/cicc",
        "nvvm/libdevice/*.bc",
        "include/crt/host_runtime.h",  # nvcc's generated code reads these two, unlisted
        "include/fatbinary_section.h",
    )
    """Files that decide about objects."""
    version: str
    nvcc: Path
    root: Path
    wheels: Path | None = None
    """Folder of the wheels; None for a toolkit of the machine."""
    reproducible: bool = True
    """True if nvcc, from 13 on, has the options for directory-independent objects."""

    @property
    def runtime(self) -> str:
        """SONAME of the CUDA runtime."""
        return f"libcudart.so.{self.version.partition('.')[0]}"

    @property
    def library_dir(self) -> Path:
        if self.wheels:
            return self.root / "lib"
        return library_folder(
            "CUDA toolkit", self.root, self.runtime, "lib64", "lib", "targets/*/lib"
        )

    @property
    def place(self) -> Path | None:
        return self.wheels

    @property
    def complete(self) -> bool:
        return not self.wheels or self.nvcc.exists()

    @property
    def found(self) -> str:
        if not self.wheels:
            return f"nvcc in {self.root}"
        return f"from wheels, in {self.wheels}" + (
            "" if self.complete else ", which the first build downloads"
        )

    def versions(self) -> list[str]:
        # two nvcc of a release can differ in code
        return [f"nvcc {_release(self.nvcc)[1] or self.version}"]

    def setup(self, python: Path, target: Path | None) -> list[list[str]]:
        if not self.wheels:
            return []
        packages = toolchains().cuda[self.version]
        return [[*pip_install(python), "--no-deps", "--target", str(target), *packages]]

    def fetch(self, python: Path, place: Path, log: Log) -> None:
        log(f"installing nvcc {self.version} into {self.wheels}")
        install(self.setup(python, place)[0], f"nvcc {self.version}", log, place.parent)


def find_toolkit(compute: str, cache: Path, log: Log) -> Toolkit:
    """The toolkit of a CUDA version such as `13.0`, perhaps to be downloaded.

    Raises MissingToolError.
    """
    version = Version.parse(compute).minor_text
    return _host_toolkit(version, log) or _wheel_toolkit(version, cache)


def _release(nvcc: Path) -> tuple[str, str]:
    # the release of an nvcc, and its full version; empty if unknown
    match = _RELEASE.search(program_output(str(nvcc), "--version"))
    return (match[1], match[2] or match[1]) if match else ("", "")


def _host_toolkit(version: str, log: Log) -> Toolkit | None:
    if explicit := os.environ.get("NVCC"):
        nvcc = shutil.which(explicit)
        release = _release(Path(nvcc))[0] if nvcc else ""
        if not nvcc or not same_version(release, version):
            what = f"is CUDA {release}" if release else "does not run"
            raise MissingToolError(
                f"NVCC={explicit} {what}, but the variant needs CUDA {version}",
                f"set NVCC to the nvcc of CUDA {version}, or unset it",
            )
        return _toolkit(version, Path(nvcc).absolute())
    for nvcc_path in _candidates(version):
        release = _release(nvcc_path)[0]
        if same_version(release, version):
            return _toolkit(version, nvcc_path)
        if release:
            log(f"{nvcc_path} is CUDA {release}, not {version}: not used")
    return None


def _toolkit(version: str, nvcc: Path) -> Toolkit:
    help_text = run([str(nvcc), "--help"]).output
    reproducible = "--frandom-seed" in help_text and "-objtemp" in help_text
    return Toolkit(version, nvcc, _root(nvcc), reproducible=reproducible)


def _candidates(version: str) -> list[Path]:
    # in order of preference
    homes = filter(None, map(os.environ.get, ("CUDA_HOME", "CUDA_PATH")))
    names = [*(f"{home}/bin/nvcc" for home in homes), "nvcc"]
    names += [f"/usr/local/cuda-{version}/bin/nvcc", "/usr/local/cuda/bin/nvcc"]
    found = filter(None, map(shutil.which, names))
    # absolute: nvcc runs in another directory
    return list(dict.fromkeys(Path(place).absolute() for place in found))


def _root(nvcc: Path) -> Path:
    # nvcc on PATH may be a wrapper script
    done = run([str(nvcc), "--dryrun", "-c", "kci.cu"])
    top = _TOP.search(done.output)
    root = Path(top[1].strip()).resolve() if top else nvcc.resolve().parent.parent
    if not (root / "include" / "cuda_runtime.h").is_file():
        raise MissingToolError(
            f"the CUDA toolkit of {nvcc} has no headers (looked in {root}/include)",
            "install the toolkit's headers, or set NVCC to the nvcc of a complete toolkit",
        )
    return root


def _wheel_toolkit(version: str, cache: Path) -> Toolkit:
    if version not in toolchains().cuda:
        known = ", ".join(sorted(toolchains().cuda))
        raise MissingToolError(
            f"no nvcc of CUDA {version} on this machine",
            f"install the CUDA {version} toolkit and put its nvcc on the PATH (PyPI carries nvcc "
            f"for {known})",
        )
    wheels = cache / "cuda" / version
    # wheels of a major version share a directory
    root = wheels / "nvidia" / f"cu{version.partition('.')[0]}"
    return Toolkit(version, root / "bin" / "nvcc", root, wheels)


LINK = "cuda-headers"
"""Link to the library headers in the work directory."""

_INCLUDE = re.compile(
    rb'#[ \t]*include[ \t]*[<"](cublas|cufft|curand|cusolver|cusparse|nvrtc|nvToolsExt|nvtx3/)'
)


class WheelFiles(FetchedTool):
    """Headers from NVIDIA's wheels."""

    folder: Path
    requirements: tuple[str, ...]
    """The wheels."""

    @property
    def place(self) -> Path:
        return self.folder

    @property
    def by_kci(self) -> str:
        return f"takes the headers out of {', '.join(self.requirements)}"

    def fetch(self, _python: Path, place: Path, log: Log) -> None:
        # a megabyte out of wheels of hundreds
        for requirement in self.requirements:
            package, _, version = requirement.partition("==")
            log(f"taking the headers out of {requirement}")
            extract(find_wheel(package, version, cpu_of(this_system())), wheel_path, place)


def mentions_libraries(sources: Iterable[Path]) -> bool:
    """True if sources include headers of CUDA libraries."""
    return any(_INCLUDE.search(source.read_bytes()) for source in sources)


def find_library_headers(toolkit: Toolkit, cache: Path) -> WheelFiles | None:
    """Library headers that a toolkit lacks; None if complete, or unknown for its version."""
    known = toolchains().cuda_headers.get(toolkit.version, {})
    missing = [
        requirement
        for header, requirement in sorted(known.items())
        if not (toolkit.root / "include" / header).is_file()
    ]
    if not missing:
        return None
    few = f"-{len(missing)}" if len(missing) < len(known) else ""
    return WheelFiles(cache / "cuda" / f"{toolkit.version}-headers{few}", tuple(missing))


def wheel_path(path: str) -> str | None:
    """Target path of a file in an NVIDIA wheel; None if it is not a header."""
    match path.split("/"):
        case ["nvidia", _, "include", _, *_] as parts:
            return "/".join(parts[3:])
    return None
