"""The translation units of a variant, checked."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from kci.builders.kernel_files import CONTROL, kernel_error, resolve_inside, source_file
from kci.builders.process.run import Log
from kci.builders.request import Request
from kci.builders.toolchains import oneapi
from kci.builders.toolchains.compilers import compiler_id, variant_compiler
from kci.config.facts import BACKENDS, has_compiler
from kci.config.model import Component
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


class FlagContext(Frozen):
    """Values for generator expressions."""

    language: str
    """As in CMake: `CXX`, `CUDA` or `HIP`."""
    compilers: dict[str, str]
    """CMake's compiler id by language, such as `GNU`."""


def expand_flag(flag: str, facts: FlagContext) -> tuple[str, ...]:
    """Evaluate CMake generator expressions in a flag.

    Raises ValueError for an unknown or open one.
    """
    if "$<" not in flag:
        return (flag,)
    while match := _INNERMOST.search(flag):
        value = _value(match[1], facts).translate(_PROTECTED)
        flag = flag[: match.start()] + value + flag[match.end() :]
    plain = flag.translate(_PLAIN)
    if _OPEN in flag:
        raise ValueError(f"kci does not know the generator expression {plain}")
    if "$<" in plain:
        raise ValueError(f"the generator expression {plain} is not closed")
    return tuple(part for part in plain.split(";") if part)


def _value(inside: str, facts: FlagContext) -> str:
    name, colon, argument = inside.partition(":")
    values = {f"{language}_COMPILER_ID": compiler for language, compiler in facts.compilers.items()}
    values |= {"PLATFORM_ID": "Linux", "COMPILE_LANGUAGE": facts.language, "CONFIG": "Release"}
    unknown = f"{_OPEN}{inside}>"
    if not colon:
        return (values | _LITERALS).get(name, unknown)
    if name == "0":
        return ""
    if _OPEN in inside:
        return unknown
    if name == "1":
        return argument
    if name == "IF":
        return [*argument.split(",", 2), "", ""][1 if argument.startswith("1,") else 2]
    holds = _holds(name, argument.split(","), facts, values)
    return unknown if holds is None else "1" if holds else "0"


def _holds(
    name: str, arguments: list[str], facts: FlagContext, values: dict[str, str]
) -> bool | None:
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
            return language == facts.language and facts.compilers.get(language) in compilers
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


