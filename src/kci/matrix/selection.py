"""The variants of a kernel: which rows of the catalog are kept or dropped, and why
(docs/format.md#selection).

Per system: filter by backend, framework and bounds; keep the newest torch per compute version of a
stable ABI; name; drop rows that are not bundled, and all but the first of a name. The pr tier then
keeps one row per backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import astuple, replace

from kci.config.document import KeyPath
from kci.config.facts import BACKENDS, HOST, floors
from kci.config.model import Build
from kci.config.reader import Kernel
from kci.config.values import SYSTEMS, Tier, Version, text_of
from kci.matrix.archs import variant_archs
from kci.matrix.catalog.loading import for_kernel, outside_range
from kci.matrix.catalog.rows import ArchTables, Catalog, Overlay, RemovedRow, Row
from kci.matrix.variants import (
    DroppedCandidate,
    KeptCandidate,
    KernelMatrix,
    Kind,
    Matrix,
    Variant,
    variant_name,
)
from kci.utils.frozen import Frozen


class Decision(Frozen):
    """The reason why a candidate is dropped."""

    rule: str
    reason: str
    cause: KeyPath = ()
    """The key of build.toml; empty for the catalog's row."""
    place: tuple[str, int] | None = None
    """File and line of another cause, which is a filter; without a file for the command line."""


Narrow = Callable[[Kernel, Sequence[Variant]], Sequence[Decision | None]]
"""A filter: None to keep a variant, or the reason to drop it."""


def compute_matrix(
    kernels: Iterable[Kernel],
    catalog: Catalog,
    tier: Tier = Tier.RELEASE,
    *,
    narrow: Sequence[Narrow] = (),
    overlays: Sequence[tuple[str | None, Overlay]] = (),
    explain: bool = False,
) -> Matrix:
    """The matrices of several kernels, in their order.

    `narrow` are successive filters. `overlays` have the name of their kernel, or None for all.
    `explain` records decisions.
    """
    selected = tuple(
        select(
            kernel,
            for_kernel(catalog, overlays, kernel.build.name),
            tier,
            narrow=narrow,
            explain=explain,
        )
        for kernel in kernels
    )
    changed_by = dict.fromkeys(overlay.document.path for _, overlay in overlays)
    return Matrix(tier, "+".join([catalog.name, *changed_by]), catalog.as_of, selected)


def select(
    kernel: Kernel,
    catalog: Catalog,
    tier: Tier = Tier.RELEASE,
    *,
    narrow: Sequence[Narrow] = (),
    explain: bool = False,
) -> KernelMatrix:
    """The matrix of one kernel, sorted by system and name; see `compute_matrix`."""
    choice = _Selection(kernel, catalog.archs, explain)
    rows = list(catalog.rows)
    choice.removed(catalog.removed)
    match tier:
        case Tier.PR:
            variants = choice.pr(rows)
        case Tier.RELEASE:
            variants = choice.released(rows)
        case Tier.COMPAT:
            variants = choice.compat(rows, choice.rows_outside_range(catalog))
        case Tier.ALL:
            variants = choice.beside(choice.released(rows), choice.rows_outside_range(catalog))
    choice.backends_without_rows(rows)
    ordered = sorted(variants, key=lambda pair: (pair[1].system, pair[1].name))
    for filtering in narrow:
        ordered = choice.narrowed(ordered, filtering)
    for row, _ in ordered:
        choice.dropped.pop(id(row), None)
    if tier is not Tier.COMPAT:  # which loads with each
        ordered = [
            (row, replace(variant, loads=choice.oldest_and_newest(variant, rows)))
            for row, variant in ordered
        ]
    return KernelMatrix(
        name=kernel.build.name,
        path=kernel.directory,
        version=kernel.build.general.version,
        variants=tuple(variant for _, variant in ordered),
        dropped=tuple(
            sorted(
                choice.dropped.values(), key=lambda item: [text or "" for text in astuple(item)[:5]]
            )
        ),
        kept=tuple(choice.kept(row, variant) for row, variant in ordered) if explain else (),
    )


Pairs = list[tuple[Row, Variant]]


