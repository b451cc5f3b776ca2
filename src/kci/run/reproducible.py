"""Whether a variant has the same bytes when it is built again: in another directory, out of nothing but its inputs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from kci.builders.build import build_variant
from kci.builders.kernel_files import refused
from kci.builders.request import BuildOptions
from kci.config.reader import Kernel
from kci.files.cache import work_dir
from kci.inputs.kernel_inputs import KernelInputs, inputs_for
from kci.inputs.source_tree import SourceTree
from kci.matrix.variants import Variant
from kci.run.one_variant import request_for
from kci.tree.differences import compare, listed
from kci.tree.metadata import FILE_NAME, mark_partial


def require_reproducible(
    kernel: Kernel, variant: Variant, made: Path, options: BuildOptions, log: Callable[[str], None]
) -> None:
    """Build a variant a second time, and hold it against the first.

    The second build sees a copy of the variant's inputs alone, in a temporary directory, and takes nothing out of a
    compiler cache. `metadata.json` is not compared: no compiler makes it, and it says which commit there was.

    Raises:
        FindingsError: the two differ (KCI512); the message says where.
        KciError: the second build failed.
    """
    directory = Path(kernel.directory)
    with tempfile.TemporaryDirectory(prefix="kci-again-") as folder:
        place = Path(folder).resolve()
        inputs = _copied(inputs_for(kernel.build, directory), variant, place / "sources")
        again, second = place / "sources" / inputs.kernel, place / variant.name
        log(f"building {variant.name} again in {again}")
        try:
            request = request_for(kernel, variant, second, options)
            build_variant(msgspec.structs.replace(request, kernel_dir=again, inputs=inputs, fresh=True), log)
            if options.archs:
                mark_partial(second, options.archs)
            found = [item for item in compare(made, second) if item.name != FILE_NAME]
        finally:
            shutil.rmtree(work_dir(options.cache, again, variant.name).parent, ignore_errors=True)
    if found:
        message = f"{variant.name} differs when it is built in another directory:\n{listed(found)}"
        raise refused("KCI512", message, inputs.shown_build_toml)
    log(f"{variant.name} has the same bytes when it is built in another directory")


def _copied(inputs: KernelInputs, variant: Variant, place: Path) -> KernelInputs:
    """The inputs of a variant, all of them and nothing else, at another place."""
    root = Path(inputs.tree.root)
    for path, real in inputs.of(variant):
        for name in {path, real} if real else ():
            target = place / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / real, target)
    (place / inputs.kernel).mkdir(parents=True, exist_ok=True)
    extra = [entry for entry in inputs.graph.allowed if (place / entry).exists()]
    return KernelInputs(inputs.build, place / inputs.kernel, SourceTree(place), extra)
