"""Rules about a variant directory: layout, metadata, digest and Python files (docs/format.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kci.config.facts import BACKENDS, depends_table
from kci.config.sources.imports import module_name
from kci.config.sources.package_rules import MAX_BYTES, OPS, check_package, make_package
from kci.config.values import python_name
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.matrix.variants import Kind
from kci.tree.identity import SIGNATURE, kernel_id, validate_dir
from kci.tree.metadata import FILE_NAME, Metadata, kernels_minver, unrecorded_depends
from kci.tree.pack import size_problem, unpackable_entries
from kci.tree.sigstore import signature_problem
from kci.tree.verify.abi import version_numbers
from kci.tree.verify.subject import VariantDir
from kci.utils.bounded_json import read_bounded
from kci.utils.walk import is_bytecode


def check_layout(variant: VariantDir) -> Iterator[Diagnostic]:
    """Yield findings about file names and links."""
    names = {item.name for item in variant.files}
    if "__init__.py" not in names:
        yield finding("KCI702", "there is no __init__.py at the variant's root", path=variant.shown)
    package = python_name(variant.metadata.name) if variant.metadata is not None else ""
    if package and ((variant.path / package).is_dir() or package in names):
        message = f"the package holds an entry called {package}, as it is called itself"
        yield finding("KCI703", message, path=variant.shown)
    for item in variant.files:
        if is_bytecode(item.name):
            yield finding("KCI705", "it is Python bytecode", path=variant.at(item.name))
    packed = [item for item in variant.files if not is_bytecode(item.name)]
    for item, rule, reason in unpackable_entries(packed):
        yield finding(rule, f"it cannot travel: {reason}", path=variant.at(item.name))
    try:
        size = size_problem(packed)
    except OSError as error:
        yield finding("KCI700", f"cannot read it: {error.strerror}", path=variant.shown)
        return
    if size:
        yield finding("KCI709", f"no artifact can hold it: {size}", path=variant.shown)


def check_metadata(variant: VariantDir) -> Iterator[Diagnostic]:
    """Yield findings about `metadata.json`."""
    metadata = variant.metadata
    if metadata is None:
        return
    where = variant.at(FILE_NAME)
    backend = metadata.backend.type.value
    if variant.name is not None and variant.name.backend != backend:
        yield finding("KCI711", f"the name is one of {variant.name.backend}, `backend.type` is {backend}", path=where)
    if not metadata.id.startswith(kernel_id(metadata.name, backend, "")):
        hint = f"an id of this kernel starts with {kernel_id(metadata.name, backend, '')}"
        yield finding(
            "KCI711", f"the id {metadata.id} is not one of {metadata.name} for {backend}", hint=hint, path=where
        )
    if variant.name is not None and not variant.noarch and BACKENDS[backend].archs and not metadata.backend.archs:
        yield finding("KCI712", f"a compiled {backend} variant lists no architectures", path=where)
    for name in metadata.python_depends:
        if depends_table().lookup(name, backend) is None:
            yield finding("KCI720", f"`python-depends` names {name!r}, unknown for {backend}", path=where)
    needed = kernels_minver(metadata.kernel_depends, len(metadata.upstreams))
    if metadata.kernels_minver is not None and version_numbers(metadata.kernels_minver) != version_numbers(needed):
        message = f"`kernels-minver` is {metadata.kernels_minver}, and the oldest loader that reads this is {needed}"
        yield finding("KCI725", message, path=where)
    if metadata.kci is not None and metadata.kci.variant != variant.path.name:
        message = f"it was built as {metadata.kci.variant}; a directory that is renamed is no other variant"
        yield finding("KCI722", message, path=where)
    yield from _module(variant, metadata)


def _module(variant: VariantDir, metadata: Metadata) -> Iterator[Diagnostic]:
    if variant.name is None:
        return
    if variant.noarch:
        for item, kind in variant.libraries():
            what = f"native code ({kind.value})" if kind else "a native library"
            yield finding("KCI717", f"a noarch variant holds {what}", path=variant.at(item.name))
        return
    expected = module_file(variant, metadata)
    if not any(item.name == expected for item in variant.files):
        yield finding("KCI716", f"the native module {expected} is missing", path=variant.shown)


def module_file(variant: VariantDir, metadata: Metadata) -> str:
    """File name of the native module, by system and framework (docs/format.md#tree)."""
    assert variant.name is not None  # noqa: S101  - callers have looked
    system = (variant.name.system or "").rpartition("-")[2]
    if variant.name.kind is Kind.TVM_FFI:
        return metadata.id + {"darwin": ".dylib", "windows": ".dll"}.get(system, ".so")
    return metadata.id + (".pyd" if system == "windows" else ".abi3.so")


def check_digest(variant: VariantDir) -> Iterator[Diagnostic]:
    """Yield findings about files that contradict the digest."""
    if variant.metadata is None:
        return
    if variant.metadata.digest is None:
        yield finding("KCI730", "the metadata has no digest", path=variant.at(FILE_NAME))
        return
    if variant.hashes is None:
        return  # already reported
    try:
        violations = validate_dir(variant.path, variant.metadata.digest, variant.hashes)
    except FindingsError as error:
        yield finding("KCI700", error.message.replace(str(variant.path), variant.shown), path=variant.shown)
        return
    for violation in violations:
        where = variant.at(violation.path) if violation.path else variant.shown
        yield finding("KCI731", str(violation), path=where)


def check_signature(variant: VariantDir) -> Iterator[Diagnostic]:
    """Yield findings about the loader's signature; its signer is not verified."""
    if not any(item.name == SIGNATURE and item.regular and not item.link for item in variant.files):
        return
    try:
        problem = signature_problem(read_bounded(variant.path / SIGNATURE), read_bounded(variant.path / FILE_NAME))
    except (OSError, ValueError) as error:
        problem = f"it cannot be read: {error}"
    if problem and variant.metadata is not None:
        yield finding("KCI729", problem, path=variant.at(SIGNATURE))


def check_python(variant: VariantDir) -> Iterator[Diagnostic]:
    """Yield findings about Python files."""
    yield from _shadowed(variant)
    metadata = variant.metadata
    if metadata is None:
        return
    backend = metadata.backend.type.value
    tvm_ffi = variant.name is not None and variant.name.kind is Kind.TVM_FFI
    depends = (*metadata.python_depends, *unrecorded_depends(backend))
    package = make_package(metadata.name, [(name, backend) for name in depends], [backend], tvm_ffi=tvm_ffi)
    yield from check_package(variant.files, variant.shown, package, ())
    yield from _ops_module(variant, metadata)


_MODULE = re.compile(r"[^.]+(?:\.(abi3|(?:cpython-|cp|pypy)[^.]+))?\.(?:so|pyd)|[^.]+\.pyw?")
"""Importable file names; the group is an extension module's tag."""


def _shadowed(variant: VariantDir) -> Iterator[Diagnostic]:
    # Python prefers packages to modules, and compiled code to source
    candidates: dict[str, list[tuple[tuple[bool, ...], str, str]]] = {}
    for item in variant.files:
        _, _, name = item.name.rpartition("/")
        if item.regular and not item.link and (match := _MODULE.fullmatch(name)):
            single = not name.startswith("__init__.")
            order = (single, name.endswith((".py", ".pyw")), match[1] is None, match[1] == "abi3")
            candidates.setdefault(module_name(item.name), []).append((order, item.name, match[1] or ""))
    for _, files in sorted(candidates.items()):
        (_, first, tag), *others = sorted(files)
        for _, name, other in others:
            if tag in ("", "abi3") or other in ("", "abi3", tag):
                message = f"{first} is imported in its place: it comes first for every Python that can load it"
                yield finding("KCI766", message, path=variant.at(name))


def _ops_module(variant: VariantDir, metadata: Metadata) -> Iterator[Diagnostic]:
    # torch finds the ops only under the id in the metadata
    for item in variant.regular(f"{OPS}.py"):
        if item.name != f"{OPS}.py":
            continue
        try:
            with item.path.open("rb") as file:
                text = file.read(MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return  # already reported
        start = f"_{python_name(metadata.name)}_{metadata.backend.type.value}_"
        named = set(re.findall(rf"(?<![A-Za-z0-9_]){re.escape(start)}[A-Za-z0-9_]+", text))
        if others := sorted(named - {metadata.id}):
            message = f"it names {', '.join(others[:3])}; the metadata's id is {metadata.id}"
            yield finding("KCI724", message, path=variant.at(item.name))
