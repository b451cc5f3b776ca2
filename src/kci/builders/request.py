"""What goes into a build and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from kci.config.model import Build
from kci.inputs.kernel_inputs import KernelInputs, inputs_for
from kci.inputs.recorded import RecordedInputs
from kci.matrix.variants import Variant
from kci.processes.job_budget import JobBudget
from kci.toolchains.compiler_cache import CacheUse


class Request(msgspec.Struct, frozen=True):
    """One variant to build."""

    kernel_dir: Path
    build: Build
    variant: Variant
    kernel_id: str
    """Name of the native module and of the operator namespace, for example `_relu_cpu_1a2b3c4`."""
    output: Path
    """The variant directory to make."""
    cache: Path
    """Where environments, toolkits and objects are kept, as an absolute path; see `default_cache`."""
    builder: str = "auto"
    """One of `BUILDERS`; auto is noarch for a noarch variant and native for every other."""
    isolation: bool = True
    """Compile against a torch of kci's own; otherwise against the one that this Python can import."""
    jobs: int | None = None
    """How many compilers to run at once; by default as many as cores and memory allow."""
    budget: JobBudget | None = None
    """What it shares with other builds in place of `jobs` of its own."""
    fresh: bool = False
    """Compile everything, whatever a compiler cache has."""
    inputs: KernelInputs | None = None
    """What the variant is made from, as the plan's fingerprint sees it; see `files`."""
    archs: tuple[str, ...] = ()
    """Only these of the archs that the components are for, for a quick build; all of them if there is none."""
    mirrors: Mapping[str, str] = {}
    """Where to get what GitHub has, by name: `[mirrors]` of kci.toml."""

    def files(self) -> KernelInputs:
        """Its inputs; those that are on the disk now if they were not given.

        Raises:
            FindingsError: kci.toml is not valid, or declares an input that is not there (KCI333).
        """
        return self.inputs or inputs_for(self.build, self.kernel_dir)


class Built(msgspec.Struct, frozen=True):
    """A variant that was built."""

    output: Path
    builder: str
    archs: tuple[str, ...] | None
    """What it really holds code for, in the order of metadata.json; None for backends without archs."""
    seconds: float = 0.0
    cache: CacheUse | None = None
    """What a compiler cache had of it; None where there is none."""
    sealed: bool = False
    """The builder wrote metadata.json itself (the nix builder does); it must not be written again."""
    inputs: RecordedInputs | None = None
    """What it was really made from; None where the builder cannot tell."""
