"""Between building and testing on engines: what was built becomes one tree for each kernel, which legs then test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from kci.errors import FindingsError
from kci.remote.engine_run import Driver
from kci.remote.leg_sources import pack_variants
from kci.remote.run_journal import LegPhase, RunEvent
from kci.run.local import TreeResult
from kci.tree.artifacts import CiRun
from kci.tree.merge import merge
from kci.verify import verify


def merge_run(driver: Driver) -> list[TreeResult]:
    """Merge what was built into one tree for each kernel, and verify it.

    Raises:
        KciError: see `merge`.
    """
    run, progress = driver.run, driver.journal.legs
    built: dict[str, list[Path]] = {}
    for leg in run.legs:
        if progress[leg.name].phase is LegPhase.BUILT:
            job = driver.place(leg.name).attempt(progress[leg.name].now.attempt)
            built.setdefault(job.kernel, []).extend(
                driver.folder / "fetched" / job.name / name for name in job.artifacts
            )
    results = []
    for kernel, artifacts in sorted(built.items()):
        tree = Path(run.trees[kernel])
        planned = msgspec.structs.replace(run.planned, kernels={kernel: run.planned.kernels[kernel]})
        (manifest,) = merge(artifacts, tree, planned, allow_partial=True, run=CiRun(run.id))
        # What is missing is said leg by leg.
        findings = tuple(item for item in verify(tree) if item.rule != "KCI721")
        results.append(TreeResult(kernel, tree, manifest, findings))
    if results:
        driver.journal.note(RunEvent.MERGED, ())
    return results


def release_tests(driver: Driver, trees: Sequence[TreeResult]) -> None:
    """Have the legs begin that test what was merged.

    Raises:
        FindingsError: a tree cannot be read.
    """
    by_kernel = {tree.kernel: tree for tree in trees}
    for leg in driver.journal.of(LegPhase.HELD):
        job = driver.legs[leg].job
        tree = by_kernel.get(job.kernel)
        there = {entry.variant for entry in tree.manifest.present} if tree else set()
        names = tuple(name for name in job.variants if name in there)
        if tree is None or not names:
            driver.fail(leg, FindingsError(f"nothing to test: none of {', '.join(job.variants)} is in the tree"))
        else:
            packed = pack_variants(tree.tree, names, driver.folder / "inputs")
            driver.note(RunEvent.READY, [leg], tree=packed, variants=names)