class _Origin(Frozen):
    # a table of build.toml with sources
    label: str
    src: tuple[str, ...]
    include: tuple[str, ...]
    cxx_flags: tuple[str, ...]
    backend: str = ""
    """Empty without device code."""
    device_flags: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    lacks_archs: bool = False
    """True without code for the requested archs."""
    depends: tuple[Depend, ...] = ()


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
    include, flags = framework.include or (), framework.cxx_flags or ()
    origins = [_Origin(request.build.framework_name, framework.src, include, flags)]
    origins += [_origin(request, label, component, log) for label, component in components.items()]
    if request.options.archs and all(origin.lacks_archs for origin in origins if origin.archs):
        raise UsageError(
            f"no component has code for {', '.join(request.options.archs)}",
            "`kci matrix --format json` lists its archs",
        )
    units: dict[PurePosixPath, Unit] = {}
    for origin in origins:
        for unit in _units(request, origin):
            known = units.get(unit.source)
            # nvcc and ninja need a plain name; the number keeps it unique
            place = f"obj/{len(units):03d}/{_ODD.sub('_', Path(unit.shown).name)}.o"
            units[unit.source] = _merge_units(known, unit) if known else replace(unit, object=place)
    paths = [source.as_posix() for source in units]
    named = sources_with_name(request.files(), request.variant, paths)
    return Sources(
        units=tuple(
            replace(unit, uses_name=path in named)
            for path, unit in zip(paths, units.values(), strict=True)
        ),
        depends=tuple(sorted({depend for part in components.values() for depend in part.depends})),
        archs=tuple(sorted({arch for origin in origins for arch in origin.archs})),
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


def _origin(request: Request, label: str, component: Component, log: Log) -> _Origin:
    include, flags = component.include or (), component.cxx_flags or ()
    origin = _Origin(f"kernel.{label}", component.src, include, flags, depends=component.depends)
    facts = BACKENDS[component.backend]
    if code := oneapi.sycl_code(request.build, request.variant):
        flags = (*origin.cxx_flags, *oneapi.compile_flags(code), *component.device_flags)
        return replace(origin, cxx_flags=flags)
    if not facts.archs:
        return origin
    assert request.variant.compute is not None  # noqa: S101  - every backend with archs has compute versions
    compute, flags = request.variant.compute, component.device_flags
    if facts.compiler == "nvcc" and compute < _STUB_SINCE:
        flags = tuple(flag for flag in flags if not flag.startswith(_STUB_FLAGS))
    tables = arch_tables(request.variant.archs_since or OLDEST)
    listed = component_archs(component, compute, tables)
    archs = _requested_archs(request, compute, listed) if request.options.archs else listed
    if not listed:
        listed_archs = ", ".join(component.archs) or "no archs"
        raise kernel_error(
            "KCI508",
            f"kernel.{label} lists {listed_archs}, and {facts.title} {compute} supports none of it",
        )
    for arch in archs if facts.capabilities else ():
        if not toolkits().at(compute).builds(arch.removesuffix(PTX)):
            raise kernel_error(
                "KCI508",
                f"kernel.{label} lists {arch}, which {facts.title} {compute} does not support",
            )
    if not archs:
        log(
            f"component {label} has no code for {', '.join(request.options.archs)}: compiled for "
            f"{listed[0]} alone"
        )
    # its functions must exist even so
    return replace(
        origin,
        backend=component.backend,
        device_flags=flags,
        archs=archs or listed[:1],
        lacks_archs=not archs,
    )


def _requested_archs(request: Request, compute: Version, archs: tuple[str, ...]) -> tuple[str, ...]:
    facts = BACKENDS[request.variant.backend]
    if not facts.capabilities:
        return tuple(arch for arch in archs if arch in request.options.archs)
    for arch in request.options.archs:
        if not toolkits().at(compute).builds(arch.removesuffix(PTX)):
            raise UsageError(
                f"{facts.title} {compute} knows no arch {arch!r}", "write it as 9.0, 9.0a or 12.0"
            )
    bases = tuple(arch.removesuffix(PTX).rstrip("af") for arch in request.options.archs)
    return intersect_capabilities(archs, bases, exact=False)


def _units(request: Request, origin: _Origin) -> Iterator[Unit]:
    for flag in (*origin.cxx_flags, *origin.device_flags):
        if CONTROL.search(flag):
            raise kernel_error(
                "KCI506",
                f"{origin.label} has the flag {flag!r}, which cannot be written into a build file",
            )
    kernel_dir, root = request.kernel_dir, request.kernel_dir.resolve()
    flags: dict[str, tuple[str, ...]] = {}
    key = f"{origin.label}.include"
    folders = (resolve_inside(kernel_dir, entry, key) for entry in origin.include)
    include = tuple(PurePosixPath(folder.relative_to(root)) for folder in folders)
    for entry in dict.fromkeys(origin.src):
        source_file(kernel_dir, entry, f"{origin.label}.src")
        language = _language(origin, entry)
        if not language:
            continue
        if language not in flags:
            flags[language] = tuple(_expanded_flags(request.variant, origin, language))
        yield Unit(
            source=PurePosixPath(posixpath.normpath(entry)),
            shown=entry,
            object="",
            language=language,
            include=include,
            flags=flags[language],
            archs=() if language == CXX else origin.archs,
            depends=origin.depends,
        )


def _expanded_flags(variant: Variant, origin: _Origin, language: str) -> Iterator[str]:
    flags = origin.cxx_flags if language == CXX else origin.device_flags
    if not any("$<" in flag for flag in flags):
        yield from flags
        return
    compilers = dict(facts.compiler_id for facts in BACKENDS.values() if facts.compiler)
    known, own = BACKENDS[variant.backend].compiler_id
    compilers[CXX] = own if known == CXX else compiler_id(variant_compiler(variant))
    facts = FlagContext(language, compilers)
    for flag in flags:
        try:
            yield from expand_flag(flag, facts)
        except ValueError as error:
            raise kernel_error(
                "KCI506", f"{origin.label} has the flag {flag!r}: {error}"
            ) from error


def _merge_units(first: Unit, later: Unit) -> Unit:
    # compiled once, as by the reference's CMake target; the later component's `include` wins
    return replace(
        first,
        include=later.include or first.include,
        flags=first.flags if later.flags == first.flags else (*first.flags, *later.flags),
        archs=tuple(sorted({*first.archs, *later.archs}, key=natural)),
        depends=tuple(dict.fromkeys((*first.depends, *later.depends))),
    )


def _language(origin: _Origin, entry: str) -> str | None:
    # None for a header
    ending = PurePosixPath(entry).suffix.lower()
    if ending in HEADER_ENDINGS:
        return None
    if ending in CXX_ENDINGS:
        return CXX
    if origin.backend and ending in BACKENDS[origin.backend].endings:
        return BACKENDS[origin.backend].compiler_id[0]
    other = "for a component of another backend"
    where = other if has_compiler(entry) else "for which kci has no compiler"
    raise kernel_error("KCI502", f"{origin.label}.src names {entry!r}, a source {where}")
