"""One variant from sources to a sealed directory."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from kci.builders.build import build_variant
from kci.builders.request import BuildOptions, Request
from kci.config.reader import Kernel
from kci.errors import FindingsError, UnsafeError
from kci.files.replace import replacing
from kci.matrix.variants import Variant
from kci.processes.process import Log
from kci.tree import identity
from kci.tree.leg_record import LegRecord, leg_for
from kci.tree.metadata import FILE_NAME, mark_partial, metadata_for, read_metadata, seal


def request_for(kernel: Kernel, variant: Variant, output: Path, options: BuildOptions) -> Request:
    """What to ask of a builder."""
    directory = Path(kernel.directory)
    unique = options.unique_id or identity.unique_id(directory)
    return Request(
        kernel_dir=directory,
        build=kernel.build,
        variant=variant,
        kernel_id=identity.kernel_id(kernel.build.name, variant.backend, unique),
        output=output,
        options=msgspec.structs.replace(options, cache=options.cache.absolute()),
    )


def make_variant_dir(
    kernel: Kernel,
    variant: Variant,
    output: Path,
    options: BuildOptions,
    log: Log,
    builds: int = 1,
) -> LegRecord:
    """Build one variant and seal it; returns how it came to be.

    `output/<variant name>` appears only when it is complete; whatever stood there before is replaced then.

    Raises:
        MissingToolError: this machine lacks something that the build needs.
        BuildFailedError: the compiler refused; nothing is left behind.
    """
    kernel_dir = Path(kernel.directory)
    unique = options.unique_id or identity.unique_id(kernel_dir)
    options = msgspec.structs.replace(options, unique_id=unique)
    final = output / variant.name
    with replacing(final, log) as replacement:
        check_replaceable(final, kernel.build.name)
        request = request_for(kernel, variant, replacement.staging, options)
        built = build_variant(msgspec.structs.replace(request, builds=builds), log)
        if options.archs:
            mark_partial(replacement.staging, options.archs)
        if not built.sealed:
            state = identity.provenance(kernel_dir)
            if state is None and options.commit is not None:
                state = identity.GitState(options.commit, dirty=False)
            metadata = metadata_for(
                kernel.build, variant.backend, unique, archs=built.archs, provenance=state, variant=variant.name,
                committed=identity.committed(kernel_dir),
            )  # fmt: skip
            seal(replacement.staging, metadata)
        for directory, _, _ in os.walk(replacement.staging):
            Path(directory).chmod(0o755)
        replacement.commit()
        # Another build that waits for this one to end would replace what is read here.
        return leg_for(
            final,
            system=variant.system,
            builder=built.builder,
            attempt=options.attempt,
            run=options.run,
            seconds=round(built.seconds, 1),
            objects=built.objects,
        )


def check_replaceable(place: Path, kernel: str) -> None:
    """Refuse to replace anything but an empty directory or a variant of the same kernel.

    Raises:
        UnsafeError: something else is there.
    """
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise UnsafeError(f"{place} is in the way: it is not a directory", hint="name another --output")
    if not place.is_dir() or not any(place.iterdir()):
        return
    try:
        owner = read_metadata(place / FILE_NAME).name
    except FindingsError:
        owner = None
    if owner != kernel:
        what = f"a variant of {owner}" if owner else "no variant directory"
        hint = "name another --output, or remove the directory"
        raise UnsafeError(f"{place} is in the way: it has files and is {what}", hint=hint)
