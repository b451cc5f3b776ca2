"""The translation units of a variant, checked."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from kci.builders.kernel_files import CONTROL, kernel_error, resolve_inside
from kci.builders.process.run import Log
from kci.builders.request import Request
from kci.builders.toolchains import oneapi
from kci.builders.toolchains.compilers import compiler_id, variant_compiler
from kci.config.facts import BACKENDS, HOST, has_compiler
from kci.config.model import Component, CpuComponent
from kci.config.values import CXX_ENDINGS, HEADER_ENDINGS, Depend, Version
from kci.errors import BuildFailedError, UsageError
from kci.matrix.archs import PTX, component_archs, intersect_capabilities, natural
from kci.matrix.catalog.rows import OLDEST, arch_tables, toolkits
from kci.matrix.variants import Variant
from kci.plan.inputs.kernel_inputs import KernelInputs, active
from kci.plan.inputs.source_lints import included
from kci.utils.frozen import Frozen

CXX = "CXX"  # as in CMake

_LITERALS = {"COMMA": ",", "SEMICOLON": ";", "ANGLE-R": ">", "QUOTE": '"'}
_FALSE = ("", "0", "FALSE", "OFF", "N", "NO", "IGNORE", "NOTFOUND")
_INNERMOST = re.compile(r"\$<((?:(?!\$<)[^>])*)>")
_OPEN = "\2"
"""Starts an expression that is not known."""
_PROTECTED = str.maketrans(",>", "\0\1")
"""Syntax, which values must not have."""
_PLAIN = str.maketrans({"\0": ",", "\1": ">", _OPEN: "$<"})


def expand_flag(flag: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """Evaluate CMake generator expressions in a flag; `values` are those of plain names.

    Raises ValueError for a flag with an unknown or open one, or with control characters.
    """
    if CONTROL.search(flag):
        raise ValueError("it cannot be written into a build file")
    if "$<" not in flag:
        return (flag,)
    while match := _INNERMOST.search(flag):
        value = _value(match[1], values).translate(_PROTECTED)
        flag = flag[: match.start()] + value + flag[match.end() :]
    plain = flag.translate(_PLAIN)
    if _OPEN in flag:
        raise ValueError(f"kci does not know the generator expression {plain}")
    if "$<" in plain:
        raise ValueError(f"the generator expression {plain} is not closed")
    return tuple(part for part in plain.split(";") if part)


def _value(inside: str, values: Mapping[str, str]) -> str:
    name, colon, argument = inside.partition(":")
    unknown = f"{_OPEN}{inside}>"
    if not colon:
        return {**values, **_LITERALS}.get(name, unknown)
    if name == "0":
        return ""
    if _OPEN in inside:
        return unknown
    if name == "1":
        return argument
    if name == "IF":
        return [*argument.split(",", 2), "", ""][1 if argument.startswith("1,") else 2]
    holds = _holds(name, argument.split(","), values)
    return unknown if holds is None else "1" if holds else "0"


def _holds(name: str, arguments: list[str], values: Mapping[str, str]) -> bool | None:
    match name:
        case "NOT":
            return arguments[0] != "1"
        case "AND":
            return set(arguments) == {"1"}
        case "OR":
            return "1" in arguments
        case "BOOL":
            value = arguments[0].upper()
            return value not in _FALSE and not value.endswith("-NOTFOUND")
        case "STREQUAL":
            return len(arguments) == 2 and arguments[0] == arguments[1]
        case "COMPILE_LANG_AND_ID":
            language, *compilers = arguments
            own = language == values["COMPILE_LANGUAGE"]
            return own and values[f"{language}_COMPILER_ID"] in compilers
        case "CONFIG":
            return "RELEASE" in map(str.upper, arguments)
    return values[name] in arguments if name in values else None


# flags that a toolkit below 12.8 rejects (docs/format.md#flags)
_STUB_FLAGS = ("-static-global-template-stub", "--static-global-template-stub")
_STUB_SINCE = Version.parse("12.8")
_ODD = re.compile(r"[^\w.-]", re.ASCII)
_NAME_MACROS = (b"TORCH_EXTENSION_NAME", b"TVM_FFI_EXTENSION_NAME")


class Unit(Frozen):
    """A source to compile."""

    source: PurePosixPath
    """Relative to the kernel, links unresolved: a link has its own language and folder."""
    shown: str
    """As in build.toml."""
    object: str
    """Relative to the work directory, in a separate folder: nvcc works in it."""
    language: str
    """CMake's: `CXX`, or that of the backend's device compiler."""
    include: tuple[PurePosixPath, ...]
    flags: tuple[str, ...]
    """In the order of build.toml."""
    archs: tuple[str, ...] = ()
    depends: tuple[Depend, ...] = ()
    """The component's own; those of others follow."""
    translated: bool = False
    """True for paths in hipify's output."""
    uses_name: bool = True
    """True if the source may use the extension's name, the kernel id."""

    @property
    def openmp(self) -> bool:
        return any("-fopenmp" in flag for flag in self.flags)


