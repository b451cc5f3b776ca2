"""Rules about native libraries (docs/format.md#requirements)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kci.config.facts import BACKENDS, floors
from kci.config.values import Version
from kci.diagnostics import Diagnostic, Findings, finding, placed
from kci.matrix.variants import Kind, VariantName
from kci.tree.elf import Elf, ElfError, read_elf
from kci.tree.verify.abi import (
    TORCH_NAMESPACES,
    Exports,
    allowed_libraries,
    cpp_scope,
    demangled,
    exceeded_cap,
    is_std_name,
    is_toolkit_name,
    is_torch_name,
    is_tvm_ffi_name,
    loaded_libraries,
    native_table,
    owners,
    python_symbols,
    toolkit_exports,
    torch_exports,
    torch_shims,
    tvm_ffi_exports,
    tvm_ffi_table,
    uses_old_string,
)
from kci.tree.verify.fatbin import RELOCATABLE_HINT, RELOCATABLE_SYMBOL
from kci.tree.verify.subject import BinaryKind, VariantDir, is_static_executable
from kci.tree.verify.tree_rules import module_file
from kci.utils.suggest import first_of
from kci.utils.walk import Entry

_SHOWN = 5
_CPU_LEVEL = 2
"""x86-64-v2, the minimum of current distributions."""
_STABLE_CPP = (("torch", "stable"), ("torch", "headeronly"))


def check_variant(variant: VariantDir) -> Findings:
    """Yield the findings about a variant's native libraries."""
    if not variant.name or variant.noarch:
        return
    for item, kind in variant.libraries():
        yield from placed(_library(variant, variant.name, item, kind), item.name)


def _library(
    variant: VariantDir, name: VariantName, item: Entry, kind: BinaryKind | None
) -> Findings:
    system = (name.system or "").rpartition("-")[2]
    expected = {"darwin": BinaryKind.MACH_O, "windows": BinaryKind.PE}.get(system, BinaryKind.ELF)
    if kind is BinaryKind.ARCHIVE:
        yield finding("KCI757", "it is a static library, which nothing can load")
    elif not kind:
        yield finding("KCI740", f"it has the name of a library, and is not a {expected.value} file")
    elif kind is not expected:
        yield finding("KCI741", f"it is a {kind.value} file, the name says {name.system}")
    elif kind is BinaryKind.ELF:
        yield from _elf_library(variant, name, item)
    else:
        yield finding("KCI750", f"of a {kind.value} file nothing more is checked")


def _elf_library(variant: VariantDir, name: VariantName, item: Entry) -> Findings:
    cpu = (name.system or "").partition("-")[0]
    metadata = variant.metadata
    module = metadata and item.name == module_file(name, metadata)
    try:
        if not module and is_static_executable(item.path):
            yield finding("KCI757", "it is a program")
            return
        elf = read_elf(item.path)
    except (ElfError, OSError) as error:
        yield finding("KCI740", str(error))
        return
    if elf.program and not module:
        yield finding("KCI757", "it is a program")
    if elf.machine != cpu:
        yield finding("KCI741", f"it is for {elf.machine}-linux, the name says {name.system}")
    yield from _versions(elf, cpu)
    yield from _python(elf)
    for path in elf.search_path:
        yield finding("KCI744", f"it has the search path {path!r} built in")
    yield from _hygiene(elf)
    yield from _dependencies(elf, name)
    if name.kind is Kind.STABLE_ABI:
        yield from _stable(elf, Version.parse(name.framework_version))
    elif name.kind is Kind.FULL:
        yield from _torch(elf, name)
    if metadata and name.kind is not Kind.TVM_FFI and module:
        init = f"PyInit_{metadata.id}"
        if init not in elf.defined:
            yield finding("KCI749", f"it does not define {init}")


def _hygiene(elf: Elf) -> Findings:
    if elf.text_relocations:
        yield finding("KCI753", "it has text relocations")
    if elf.executable_stack:
        yield finding("KCI754", "it asks for an executable stack")
    if elf.cpu_level > _CPU_LEVEL:
        yield finding("KCI755", f"it needs a processor of x86-64-v{elf.cpu_level}")
    room = native_table().static_tls
    size, align = elf.static_tls
    if size > room["size"] or align > room["align"]:
        message = (
            f"it has {size} bytes of thread-local data in the static TLS block, aligned to {align}"
        )
        hint = (
            f"a library that is loaded later finds at most {room['size']} bytes there, aligned to "
            f"{room['align']}"
        )
        yield finding("KCI758", message, hint=hint)


