"""kci/build: builds and packs the variants of one leg."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from msgspec.structs import replace

import kci
from kci.actions import common
from kci.actions.schedule import scheduled_result, upload_results
from kci.builders.native.objects import pack_name, read_head
from kci.builders.request import read_part
from kci.builders.toolchains.environment import GPU_ROOM
from kci.cli._output import print_error
from kci.config.facts import HOST
from kci.errors import UnfinishedBuildError, first_error
from kci.matrix.variants import ObjectUse, artifact_name, upload_name
from kci.plan.hardware_tests import needs_hardware
from kci.plan.plan import stop_after
from kci.run.build_leg import build_part
from kci.run.disk_room import make_room
from kci.run.records import OBJECTS_FILE, LegObjects, ci_run, write_failure, write_record
from kci.utils.suggest import count
from kci.watch.history import LegResult
from kci.watch.scheduled_leg import watch_leg

SETUP_MINUTES = 4
"""Minutes of a job for the steps around a build."""

MAX_OBJECT_BYTES = 4 * 10**9
"""Bytes of a leg's packed objects; larger ones cost more to upload than to compile."""


class LegBuild:
    """The inputs of the action, and the paths and options that follow from them."""

    def __init__(self) -> None:
        names, temporary = common.required_input("variant").split(), common.runner_temp()
        self.output = Path(common.text_input("output", str(temporary / "kci-build")))
        self.name = common.text_input("leg", names[0] if len(names) == 1 else "")
        common.flag_input("upload")  # the upload step compares text: exactly true or false
        self.part, self.objects = common.text_input("part"), common.text_input("objects")
        self.threads, self.timeout = common.count_input("threads"), common.count_input("timeout")
        self.kept, self.packed = temporary / "kci-objects-out", temporary / "kci-artifacts-out"
        run, objects = ci_run(), packs(temporary / "kci-objects")
        self.options = kci.BuildOptions(
            builder=common.text_input("builder", "auto"),
            container=common.text_input("container", "auto"),
            tier=common.text_input("tier") or None,
            jobs=common.count_input("jobs"),
            attempt=run.attempt or 1,
            run=run.id,
            part=self.part or None,
            link=bool(common.text_input("takes") and objects),
            objects_from=objects,
        )
        self.workspace = kci.open_workspace([common.text_input("kernel", ".")])
        self.kernel = self.workspace.only_kernel()
        self.begun = time.time()
        # A misspelled name fails before the first build.
        self.variants = [self.workspace.variant(name, tier=self.options.tier) for name in names]
        if not self.name:
            given = f"`variant` names {len(names)} variants, and their artifact needs a name"
            common.fail(f"the input `leg` is missing: {given}")

    @property
    def minutes(self) -> float:
        return (time.time() - self.begun) / 60

    @property
    def upload_name(self) -> str:
        return f"{upload_name(self.kernel.build.name, self.name)}-{self.options.attempt}"

    def request(self, variant: kci.Variant) -> kci.LegRequest:
        """The request of a variant, which stops itself so that the job can upload its objects."""
        options, kernel, name = self.options, self.kernel.build.name, variant.name
        if self.objects:
            part = read_part(self.part) if self.part else None
            pack = self.kept / pack_name(kernel, name, part).removesuffix(".zst")
            options = replace(options, objects_to=pack)
        if self.timeout:
            left = stop_after(self.timeout - SETUP_MINUTES) - self.minutes
            options = replace(options, stop_after=max(0.0, left))
        return kci.LegRequest(
            kernel=self.kernel,
            variant=variant,
            output=self.output,
            options=options,
            artifact=self.packed / artifact_name(kernel, name),
        )

    def replay(self, request: kci.LegRequest) -> str:
        threads = f"NVCC_THREADS={self.threads} " if self.threads else ""
        return threads + request.replay("--output=build")

    def count_objects(self) -> tuple[ObjectUse, int]:
        """Objects found and compiled, and those that are missing, from the packs."""
        heads = [read_head(path) for path in packs(self.kept)]
        used = sum((head.use for head in heads if head.use), ObjectUse(0, 0))
        return used, sum(head.wanted - head.objects for head in heads)

    def minutes_left(self) -> float | None:
        """The minutes that the missing objects need at the present rate; None without a rate or
        missing ones.
        """
        used, missing = self.count_objects()
        return self.minutes * missing / used.made if used.made and missing else None


def packs(folder: Path) -> tuple[Path, ...]:
    """The packed objects of earlier runs, attempts and parts."""
    return tuple(sorted(folder.rglob("objects.*.tar")))


def main() -> None:
    """Build each variant of the leg; a failed one does not stop the others."""
    signal.signal(signal.SIGTERM, on_sigterm)
    leg, disk = LegBuild(), common.count_input("disk")
    if leg.threads:
        os.environ["NVCC_THREADS"] = str(leg.threads)  # containers get it too
    image = disk if disk and leg.options.container != "none" else 0
    gpu = any(variant.loads and variant.backend != HOST for variant in leg.variants)
    if need := image + GPU_ROOM * gpu:
        make_room(need, common.show)
    if common.flag_input("results"):
        watch(leg)
    else:
        build(leg)