class Sources(Frozen):
    """The units of a variant."""

    units: tuple[Unit, ...]
    depends: tuple[Depend, ...]
    archs: tuple[str, ...]
    """Union of the components' archs, sorted as text (docs/format.md#arch-order)."""


def collect_units(request: Request, log: Log) -> Sources:
    """List the units in the order of build.toml; a component above the variant's toolkit is left
    out.

    Raises FindingsError: a faulty source or flag, or no arch left. UnsafeError: a path leads out of
    the kernel. BuildFailedError: no component left. UsageError: no component for a requested arch.
    """
    framework = request.build.torch or request.build.tvm_ffi
    assert framework  # noqa: S101  - the native builder is asked for compiled kernels only
    components = _active(request, log)
    if not components:
        raise BuildFailedError(
            f"{request.variant.name} has no component to compile",
            "lower the component's cuda-minver, or raise general.cuda.minver to leave the variant "
            "out",
        )
    archs = _archs(request, components, log)
    host = CpuComponent((), framework.src, framework.include, framework.cxx_flags)
    found = [*_units(request, request.build.framework_name, host)]
    for label, component in components.items():
        found += _units(request, f"kernel.{label}", component, archs.get(label, ()))
    units: dict[PurePosixPath, Unit] = {}
    for unit in found:
        known = units.get(unit.source)
        # nvcc and ninja need a plain name; the number keeps it unique
        place = f"obj/{len(units):03d}/{_ODD.sub('_', Path(unit.shown).name)}.o"
        units[unit.source] = _merge_units(known, unit) if known else replace(unit, object=place)
    paths = [source.as_posix() for source in units]
    named = sources_with_name(request.files(), request.variant, paths)
    return Sources(
        units=tuple(
            replace(unit, uses_name=unit.source.as_posix() in named) for unit in units.values()
        ),
        depends=tuple(sorted({depend for part in components.values() for depend in part.depends})),
        archs=tuple(sorted({arch for listed in archs.values() for arch in listed})),
    )


def sources_with_name(inputs: KernelInputs, variant: Variant, sources: Collection[str]) -> set[str]:
    """The sources that may use the extension's name, by their own text; all of them if a shared
    file uses it.
    """
    tree = inputs.tree
    texts = {real: tree.content(real) for _, real in inputs.compiled_from(variant) if real}
    mention = {real for real, text in texts.items() if any(macro in text for macro in _NAME_MACROS)}
    compiled = {source: tree.file(inputs.inside(source)) for source in sources}
    names = {posixpath.basename(name) for text in texts.values() for name in included(text)}
    if mention - {*compiled.values()} or names & set(map(posixpath.basename, mention)):
        return {*sources}
    return {source for source, real in compiled.items() if real in mention}


def _active(request: Request, log: Log) -> dict[str, Component]:
    components = active(request.build, request.variant)
    for label, component in request.build.components(request.variant.backend).items():
        if label not in components:
            needs = f"it needs {BACKENDS[component.backend].title} {component.minver}"
            has = f"this variant has {request.variant.compute}"
            log(f"component {label} is left out: {needs}, and {has}")
    return components


def _archs(
    request: Request, components: Mapping[str, Component], log: Log
) -> dict[str, tuple[str, ...]]:
    # by label; empty for a backend without them
    facts, compute = BACKENDS[request.variant.backend], request.variant.compute
    if not facts.archs or compute is None:
        return {}
    tables = arch_tables(request.variant.archs_since or OLDEST)
    listed = {label: component_archs(part, compute, tables) for label, part in components.items()}
    for label, archs in listed.items():
        wrong = [
            arch
            for arch in archs
            if facts.capabilities and not toolkits().builds(arch.removesuffix(PTX), compute)
        ]
        if wrong or not archs:
            names = ", ".join(wrong or components[label].archs) or "no archs"
            message = (
                f"kernel.{label} lists {names}, which {facts.title} {compute} does not support"
            )
            raise kernel_error("KCI508", message)
    if not request.options.archs:
        return listed
    chosen = {label: _requested_archs(request, compute, archs) for label, archs in listed.items()}
    requested = ", ".join(request.options.archs)
    if not any(chosen.values()):
        raise UsageError(
            f"no component has code for {requested}", "`kci matrix --format json` lists its archs"
        )
    for label, archs in chosen.items():
        if not archs:
            # its functions must exist even so
            chosen[label] = listed[label][:1]
            told = f"component {label} has no code for {requested}"
            log(f"{told}: compiled for {listed[label][0]} alone")
    return chosen


