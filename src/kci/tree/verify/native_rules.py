"""Rules about native libraries (docs/format.md#requirements)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

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
from kci.tree.verify.subject import BinaryKind, VariantDir
from kci.utils.suggest import first_of
from kci.utils.walk import Entry

_SHOWN = 5
_CPU_LEVEL = 2
"""x86-64-v2, the minimum of current distributions."""
_STABLE_CPP = (("torch", "stable"), ("torch", "headeronly"))


def check_variant(variant: VariantDir) -> Findings:
    """Yield the findings about a variant's native libraries."""
    if variant.name and not variant.noarch:
        for item, kind in variant.libraries():
            yield from placed(_library(variant, variant.name, item, kind), item.name)


def _library(
    variant: VariantDir, name: VariantName, item: Entry, kind: BinaryKind | None
) -> Findings:
    system = variant.platform[1]
    expected = {"darwin": BinaryKind.MACH_O, "windows": BinaryKind.PE}.get(system, BinaryKind.ELF)
    if kind in (BinaryKind.ARCHIVE, BinaryKind.PROGRAM):
        rule = "KCI740" if item.name == variant.module else "KCI757"
        yield finding(rule, f"it is a {kind}, which nothing can load")
    elif not kind:
        yield finding("KCI740", f"it has the name of a library, and is not a {expected} file")
    elif kind is not expected:
        yield finding("KCI741", f"it is a {kind} file, the name says {name.system}")
    elif kind is not BinaryKind.ELF:
        yield finding("KCI750", f"of a {kind} file nothing more is checked")
    else:
        try:
            elf = read_elf(item.path)
        except (ElfError, OSError) as error:
            yield finding("KCI740", str(error))
        else:
            yield from _elf_library(variant, name, item, elf)


def _elf_library(variant: VariantDir, name: VariantName, item: Entry, elf: Elf) -> Findings:
    cpu, module = variant.platform[0], item.name == variant.module
    if elf.program and not module:
        yield finding("KCI757", "it is a program, which nothing can load")
    if elf.machine != cpu:
        yield finding("KCI741", f"it is for {elf.machine}-linux, the name says {name.system}")
    # the system's loader checks every required version, even unused ones
    for version in sorted(elf.required_versions):
        if cap := exceeded_cap(version, cpu):
            users = [symbol.name for symbol in elf.undefined if symbol.version == version]
            by = f" (for {_shortened(users)})" if users else ""
            yield finding("KCI742", f"it needs {version}{by}; manylinux_2_28 ends at {cap}")
    known, python = python_symbols(), floors().python
    undefined = [symbol.name for symbol in elf.undefined]
    outside = [each for each in undefined if each.startswith(("Py", "_Py")) and each not in known]
    if outside := outside + _newer(undefined, known, python):
        message = f"not in the stable ABI of Python {python}: {_shortened(outside)}"
        yield finding("KCI743", message)
    for path in elf.search_path:
        yield finding("KCI744", f"it has the search path {path!r} built in")
    yield from _hygiene(elf)
    yield from _dependencies(elf, name)
    if name.kind is Kind.STABLE_ABI:
        yield from _stable(elf, Version.parse(name.framework_version))
    elif name.kind is Kind.FULL:
        yield from _torch(elf, name.framework_version or "")
    init = f"PyInit_{item.name.partition('.')[0]}"
    if module and name.kind is not Kind.TVM_FFI and init not in elf.defined:
        yield finding("KCI749", f"it does not define {init}")


def _newer(names: Iterable[str], known: Mapping[str, Version], than: Version) -> list[str]:
    return [f"{name} ({known[name]})" for name in names if name in known and known[name] > than]


def _hygiene(elf: Elf) -> Findings:
    if elf.text_relocations:
        yield finding("KCI753", "it has text relocations")
    if elf.executable_stack:
        yield finding("KCI754", "it asks for an executable stack")
    if elf.cpu_level > _CPU_LEVEL:
        yield finding("KCI755", f"it needs a processor of x86-64-v{elf.cpu_level}")
    most = native_table().static_tls
    size, align = elf.static_tls
    if size > most["size"] or align > most["align"]:
        message = (
            f"it has {size} bytes of thread-local data in the static TLS block, aligned to {align}"
        )
        hint = (
            f"a library that is loaded later finds at most {most['size']} bytes there, aligned to "
            f"{most['align']}"
        )
        yield finding("KCI758", message, hint=hint)


def _torch(elf: Elf, version: str) -> Findings:
    exports, symbols = torch_exports(), elf.unversioned
    of_torch = [symbol for symbol in symbols if is_torch_name(symbol)]
    if old := [symbol for symbol in of_torch if uses_old_string(symbol)]:
        message = f"it uses std::string as it was before the C++11 ABI: {_shortened(old)}"
        yield finding("KCI752", message)
    elif missing := exports.missing(of_torch, version):
        fitting = exports.versions_with([*of_torch, *filter(is_std_name, symbols)])
        hint = (
            f"it fits torch {', '.join(fitting)}"
            if fitting
            else "build it again for the torch in its name"
        )
        yield finding("KCI751", f"torch {version} does not export {_shortened(missing)}", hint=hint)


