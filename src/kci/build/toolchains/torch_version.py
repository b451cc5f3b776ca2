"""What a torch is for, as `torch/version.py` says it: of one that is here, or of the one that pip would take."""

from __future__ import annotations

import ast
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from kci.build.process.run import Log
from kci.build.toolchains.data import TORCH_INDEX
from kci.build.toolchains.downloads import asks_one_index, is_reachable, pip_index
from kci.config.values import Version
from kci.errors import MissingToolError
from kci.matrix.variants import cpu_of, this_system


class TorchVersion(msgspec.Struct, frozen=True):
    """What `torch/version.py` says."""

    release: str
    cuda: str | None
    hip: str | None

    @property
    def minor(self) -> str:
        return ".".join(self.release.split(".")[:2])

    @property
    def rocm(self) -> str | None:
        """The ROCm version that it is built for, `7.2`; `hip` has more to it, `7.2.26015-fc0010cf6a`."""
        return ".".join(self.hip.split(".")[:2]) if self.hip else None

    @property
    def built_for(self) -> str:
        """What it computes on, for a message."""
        if self.rocm:
            return f"ROCm {self.rocm}"
        return f"CUDA {self.cuda}" if self.cuda else "the CPU"

    @property
    def no_tests(self) -> str:
        """Why one for GPUs, which PyPI has, tests no kernel for the CPU: with its libraries it loads those for GPUs."""
        without = f"`kci test` cannot import it without the libraries of {self.built_for}"
        return f"torch {self.release} is for {self.built_for}: `kci run` builds with it, and {without}"


TO_TEST = (
    f"make torch's index reachable, name a mirror of it with {TORCH_INDEX}, or a folder with torch's wheel for the CPU "
    "with PIP_FIND_LINKS"
)


def warn(found: TorchVersion | None, log: Log) -> None:
    """Say that a torch tests nothing."""
    if found is not None and found.cuda:
        log(f"warning: {found.no_tests}. To test, {TO_TEST}")


def torch_of_pip(release: str, python: str) -> TorchVersion | None:
    """What the index of a Python's pip has of a torch release for this machine, out of some kilobytes of the wheel.

    Returns:
        None where that cannot be known before pip has it: pip knows other places, or there is no way to read it.
    """
    from kci.build.toolchains.downloads import extract, find_wheel

    if "linux" not in this_system() or not is_reachable(pip_index()) or not asks_one_index(python):
        return None
    with tempfile.TemporaryDirectory(prefix="kci-torch-") as folder, suppress(MissingToolError):
        wheel = find_wheel("torch", release, cpu_of(this_system()))
        extract(wheel, lambda path: path if path == "torch/version.py" else None, Path(folder))
        return read_torch_version(Path(folder) / "torch")
    return None


def read_torch_version(torch: Path) -> TorchVersion:
    """What a torch really is, by the directory of its package.

    Raises:
        MissingToolError: there is no torch, or it does not say.
    """
    path = torch / "version.py"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise MissingToolError(f"cannot read the torch version of: {path}", hint="install torch again") from error
    values: dict[str, str | None] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value if isinstance(value.value, str) else None
    release = values.get("__version__")
    if release is None:
        raise MissingToolError(f"{path} does not state the torch version", hint="install torch again")
    return TorchVersion(release, values.get("cuda"), values.get("hip"))


def same_version(left: str | None, right: str | None) -> bool:
    """True if two versions have the same major and minor; 13 equals 13.0."""
    if left is None or right is None:
        return left == right
    try:
        return Version.parse(left).minor_text == Version.parse(right).minor_text
    except ValueError:
        return False
