"""Python files of a variant: those of its package, which of them Python takes, and the generated `_ops.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kci.config.values import python_name
from kci.diagnostics import Diagnostic, finding
from kci.matrix.names import Kind
from kci.sources.imports import module_name
from kci.sources.package_rules import MAX_BYTES, OPS, check_package, package_of
from kci.tree.depends import unrecorded_depends
from kci.tree.metadata import Metadata
from kci.verify.subject import VariantDir


def check_variant(variant: VariantDir) -> Iterator[Diagnostic]:
    """The rules about a variant's Python files."""
    yield from _shadowed(variant)
    metadata = variant.metadata
    if metadata is None:
        return
    backend = metadata.backend.type.value
    tvm_ffi = variant.name is not None and variant.name.kind is Kind.TVM_FFI
    depends = (*metadata.python_depends, *unrecorded_depends(backend))
    package = package_of(metadata.name, [(name, backend) for name in depends], [backend], tvm_ffi=tvm_ffi)
    yield from check_package(variant.files, variant.shown, package, ())
    yield from _ops_module(variant, metadata)


_MODULE = re.compile(r"[^.]+(?:\.(abi3|(?:cpython-|cp|pypy)[^.]+))?\.(?:so|pyd)|[^.]+\.pyw?")
"""File names that some Python imports, with the tag of an extension module."""


def _shadowed(variant: VariantDir) -> Iterator[Diagnostic]:
    """Of two files for one module Python imports a package before a module, and compiled code before source."""
    found: dict[str, list[tuple[tuple[bool, ...], str, str]]] = {}
    for item in variant.files:
        _, _, name = item.name.rpartition("/")
        if item.regular and not item.link and (match := _MODULE.fullmatch(name)):
            single = not name.startswith("__init__.")
            order = (single, name.endswith((".py", ".pyw")), match[1] is None, match[1] == "abi3")
            found.setdefault(module_name(item.name), []).append((order, item.name, match[1] or ""))
    for _, files in sorted(found.items()):
        (_, first, tag), *others = sorted(files)
        for _, name, other in others:
            if tag in ("", "abi3") or other in ("", "abi3", tag):
                message = f"{first} is imported in its place: it comes first for every Python that can load it"
                yield finding("KCI766", message, path=variant.at(name))


def _ops_module(variant: VariantDir, metadata: Metadata) -> Iterator[Diagnostic]:
    """`_ops.py` has to be about the id in the metadata: torch finds the ops under that name only."""
    for item in variant.regular(f"{OPS}.py"):
        if item.name != f"{OPS}.py":
            continue
        try:
            with item.path.open("rb") as file:
                text = file.read(MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return  # reported when the file was read
        start = f"_{python_name(metadata.name)}_{metadata.backend.type.value}_"
        named = set(re.findall(rf"(?<![A-Za-z0-9_]){re.escape(start)}[A-Za-z0-9_]+", text))
        if others := sorted(named - {metadata.id}):
            message = f"it names {', '.join(others[:3])}; the metadata's id is {metadata.id}"
            yield finding("KCI724", message, path=variant.at(item.name))
