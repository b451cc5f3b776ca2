"""Lints that need the catalog, one generator per rule, in `MATRIX_LINTS`; at each toolkit of the
release variants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from kci.config.document import KeyPath
from kci.config.facts import BACKENDS
from kci.config.file_lints import LintFinding, Lints, bounds_inverted, compiler_flags, findings_of
from kci.config.model import Component
from kci.config.reader import Kernel
from kci.config.values import Backend, Version, quoted
from kci.diagnostics import Diagnostic, Severity, rules
from kci.matrix.archs import PTX, arch_lists, component_archs, natural, too_old
from kci.matrix.catalog.rows import Catalog, Row, toolkits
from kci.matrix.selection import select, why_excluded
from kci.matrix.variants import Kind, Variant
from kci.utils.suggest import one_of


class Subject:
    """A kernel with its release variants, and cached facts for lints."""

    def __init__(self, kernel: Kernel, catalog: Catalog) -> None:
        self.kernel = kernel
        self.catalog = catalog

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        return select(self.kernel, self.catalog).variants

    @cached_property
    def computes(self) -> dict[str, list[Version]]:
        """The compute versions of compiled variants by backend, oldest first."""
        compiled = [item for item in self.variants if item.kind is not Kind.NOARCH]
        return {
            name: sorted(
                {item.compute for item in compiled if item.backend == name and item.compute}
            )
            for name in Backend
        }

    def usable(self, backend: Backend) -> list[Row]:
        """The rows for a backend that a release could use, without bounds."""
        rows = [row for row in self.catalog.rows if row.backend == backend and row.bundled]
        return [row for row in rows if self.kernel.build.tvm_ffi is None or row.tvm_ffi is not None]

    @cached_property
    def entries(self) -> list[_Entry]:
        """Each capability that a toolkit ever built, and what becomes of it."""
        entries = []
        for label, component in self.kernel.build.kernel.items():
            archs = component.archs
            built = {
                version: {
                    arch.removesuffix(PTX)
                    for arch in component_archs(component, version, self.catalog.archs)
                }
                for version in self.toolkits_of(component)
            }
            for text in dict.fromkeys(archs):
                if not (newest := toolkits().newest_building(text)):
                    continue
                place = ("kernel", label, BACKENDS[component.backend].archs, archs.index(text))
                entry = _Entry(place, text, archs, [], [], [])
                entries.append(entry)
                for version, kept in built.items():
                    is_kept = text.removesuffix(PTX) in kept
                    if toolkits().builds(text, version):
                        entry.lost.extend([] if is_kept else [version])
                    elif is_kept:
                        entry.refused.append(version)
                    elif newest < version:
                        entry.too_new.append(version)
        return entries

    def toolkits_of(self, component: Component) -> list[Version]:
        """The compute versions at which a component is compiled."""
        return [
            compute
            for compute in self.computes[component.backend]
            if not too_old(component, compute)
        ]


def lint_matrix(kernel: Kernel, catalog: Catalog, *, errors_only: bool = False) -> list[Diagnostic]:
    """The findings of `MATRIX_LINTS` for a kernel; `errors_only` skips rules of other
    severities.
    """
    lints = {
        rule: lint
        for rule, lint in MATRIX_LINTS.items()
        if not errors_only or rules()[rule].severity is Severity.ERROR
    }
    return findings_of(kernel.document, lints, Subject(kernel, catalog), ("KCI155",))


class _Entry(NamedTuple):
    place: KeyPath
    text: str
    siblings: tuple[str, ...]
    too_new: list[Version]
    """Toolkits that have dropped it, so that it is left out."""
    refused: list[Version]
    """Toolkits that cannot build it, though the list keeps it."""
    lost: list[Version]
    """Toolkits that could build it, though the list drops it."""


def capability_unknown(subject: Subject) -> Iterator[LintFinding]:
    """KCI150: no toolkit ever generated code for a capability."""
    for facts, place, entries in arch_lists(subject.kernel):
        for index, entry in enumerate(entries):
            if facts.capabilities and not toolkits().newest_building(entry):
                message = (
                    f"{quoted(entry[:40])} is not a capability that any {facts.title} toolkit "
                    "supports"
                )
                near = _near_capability(entry)
                hint = f'write "{near}"' if near else "such as 8.0, 9.0a, 10.0f or 12.0+PTX"
                yield (*place, index), message, hint


_CAPABILITY = re.compile(
    r"(?:sm_?|compute_?|cc)?(\d{1,2})[._]?(\d)([af]?)(\+?ptx)?", re.IGNORECASE | re.ASCII
)
"""Spellings such as sm_90a, compute_80, 80, 9.0A+ptx."""


def _near_capability(text: str) -> str:
    match = _CAPABILITY.fullmatch(text.strip()[:40])
    if match is None:
        return ""
    near = f"{match[1]}.{match[2]}{match[3].lower()}{PTX if match[4] else ''}"
    return near if toolkits().newest_building(near) else ""


def capability_gone(subject: Subject) -> Iterator[LintFinding]:
    """KCI151: a newer toolkit of the matrix has dropped a capability."""
    for entry in subject.entries:
        if entry.too_new:
            new = toolkits().new_name(entry.text, entry.too_new[0])
            what, hint = (
                "is not supported any more",
                "remove it, or bound `general.cuda.maxver`, if that is not intended",
            )
            if new:
                what, hint = f"is called {new}", f"list {new} as well"
            if new not in entry.siblings:
                message = (
                    f"capability {entry.text} {what} by CUDA {_list(entry.too_new)}: not built "
                    "there"
                )
                yield entry.place, message, hint


def capability_lost(subject: Subject) -> Iterator[LintFinding]:
    """KCI152: the intersection drops capabilities, and a GPU has no code; once per list."""
    lists: dict[KeyPath, list[tuple[KeyPath, str, str]]] = {}
    for entry in subject.entries:
        plain = entry.text.removesuffix(PTX)
        other = next(
            (one for one in entry.siblings if one.removesuffix(PTX) in (f"{plain}a", f"{plain}f")),
            "",
        )
        bare = ", ".join(_without_code(subject, entry)) if other and entry.lost else ""
        if bare:
            why, hint = (
                f"where {other} takes its place: there is no code for {bare}",
                f"list {plain}f in its place",
            )
        elif entry.lost and not entry.too_new and not other:
            why, hint = "whose default list has no such entry", "list one that it has"
        else:
            continue
        told = (entry.place, f"{entry.text} is dropped by CUDA {_list(entry.lost)}, {why}", hint)
        lists.setdefault(entry.place[:-1], []).append(told)
    for findings in lists.values():
        yield (
            findings[0][0],
            f"capability {'; '.join(told for _, told, _ in findings)}",
            findings[0][2],
        )


def _without_code(subject: Subject, entry: _Entry) -> list[str]:
    # capabilities of its major version that nothing of the list runs on
    compute = entry.lost[0]
    known = [toolkit for toolkit in toolkits().toolkit if toolkit.version <= compute][
        -1
    ].capabilities
    built = component_archs(
        subject.kernel.build.kernel[str(entry.place[1])], compute, subject.catalog.archs
    )
    runs = [(natural(arch.removesuffix(PTX).rstrip("af")), "a" in arch) for arch in built]
    return [
        arch
        for arch, number in sorted((arch, natural(arch)) for arch in known)
        if number[0] == natural(entry.text)[0]
        and not any(
            least[0] == number[0] and (least == number if only else least <= number)
            for least, only in runs
        )
    ]


def capability_refused(subject: Subject) -> Iterator[LintFinding]:
    """KCI154: the intersection keeps a capability that the toolkit cannot build."""
    for entry in subject.entries:
        if entry.refused:
            message = (
                f"capability {entry.text} is required for CUDA {_list(entry.refused)}, which "
                "cannot build it"
            )
            hint = "remove it, or narrow the CUDA versions with `general.cuda` or `cuda-minver`"
            yield entry.place, message, hint


def archs_empty(subject: Subject) -> Iterator[LintFinding]:
    """KCI155: nothing of a component's list is left at a toolkit, where the reference stops."""
    for label, component in subject.kernel.build.kernel.items():
        facts = BACKENDS[component.backend]
        versions = subject.toolkits_of(component) if component.archs else []
        empty = [
            version
            for version in versions
            if not component_archs(component, version, subject.catalog.archs)
        ]
        if empty:
            message = (
                f"no entry of `{facts.archs}` is left for {facts.title} {_list(empty)}: the build "
                "fails there"
            )
            meant = [
                near
                for entry in component.archs
                if (near := _near_capability(entry)) and near != entry
            ]
            hint = "list an arch that it supports, or narrow the versions"
            if meant and facts.capabilities:
                hint = "write [" + ", ".join(f'"{near}"' for near in meant) + "]"
            yield ("kernel", label, facts.archs), message, hint