class _Selection:
    def __init__(self, kernel: Kernel, archs: ArchTables, explain: bool) -> None:
        self.kernel = kernel
        self.build = kernel.build
        self.archs = archs
        self.explain = explain
        # By identity, since a faulty catalog may have equal rows. The last decision counts.
        self.dropped: dict[int, DroppedCandidate] = {}

    def released(self, candidates: list[Row]) -> Pairs:
        """The bundled rows, the first of each name per system."""
        return self.first_of_name(self.bundled(self.named(candidates)))

    def beside(self, chosen: Pairs, outside: list[Row]) -> Pairs:
        """The chosen rows, and of the others the first of each further name per system."""
        return self.first_of_name([*chosen, *self.named(outside)])

    def compat(self, supported: list[Row], outside: list[Row]) -> Pairs:
        """Rows outside of the supported range, and each stable ABI as in a release."""
        for row in supported:
            self.drop(row, why_excluded(self.build, row) or _SUPPORTED)
        released = self.released(
            [row for row in supported if self.build.stable_abi(row.backend) is not None]
        )
        pairs = self.beside([pair for pair in released if pair[1].kind is Kind.STABLE_ABI], outside)
        host = [row for row in (*supported, *outside) if row.backend == HOST]
        torches = {
            system: [row.torch for row in host if row.system == system] for system in SYSTEMS
        }
        loads = (
            _loads(item, torches[item.system]) if item.backend == HOST else () for _, item in pairs
        )
        return [
            (row, replace(item, loads=each)) for (row, item), each in zip(pairs, loads, strict=True)
        ]

    def oldest_and_newest(self, variant: Variant, rows: list[Row]) -> tuple[str, ...]:
        """The two torch versions at the ends of what a variant can be loaded with; one for a full
        ABI.
        """
        if variant.kind is Kind.FULL or (variant.stable_abi is None and variant.backend != HOST):
            return _loads(variant, ())
        if (
            variant.stable_abi is not None and variant.backend == HOST
        ):  # for which there is each torch
            least = self.build.torch.minver if self.build.torch is not None else None
            return _loads(variant, [max(variant.stable_abi, least or variant.stable_abi)])
        same = (variant.backend, variant.system, variant.compute)
        suitable = (
            row for row in rows if row.bundled and (row.backend, row.system, row.compute) == same
        )
        versions = _loads(
            variant, [row.torch for row in suitable if why_excluded(self.build, row) is None]
        )
        return tuple(dict.fromkeys((*versions[:1], *versions[-1:])))

    def pr(self, candidates: list[Row]) -> Pairs:
        """One row per backend and system: bundled, newest torch, oldest compute version."""
        chosen: Pairs = []
        groups: dict[tuple[str, str], Pairs] = {}
        for pair in self.named(candidates):
            groups.setdefault((pair[1].system, pair[1].backend), []).append(pair)
        for pairs in groups.values():
            best = min(pairs, key=_preference)
            for row, variant in pairs:
                if variant is not best[1]:
                    reason = (
                        f"the pr tier builds {best[1].name} for {variant.backend}: newest torch, "
                        "oldest compute"
                    )
                    self.drop(row, Decision("KCI210", reason))
            chosen.append(best)
        return self.bundled(chosen)

    def rows_outside_range(self, catalog: Catalog) -> list[Row]:
        rows, removed = outside_range(catalog)
        self.removed(removed)
        return rows

    def named(self, candidates: list[Row]) -> Pairs:
        """Filter, collapse and name, in the reference's order: stable ABI by group, then
        the rest.
        """
        passed: list[Row] = []
        for row in candidates:
            if decision := why_excluded(self.build, row):
                self.drop(row, decision)
            else:
                passed.append(row)
        full = [item for item in passed if self.build.stable_abi(item.backend) is None]
        stable = self.collapse(
            [item for item in passed if self.build.stable_abi(item.backend) is not None]
        )
        return [(item, make_variant(self.build, item, self.archs)) for item in stable + full]

    def collapse(self, candidates: list[Row]) -> list[Row]:
        """Keep the newest torch per system, backend and compute version; a bundled one before a
        nightly.
        """
        newest: dict[tuple[str, str], Row] = {}
        for item in candidates:
            group = (item.system, f"{item.backend}-{text_of(item.compute)}")
            if group not in newest or (item.bundled, item.torch) > (
                newest[group].bundled,
                newest[group].torch,
            ):
                newest[group] = item
        newest_rows = [newest[group] for group in sorted(newest)]
        chosen = {id(item) for item in newest_rows}
        for item in candidates:
            if id(item) not in chosen:
                self.drop(item, _one_for_all(item))
        return newest_rows

    def bundled(self, pairs: Pairs) -> Pairs:
        for row, variant in pairs:
            if not variant.bundled:
                self.drop(
                    row,
                    Decision(
                        "KCI208", "the catalog's row is not bundled: it is built on demand only"
                    ),
                )
        return [pair for pair in pairs if pair[1].bundled]

    def first_of_name(self, pairs: Pairs) -> Pairs:
        first: dict[tuple[str, str], tuple[Row, Variant]] = {}
        for row, variant in pairs:
            earlier, _ = first.setdefault((variant.system, variant.name), (row, variant))
            if earlier is not row:
                reason = f"{variant.name} is built from an earlier row: both have this name"
                covered = variant.kind is Kind.STABLE_ABI and row.compute == earlier.compute
                self.drop(row, _one_for_all(row) if covered else Decision("KCI209", reason))
        return list(first.values())

    def backends_without_rows(self, candidates: list[Row]) -> None:
        present = {row.backend for row in candidates}
        for index, backend in enumerate(self.build.general.backends):
            if self.explain and backend not in present:
                place = self.kernel.document.place(("general", "backends", index))
                reason = f"the catalog has no row for {backend}"
                self.dropped[~index] = DroppedCandidate(
                    "", backend, None, None, "KCI212", reason, *place
                )

    def drop(self, row: Row, decision: Decision) -> None:
        if self.explain:
            place = (
                self.kernel.document.place(decision.cause)
                if decision.cause
                else decision.place or row.line()
            )
            compute = text_of(row.compute) or None
            self.dropped[id(row)] = DroppedCandidate(
                row.system,
                row.backend,
                row.torch.text,
                compute,
                decision.rule,
                decision.reason,
                *place,
            )

    def removed(self, rows: Iterable[RemovedRow]) -> None:
        for removed in rows if self.explain else ():
            excluded = why_excluded(self.build, removed.row)
            if excluded is None or excluded.rule != "KCI201":
                excluded = Decision("KCI213", removed.reason, place=removed.line())
            self.drop(removed.row, excluded)

    def narrowed(self, pairs: Pairs, narrow: Narrow) -> Pairs:
        verdicts = narrow(self.kernel, [variant for _, variant in pairs])
        remaining: Pairs = []
        for pair, excluded in zip(pairs, verdicts, strict=True):
            if excluded is None:
                remaining.append(pair)
            else:
                self.drop(pair[0], excluded)
        return remaining

    def kept(self, row: Row, variant: Variant) -> KeptCandidate:
        match variant.kind:
            case Kind.STABLE_ABI:
                reason = f"stable ABI {variant.stable_abi}, built with torch {variant.torch}"
            case Kind.TVM_FFI:
                since = row.tvm_ffi_unknown_since
                reason = f"tvm-ffi {variant.tvm_ffi}" + (
                    f", unknown since {since}" if since else ""
                )
            case Kind.NOARCH:
                reason = f"no compiled code for {variant.backend}"
            case _:
                reason = (
                    f"torch {variant.torch} is in the supported range"
                    if variant.bundled
                    else "asked for"
                )
        return KeptCandidate(variant.name, variant.system, reason, *row.line())