def _torch(elf: Elf, name: VariantName) -> Findings:
    symbols = [symbol.name for symbol in elf.undefined if not symbol.weak and not symbol.version]
    old = [symbol for symbol in symbols if is_torch_name(symbol) and uses_old_string(symbol)]
    if old:
        message = f"it uses std::string as it was before the C++11 ABI: {_shortened(old)}"
        yield finding("KCI752", message)
        return
    version = name.framework_version or ""
    missing = torch_exports().missing(filter(is_torch_name, symbols), version)
    if missing:
        fitting = torch_exports().versions_with(
            symbol for symbol in symbols if is_torch_name(symbol) or is_std_name(symbol)
        )
        hint = (
            f"it fits torch {', '.join(fitting)}"
            if fitting
            else "build it again for the torch in its name"
        )
        yield finding("KCI751", f"torch {version} does not export {_shortened(missing)}", hint=hint)


def _versions(elf: Elf, cpu: str) -> Findings:
    # the system's loader checks every required version, even unused ones
    users = defaultdict(list)
    for symbol in elf.undefined:
        users[symbol.version].append(symbol.name)
    for version in sorted(elf.required_versions):
        if cap := exceeded_cap(version, cpu):
            by = f" (for {_shortened(users[version])})" if users[version] else ""
            yield finding("KCI742", f"it needs {version}{by}; manylinux_2_28 ends at {cap}")


def _python(elf: Elf) -> Findings:
    known = python_symbols()
    outside = []
    for symbol in elf.undefined:
        added = known.get(symbol.name)
        if added is None and symbol.name.startswith(("Py", "_Py")):
            outside.append(symbol.name)
        elif added is not None and added > floors().python:
            outside.append(f"{symbol.name} ({added})")
    if outside:
        yield finding(
            "KCI743",
            f"not in the stable ABI of Python {floors().python}: {_shortened(outside)}",
        )


def _dependencies(elf: Elf, name: VariantName) -> Findings:
    framework = "tvm-ffi" if name.kind is Kind.TVM_FFI else "torch"
    groups = ("system", "system-more", framework, name.backend)
    major = (name.compute_version or "").partition(".")[0]
    named = dict.fromkeys((*elf.needed, *sorted(elf.version_files)))
    refused = [library for library in named if not allowed_libraries(library, groups, major)]
    for library in refused:
        yield finding("KCI745", f"it needs {library}, which {name.backend} variants cannot rely on")
    exports = toolkit_exports(name.backend)
    strong = [item.name for item in elf.undefined if not item.weak]
    missing = []
    if exports:
        own = [symbol for symbol in strong if is_toolkit_name(symbol, name.backend)]
        if missing := exports.missing(own, name.compute_version or ""):
            yield _toolkit(exports, missing, name)
    if name.kind is Kind.TVM_FFI:
        yield from _tvm_ffi(strong)
    torch = name.framework_version if name.kind is Kind.FULL else None
    loaded = loaded_libraries(elf.needed, groups, torch or "")
    recorded = (name.backend,) if exports and name.compute_version in exports.versions else ()
    yield from _prefix_fallback(strong, loaded, ("system", framework, *recorded))
    versions = _torch_versions(elf, name)
    open_symbols = [
        symbol.name
        for symbol in elf.undefined
        # a program may leave weak symbols open
        if not (
            symbol.version
            or symbol.weak
            or symbol.name.startswith(("Py", "_Py"))
            or symbol.name in missing
        )
        and symbol.name not in python_symbols()
        and owners(symbol.name).isdisjoint(loaded)
        and not (framework == "tvm-ffi" and is_tvm_ffi_name(symbol.name))
        and not (versions and torch_exports().provides(symbol.name, versions))
    ]
    of_others = defaultdict(list)
    for symbol in open_symbols:
        of_others[min(owners(symbol), default="")].append(symbol)
    unexplained = of_others.pop("", [])
    for library, symbols in sorted(of_others.items()):
        shown = library.replace("{major}", major or "*")
        allowed = allowed_libraries(shown, groups, major)
        hint = (
            f"link it with -l{shown[3:].partition('.so')[0]}"
            if allowed
            else "this variant cannot rely on that library"
        )
        yield finding(
            "KCI746", f"it does not need {shown}, which has {_shortened(symbols)}", hint=hint
        )
    if unexplained:
        hint = (
            f"they may be those of {_shortened(refused)}, which users do not have"
            if refused
            else ""
        )
        if versions and all(map(is_std_name, unexplained)):
            hint = (
                f"torch {' and '.join(versions)} would have to export them, as its own compiler's "
                "libstdc++ has them"
            )
            if fitting := torch_exports().versions_with(unexplained):  # all of std::
                hint += (
                    f"; torch {', '.join(fitting)} does: link with the torch in the variant's name"
                )
        elif not hint and any(
            symbol.startswith("_Z") and not is_std_name(symbol) for symbol in unexplained
        ):
            hint = (
                "they are declared in a header and used, and no file in a `src` list of "
                "build.toml defines them: add that file, or define them as they are declared, "
                "with the same name and arguments"
            )
        message = f"undefined symbols without a version: {_shortened(map(demangled, unexplained))}"
        yield finding("KCI746", message, hint=hint)


