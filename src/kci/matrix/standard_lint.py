"""A C++ standard in a kernel's flags that is older than the headers of a torch accept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kci.catalog.floors import floors
from kci.config.document import KeyPath
from kci.config.file_lints import at_value
from kci.config.model import CudaComponent, RocmComponent, Torch, XpuComponent
from kci.config.reader import Kernel
from kci.config.values import Version
from kci.diagnostics import Diagnostic
from kci.matrix.names import Kind
from kci.matrix.variants import Variant

_STANDARD = re.compile(r"--?std=(?:c|gnu)\+\+(\d\d)")
_OLD_CENTURY = 90


def old_standards(kernel: Kernel, variants: Iterable[Variant]) -> Iterator[Diagnostic]:
    """KCI159: one finding for each flag that names such a standard.

    What is compiled for the stable ABI includes other headers, which accept an older one.

    Args:
        kernel: its flags are judged.
        variants: its release variants.
    """
    torches: dict[str, set[Version]] = {}
    for variant in variants:
        if variant.kind is Kind.FULL and variant.torch:
            torches.setdefault(variant.backend, set()).add(Version.parse(variant.torch))
    for backend, place, flag in _flags(kernel):
        named = _STANDARD.fullmatch(flag)
        built = torches.get(backend, set()) if backend else set[Version]().union(*torches.values())
        needed = {torch: _needed(torch) for torch in sorted(built)}
        lacking = [torch for torch, standard in needed.items() if named and _year(named[1]) < standard]
        if lacking:
            which = ", ".join(map(str, lacking))
            message = f"`{flag}` is older than C++{needed[lacking[-1]]}, which the headers of torch {which} ask for"
            yield at_value(kernel, place, "KCI159", message, "remove it: each build has the standard of its torch")


def _flags(kernel: Kernel) -> Iterator[tuple[str, KeyPath, str]]:
    """Every flag with its backend (empty for those of the bindings, which all have) and its place."""
    build = kernel.build
    lists: list[tuple[str, KeyPath, tuple[str, ...] | None]] = []
    if isinstance(build.torch, Torch):
        lists.append(("", ("torch", "cxx-flags"), build.torch.cxx_flags))
    for label, component in build.kernel.items():
        lists.append((component.backend, ("kernel", label, "cxx-flags"), component.cxx_flags))
        match component:
            case CudaComponent(cuda_flags=flags):
                lists.append((component.backend, ("kernel", label, "cuda-flags"), flags))
            case RocmComponent(hip_flags=flags):
                lists.append((component.backend, ("kernel", label, "hip-flags"), flags))
            case XpuComponent(sycl_flags=flags):
                lists.append((component.backend, ("kernel", label, "sycl-flags"), flags))
    for backend, key, flags in lists:
        for index, flag in enumerate(flags or ()):
            yield backend, (*key, index), flag


def _needed(torch: Version) -> int:
    """The oldest standard that the headers of a torch accept."""
    return max(standard for since, standard in floors().cxx_standard.items() if Version.parse(since) <= torch)


def _year(standard: str) -> int:
    """`98` was before `11`."""
    return int(standard) - 100 if int(standard) >= _OLD_CENTURY else int(standard)
