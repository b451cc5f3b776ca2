"""What `kci check` says of the files that a kernel's sources include from outside of its directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kci.config.document import KeyPath
from kci.config.file_lints import at_value
from kci.config.find_settings import FoundSettings
from kci.config.reader import Kernel
from kci.diagnostics import Diagnostic, finding
from kci.errors import KciError
from kci.files.source_tree import SourceTree
from kci.plan.inputs import BINDING, ESCAPE_HINT, KernelInputs


def include_leaves_kernel(kernel: Kernel, settings: FoundSettings, tree: SourceTree) -> Iterator[Diagnostic]:
    """KCI145: an include of a file outside of the kernel that kci.toml does not declare, once for each component.

    Args:
        kernel: its build.toml.
        settings: the kci.toml that holds for it.
        tree: the files of the repository.
    """
    try:
        inputs = KernelInputs(
            kernel.build, Path(kernel.directory), tree, settings.settings.inputs_of(kernel.build.name)
        )
        found = inputs.escapes()
    except KciError:
        return  # said where the input is declared, or by the lint of sources
    for label, item in found:
        name = "torch" if kernel.build.torch is not None else "tvm-ffi"
        place: KeyPath = (name, "src") if label == BINDING else ("kernel", label, "src")
        yield at_value(kernel, place, "KCI145", inputs.escape_message(item), ESCAPE_HINT)


def declared_input_missing(settings: FoundSettings, tree: SourceTree) -> Iterator[Diagnostic]:
    """KCI333: `[[inputs]]` names what is not in the repository."""
    document = settings.document
    for index, entry in enumerate(settings.settings.inputs if document is not None else ()):
        for number, path in enumerate(entry.paths):
            if document is not None and not tree.real(path):
                message = f"{path[:100]!r} is not in the repository"
                span = document.value_span(("inputs", index, "paths", number))
                hint = "name a file or directory relative to kci.toml"
                yield finding("KCI333", message, hint=hint, path=document.path, span=span)
