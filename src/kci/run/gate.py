"""Compares a CI run's plan with its records: what failed, and what can be published."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterator, Mapping

import msgspec

from kci.errors import UsageError
from kci.plan.github_limits import FORK_RULE
from kci.plan.plan import Leg, Plan
from kci.run.records import NO_RESULT_MESSAGE, KernelRecord
from kci.run.tree_index import RunUploads
from kci.utils.suggest import count

_NO_RECORD = (
    "no job that merges it left a record: it was cancelled, its machine was lost, or the workflow is older than the "
    "kernel (`kci render`)"
)


PLAN_JOB, PUBLISH_JOB = "plan", "publish"
"""Job names in rendered workflows."""


class JobResult(enum.StrEnum):
    """GitHub's result of a job."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class GateRow(msgspec.Struct, frozen=True):
    """A planned item that the run lacks."""

    kernel: str
    variant: str
    """Empty for the whole kernel."""
    job: str
    """Name on the run's page."""
    error: str
    replay: str
    """Command that reproduces the error; may be empty."""


def read_results(text: str) -> dict[str, JobResult]:
    """Parse `name=result` words; `name/need,need=result` is a job of the repository. Raises UsageError."""
    results: dict[str, JobResult] = {}
    for word in text.split():
        name, _, result = word.partition("=")
        if not name.partition("/")[0] or name in results or result not in {*JobResult}:
            raise UsageError(f"{word[:80]!r} does not say how a job ended", hint="write job=${{ needs.job.result }}")
        results[name] = JobResult(result)
    if PLAN_JOB not in results:
        raise UsageError("the result of the plan job is missing", hint="add plan=${{ needs.plan.result }}")
    return results


def job_problem(results: Mapping[str, JobResult], ready: int) -> str:
    """Describe failed jobs besides complete records; `ready` is the number of publishable kernels."""
    ended = {name.partition("/")[0]: result for name, result in results.items()}
    bad = [f"{name} ({result})" for name, result in ended.items() if result in ("failure", "cancelled")]
    if bad:
        return f"all that was planned is there, but not every job ended well: {', '.join(bad)}"
    for name, result in results.items():
        job, _, needs = name.partition("/")
        if (
            needs
            and result is JobResult.SKIPPED
            and {ended.get(need) for need in needs.split(",")} == {JobResult.SUCCESS}
        ):
            return f"the job {job} was skipped although what it needs succeeded: {needs}"
    if ready and results.get(PUBLISH_JOB) is JobResult.SKIPPED:
        return f"{ready} kernels can be published, and the job that publishes did not run"
    return ""


def missing_results(run: RunUploads) -> list[GateRow]:
    """List what a run's records lack. Records of attempts older than the newest plan do not count."""
    plan = run.plan
    rows = [
        GateRow(item.kernel or item.path, "", "plan", item.message, shlex.join(["kci", "check", "--", item.path]))
        for item in plan.faulty
    ]
    rows += [
        GateRow(item.kernel, item.variant, "plan", item.reason, "") for item in plan.left_out if item.rule == FORK_RULE
    ]
    by_kernel: dict[str, list[Leg]] = {}
    for leg in plan.legs:
        by_kernel.setdefault(leg.kernel, []).append(leg)
    fresh = {kernel: record for kernel, record in run.records.items() if record.attempt >= plan.attempt}
    for kernel, legs in sorted(by_kernel.items()):
        record = fresh.get(kernel)
        if record is None:
            rows.append(GateRow(kernel, "", f"{kernel} / merge", _NO_RECORD, ""))
        else:
            rows += _kernel_rows(plan.tier, record, legs)
    for (kernel, name), why in msgspec.structs.replace(run, records=fresh).failed_tests().items():
        test = run.tests.get((kernel, name))
        rows.append(GateRow(kernel, "", f"{kernel} / test {name}", why, test.replay if test else ""))
    return rows


def _kernel_rows(tier: str, record: KernelRecord, legs: list[Leg]) -> Iterator[GateRow]:
    present = set(record.present)
    failures = {failure.variant: failure for failure in record.failures}
    lacking = [(leg, name) for leg in legs for name in leg.variants if name not in present]
    for leg, name in lacking:
        words = ["kci", "build", f"--variant={name}", f"--container={leg.image or 'none'}", f"--tier={tier}"]
        error, replay = NO_RESULT_MESSAGE, shlex.join([*words, "--", leg.path])
        if failure := failures.get(name):
            error, replay = failure.error, failure.replay
        yield GateRow(record.kernel, name, f"{record.kernel} / {leg.name}", error, replay)
    if record.error or (not record.complete and not lacking):
        error = record.error or f"the tree lacks {', '.join(record.missing) or 'something that was planned'}"
        yield GateRow(record.kernel, "", f"{record.kernel} / merge", error, "")


def success_summary(plan: Plan) -> str:
    """Summary of a run without errors."""
    built, kernels = sum(len(leg.variants) for leg in plan.legs), len({leg.kernel for leg in plan.legs})
    done = [f"{count(built, 'variant')} of {count(kernels, 'kernel')}"] if built else []
    done += [f"{count(len(plan.tests), 'test job')} passed"] if plan.tests else []
    done += [f"{count(len(plan.skipped), 'variant')} unchanged"] if plan.skipped else []
    return f"all that was planned is there: {'; '.join(done)}" if done else "there was nothing to do"


class PublishableKernel(msgspec.Struct, frozen=True):
    """A kernel whose tree can be published."""

    kernel: str
    path: str
    run: str
    """Id of the run with the artifacts."""


def publishable_kernels(run: RunUploads, run_id: str) -> list[PublishableKernel]:
    """List the publishable kernels; an unchanged kernel has its tree in an earlier run."""
    plan = run.plan
    built = {leg.kernel for leg in plan.legs}
    skipped = {item.kernel for item in plan.skipped}
    # an unplanned test leg passed on the same tree in an earlier run
    bad = {item.kernel for item in plan.faulty} | {name for name, _ in run.failed_tests()}
    kernels = []
    for kernel in plan.kernels:
        record, place = run.records.get(kernel.name), run.index.trees.get(kernel.name)
        if kernel.name in bad:
            continue
        if kernel.name in built:
            if record is not None and record.attempt >= plan.attempt and record.complete:
                kernels.append(PublishableKernel(kernel.name, kernel.path, run_id))
        elif kernel.name in skipped and place is not None and place.manifest.version == kernel.version:
            if record is not None and (record.manifest is None or record.manifest.digests != place.manifest.digests):
                continue  # the fetched tree is another one
            kernels.append(PublishableKernel(kernel.name, kernel.path, place.run))
    return sorted(kernels, key=lambda item: item.kernel)