def gfx_unsupported(subject: Subject) -> Iterator[LintFinding]:
    """KCI156: a target outside of the reference's list: silently dropped from builds, never built
    for noarch.
    """
    for facts, place, entries in arch_lists(subject.kernel):
        allowed = subject.catalog.archs.names.get(facts.archs, ())
        effect = ", and is left out" if place[0] == "kernel" else ""
        for index, entry in enumerate(entries):
            if allowed and entry not in allowed:
                message = (
                    f"{quoted(entry[:40])} is not a target that {facts.title} variants are built "
                    f"for{effect}"
                )
                yield (*place, index), message, f"remove it; {one_of(allowed)}"


def nothing_left(subject: Subject) -> Iterator[LintFinding]:
    """KCI158: `cuda-minver` leaves every component out of a variant, or one component out
    of all.
    """
    for backend, facts in BACKENDS.items():
        versions, parts = subject.computes[backend], subject.kernel.build.components(backend)
        missing = {
            label: {version for version in versions if too_old(part, version)}
            for label, part in parts.items()
        }
        bare = sorted(set.intersection(*missing.values())) if missing else []
        for label, without in missing.items():
            place: KeyPath = ("kernel", label, facts.minver)
            if versions and len(without) == len(versions):
                newest = f"{facts.title} {versions[-1]} is the newest that is built"
                yield (
                    place,
                    f"component `{label}` is in no variant: {newest}",
                    f"lower `{facts.minver}`",
                )
            elif bare:
                which = f"{facts.title} {_list(bare)}"
                message = (
                    f"the variants for {which} have no component: `{facts.minver}` excludes all "
                    "of them"
                )
                hint = (
                    f"raise `general.{backend}.minver`, so that they are not built, or lower "
                    f"`{facts.minver}`"
                )
                yield place, message, hint
                bare = []