def on_sigterm(_number: int, _frame: object) -> None:
    """Raise KeyboardInterrupt on SIGTERM, so that objects are packed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def build(leg: LegBuild) -> None:
    """Build the variants, or the objects of a part, and set the outputs."""
    built: list[kci.BuiltLeg] = []
    failed: list[tuple[str, kci.KciError]] = []
    part = f" (part {leg.part})" if leg.part else ""
    for variant in leg.variants:
        request = leg.request(variant)
        try:
            with common.group(f"Build {variant.name}{part}"):
                if leg.part:
                    build_part(leg.workspace, request, common.show)
                else:
                    built.append(kci.build_leg(leg.workspace, request, common.show))
        except kci.KciError as error:
            failed.append((variant.name, error))
            report_failure(leg, request, error)
    objects = keep_objects(leg)
    # Set even if all failed, for the failure records. Artifacts cannot be replaced, so each attempt
    # has one.
    common.set_outputs(
        artifact_name="" if leg.part else leg.upload_name,
        folder=leg.packed,
        variant_dir=[item.directory for item in built],
        artifact=[item.artifact for item in built],
        digest=[item.record.digest for item in built],
    )
    rows, kernel = list[tuple[object, ...]](), leg.kernel.build.name
    for item in (one.record for one in built):
        loaded, took = item.loaded or "not known", f"{item.seconds or 0:.0f} s"
        rows.append((kernel, item.variant, "built", loaded, took, item.digest))
    rows += [(kernel, name, "failed", "", first_error(error), "") for name, error in failed]
    headers = ("kernel", "variant", "state", "loaded", "time or reason", "digest")
    done = f"Build: {len(built)} of {count(len(leg.variants), 'variant')}"
    common.add_table(f"Part {leg.part}" if leg.part else done, headers, rows)
    if objects:
        common.add_table("Objects", tuple(objects), [tuple(objects.values())])
    if failed:
        end(leg, failed, progress=bool(objects.get("compiled")))


def end(leg: LegBuild, failed: list[tuple[str, kci.KciError]], *, progress: bool) -> None:
    """Fail, unless it is a part that ended itself; `progress` is whether another attempt gets
    further.
    """
    name, first = failed[0]
    if not all(isinstance(error, UnfinishedBuildError) for _, error in failed):
        more, code = f" (and {len(failed) - 1} more)" if len(failed) > 1 else "", first.exit_code
        summary = f"{name} was not built{more} (exit code {code})"
        at = first.diagnostics[0] if first.diagnostics else None
        common.fail(f"{summary}: {first_error(first)}", code, at=at)
    if not leg.part:
        common.fail(first.message, first.exit_code, GO_ON if progress else STUCK)
    common.warn(f"{first.message}; the link compiles the rest")


GO_ON = "re-run the failed jobs, or push: it goes on from there"
STUCK = (
    "it compiled nothing that could be kept, so it would not get further: give it more time "
    "(`timeout-minutes`) or more `parts` under [[limits]] of kci.toml, or a machine with more "
    "cores and memory"
)


def keep_objects(leg: LegBuild) -> dict[str, object]:
    """Set the outputs that upload the objects, and return what to show of them."""
    packed = packs(leg.kept)
    if not packed:
        return {}
    if (size := sum(path.stat().st_size for path in packed)) > MAX_OBJECT_BYTES:
        limit = f"more than the limit of {MAX_OBJECT_BYTES / 1e9:.0f} GB"
        common.warn(f"the objects are not kept: they have {size / 1e9:.1f} GB, {limit}")
        return {}
    used, missing = leg.count_objects()
    attempt, minutes = leg.options.attempt, leg.minutes_left()
    there, name = used.found + used.made, f"{leg.objects}-{attempt}"
    common.set_outputs(objects_name=name, objects_folder=leg.kept)
    if not leg.part:
        record = LegObjects(leg.kernel.build.name, leg.name, attempt, name, used.found, used.made)
        write_record(leg.packed / OBJECTS_FILE, record)
    left = "not known" if minutes is None else f"{minutes:.0f}"
    return {
        "leg": leg.name,
        "objects there": f"{there} of {there + missing}",
        "found": used.found,
        "hit rate": f"{100 * used.found // max(1, there)} %",
        "from": ", ".join(used.runs) or "no earlier run",
        "compiled": used.made,
        "minutes left, about": left if missing else "none",
    }


def watch(leg: LegBuild) -> None:
    """Build and load each variant for a scheduled run; failures are results, and do not fail the
    job.
    """
    run = scheduled_result(leg.workspace.catalog.name)
    results: list[LegResult] = []
    for variant in leg.variants:
        with common.group(f"Build and load {variant.name}"):
            request = leg.request(variant)
            results += watch_leg(leg.workspace, request, run, leg.replay(request), common.show)
    upload_results(results, leg.upload_name.removeprefix("kci-"))
    machines = leg.workspace.runners
    if leg.packed.is_dir() and any(needs_hardware(each.name, machines) for each in leg.variants):
        retry = "-retry" if run.look > 1 else ""
        common.set_outputs(artifact_name=f"{leg.upload_name}{retry}", folder=leg.packed)


def report_failure(leg: LegBuild, request: kci.LegRequest, error: kci.KciError) -> None:
    """Report a failed variant with its replay command: in the log, the summary, and a record for
    the gate.
    """
    replay, how, more = leg.replay(request), "To do the same on your machine:", ""
    minutes = leg.minutes_left() if isinstance(error, UnfinishedBuildError) else None
    print_error(error, annotate=False)
    common.show(f"{how}\n  {replay}")
    common.add_summary([f"### {request.variant.name} was not built", "", how, "", f"    {replay}"])
    if minutes is not None:
        more = f", and about {count(round(minutes), 'minute')} are left; {GO_ON}"
    write_failure(leg.packed, request.failure(error, leg.name, replay, more))