def why_excluded(build: Build, row: Row) -> Decision | None:
    """The reason why a row does not suit a kernel, or None.

    Bounds are inclusive and compare as versions.

    The reference compares their spelling, so that `maxver = "13"` drops CUDA 13.0; kci takes that
    for a bug (docs/format.md#version-bounds).
    """
    if row.backend not in build.general.backends:
        return Decision(
            "KCI201", f"the kernel does not declare {row.backend}", ("general", "backends")
        )
    if build.tvm_ffi is not None and row.tvm_ffi is None:
        return Decision("KCI206", "the catalog's row has no tvm-ffi", ("tvm-ffi",))
    own, title = getattr(build.general, row.backend, None), BACKENDS[row.backend].title
    floor = floors().compute.get(row.backend)
    compute = row.compute if floor is not None else None
    torch = row.torch if build.torch is not None else None
    for rule, what, version, table, key, least in (
        ("KCI202", title, compute, own, ("general", row.backend, "minver"), floor),
        ("KCI203", title, compute, own, ("general", row.backend, "maxver"), None),
        ("KCI204", "torch", torch, build.torch, ("torch", "minver"), floors().torch),
        ("KCI205", "torch", torch, build.torch, ("torch", "maxver"), None),
    ):
        written = getattr(table, key[-1], None)
        bound = written or least or _NEWEST
        if version is not None and (version < bound if least else version > bound):
            shown = bound if written is not None else f"{bound} by default"
            order = "older" if least else "newer"
            return Decision(
                rule, f"{what} {version} is {order} than {'.'.join(key)} ({shown})", key
            )
    return None


