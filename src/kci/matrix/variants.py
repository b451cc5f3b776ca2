"""What the matrix of a kernel is made of, and its form in JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from kci.matrix.names import Kind


class Variant(msgspec.Struct, frozen=True):
    """One named build output, and what it is built against."""

    name: str
    kind: Kind
    backend: str
    system: str
    torch: str | None
    compute: str | None
    stable_abi: str | None
    tvm_ffi: str | None
    archs: tuple[str, ...] | None
    """In the order of metadata.json; None for backends without archs."""
    bundled: bool
    archs_since: str | None = None
    """The day of the arch list that `archs` was made with, for a compiled CUDA variant; None for the oldest list."""
    loads: tuple[str, ...] = ()
    """In the compat tier, the torch versions with which the built variant is loaded and tested; for the CPU only."""


class Dropped(msgspec.Struct, frozen=True):
    """A candidate that is not built, and the rule and place that decided it."""

    system: str
    backend: str
    torch: str | None
    compute: str | None
    rule: str
    reason: str
    path: str
    line: int


class Kept(msgspec.Struct, frozen=True):
    """Why a variant is in the matrix, for `--explain`."""

    variant: str
    system: str
    reason: str
    path: str
    line: int


class KernelMatrix(msgspec.Struct, frozen=True):
    """All candidates of one kernel in one tier: the variants kept, and those dropped."""

    name: str
    path: str
    version: int
    variants: tuple[Variant, ...]
    dropped: tuple[Dropped, ...] = ()
    kept: tuple[Kept, ...] = ()

    def each_once(self, system: str = "x86_64-linux") -> list[Variant]:
        """The variants by name, each once; of a noarch variant the row of a system where there is one."""
        by_name: dict[str, Variant] = {}
        for variant in sorted(self.variants, key=lambda item: (item.system != system, item.system)):
            by_name.setdefault(variant.name, variant)
        return [by_name[name] for name in sorted(by_name)]


class Matrix(msgspec.Struct, frozen=True):
    """The matrices of several kernels."""

    tier: str
    catalog_name: str
    catalog_as_of: str
    kernels: tuple[KernelMatrix, ...]


def matrix_json(matrix: Matrix, *, explain: bool = False) -> dict[str, Any]:
    """The documented JSON form (schema 1), for `msgspec.json.encode`.

    Explained, it has every candidate that was kept or dropped, with rule, reason and place.
    """
    kernels = []
    for kernel in matrix.kernels:
        entry: dict[str, Any] = {
            "name": kernel.name,
            "path": kernel.path,
            "version": kernel.version,
            "variants": [_variant(variant) for variant in kernel.variants],
        }
        if explain:
            entry |= {"kept": kernel.kept, "dropped": kernel.dropped}
        kernels.append(entry)
    catalog = {"name": matrix.catalog_name, "as_of": matrix.catalog_as_of}
    return {"schema": 1, "tier": matrix.tier, "catalog": catalog, "kernels": kernels}


def _variant(variant: Variant) -> dict[str, Any]:
    """What the form has of a variant; the archs say all that their list's day could."""
    left_out = {"archs_since"} if variant.loads else {"archs_since", "loads"}
    return {key: value for key, value in msgspec.structs.asdict(variant).items() if key not in left_out}