def _dependencies(elf: Elf, name: VariantName) -> Findings:
    framework = "tvm-ffi" if name.kind is Kind.TVM_FFI else "torch"
    groups = ("system", "system-more", framework, name.backend)
    major = (name.compute_version or "").partition(".")[0]
    named = dict.fromkeys((*elf.needed, *sorted(elf.version_files)))
    refused = [library for library in named if not allowed_libraries(library, groups, major)]
    for library in refused:
        yield finding("KCI745", f"it needs {library}, which {name.backend} variants cannot rely on")
    exports, compute = toolkit_exports(name.backend), name.compute_version or ""
    strong = [item.name for item in elf.undefined if not item.weak]
    missing = []
    if exports:
        own = [symbol for symbol in strong if is_toolkit_name(symbol, name.backend)]
        if missing := exports.missing(own, compute):
            yield _toolkit(exports, missing, name)
    if name.kind is Kind.TVM_FFI:
        yield from _tvm_ffi(strong)
    torch = name.framework_version if name.kind is Kind.FULL else None
    loaded = loaded_libraries(elf.needed, groups, torch or "")
    recorded = (name.backend,) if exports and compute in exports.versions else ()
    yield from _prefix_fallback(strong, loaded, ("system", framework, *recorded))
    versions = _torch_versions(elf, name)
    of_others = defaultdict(list)
    for symbol in elf.unversioned:
        if not (
            symbol.startswith(("Py", "_Py"))
            or symbol in missing
            or symbol in python_symbols()
            or (framework == "tvm-ffi" and is_tvm_ffi_name(symbol))
            or (versions and torch_exports().provides(symbol, versions))
            or not owners(symbol).isdisjoint(loaded)
        ):
            of_others[min(owners(symbol), default="")].append(symbol)
    unexplained = of_others.pop("", [])
    for library, symbols in sorted(of_others.items()):
        shown = library.replace("{major}", major or "*")
        hint = "this variant cannot rely on that library"
        if allowed_libraries(shown, groups, major):
            hint = f"link it with -l{shown[3:].partition('.so')[0]}"
        message = f"it does not need {shown}, which has {_shortened(symbols)}"
        yield finding("KCI746", message, hint=hint)
    if unexplained:
        message = f"undefined symbols without a version: {_shortened(map(demangled, unexplained))}"
        yield finding("KCI746", message, hint=_explanation(unexplained, refused, versions))


def _explanation(symbols: list[str], refused: list[str], versions: list[str]) -> str:
    own = [symbol for symbol in symbols if not is_std_name(symbol)]
    if versions and not own:
        hint = (
            f"torch {' and '.join(versions)} would have to export them, as its own compiler's "
            "libstdc++ has them"
        )
        if fitting := torch_exports().versions_with(symbols):
            hint += f"; torch {', '.join(fitting)} does: link with the torch in the variant's name"
        return hint
    if refused:
        return f"they may be those of {_shortened(refused)}, which users do not have"
    if any(symbol.startswith("_Z") for symbol in own):
        return (
            "they are declared in a header and used, and no file in a `src` list of build.toml "
            "defines them: add that file, or define them as they are declared, with the same name "
            "and arguments"
        )
    return ""


def _toolkit(exports: Exports, missing: list[str], name: VariantName) -> Diagnostic:
    fitting, title = exports.versions_with(missing), BACKENDS[name.backend].title
    hint = ""
    if any(symbol.startswith(RELOCATABLE_SYMBOL) for symbol in missing):
        hint = RELOCATABLE_HINT
    elif fitting:
        hint = f"{title} {', '.join(fitting)} does: build it with the {title} in its name"
    message = f"{title} {name.compute_version} does not export {_shortened(missing)}"
    return finding("KCI746", message, hint=hint)


def _tvm_ffi(strong: list[str]) -> Findings:
    known, oldest = tvm_ffi_exports(), tvm_ffi_table().oldest
    symbols = set(filter(is_tvm_ffi_name, strong))
    if unknown := symbols - known.keys():
        yield finding("KCI746", f"apache-tvm-ffi does not export {_shortened(unknown)}")
    if newer := _newer(symbols, known, Version.parse(oldest)):
        hint = (
            f"users have apache-tvm-ffi {oldest} at least, and the name does not say that it "
            "needs a newer one"
        )
        message = f"it uses functions of newer releases of tvm-ffi: {_shortened(newer)}"
        yield finding("KCI748", message, hint=hint)


def _prefix_fallback(
    strong: list[str], loaded: frozenset[str], listed: tuple[str, ...]
) -> Findings:
    unlisted = loaded.difference(*(native_table().libraries.get(group, ()) for group in listed))
    asked = {symbol: libraries for symbol in strong if (libraries := owners(symbol) & unlisted)}
    if asked:
        of = {library.partition(".so")[0] for library in frozenset().union(*asked.values())}
        message = (
            f"that {_shortened(of)} export {_shortened(asked)} is not checked: kci has no list"
        )
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
    exports, shims = torch_exports(), torch_shims()
    names = [symbol.name for symbol in elf.undefined]
    unstable = [
        symbol
        for symbol in names
        if (scope := cpp_scope(symbol))
        and scope[0] in TORCH_NAMESPACES
        and scope[:2] not in _STABLE_CPP
    ]
    of_torch = [
        symbol for symbol in elf.unversioned if cpp_scope(symbol) is None and is_torch_name(symbol)
    ]
    newer = _newer(names, shims, version)
    missing = [
        symbol
        for symbol in exports.missing(of_torch, version.text)
        if shims.get(symbol, version) <= version
    ]
    if missing:
        yield finding("KCI751", f"torch {version} does not export {_shortened(missing)}")
    if unstable:
        yield finding("KCI747", f"it uses torch's C++ interface: {_shortened(unstable)}")
    if newer:
        message = f"the name says {version}, it uses newer functions: {_shortened(newer)}"
        yield finding("KCI748", message)


def _shortened(names: Iterable[str]) -> str:
    return first_of(sorted(names), _SHOWN)
