"""The input and output of a builder."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec import field

from kci.config.model import Build
from kci.errors import UsageError
from kci.matrix.variants import ObjectUse, Variant
from kci.plan.inputs.kernel_inputs import KernelInputs, inputs_for
from kci.utils.cache import default_cache
from kci.utils.frozen import Frozen


class BuildPart(Frozen):
    """One of several parts of a build."""

    number: int
    """Counted from 1."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def read_part(text: str) -> BuildPart:
    """Parse `3/16` of `--part`. Raises UsageError."""
    match = re.fullmatch(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", text)
    if not match or int(match[1]) > int(match[2]):
        raise UsageError(
            f"--part {text[:40]!r} is not a part", "such as 3/16, the third of sixteen"
        )
    return BuildPart(int(match[1]), int(match[2]))


class BuildOptions(Frozen):
    """Options of `kci build` with the same names; see `arguments`."""

    cache: Path = field(default_factory=default_cache)
    """Cache directory."""
    builder: str = "auto"
    """One of `BUILDERS`; auto is noarch or native."""
    container: str = "none"
    """An image, `auto` for the leg's image, or `none`."""
    tier: str | None = None
    """Tier in which the variant was found."""
    jobs: int | None = None
    """Parallel compilers; by default as many as cores and memory allow."""
    stop_after: float | None = None
    """Minutes until a native build stops itself; finished objects are kept."""
    isolation: bool = True
    """True for kci's own torch, False for this Python's."""
    load: bool = True
    """False to leave a built variant unloaded, which is then not fit for publishing."""
    unique_id: str | None = None
    """Replaces the id derived from the sources."""
    archs: tuple[str, ...] = ()
    """Build only these archs; the result is partial, and merges refuse it."""
    part: str | None = None
    """Compile only this part of the objects, such as `3/16`."""
    link: bool = False
    """Link the variant from the parts in `objects_from`."""
    objects_from: tuple[Path, ...] = ()
    """Packs of objects, or folders of packs, in place of the cache."""
    objects_to: Path | None = None
    """Pack for all objects, even of a failed build."""
    attempt: int = 1
    """Attempt of the CI run; a merge takes the newest."""
    run: str = ""
    """CI run; empty outside CI."""

    def arguments(self) -> list[str]:
        """Options for another `kci build` with the same effect; those of environment and kci.toml
        are left out.
        """
        arguments: list[str] = []
        for item in msgspec.structs.fields(self):
            value, option = getattr(self, item.name), f"--{item.name.replace('_', '-')}"
            if item.name in _KNOWN_ELSEWHERE or value is None:
                continue
            if isinstance(value, bool):
                arguments += (
                    [] if value is item.default else [option if value else f"--no-{item.name}"]
                )
            elif isinstance(value, tuple):
                arguments += [f"{option.removesuffix('s')}={part}" for part in value]
            else:
                arguments.append(f"{option}={value}")
        return arguments


_KNOWN_ELSEWHERE = ("cache", "attempt", "run")


class Request(Frozen):
    """One variant to build."""

    kernel_dir: Path
    build: Build
    variant: Variant
    kernel_id: str
    """Name of the native module and of the op namespace, such as `_relu_cpu_1a2b3c4`."""
    output: Path
    options: BuildOptions
    """With an absolute cache path."""
    builds: int = 1
    """Number of builds that share this machine."""
    inputs: KernelInputs | None = None
    """As in the plan's fingerprint; see `files`."""

    @property
    def part(self) -> BuildPart | None:
        """The part to compile; None when linking."""
        return read_part(self.options.part) if self.options.part is not None else None

    def files(self) -> KernelInputs:
        """The inputs, read from disk if needed. Raises FindingsError, such as KCI333."""
        return self.inputs or inputs_for(self.build, self.kernel_dir)


class BuildResult(Frozen):
    """The result of a builder."""

    builder: str
    archs: tuple[str, ...] | None
    """Archs of the code in metadata order; None for backends without archs."""
    seconds: float = 0.0
    objects: ObjectUse | None = None
    """None except for the native builder."""
    sealed: bool = False
    """True if the builder wrote metadata.json, as nix does."""
