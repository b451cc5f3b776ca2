"""ROCm installations of this machine; no package index has one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from kci.builders.process.machine import file_text
from kci.builders.process.run import Log, program_output
from kci.builders.toolchains.downloads import FetchedTool, library_folder
from kci.builders.toolchains.environment import same_version
from kci.config.values import Version
from kci.errors import MissingToolError
from kci.matrix.catalog.runners import default_runners

OPT = Path("/opt")
"""Parent of `rocm` and `rocm-X.Y.Z`."""

_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)?)")
_HEADER = Path("include", "hip", "hip_runtime.h")
HOMES = ("ROCM_PATH", "ROCM_HOME", "HIP_PATH")
"""Variables of kci and hipcc with a ROCm directory."""


class Rocm(FetchedTool):
    """A ROCm installation."""

    link: ClassVar = "rocm"
    include: ClassVar = ("include",)
    parts: ClassVar = (
        "bin/hipcc*",
        "llvm/bin/clang*",
        "lib/llvm/bin/clang*",
        "amdgcn/bitcode/*",
        "lib/llvm/lib/clang/*/*/*/bitcode/*",
    )
    release: str
    """Full version, `7.2.1`."""
    root: Path

    @property
    def hipcc(self) -> Path:
        return self.root / "bin" / "hipcc"

    @property
    def found(self) -> str:
        return f"hipcc in {self.root}"

    def versions(self) -> list[str]:
        return [
            program_output(str(self.hipcc), "--version").partition("\n")[0],
            f"ROCm {self.release}",
        ]

    def variables(self) -> dict[str, str]:
        return {name: str(self.root) for name in HOMES} | {"HIP_PLATFORM": "amd"}

    @property
    def library_dir(self) -> Path:
        """Directory of the HIP runtime. Raises MissingToolError."""
        # Debian has a folder per architecture
        return library_folder(
            "ROCm", self.root, "libamdhip64.so", "lib", "lib64", "lib/*-linux-gnu"
        )


def find_rocm(compute: str, system: str, log: Log) -> Rocm:
    """Find a ROCm: `HOMES`, hipcc on PATH, `/opt`, then `rocm-sdk`.

    Raises MissingToolError, with a `system` image.
    """
    version = Version.parse(compute).minor_text
    versions: dict[Path, str] = {}
    for root in map(Path.resolve, _places(version)):
        there = os.access(root / "bin" / "hipcc", os.X_OK) and (root / _HEADER).is_file()
        release = _release(root) if there and root not in versions else None
        if not release:
            continue
        if same_version(release, version):
            return Rocm(release, root)
        log(f"{root} is ROCm {release}, not {version}: not used")
        versions[root] = release
    others = "".join(f", only {release} at {root}" for root, release in versions.items())
    build = default_runners().build["rocm"]
    image = build.image_for(system, version)
    hint = f"install ROCm {version} and set ROCM_PATH to its directory"
    hint += f", or build in the image {image} (--container auto)" if image else ""
    raise MissingToolError(f"there is no hipcc of ROCm {version} on this machine{others}", hint)


def _places(version: str) -> Iterator[Path]:
    for home in map(Path, filter(None, map(os.environ.get, HOMES))):
        yield home
        yield home.parent  # HIP_PATH may be the directory `hip` in it
    if hipcc := shutil.which("hipcc"):
        yield Path(hipcc).resolve().parent.parent
        # hipcc on PATH may be a script; hipconfig knows the directory
        if hipconfig := shutil.which("hipconfig"):
            yield from _root_from_sdk([hipconfig, "--rocmpath"])
    yield from sorted(OPT.glob(f"rocm-{version}*"))
    yield OPT / "rocm"
    if sdk := shutil.which("rocm-sdk"):
        yield from _root_from_sdk([sdk, "path", "--root"])


def _root_from_sdk(command: list[str]) -> Iterator[Path]:
    lines = program_output(*command).strip().splitlines()
    if lines:
        yield Path(lines[-1].strip())


def _release(root: Path) -> str | None:
    # from its own file, else from hipconfig: HIP's minor version is ROCm's
    text = file_text(root / ".info" / "version")
    text = text or program_output(str(root / "bin" / "hipconfig"), "--version")
    match = _VERSION.search(text)
    return match[1] if match else None
