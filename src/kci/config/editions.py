"""What tells the formats before edition 5 apart (format section 1.9)."""

from __future__ import annotations

from typing import Any


def older_edition(data: dict[str, Any]) -> int | None:
    """The number of the older format that a document without `edition` has: 1, 2 or 3, or None for v4 and later.

    Only asked about documents that are not valid as v4. v3 is told by what it may leave out: `version`, `license` or
    the framework table; v2 by `general.universal` or the CUDA bounds beside the name; v1 by `language` in components or
    `torch.universal`.
    """
    general = data.get("general")
    if not isinstance(general, dict):
        return None
    torch = data.get("torch")
    kernels = data.get("kernel")
    components = [part for part in kernels.values() if isinstance(part, dict)] if isinstance(kernels, dict) else []
    if any("language" in part for part in components) or (isinstance(torch, dict) and "universal" in torch):
        return 1
    if {"universal", "cuda-minver", "cuda-maxver"} & general.keys():
        return 2
    if "backends" not in general:
        return None
    has_framework = any(name in data for name in ("torch", "torch-noarch", "tvm-ffi"))
    complete = "version" in general and "license" in general and has_framework
    newer = {"source", "edition", "kernel-depends", "tpu"} & general.keys()
    return 3 if not complete and not newer and "torch-noarch" not in data else None
