"""Why a row of the catalog is not for a kernel: its backend, its framework, or the bounds on versions."""

from __future__ import annotations

import msgspec

from kci.catalog.floors import floors
from kci.catalog.rows import Row
from kci.config.document import KeyPath
from kci.config.model import Build, CudaGeneral
from kci.config.values import Backend, Version


class Decision(msgspec.Struct, frozen=True):
    """Why a candidate is dropped: the rule, the reason, and the key of build.toml that decided (none: the catalog)."""

    rule: str
    reason: str
    cause: KeyPath = ()


def exclusion(build: Build, row: Row) -> Decision | None:
    """Why a row is not for a kernel, or None if it is. Bounds are inclusive and compare as versions.

    The reference compares the raw spelling, so that `maxver = "13"` drops CUDA 13.0 there; that is taken for a bug
    (docs/format.md#version-bounds), and `kci check` warns about such a spelling.
    """
    if row.backend not in build.general.backends:
        return Decision("KCI201", f"the kernel does not declare {row.backend}", ("general", "backends"))
    if build.tvm_ffi is not None and row.tvm_ffi is None:
        return Decision("KCI206", "the catalog's row has no tvm-ffi", ("tvm-ffi",))
    if row.backend is Backend.CUDA and row.compute is not None:
        cuda = build.general.cuda or CudaGeneral()
        low, high = cuda.minver or floors().cuda, cuda.maxver or _NEWEST
        if row.compute < low:
            reason = f"CUDA {row.compute} is older than general.cuda.minver ({_shown(low, cuda.minver)})"
            return Decision("KCI202", reason, ("general", "cuda", "minver"))
        if row.compute > high:
            reason = f"CUDA {row.compute} is newer than general.cuda.maxver ({_shown(high, cuda.maxver)})"
            return Decision("KCI203", reason, ("general", "cuda", "maxver"))
    if build.torch is not None:
        low, high = build.torch.minver or floors().torch, build.torch.maxver or _NEWEST
        if row.torch < low:
            reason = f"torch {row.torch} is older than torch.minver ({_shown(low, build.torch.minver)})"
            return Decision("KCI204", reason, ("torch", "minver"))
        if row.torch > high:
            reason = f"torch {row.torch} is newer than torch.maxver ({_shown(high, build.torch.maxver)})"
            return Decision("KCI205", reason, ("torch", "maxver"))
    return None


_NEWEST = Version.parse("99.9")
"""The reference's upper bound where none is written."""


def _shown(bound: Version, written: Version | None) -> str:
    return str(bound) if written is not None else f"{bound} by default"
