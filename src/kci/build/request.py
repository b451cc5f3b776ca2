"""What goes into a build and what comes out of it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec import field

from kci.build.toolchains.compilers import ObjectUse
from kci.config.model import Build
from kci.errors import UsageError
from kci.matrix.variants import Variant
from kci.plan.inputs.kernel_inputs import KernelInputs, inputs_for
from kci.utils.cache import default_cache


class PartOf(msgspec.Struct, frozen=True):
    """One share of several."""

    number: int
    """From 1 on."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def read_part(text: str) -> PartOf:
    """What `--part` names.

    Raises:
        UsageError: it is no share, such as 3/16.
    """
    found = re.fullmatch(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise UsageError(f"--part {text[:40]!r} is not a part", hint="such as 3/16, the third of sixteen")
    return PartOf(int(found[1]), int(found[2]))


class BuildOptions(msgspec.Struct, frozen=True):
    """How to build, whatever the variant. A field is an option of `kci build` of the same name; see `words`."""

    cache: Path = field(default_factory=default_cache)
    """Where environments, toolkits and objects are kept."""
    builder: str = "auto"
    """One of `BUILDERS`; auto is noarch for a noarch variant and native for every other."""
    container: str = "none"
    """An image, `auto` (the image of the variant's leg), or `none`."""
    tier: str | None = None
    """The tier that the variant was looked up in."""
    jobs: int | None = None
    """How many compilers to run at once; by default as many as cores and memory allow."""
    stop_after: float | None = None
    """Minutes after which a native build ends itself; what is done by then is kept."""
    isolation: bool = True
    """Compile against a torch of kci's own; otherwise against the one that this Python can import."""
    unique_id: str | None = None
    """In place of the one derived from the sources."""
    archs: tuple[str, ...] = ()
    """Only these of the archs that the components are for; what is made is marked as a part, which no merge takes."""
    part: str | None = None
    """Compile only this share of the objects, such as `3/16`, and make no variant."""
    link: bool = False
    """Make the variant of the parts in `objects_from`, and say which are missing."""
    objects_from: tuple[Path, ...] = ()
    """Packs of objects, and folders of them, to look in instead of the cache."""
    objects_to: Path | None = None
    """Write a pack of all objects that were found or made, however the build ends."""
    attempt: int = 1
    """Which attempt of a CI run this is; the newest wins in a merge."""
    run: str = ""
    """The CI run, empty outside of one."""

    def words(self) -> list[str]:
        """The options that tell another `kci build` the same. What it knows by its environment or kci.toml is left out.

        `unique_id` is `--unique-id`, one of `archs` is `--arch`, and a flag is said if it is not as by default.
        """
        made: list[str] = []
        for item in msgspec.structs.fields(self):
            value, option = getattr(self, item.name), f"--{item.name.replace('_', '-')}"
            if item.name in _KNOWN_ELSEWHERE or value is None:
                continue
            if isinstance(value, bool):
                made += [] if value is item.default else [option if value else f"--no-{item.name}"]
            elif isinstance(value, tuple):
                made += [f"{option.removesuffix('s')}={part}" for part in value]
            else:
                made.append(f"{option}={value}")
        return made


_KNOWN_ELSEWHERE = ("cache", "attempt", "run")


class Request(msgspec.Struct, frozen=True):
    """One variant to build."""

    kernel_dir: Path
    build: Build
    variant: Variant
    kernel_id: str
    """Name of the native module and of the operator namespace, for example `_relu_cpu_1a2b3c4`."""
    output: Path
    """The variant directory to make."""
    options: BuildOptions
    """How; the cache as an absolute path."""
    builds: int = 1
    """How many builds share this machine."""
    inputs: KernelInputs | None = None
    """What the variant is made from, as the plan's fingerprint sees it; see `files`."""

    @property
    def part(self) -> PartOf | None:
        """The share of the objects to compile, if nothing is to be made of them."""
        return read_part(self.options.part) if self.options.part is not None else None

    def files(self) -> KernelInputs:
        """Its inputs; those that are on the disk now if they were not given.

        Raises:
            FindingsError: kci.toml is not valid, or declares an input that is not there (KCI333).
        """
        return self.inputs or inputs_for(self.build, self.kernel_dir)


class Built(msgspec.Struct, frozen=True):
    """A variant that was built."""

    builder: str
    archs: tuple[str, ...] | None
    """What it really holds code for, in the order of metadata.json; None for backends without archs."""
    seconds: float = 0.0
    objects: ObjectUse | None = None
    """How many objects the native builder found; None for another builder."""
    sealed: bool = False
    """The builder wrote metadata.json itself (the nix builder does); it must not be written again."""