def stable_abi_newer(subject: Subject) -> Iterator[LintFinding]:
    """KCI160: a stable ABI newer than the torch of a variant, whose configuration fails."""
    by_backend: dict[str, list[Variant]] = {}
    for variant in subject.variants:
        abi = variant.stable_abi
        if (
            abi is not None and len(abi) > 1 and variant.torch and variant.torch < abi
        ):  # else KCI144
            by_backend.setdefault(variant.backend, []).append(variant)
    table = subject.kernel.build.torch.stable_abi if subject.kernel.build.torch else None
    for backend, variants in sorted(by_backend.items()):
        versions = sorted({variant.torch for variant in variants if variant.torch})
        every = sum(variant.backend == backend for variant in subject.variants) == len(variants)
        which = (
            f"every {backend} variant" if every else f"{len(variants)} of the {backend} variants"
        )
        message = (
            f"stable ABI {variants[0].stable_abi} is newer than torch {_list(versions)}, with "
            f"which {which} is built"
        )
        one_for_all = "" in (table or ())
        place: KeyPath = ("torch", "stable-abi", *([] if one_for_all else [backend]))
        yield place, message, f"use at most {versions[0].minor_text}"
        if one_for_all:
            return


def bounds_drop_everything(subject: Subject) -> Iterator[LintFinding]:
    """KCI161: bounds exclude all rows of a backend."""
    build = subject.kernel.build
    inverted = [place[:-1] for place, _, _ in bounds_inverted(subject.kernel)]
    reported: set[KeyPath] = set()
    for backend in dict.fromkeys(build.general.backends):
        mine = subject.usable(backend)
        decisions = [why_excluded(build, row) for row in mine]
        bounds = [decision for decision in decisions if decision and decision.rule in _BOUND_RULES]
        if not mine or len(bounds) != len(mine) or bounds[0].cause[:-1] in inverted:
            continue
        cause = bounds[-1].cause
        if cause not in reported:
            reported.add(cause)
            message = (
                f"no {backend} variant is left: the catalog ({subject.catalog.name}) has "
                f"{_versions(mine, cause)}"
            )
            hint = "widen the bound, or choose a catalog that has the versions"
            yield cause, message, hint


