"""A matrix as JSON for other programs: what `kci matrix --format json` prints."""

from __future__ import annotations

from typing import Any

import msgspec

from kci.matrix.variants import Matrix, Variant


def matrix_json(matrix: Matrix, *, explain: bool = False) -> dict[str, Any]:
    """The documented JSON form (schema 1), for `msgspec.json.encode`.

    Args:
        matrix: the matrix.
        explain: also every candidate that was kept or dropped, with rule, reason and place.
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
