"""What merging one kernel came to: the tree is verified, and a record of it all is left for the gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kci.ci.run_records import KernelRecord, ci_run, read_failures, read_objects
from kci.config.suppression import SuppressedFinding, apply_to_tree
from kci.diagnostics import Diagnostic
from kci.errors import KciError, first_error
from kci.files.walk import size_of
from kci.tree.artifacts import find_sources
from kci.tree.manifest import Manifest
from kci.tree.planned import Planned
from kci.verify import verify


def verify_merged(
    into: Path,
    trees: Mapping[Path, Manifest],
    planned: Planned | None,
    suppressed: Callable[[SuppressedFinding], None],
) -> list[Diagnostic]:
    """Verify what was merged. No kci.toml is there: the plan has what it suppresses in trees.

    Args:
        into: the tree, or the folder of several.
        trees: each tree's manifest, by the tree's directory.
        planned: what the trees were merged for.
        suppressed: takes the findings that do not count.
    """
    found = verify(into)
    for place, manifest in trees.items():
        kernel = planned.kernels.get(manifest.kernel) if planned is not None else None
        if planned is not None and kernel is not None and kernel.tree:
            found = apply_to_tree(found, planned.suppressions, str(place), kernel.tree, suppressed)
    return found


def error_of(problem: KciError) -> str:
    """Why no tree was made; empty if variants are missing, which have failures of their own that say more."""
    return "" if {item.rule for item in problem.diagnostics} == {"KCI606"} else first_error(problem)


def kernel_record(
    kernel: str, artifacts: Sequence[Path], into: Path, manifest: Manifest | None, error: str = ""
) -> KernelRecord:
    """What became of a kernel, by its manifest if it was merged, and by what its legs left.

    Args:
        kernel: its name.
        artifacts: the folders of what its legs left.
        into: its tree, which is none of them.
        manifest: of the tree, if one was made.
        error: why that is no good tree.
    """
    failures = read_failures(artifacts, kernel)
    present = tuple(item.variant for item in manifest.present) if manifest else _there(kernel, artifacts, into)
    return KernelRecord(
        kernel=kernel,
        attempt=ci_run().attempt or 1,
        complete=bool(manifest and manifest.complete) and not error,
        present=present,
        missing=manifest.missing if manifest else (),
        failures=tuple(failure for failure in failures if failure.variant not in present),
        objects=read_objects(artifacts, kernel),
        error=error,
        manifest=manifest if manifest and not error else None,
        sizes={name: size_of(into / name) for name in present} if manifest else {},
    )


def _there(kernel: str, artifacts: Sequence[Path], into: Path) -> tuple[str, ...]:
    try:
        found = [source.leg for source in find_sources(artifacts, skip=into)]
    except KciError:
        return ()
    return tuple(sorted({leg.variant for leg in found if leg.kernel == kernel}))