def backend_without_rows(subject: Subject) -> Iterator[LintFinding]:
    """KCI162: a declared backend without a row for a release; KCI130 covers [torch]."""
    build = subject.kernel.build
    for index, backend in enumerate(build.general.backends if build.torch is None else ()):
        if subject.usable(backend):
            continue
        bundled = [row.bundled for row in subject.catalog.rows if row.backend == backend]
        what = (
            "no row with a tvm-ffi"
            if any(bundled)
            else "only rows that are not bundled"
            if bundled
            else "no row"
        )
        message = (
            f"the catalog ({subject.catalog.name}) has {what} for {backend}: a release has no "
            "variant for it"
        )
        hint = "add a row with an overlay in kci.toml"
        if build.torch_noarch is not None:
            hint = f"`kci build --variant torch-{backend}` builds it by name"
        yield ("general", "backends", index), message, hint


_OF_X86 = re.compile(
    r"(?<![\w-])-m(?:(?:avx|s?sse|fma|f16c|bmi|amx|aes|pclmul|v?gfni|vaes|sha|adx|popcnt|lzcnt|movbe|rdrnd|rdseed|mmx|xsave"
    r"|cx16|fpmath|prefer-vector-width|32\b|64\b)[\w.=-]*|(?:arch|tune|cpu)=(?:x86-64|i\d86|core|nehalem|westmere|znver"
    r"|\w*bridge|\w*well|\w*lake|\w*rapids|\w*mont|bdver|btver|k8|opteron|athlon|barcelona|amdfam|nocona|pentium|atom|kn[lm]"
    r"|sierraforest)[\w.-]*)"
)
_ARM = "aarch64-linux"


def overlay_text(kernel: str, keys: str) -> str:
    """The `[[overlay]]` of kci.toml for one kernel."""
    return f'[[overlay]]\nkernel = "{kernel}"\n{keys}'


def flags_of_x86(subject: Subject) -> Iterator[LintFinding]:
    """KCI169: flags that compilers for aarch64 refuse, in what is planned for it; once per list."""
    on_arm = {
        str(item.backend)
        for item in subject.variants
        if item.system == _ARM and item.kind is not Kind.NOARCH
    }
    lists: dict[KeyPath, list[tuple[KeyPath, str]]] = {}
    for flag in compiler_flags(subject.kernel):
        planned = flag.backend in on_arm or (on_arm and not flag.backend)
        for match in _OF_X86.finditer(flag.text):
            if planned and "PLATFORM_ID" not in flag.text:
                flags = lists.setdefault((flag.backend, *flag.place[:-1]), [])
                flags.append((flag.place, match[0]))
    for (backend, *table, _), flags in lists.items():
        place, first = flags[0]
        more = f" and {len(flags) - 1} more are flags" if len(flags) > 1 else " is a flag"
        name = ".".join(map(str, table))
        message = (
            f"`{first}`{more} of x86, and `{name}` is planned for {_ARM}: no compiler there "
            "takes them"
        )
        drop = f'drop = ["{f"backend == {backend} and " if backend else ""}system ~ aarch64-*"]'
        overlay = overlay_text(subject.kernel.build.name, drop)
        yield place, message, f"plan it for x86 only, in kci.toml:\n{overlay}"


_BOUND_RULES = ("KCI202", "KCI203", "KCI204", "KCI205")


def _versions(rows: list[Row], cause: KeyPath) -> str:
    if cause[0] == "torch":
        return f"torch {_list(sorted({row.torch for row in rows}))}"
    return (
        f"{BACKENDS[rows[0].backend].title} "
        f"{_list(sorted({row.compute for row in rows if row.compute}))}"
    )


def _list(versions: Iterable[Version]) -> str:
    return ", ".join(map(str, versions))


MATRIX_LINTS: Lints[Subject] = {
    "KCI150": capability_unknown,
    "KCI151": capability_gone,
    "KCI152": capability_lost,
    "KCI154": capability_refused,
    "KCI155": archs_empty,
    "KCI156": gfx_unsupported,
    "KCI158": nothing_left,
    "KCI160": stable_abi_newer,
    "KCI161": bounds_drop_everything,
    "KCI162": backend_without_rows,
    "KCI169": flags_of_x86,
}
