"""One variant from sources to a sealed directory: what a leg of a run does, and what `kci run` does for each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from kci.builders.build import build_variant
from kci.builders.types import Built
from kci.config.reader import Kernel
from kci.matrix.types import Variant
from kci.tree import identity
from kci.tree.leg import Leg, leg_for
from kci.tree.metadata import metadata_for, seal

STAGING = ".kci-building"
"""Where a variant grows before it takes its name, beside its final place."""


class BuildOptions(msgspec.Struct, frozen=True):
    """How to build, whatever the variant."""

    cache: Path
    builder: str = "auto"
    isolation: bool = True
    jobs: int | None = None
    unique_id: str | None = None
    """In place of the one derived from the sources."""
    attempt: int = 1
    """Which attempt of a CI run this is; the newest wins in a merge."""


class BuiltVariant(msgspec.Struct, frozen=True):
    """A sealed variant directory and the record of how it came to be."""

    directory: Path
    leg: Leg


def make_variant_dir(
    kernel: Kernel, variant: Variant, output: Path, options: BuildOptions, log: Callable[[str], None]
) -> BuiltVariant:
    """Build one variant and seal it.

    The directory appears under its name only when it is complete; whatever stood there before is replaced then.

    Args:
        kernel: what to build.
        variant: one of its variants.
        output: the directory in which `<variant name>/` is made.
        options: how to build.
        log: takes lines of progress.

    Raises:
        MissingToolError: this machine lacks something that the build needs.
        BuildFailedError: the compiler refused; nothing is left behind.
    """
    kernel_dir = Path(kernel.directory)
    unique = options.unique_id or identity.unique_id(kernel_dir)
    staging = output / STAGING / variant.name
    shutil.rmtree(staging, ignore_errors=True)
    staging.parent.mkdir(parents=True, exist_ok=True)
    try:
        built: Built = build_variant(
            kernel_dir,
            kernel.build,
            variant,
            identity.kernel_id(kernel.build.name, variant.backend, unique),
            staging,
            builder=options.builder,
            isolation=options.isolation,
            jobs=options.jobs,
            cache=options.cache,
            log=log,
        )
        if not built.sealed:
            state = identity.provenance(kernel_dir)
            seal(staging, metadata_for(kernel.build, variant.backend, unique, archs=built.archs, provenance=state))
        final = output / variant.name
        replaced = output / STAGING / f"{variant.name}.replaced"
        shutil.rmtree(replaced, ignore_errors=True)
        if final.exists():
            final.rename(replaced)
        staging.rename(final)
    finally:
        shutil.rmtree(output / STAGING, ignore_errors=True)
    leg = leg_for(
        final,
        system=variant.system,
        builder=built.builder,
        attempt=options.attempt,
        seconds=round(built.seconds, 1),
    )
    return BuiltVariant(final, leg)
