"""From a kernel and a catalog to its variants: which candidates are kept, which are dropped, and why.

The algorithm is the reference's (format section 2.2), per system: filter by backend, framework and version bounds;
collapse the rows of a backend with the stable ABI to the newest torch per compute version; name; leave out rows that
are not bundled; let the first of several rows with one name win. The pr tier then keeps one row per backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kci.catalog.rows import Catalog, Row, beside
from kci.config.document import KeyPath
from kci.config.model import Build, CudaGeneral
from kci.config.reader import Kernel
from kci.config.values import Backend, Version
from kci.matrix.archs import variant_archs
from kci.matrix.names import Kind, variant_name
from kci.matrix.types import Dropped, Kept, KernelMatrix, Matrix, Tier, Variant


class Candidate(NamedTuple):
    """A kernel at one row."""

    row: Row
    catalog: Catalog


class Decision(NamedTuple):
    """Why a candidate is dropped: the rule, the reason, and the key of build.toml that decided (none: the catalog)."""

    rule: str
    reason: str
    cause: KeyPath = ()


def compute_matrix(
    kernels: Iterable[Kernel],
    catalog: Catalog,
    tier: Tier = Tier.RELEASE,
    *,
    keep: Callable[[Variant], str | None] | None = None,
    explain: bool = False,
) -> Matrix:
    """The matrix of several kernels.

    Args:
        kernels: in the order in which they should appear.
        catalog: the rows to choose from.
        tier: how much to build.
        keep: a filter; it returns None for a variant to keep, or the reason why it is left out.
        explain: also say why each candidate was kept or dropped, with places.
    """
    selected = [select(kernel, catalog, tier, keep=keep, explain=explain) for kernel in kernels]
    return Matrix(tier, catalog.name, catalog.as_of, tuple(selected))


def select(
    kernel: Kernel,
    catalog: Catalog,
    tier: Tier = Tier.RELEASE,
    *,
    keep: Callable[[Variant], str | None] | None = None,
    explain: bool = False,
) -> KernelMatrix:
    """The matrix of one kernel; see `compute_matrix`. Variants are sorted by system and name."""
    choice = _Choice(kernel, explain)
    rows = [Candidate(row, catalog) for row in catalog.rows]
    match tier:
        case Tier.PR:
            variants = choice.pr(rows)
        case Tier.RELEASE:
            variants = choice.released(rows)
        case Tier.COMPAT:
            variants = choice.every(choice.candidates_beside(catalog))
        case Tier.ALL:
            variants = choice.released(rows)
            names = {(variant.system, variant.name) for _, variant in variants}
            others = choice.every(choice.candidates_beside(catalog))
            variants += [pair for pair in others if (pair[1].system, pair[1].name) not in names]
    choice.backends_without_rows(rows)
    for candidate, variant in list(variants):
        reason = keep(variant) if keep else None
        if reason:
            choice.drop(candidate, Decision("KCI211", reason))
            variants.remove((candidate, variant))
    ordered = sorted(variants, key=lambda pair: (pair[1].system, pair[1].name))
    return KernelMatrix(
        name=kernel.build.name,
        path=kernel.directory,
        version=kernel.build.general.version,
        variants=tuple(variant for _, variant in ordered),
        dropped=tuple(sorted(choice.dropped, key=_dropped_order)) if explain else (),
        kept=tuple(choice.kept(candidate, variant) for candidate, variant in ordered) if explain else (),
    )


def _dropped_order(dropped: Dropped) -> tuple[str, ...]:
    return (dropped.system, dropped.backend, dropped.torch or "", dropped.compute or "", dropped.rule)


Pairs = list[tuple[Candidate, Variant]]


class _Choice:
    """Goes over the candidates of one kernel, step by step, and remembers what was dropped."""

    def __init__(self, kernel: Kernel, explain: bool) -> None:
        self.kernel = kernel
        self.build = kernel.build
        self.explain = explain
        self.dropped: list[Dropped] = []

    # --- the tiers ---

    def released(self, candidates: list[Candidate]) -> Pairs:
        """Bundled rows, the first of each name per system."""
        return self.first_of_name(self.bundled(self.named(candidates)))

    def every(self, candidates: list[Candidate]) -> Pairs:
        """All rows, bundled or not, the first of each name per system."""
        return self.first_of_name(self.named(candidates))

    def pr(self, candidates: list[Candidate]) -> Pairs:
        """One row per backend and system: bundled before not, newest torch, then oldest compute version."""
        chosen: Pairs = []
        groups: dict[tuple[str, str], Pairs] = {}
        for pair in self.named(candidates):
            groups.setdefault((pair[1].system, pair[1].backend), []).append(pair)
        for pairs in groups.values():
            best = min(pairs, key=_preference)
            for candidate, variant in pairs:
                if variant is not best[1]:
                    reason = f"the pr tier builds {best[1].name} for {variant.backend}: newest torch, oldest compute"
                    self.drop(candidate, Decision("KCI210", reason))
            chosen.append(best)
        return self.bundled(chosen)

    # --- the steps ---

    def candidates_beside(self, catalog: Catalog) -> list[Candidate]:
        return [Candidate(row, neighbour) for neighbour, row in beside(catalog)]

    def named(self, candidates: list[Candidate]) -> Pairs:
        """Filter, collapse and name; order as in the reference: stable ABI first, by group, then the rest."""
        passed: list[Candidate] = []
        for candidate in candidates:
            if decision := exclusion(self.build, candidate.row):
                self.drop(candidate, decision)
            else:
                passed.append(candidate)
        full = [item for item in passed if self.build.stable_abi(item.row.backend) is None]
        stable = self.collapse([item for item in passed if self.build.stable_abi(item.row.backend) is not None])
        return [(item, make_variant(self.build, item.row)) for item in stable + full]

    def collapse(self, candidates: list[Candidate]) -> list[Candidate]:
        """Keep the newest torch for each system, backend and compute version."""
        newest: dict[tuple[str, str], Candidate] = {}
        for item in candidates:
            compute = item.row.compute.text if item.row.compute else ""
            group = (item.row.system, f"{item.row.backend}-{compute}")
            if group not in newest or item.row.torch > newest[group].row.torch:
                newest[group] = item
        kept = [newest[group] for group in sorted(newest)]
        for item in candidates:
            if item not in kept:
                reason = "one stable ABI build serves every torch: it is built with the newest one for this compute"
                self.drop(item, Decision("KCI207", reason, ("torch", "stable-abi", str(item.row.backend))))
        return kept

    def bundled(self, pairs: Pairs) -> Pairs:
        for candidate, variant in pairs:
            if not variant.bundled:
                self.drop(candidate, Decision("KCI208", "the catalog's row is not bundled: it is built on demand only"))
        return [pair for pair in pairs if pair[1].bundled]

    def first_of_name(self, pairs: Pairs) -> Pairs:
        first: dict[tuple[str, str], tuple[Candidate, Variant]] = {}
        for candidate, variant in pairs:
            key = (variant.system, variant.name)
            if key in first:
                reason = f"{variant.name} comes from an earlier row; its content does not depend on the row"
                self.drop(candidate, Decision("KCI209", reason))
            else:
                first[key] = (candidate, variant)
        return list(first.values())

    def backends_without_rows(self, candidates: list[Candidate]) -> None:
        """Note the declared backends for which the catalog has no toolchain at all (cann, neuron)."""
        present = {candidate.row.backend for candidate in candidates}
        for index, backend in enumerate(self.build.general.backends):
            if self.explain and backend not in present:
                path, line = self.kernel.place(("general", "backends", index))
                reason = f"the catalog has no row for {backend}"
                self.dropped.append(Dropped("", backend, None, None, "KCI212", reason, path, line))

    # --- what is said about them ---

    def drop(self, candidate: Candidate, decision: Decision) -> None:
        if not self.explain:
            return
        row = candidate.row
        path, line = self.kernel.place(decision.cause) if decision.cause else candidate.catalog.line(row)
        self.dropped.append(
            Dropped(
                row.system,
                row.backend,
                row.torch.text,
                row.compute.text if row.compute else None,
                decision.rule,
                decision.reason,
                path,
                line,
            )
        )

    def kept(self, candidate: Candidate, variant: Variant) -> Kept:
        path, line = candidate.catalog.line(candidate.row)
        match variant.kind:
            case Kind.STABLE_ABI:
                reason = f"stable ABI {variant.stable_abi}, built with the newest torch for it ({variant.torch})"
            case Kind.TVM_FFI:
                reason = f"tvm-ffi {variant.tvm_ffi}"
            case Kind.NOARCH:
                reason = f"no compiled code for {variant.backend}"
            case _:
                reason = f"torch {variant.torch} is in the supported window" if variant.bundled else "asked for"
        return Kept(variant.name, variant.system, reason, path, line)


def _preference(pair: tuple[Candidate, Variant]) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
    row = pair[0].row
    newest_first = tuple(-part for part in (*row.torch, 0, 0, 0)[:3])
    return (not row.bundled, newest_first, row.compute or ())


_CUDA_MIN, _CUDA_MAX = Version.parse("11.8"), Version.parse("99.9")
_TORCH_MIN, _TORCH_MAX = Version.parse("2.0"), Version.parse("99.9")


def exclusion(build: Build, row: Row) -> Decision | None:
    """Why a row is not for a kernel, or None if it is. Bounds are inclusive and compare as versions.

    The reference compares the raw spelling, so that `maxver = "13"` drops CUDA 13.0 there; that is taken for a bug
    (trap 5), and `kci check` warns about such a spelling.
    """
    if row.backend not in build.general.backends:
        return Decision("KCI201", f"the kernel does not declare {row.backend}", ("general", "backends"))
    if build.tvm_ffi is not None and row.tvm_ffi is None:
        return Decision("KCI206", "the catalog's row has no tvm-ffi", ("tvm-ffi",))
    if row.backend is Backend.CUDA and row.compute is not None:
        bounds = build.general.cuda or CudaGeneral()
        if row.compute < (bounds.minver or _CUDA_MIN):
            reason = f"CUDA {row.compute.text} is older than general.cuda.minver ({bounds.minver or _CUDA_MIN})"
            return Decision("KCI202", reason, ("general", "cuda", "minver"))
        if row.compute > (bounds.maxver or _CUDA_MAX):
            reason = f"CUDA {row.compute.text} is newer than general.cuda.maxver ({bounds.maxver or _CUDA_MAX})"
            return Decision("KCI203", reason, ("general", "cuda", "maxver"))
    if build.torch is not None:
        if row.torch < (build.torch.minver or _TORCH_MIN):
            reason = f"torch {row.torch.text} is older than torch.minver ({build.torch.minver or _TORCH_MIN})"
            return Decision("KCI204", reason, ("torch", "minver"))
        if row.torch > (build.torch.maxver or _TORCH_MAX):
            reason = f"torch {row.torch.text} is newer than torch.maxver ({build.torch.maxver or _TORCH_MAX})"
            return Decision("KCI205", reason, ("torch", "maxver"))
    return None


def make_variant(build: Build, row: Row) -> Variant:
    """The variant of a kernel at a row that is for it."""
    stable = build.stable_abi(row.backend)
    framework = row.torch
    if build.tvm_ffi is not None and row.tvm_ffi is not None:
        kind, framework = Kind.TVM_FFI, row.tvm_ffi
    elif not build.components(row.backend) or row.backend is Backend.TPU:
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
        torch=row.torch.text,
        compute=row.compute.text if row.compute else None,
        stable_abi=stable.minor_text if stable and kind is Kind.STABLE_ABI else None,
        tvm_ffi=row.tvm_ffi.text if row.tvm_ffi and kind is Kind.TVM_FFI else None,
        archs=variant_archs(build, kind, row.backend, row.compute),
        bundled=row.bundled,
    )
