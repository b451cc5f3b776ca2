"""Which of a variant's objects have to be compiled again: those with the kernel's id, and those that read what changed.

Every commit changes the id, and it reaches the sources as a macro. Most of them never mention that macro.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection

from kci.config.values import HEADER_ENDINGS
from kci.inputs.kernel_inputs import BINDING, KernelInputs, active
from kci.matrix.variants import Variant

_MACROS = (b"TORCH_EXTENSION_NAME", b"TVM_FFI_EXTENSION_NAME")


def sources_with_name(inputs: KernelInputs, variant: Variant, sources: Collection[str]) -> set[str]:
    """Those of the sources, relative to the kernel's directory, that may mention the name of the extension.

    These are the ones whose own text does. If any other file that they may read does, or one of them that is included
    by its name, it is all of them: working out who includes it through whom is not worth a mistake.

    Raises:
        FindingsError: an include leads out of the kernel (KCI145), or a file cannot be read.
    """
    tree = inputs.tree
    read = {real for _, real in inputs.of(variant) if real} - inputs.installed(variant)
    mention = {real for real in read if any(macro in tree.content(real) for macro in _MACROS)}
    compiled = {source: tree.file(inputs.graph.inside(source)) for source in sources}
    included = {posixpath.basename(name) for real in read for name in tree.scan(real).names}
    if mention - set(compiled.values()) or included & {posixpath.basename(real) for real in mention}:
        return set(sources)
    return {source for source, real in compiled.items() if real in mention}


def compiled_again(inputs: KernelInputs, variant: Variant, changed: Collection[str]) -> frozenset[str]:
    """The sources of a variant, as build.toml names them, that have to be compiled though all its objects are kept.

    `changed` are the paths in the tree of files that compilers read and that are others now; raises as
    `sources_with_name`.
    """
    found: set[str] = set()
    labels = (BINDING, *active(inputs.build, variant))
    asked = {label: inputs.asked[label] for label in labels if label in inputs.asked}
    sources = {
        source: label
        for label, (listed, _, _) in reversed(asked.items())
        for source in listed
        if not source.lower().endswith(HEADER_ENDINGS)
    }
    for source, label in sources.items() if changed else ():
        _, include, flags = asked[label]
        read = inputs.of_source(variant, source, include, flags)
        if any(place in changed for item in read for place in item):
            found.add(source)
    return frozenset(found | sources_with_name(inputs, variant, sources))
