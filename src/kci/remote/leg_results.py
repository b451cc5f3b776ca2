"""What legs handed back: each held against what was planned, and what is good merged into one tree for each kernel.

It comes from machines that ran foreign code.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from kci.ci.run_records import TEST_FILE, TestRecord
from kci.errors import UNFINISHED, BuildFailedError, FindingsError, UnfinishedBuildError, one_line
from kci.files.bounded_json import read_record
from kci.remote.engine_plan import EngineRun
from kci.remote.job import EngineJob, Fetched, log_tail
from kci.remote.run_state import LegPhase, RunEvent, RunState
from kci.run.local import TreeResult, merged_tree
from kci.toolchains.launcher import ObjectUse
from kci.tree.artifacts import CiRun, find_sources, require_bound
from kci.tree.unpack import unpack

_RECORD_BYTES = 1024 * 1024


def require_built(job: EngineJob, fetched: Fetched, run: EngineRun) -> str:
    """Hold a leg's artifacts against the plan, the run and themselves, as merging will.

    Returns:
        how many of its objects were compiled before, for people.

    Raises:
        UnfinishedBuildError: its build ended itself before it was done.
        KciError: the leg failed, or handed back something else than what was planned.
    """
    if said := _failed(job, fetched):
        if found := UNFINISHED.search(log_tail(fetched.log)):
            raise UnfinishedBuildError(found["what"], int(found["done"][:9]), int(found["total"][:9]))
        raise BuildFailedError(said)
    there = {path.name for path in fetched.artifacts}
    lacking = sorted({*job.artifacts} - there - ({job.pack} if job.variants else set()))
    if lacking:
        raise FindingsError(f"it ended well and did not hand back {', '.join(lacking)}")
    if not job.variants:
        return ""
    sources = find_sources(path for path in fetched.artifacts if path.name != job.pack)
    require_bound(sources, run.planned, CiRun(run.id, job.attempt))
    for source in sources:
        with tempfile.TemporaryDirectory(prefix="kci-fetched-") as place:
            unpack(source.path, Path(place))
    used = [source.leg.objects for source in sources if source.leg.objects is not None]
    return str(sum(used, ObjectUse(0, 0))) if used else ""


def require_passed(job: EngineJob, fetched: Fetched, _run: EngineRun) -> str:
    """Judge the record that a leg that tests handed back; returns what was tested, for people.

    Raises:
        BuildFailedError: it did not come to testing.
        FindingsError: a test failed, or the record is not that of this leg.
    """
    said = _failed(job, fetched)
    if not fetched.artifacts:
        raise BuildFailedError(said or f"{job.kernel} was not tested: its leg left no {TEST_FILE}")
    try:
        record = read_record(fetched.artifacts[0], TestRecord, _RECORD_BYTES)
    except (OSError, ValueError) as error:
        raise FindingsError(f"{TEST_FILE} is not the record of a test: {one_line(str(error))}") from error
    strange = sorted(set(record.tested) - set(job.variants))
    if record.kernel != job.kernel or strange:
        what = f"{record.kernel} {' '.join(strange)}".strip()
        raise FindingsError(f"{job.name} handed back the record of something else: {one_line(what)}")
    if not record.passed:
        raise FindingsError(f"{job.kernel} {one_line(record.error)}")
    if said:
        raise BuildFailedError(said)
    if not record.tested:
        raise FindingsError(f"{job.kernel}: none of {', '.join(job.variants)} was tested")
    others = [name for name in job.variants if name not in record.tested]
    return f"tested {', '.join(record.tested)}" + (f"; it cannot load {', '.join(others)}" if others else "")


def merge_run(state: RunState, log: Callable[[str], None]) -> list[TreeResult]:
    """Merge what was built into one tree for each kernel, and verify it; `log` takes what the merges say.

    Raises:
        KciError: see `merge`.
    """
    run, progress = state.run, state.journal.legs
    built: dict[str, list[Path]] = {}
    for leg in run.legs:
        if progress[leg.name].phase is LegPhase.BUILT and leg.job.variants:
            job = state.job(leg.name)
            built.setdefault(job.kernel, []).extend(
                state.folder / "fetched" / job.name / name for name in job.artifacts if name != job.pack
            )
    results = []
    for kernel, artifacts in sorted(built.items()):
        planned = msgspec.structs.replace(run.planned, kernels={kernel: run.planned.kernels[kernel]})
        results.append(merged_tree(kernel, artifacts, Path(run.trees[kernel]), planned, log, CiRun(run.id)))
    if results:
        state.journal.note(RunEvent.MERGED, ())
    return results


def _failed(job: EngineJob, fetched: Fetched) -> str:
    """Why a leg's command failed, and the end of its log; empty if it did not."""
    result = fetched.result
    if result.ended == "exit" and result.code == 0:
        return ""
    ends = {"timeout": f"it took more than {job.timeout} min", "cancelled": "it was cancelled"}
    why = ends.get(result.ended, f"its command ended with code {result.code}")
    return f"{why}; the end of {fetched.log}:\n{log_tail(fetched.log)}"
