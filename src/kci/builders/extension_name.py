"""Which sources are given the kernel's id: only those that can mention it, so that a new id compiles little anew.

Every commit changes the id, and it reaches the sources as a macro. Most of them never mention that macro, and their
objects stay as they are if the id is not on their command lines. They get `POISON` in its place: it is no C++ token, so
that a mention which this module did not find stops the compiler, unless it is made a string.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection

from kci.builders.request import Request

MACROS = (b"TORCH_EXTENSION_NAME", b"TVM_FFI_EXTENSION_NAME")
POISON = "@"


def sources_with_name(request: Request, sources: Collection[str]) -> set[str]:
    """The sources that may mention the name of the extension.

    These are the ones whose own text does. If any other file that they may read does, or one of them that is included
    by its name, it is all of them: working out who includes it through whom is not worth a mistake.

    Args:
        request: the variant.
        sources: what is compiled, relative to the kernel's directory.

    Raises:
        FindingsError: an include leads out of the kernel (KCI145), or a file cannot be read.
    """
    inputs = request.files()
    tree = inputs.tree
    package = inputs.installed(request.variant)
    read = {real for _, real in inputs.of(request.variant) if real} - package
    mention = {real for real in read if any(macro in tree.content(real) for macro in MACROS)}
    compiled = {source: tree.file(inputs.graph_path(source)) for source in sources}
    included = {posixpath.basename(name) for real in read for name in tree.scan(real).names}
    if mention - set(compiled.values()) or included & {posixpath.basename(real) for real in mention}:
        return set(sources)
    return {source for source, real in compiled.items() if real in mention}