_NEWEST = Version.parse("99.9")  # the reference's default upper bound


_SUPPORTED = Decision("KCI218", "the row is in the supported range: the release tier builds it")


def _one_for_all(row: Row) -> Decision:
    reason = (
        "one stable ABI build covers every torch: it uses the newest one for this compute version"
    )
    return Decision("KCI207", reason, ("torch", "stable-abi", str(row.backend)))


def _loads(variant: Variant, torches: Iterable[Version]) -> tuple[str, ...]:
    facts = BACKENDS[variant.backend]
    if variant.torch is None or not (
        variant.backend == HOST or (facts.loads and variant.system.endswith("-linux"))
    ):
        return ()
    if variant.kind is Kind.FULL:
        return (variant.wheel or variant.torch.text,)
    versions, least = sorted({variant.torch, *torches}), variant.stable_abi or variant.torch
    own = {variant.torch: variant.wheel or variant.torch.minor_text}
    return tuple(
        dict.fromkeys(own.get(item, item.minor_text) for item in versions if item >= least)
    )


def _preference(pair: tuple[Row, Variant]) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
    row = pair[0]
    newest_first = tuple(-part for part in (*row.torch, 0, 0, 0)[:3])
    return (not row.bundled, newest_first, row.compute or ())


def noarch_by_name(build: Build, name: str, system: str) -> Variant | None:
    """The variant of a `[torch-noarch]` kernel by name, even for a backend without rows (cann,
    neuron); else None.
    """
    if build.torch_noarch is None:
        return None
    for backend in build.general.backends:
        if name == variant_name(Kind.NOARCH, backend, system, (), None):
            archs = variant_archs(build, Kind.NOARCH, backend, None)
            return Variant(
                name, Kind.NOARCH, backend, system, None, None, None, None, archs, bundled=False
            )
    return None


def make_variant(build: Build, row: Row, tables: ArchTables) -> Variant:
    """The variant of a kernel at a suitable row, with the catalog's arch lists."""
    stable = build.stable_abi(row.backend)
    framework = row.torch
    if build.tvm_ffi is not None and row.tvm_ffi is not None:
        kind, framework = Kind.TVM_FFI, row.tvm_ffi
    elif not build.components(row.backend):
        kind = Kind.NOARCH
    elif stable is not None:
        kind, framework = Kind.STABLE_ABI, stable
    else:
        kind = Kind.FULL
    return Variant(
        name=variant_name(kind, row.backend, row.system, framework, row.compute),
        kind=kind,
        backend=row.backend,
        system=row.system,
        torch=row.torch,
        compute=row.compute,
        stable_abi=Version.parse(stable.minor_text) if stable and kind is Kind.STABLE_ABI else None,
        tvm_ffi=row.tvm_ffi if kind is Kind.TVM_FFI else None,
        archs=variant_archs(build, kind, row.backend, row.compute, tables),
        bundled=row.bundled,
        wheel=row.wheel,
        archs_since=tables.since
        if BACKENDS[row.backend].capabilities and kind is not Kind.NOARCH
        else None,
    )
