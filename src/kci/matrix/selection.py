"""The variants of a kernel: which rows of the catalog are kept or dropped, and why
(docs/format.md#selection).

Per system: filter by backend, framework and bounds; keep the newest torch per compute version of a
stable ABI; name; drop rows that are not bundled, and all but the first of a name. The pr tier then
keeps one row per backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import astuple, replace

from kci.config.facts import BACKENDS, HOST, floors
from kci.config.model import Build
from kci.config.reader import Kernel
from kci.config.values import Tier, Version, text_of
from kci.matrix.archs import variant_archs
from kci.matrix.catalog.loading import for_kernel, outside_range
from kci.matrix.catalog.rows import ArchTables, Catalog, Decision, Overlay, Row
from kci.matrix.variants import (
    DroppedCandidate,
    KeptCandidate,
    KernelMatrix,
    Kind,
    Matrix,
    Variant,
    variant_name,
)

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
    choice, rows = _Selection(kernel.build, catalog.archs), list(catalog.rows)
    outside, gone = outside_range(catalog) if tier in (Tier.COMPAT, Tier.ALL) else ([], [])
    choice.removed((*catalog.removed, *gone))
    match tier:
        case Tier.PR:
            pairs = choice.pr(rows)
        case Tier.COMPAT:
            pairs = choice.compat(rows, outside)
        case _:
            pairs = choice.beside(choice.released(rows), outside)
    pairs.sort(key=lambda pair: (pair[1].system, pair[1].name))
    for filtering in narrow:
        verdicts = filtering(kernel, [variant for _, variant in pairs])
        pairs = [
            pair
            for pair, excluded in zip(pairs, verdicts, strict=True)
            if choice.passes(pair[0], excluded)
        ]
    for row, _ in pairs:
        choice.dropped.pop(id(row), None)
    with_each = [*rows, *outside] if tier is Tier.COMPAT else None
    loaded = (choice.loads(variant, rows, with_each) for _, variant in pairs)
    return KernelMatrix(
        name=kernel.build.name,
        path=kernel.directory,
        version=kernel.build.general.version,
        variants=tuple(
            replace(variant, loads=loads) for (_, variant), loads in zip(pairs, loaded, strict=True)
        ),
        dropped=_dropped(kernel, catalog, choice.dropped.values()) if explain else (),
        kept=tuple(_kept(row, variant) for row, variant in pairs) if explain else (),
    )


def _dropped(
    kernel: Kernel, catalog: Catalog, decisions: Iterable[tuple[Row, Decision]]
) -> tuple[DroppedCandidate, ...]:
    dropped = []
    for row, decision in decisions:
        place = decision.place or row.line()
        if decision.cause:
            place = kernel.document.place(decision.cause)
        compute = text_of(row.compute) or None
        dropped.append(
            DroppedCandidate(
                row.system,
                row.backend,
                row.torch.text,
                compute,
                decision.rule,
                decision.reason,
                *place,
            )
        )
    present = {row.backend for row in catalog.rows}
    for index, backend in enumerate(kernel.build.general.backends):
        if backend not in present:
            place = kernel.document.place(("general", "backends", index))
            reason = f"the catalog has no row for {backend}"
            dropped.append(DroppedCandidate("", backend, None, None, "KCI212", reason, *place))
    return tuple(sorted(dropped, key=lambda item: [text or "" for text in astuple(item)[:5]]))


def _kept(row: Row, variant: Variant) -> KeptCandidate:
    match variant.kind:
        case Kind.STABLE_ABI:
            reason = f"stable ABI {variant.stable_abi}, built with torch {variant.torch}"
        case Kind.TVM_FFI:
            since = row.tvm_ffi_unknown_since
            reason = f"tvm-ffi {variant.tvm_ffi}" + (f", unknown since {since}" if since else "")
        case Kind.NOARCH:
            reason = f"no compiled code for {variant.backend}"
        case _:
            supported = f"torch {variant.torch} is in the supported range"
            reason = supported if variant.bundled else "asked for"
    return KeptCandidate(variant.name, variant.system, reason, *row.line())


Pair = tuple[Row, Variant]


class _Selection:
    def __init__(self, build: Build, archs: ArchTables) -> None:
        self.build = build
        self.archs = archs
        # By identity, since a faulty catalog may have equal rows. The last decision counts.
        self.dropped: dict[int, tuple[Row, Decision]] = {}

    def released(self, candidates: list[Row]) -> list[Pair]:
        """The bundled rows, the first of each name per system."""
        return self.first_of_name(self.bundled(self.named(candidates)))

    def beside(self, chosen: list[Pair], outside: list[Row]) -> list[Pair]:
        """The chosen rows, and of the others the first of each further name per system."""
        return self.first_of_name([*chosen, *self.named(outside)])

    def compat(self, supported: list[Row], outside: list[Row]) -> list[Pair]:
        """Rows outside of the supported range, and each stable ABI as in a release."""
        for row in supported:
            self.passes(row, why_excluded(self.build, row) or _SUPPORTED)
        released = self.released(
            [row for row in supported if self.build.stable_abi(row.backend) is not None]
        )
        return self.beside([pair for pair in released if pair[1].kind is Kind.STABLE_ABI], outside)

    def pr(self, candidates: list[Row]) -> list[Pair]:
        """One row per backend and system: bundled, newest torch, oldest compute version."""

        def why(pair: Pair, best: Pair) -> Decision:
            what = f"{best[1].name} for {pair[0].backend}: newest torch, oldest compute"
            return Decision("KCI210", f"the pr tier builds {what}")

        ranked = sorted(self.named(candidates), key=_preference)
        return self.bundled(
            self.first_of(ranked, lambda pair: (pair[0].system, pair[0].backend), why)
        )

    def loads(
        self, variant: Variant, rows: Iterable[Row], with_each: Iterable[Row] | None
    ) -> tuple[str, ...]:
        """The two torch versions at the ends of what a variant can be loaded with, one for a full
        ABI; for the CPU each one `with_each` of these rows.
        """
        host, abi = variant.backend == HOST, variant.stable_abi
        if with_each is not None:
            same = (row for row in with_each if (row.backend, row.system) == (HOST, variant.system))
            return _loads(variant, [row.torch for row in same]) if host else ()
        if variant.kind is Kind.FULL or (abi is None and not host):
            return _loads(variant, ())
        if abi is not None and host:  # for which there is each torch
            least = self.build.torch.minver if self.build.torch is not None else None
            return _loads(variant, [max(abi, least or abi)])
        place = (variant.backend, variant.system, variant.compute)
        suitable = (
            row for row in rows if row.bundled and (row.backend, row.system, row.compute) == place
        )
        versions = _loads(
            variant, [row.torch for row in suitable if why_excluded(self.build, row) is None]
        )
        return tuple(dict.fromkeys((*versions[:1], *versions[-1:])))

    def named(self, candidates: list[Row]) -> list[Pair]:
        """Filter, collapse and name, in the reference's order: stable ABI by group, then
        the rest.
        """
        pairs = [
            (row, make_variant(self.build, row, self.archs))
            for row in candidates
            if self.passes(row, why_excluded(self.build, row))
        ]
        stable = [pair for pair in pairs if self.build.stable_abi(pair[0].backend) is not None]
        # the newest torch per system, backend and compute version; a bundled one before a nightly
        stable.sort(key=lambda pair: (pair[0].bundled, pair[0].torch), reverse=True)
        newest = self.first_of(stable, _group, lambda pair, _: _one_for_all(pair[0]))
        full = [pair for pair in pairs if self.build.stable_abi(pair[0].backend) is None]
        return [*sorted(newest, key=_group), *full]

    def bundled(self, pairs: list[Pair]) -> list[Pair]:
        return [pair for pair in pairs if self.passes(pair[0], None if pair[0].bundled else _EXTRA)]

    def first_of_name(self, pairs: Iterable[Pair]) -> list[Pair]:
        def why(pair: Pair, earlier: Pair) -> Decision:
            row, variant = pair
            if variant.kind is Kind.STABLE_ABI and row.compute == earlier[0].compute:
                return _one_for_all(row)
            reason = f"{variant.name} is built from an earlier row: both have this name"
            return Decision("KCI209", reason)

        return self.first_of(pairs, lambda pair: (pair[0].system, pair[1].name), why)

    def first_of(
        self,
        pairs: Iterable[Pair],
        group: Callable[[Pair], tuple[str, str]],
        why: Callable[[Pair, Pair], Decision],
    ) -> list[Pair]:
        first: dict[tuple[str, str], Pair] = {}
        for pair in pairs:
            if (chosen := first.setdefault(group(pair), pair)) is not pair:
                self.passes(pair[0], why(pair, chosen))
        return list(first.values())

    def passes(self, row: Row, excluded: Decision | None) -> bool:
        """True without a decision to drop a row, which is recorded."""
        if excluded:
            self.dropped[id(row)] = row, excluded
        return not excluded

    def removed(self, rows: Iterable[tuple[Row, Decision]]) -> None:
        for row, removal in rows:
            excluded = why_excluded(self.build, row)
            undeclared = excluded is not None and excluded.rule == "KCI201"
            self.passes(row, excluded if undeclared else removal)


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
_EXTRA = Decision("KCI208", "the catalog's row is not bundled: it is built on demand only")


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


def _group(pair: Pair) -> tuple[str, str]:
    row = pair[0]
    return row.system, f"{row.backend}-{text_of(row.compute)}"


def _preference(pair: Pair) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
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