def _toolkit(exports: Exports, missing: list[str], name: VariantName) -> Diagnostic:
    fitting, title = exports.versions_with(missing), BACKENDS[name.backend].title
    hint = (
        f"{title} {', '.join(fitting)} does: build it with the {title} in its name"
        if fitting
        else ""
    )
    if any(symbol.startswith(RELOCATABLE_SYMBOL) for symbol in missing):
        hint = RELOCATABLE_HINT
    message = f"{title} {name.compute_version} does not export {_shortened(missing)}"
    return finding("KCI746", message, hint=hint)


def _tvm_ffi(strong: list[str]) -> Findings:
    known, oldest = tvm_ffi_exports(), tvm_ffi_table().oldest
    symbols = set(filter(is_tvm_ffi_name, strong))
    if unknown := symbols - known.keys():
        yield finding("KCI746", f"apache-tvm-ffi does not export {_shortened(unknown)}")
    newer = {
        symbol: known[symbol]
        for symbol in symbols & known.keys()
        if known[symbol] > Version.parse(oldest)
    }
    if newer:
        listed = _shortened(f"{symbol} ({since})" for symbol, since in newer.items())
        hint = (
            f"users have apache-tvm-ffi {oldest} at least, and the name does not say that it "
            "needs a newer one"
        )
        yield finding(
            "KCI748", f"it uses functions of newer releases of tvm-ffi: {listed}", hint=hint
        )


def _prefix_fallback(
    strong: list[str], loaded: frozenset[str], listed: tuple[str, ...]
) -> Findings:
    with_list = {library for group in listed for library in native_table().libraries.get(group, ())}
    asked = {symbol: owners(symbol) & loaded - with_list for symbol in strong}
    if symbols := [symbol for symbol, libraries in asked.items() if libraries]:
        of = _shortened(
            {library.partition(".so")[0] for libraries in asked.values() for library in libraries}
        )
        message = f"that {of} export {_shortened(symbols)} is not checked: kci has no list"
        yield finding("KCI750", message)


def _torch_versions(elf: Elf, name: VariantName) -> list[str]:
    # only a library that links torch finds torch's exports
    if name.kind is Kind.TVM_FFI or not any(
        library.startswith(("libc10", "libtorch")) for library in elf.needed
    ):
        return []
    own = name.framework_version or "0"
    if name.kind is Kind.FULL:
        return [own]
    return [
        item for item in torch_exports().versions if Version.parse(item) >= Version.parse(own)
    ] or [own]


def _stable(elf: Elf, version: Version) -> Findings:
    unstable = []
    newer = []
    for symbol in elf.undefined:
        scope = cpp_scope(symbol.name)
        if scope and scope[0] in TORCH_NAMESPACES and scope[:2] not in _STABLE_CPP:
            unstable.append(symbol.name)
        added = torch_shims().get(symbol.name)
        if added is not None and added > version:
            newer.append(f"{symbol.name} ({added})")
    c_names = [
        item.name for item in elf.undefined if not item.weak and cpp_scope(item.name) is None
    ]
    missing = torch_exports().missing(filter(is_torch_name, c_names), version.text)
    if missing := [symbol for symbol in missing if torch_shims().get(symbol, version) <= version]:
        yield finding("KCI751", f"torch {version} does not export {_shortened(missing)}")
    if unstable:
        yield finding("KCI747", f"it uses torch's C++ interface: {_shortened(unstable)}")
    if newer:
        yield finding(
            "KCI748",
            f"the name says {version}, it uses newer functions: {_shortened(newer)}",
        )


def _shortened(names: Iterable[str]) -> str:
    return first_of(sorted(names), _SHOWN)
