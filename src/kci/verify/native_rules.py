"""Native libraries: machine, system libraries, Python's and torch's ABI, dependencies (docs/format.md#requirements)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from kci.catalog.floors import floors
from kci.diagnostics import Diagnostic, finding
from kci.files.walk import Entry
from kci.matrix.names import Kind, VariantName
from kci.verify.abi import (
    above_cap,
    cpp_scope,
    library_allowed,
    numbers,
    python_symbols,
    symbol_explained,
    torch_shims,
)
from kci.verify.elf import Elf, ElfError, is_elf, read_elf
from kci.verify.metadata_rules import module_file
from kci.verify.subject import VariantDir

_SHOWN = 5
_TORCH_CPP = ("at", "c10", "caffe2", "torch")
_STABLE_CPP = (("torch", "stable"), ("torch", "headeronly"))


def check_variant(variant: VariantDir) -> Iterator[Diagnostic]:
    """The rules about a variant's native libraries."""
    if variant.name is None or variant.noarch:
        return
    for item in variant.libraries():
        yield from _library(variant, variant.name, item)


def _library(variant: VariantDir, name: VariantName, item: Entry) -> Iterator[Diagnostic]:
    where = variant.at(item.name)
    cpu, _, system = (name.system or "").partition("-")
    try:
        if system != "linux" and not is_elf(item.path):
            yield finding("KCI750", f"it is for {system}; only ELF libraries are checked", path=where)
            return
        elf = read_elf(item.path)
    except (ElfError, OSError) as error:
        yield finding("KCI740", str(error), path=where)
        return
    if elf.machine != cpu or system != "linux":
        yield finding("KCI741", f"it is for {elf.machine}-linux, the name says {name.system}", path=where)
    yield from _versions(elf, cpu, where)
    yield from _python(elf, where)
    for path in elf.search_path:
        yield finding("KCI744", f"it has the search path {path!r} built in", path=where)
    yield from _dependencies(elf, name, where)
    if name.kind is Kind.STABLE_ABI:
        yield from _stable(elf, numbers(name.framework_version or "0"), where)
    metadata = variant.metadata
    if metadata is not None and name.kind is not Kind.TVM_FFI and item.name == module_file(variant, metadata):
        init = f"PyInit_{metadata.id}"
        if init not in elf.defined:
            yield finding("KCI749", f"it does not define {init}", path=where)


def _versions(elf: Elf, cpu: str, where: str) -> Iterator[Diagnostic]:
    """Every version that is required counts, used by a symbol or not: the system's loader checks them all."""
    users = defaultdict(list)
    for symbol in elf.undefined:
        users[symbol.version].append(symbol.name)
    for version in sorted(elf.required_versions):
        if cap := above_cap(version, cpu):
            by = f" (for {_listed(users[version])})" if users[version] else ""
            yield finding("KCI742", f"it needs {version}{by}; manylinux_2_28 ends at {cap}", path=where)


def _python(elf: Elf, where: str) -> Iterator[Diagnostic]:
    known = python_symbols()
    outside = []
    for symbol in elf.undefined:
        added = known.get(symbol.name)
        if added is None and symbol.name.startswith(("Py", "_Py")):
            outside.append(symbol.name)
        elif added is not None and added > floors().python:
            outside.append(f"{symbol.name} ({'.'.join(map(str, added))})")
    if outside:
        yield finding("KCI743", f"not in the stable ABI of Python {floors().python}: {_listed(outside)}", path=where)


def _dependencies(elf: Elf, name: VariantName, where: str) -> Iterator[Diagnostic]:
    framework = "tvm-ffi" if name.kind is Kind.TVM_FFI else "torch"
    groups = ("system", framework, name.backend)
    major = (name.compute_version or "").partition(".")[0]
    for library in elf.needed:
        if not library_allowed(library, groups, major):
            yield finding("KCI745", f"it needs {library}, which {name.backend} variants cannot rely on", path=where)
    unexplained = [
        symbol.name
        for symbol in elf.undefined
        # A weak symbol may stay open; the program is written for that.
        if not (symbol.version or symbol.weak or symbol.name.startswith(("Py", "_Py")))
        and symbol.name not in python_symbols()
        and not symbol_explained(symbol.name, groups)
    ]
    if unexplained:
        message = f"undefined symbols without a version: {_listed(unexplained)}"
        yield finding("KCI746", message, path=where)


def _stable(elf: Elf, version: tuple[int, ...], where: str) -> Iterator[Diagnostic]:
    unstable = []
    newer = []
    for symbol in elf.undefined:
        scope = cpp_scope(symbol.name)
        if scope and scope[0] in _TORCH_CPP and scope[:2] not in _STABLE_CPP:
            unstable.append(symbol.name)
        added = torch_shims().get(symbol.name)
        if added is not None and added > version:
            newer.append(f"{symbol.name} ({'.'.join(map(str, added))})")
    if unstable:
        yield finding("KCI747", f"it uses torch's C++ interface: {_listed(unstable)}", path=where)
    if newer:
        shown = ".".join(map(str, version))
        yield finding("KCI748", f"the name says {shown}, it uses newer functions: {_listed(newer)}", path=where)


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more
