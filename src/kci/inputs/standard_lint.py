"""A C++ standard in a kernel's flags that is older than the headers of a torch accept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kci.catalog.floors import floors
from kci.catalog.rows import Catalog
from kci.config.file_lints import at_value
from kci.config.processor_flags import flags_of
from kci.config.reader import Kernel
from kci.config.source_kinds import CXX_ENDINGS
from kci.config.values import Version
from kci.diagnostics import Diagnostic
from kci.errors import KciError
from kci.inputs.include_scan import scan
from kci.inputs.source_lints import escapes
from kci.inputs.source_tree import SourceTree
from kci.matrix.names import Kind
from kci.matrix.selection import select

_STANDARD = re.compile(r"--?std=(?:c|gnu)\+\+(\d\d)")
_ASKING = frozenset(
    {"ATen/ATen.h", "torch/all.h", "torch/extension.h", "torch/script.h", "torch/torch.h", "torch/types.h"}
)
"""Headers of torch that stop a compiler with an older standard, and headers that include those."""
_NOT_GIVEN = {"cxx-flags": (".cu", ".cuh", ".hip"), "cuda-flags": CXX_ENDINGS, "hip-flags": CXX_ENDINGS}
"""Sources that another compiler takes, whose flags are others."""
_OLD_CENTURY = 90


def lint_standards(kernel: Kernel, catalog: Catalog, directory: Path) -> Iterator[Diagnostic]:
    """KCI159: one finding for each flag that names such a standard.

    What is compiled for the stable ABI includes other headers, which accept an older one; so do sources without torch.

    Args:
        kernel: its flags are judged.
        catalog: has the torch versions that it is built for.
        directory: where its sources lie.
    """
    old = [flag for flag in flags_of(kernel) if flag.place[0] != "tvm-ffi" and _STANDARD.fullmatch(flag.text)]
    if not old:
        return
    torches: dict[str, set[Version]] = {}
    for variant in select(kernel, catalog).variants:
        if variant.kind is Kind.FULL and variant.torch:
            torches.setdefault(variant.backend, set()).add(Version.parse(variant.torch))
    tree = SourceTree(directory)
    for flag in old:
        built = torches.get(flag.backend, set()) if flag.backend else set[Version]().union(*torches.values())
        needed = {torch: _needed(torch) for torch in sorted(built)}
        lacking = [torch for torch, standard in needed.items() if _named(flag.text) < standard]
        others = _NOT_GIVEN.get(str(flag.place[-2]), ())
        if lacking and any(_asks(tree, path) for path in flag.src if not path.endswith(others)):
            which = ", ".join(map(str, lacking))
            message = (
                f"`{flag.text}` is older than C++{needed[lacking[-1]]}, which the headers of torch {which} ask for"
            )
            yield at_value(kernel, flag.place, "KCI159", message, "remove it: each build has the standard of its torch")


def _asks(tree: SourceTree, path: str) -> bool:
    """Whether a listed file of the kernel includes a header of torch that asks for a standard."""
    try:
        real = None if escapes(path) else tree.file(path)
        return real is not None and not _ASKING.isdisjoint(scan(tree.content(real)).names)
    except KciError:  # it cannot be read, which others say
        return False


def _needed(torch: Version) -> int:
    """The oldest standard that the headers of a torch accept."""
    return max(standard for since, standard in floors().cxx_standard.items() if Version.parse(since) <= torch)


def _named(flag: str) -> int:
    """The standard that a flag names; `98` was before `11`."""
    found = _STANDARD.fullmatch(flag)
    assert found is not None  # noqa: S101  - the caller has asked
    return int(found[1]) - 100 if int(found[1]) >= _OLD_CENTURY else int(found[1])