def _requested_archs(request: Request, compute: Version, archs: tuple[str, ...]) -> tuple[str, ...]:
    facts = BACKENDS[request.variant.backend]
    if not facts.capabilities:
        return tuple(arch for arch in archs if arch in request.options.archs)
    for arch in request.options.archs:
        if not toolkits().builds(arch.removesuffix(PTX), compute):
            raise UsageError(
                f"{facts.title} {compute} knows no arch {arch!r}", "write it as 9.0, 9.0a or 12.0"
            )
    bases = tuple(arch.removesuffix(PTX).rstrip("af") for arch in request.options.archs)
    return intersect_capabilities(archs, bases, exact=False)


def _units(
    request: Request, label: str, component: Component, archs: tuple[str, ...] = ()
) -> Iterator[Unit]:
    flags = {
        language: tuple(_expanded(request.variant, label, language, listed))
        for language, listed in _flags(request, component).items()
    }
    kernel_dir, root, key = request.kernel_dir, request.kernel_dir.resolve(), f"{label}.include"
    folders = (resolve_inside(kernel_dir, entry, key) for entry in component.include or ())
    include = tuple(PurePosixPath(folder.relative_to(root)) for folder in folders)
    for entry in dict.fromkeys(component.src):
        real = resolve_inside(kernel_dir, entry, f"{label}.src")
        if not real.is_file():
            reason = "is not a regular file" if real.exists() else "does not exist"
            raise kernel_error("KCI501", f"{label}.src names {entry!r}, which {reason}")
        if language := _language(label, entry, component.backend):
            yield Unit(
                source=PurePosixPath(posixpath.normpath(entry)),
                shown=entry,
                object="",
                language=language,
                include=include,
                flags=flags[language],
                archs=() if language == CXX else archs,
                depends=component.depends,
            )


def _flags(request: Request, component: Component) -> dict[str, tuple[str, ...]]:
    # by language, as in build.toml
    flags, facts = {CXX: component.cxx_flags or ()}, BACKENDS[component.backend]
    variant, own = request.variant, component.device_flags
    if facts.compiler:
        old = facts.compiler == "nvcc" and variant.compute and variant.compute < _STUB_SINCE
        flags[facts.compiler_id[0]] = tuple(
            flag for flag in own if not (old and flag.startswith(_STUB_FLAGS))
        )
    elif component.backend != HOST and (code := oneapi.sycl_code(request.build, variant)):
        flags[CXX] += (*oneapi.compile_flags(code), *own)
    return flags


def _expanded(variant: Variant, label: str, language: str, flags: Collection[str]) -> Iterator[str]:
    compilers = dict(facts.compiler_id for facts in BACKENDS.values() if facts.compiler)
    if any("$<" in flag for flag in flags):
        known, own = BACKENDS[variant.backend].compiler_id
        compilers[CXX] = own if known == CXX else compiler_id(variant_compiler(variant))
    values = {f"{name}_COMPILER_ID": compiler for name, compiler in compilers.items()}
    values |= {"PLATFORM_ID": "Linux", "COMPILE_LANGUAGE": language, "CONFIG": "Release"}
    for flag in flags:
        try:
            yield from expand_flag(flag, values)
        except ValueError as error:
            raise kernel_error("KCI506", f"{label} has the flag {flag!r}: {error}") from error


def _merge_units(first: Unit, later: Unit) -> Unit:
    # compiled once, as by the reference's CMake target; the later component's `include` wins
    return replace(
        first,
        include=later.include or first.include,
        flags=first.flags if later.flags == first.flags else (*first.flags, *later.flags),
        archs=tuple(sorted({*first.archs, *later.archs}, key=natural)),
        depends=tuple(dict.fromkeys((*first.depends, *later.depends))),
    )


def _language(label: str, entry: str, backend: str) -> str | None:
    # None for a header
    ending = PurePosixPath(entry).suffix.lower()
    if ending in HEADER_ENDINGS:
        return None
    if ending in CXX_ENDINGS:
        return CXX
    if ending in BACKENDS[backend].endings:
        return BACKENDS[backend].compiler_id[0]
    other = "for a component of another backend"
    where = other if has_compiler(entry) else "for which kci has no compiler"
    raise kernel_error("KCI502", f"{label}.src names {entry!r}, a source {where}")
