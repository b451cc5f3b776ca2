"""kci/build: builds and packs the variants of one leg."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

import kci
from kci.actions.common import (
    add_summary,
    add_tables,
    count_input,
    fail,
    flag_input,
    group,
    required_input,
    runner_temp,
    set_output,
    show,
    text_input,
    warn,
)
from kci.actions.schedule import scheduled_result, upload_results
from kci.build.native.objects import pack_name, read_head
from kci.build.process.run import Log
from kci.build.request import read_part
from kci.build.toolchains.environment import GPU_ROOM
from kci.cli._answers import AnswerTable
from kci.cli._output import print_error
from kci.config.facts import HOST
from kci.diagnostics import printable
from kci.errors import UnfinishedBuildError, first_error
from kci.matrix.variants import artifact_name, upload_name
from kci.plan.hardware_tests import needs_hardware
from kci.plan.plan import stop_after
from kci.run.build_leg import build_part
from kci.run.records import OBJECTS_FILE, LegObjects, VariantFailure, ci_run, write_failure, write_record
from kci.utils.shipped import Dated, shipped
from kci.utils.suggest import command_line, count
from kci.watch.history import LegResult
from kci.watch.scheduled_leg import watch_leg

SETUP_MINUTES = 4
"""Minutes of a job for the steps around a build."""

MAX_OBJECT_BYTES = 4 * 10**9
"""Bytes of a leg's packed objects; larger ones cost more to upload than to compile."""


class LegBuild:
    """The inputs of the action, and the paths and options that follow from them."""

    def __init__(self) -> None:
        self.names = required_input("variant").split()
        self.directory = text_input("kernel", ".")
        self.output = Path(text_input("output", str(runner_temp() / "kci-build")))
        self.name = text_input("leg", self.names[0] if len(self.names) == 1 else "")
        flag_input("upload")  # the upload step compares text, so it must be exactly true or false
        self.part = text_input("part")
        self.threads, self.disk, self.run = count_input("threads"), count_input("disk"), ci_run()
        self.options = kci.BuildOptions(
            builder=text_input("builder", "auto"),
            container=text_input("container", "auto"),
            tier=text_input("tier") or None,
            jobs=count_input("jobs"),
            attempt=self.run.attempt or 1,
            run=self.run.id,
            part=self.part or None,
            link=bool(text_input("takes") and packs(runner_temp() / "kci-objects")),
            objects_from=packs(runner_temp() / "kci-objects"),
        )
        self.objects = text_input("objects")
        self.kept = runner_temp() / "kci-objects-out"
        self.timeout = count_input("timeout")
        self.packed = runner_temp() / "kci-artifacts-out"
        self.workspace = kci.open_workspace([self.directory])
        self.kernel = self.workspace.only_kernel()
        self.begun = time.time()
        # A misspelled name fails before the first build.
        self.variants = [self.workspace.variant(name, tier=self.options.tier) for name in self.names]
        if not self.name:
            message = f"the input `variant` names {len(self.names)} variants, separated by blanks"
            fail(f"{message}, and their artifact needs a name: the input `leg` is missing", 2)

    def remaining_minutes(self) -> float | None:
        """The minutes until the build stops itself, so that the job can upload its objects; None without a limit."""
        if self.timeout is None:
            return None
        return max(0.0, stop_after(self.timeout - SETUP_MINUTES) - self.minutes)

    @property
    def minutes(self) -> float:
        return (time.time() - self.begun) / 60

    def replay(self, variant: str) -> str:
        here = replace(self.options, part=None, link=False, objects_from=())
        options = [f"--variant={variant}", *here.arguments()]
        threads = f"NVCC_THREADS={self.threads} " if self.threads else ""
        return threads + printable(command_line("build", *options, "--output=build", place=self.directory))

    def request(self, variant: kci.Variant) -> kci.LegRequest:
        return kci.LegRequest(
            kernel=self.kernel,
            variant=variant,
            output=self.output,
            options=replace(self.options, objects_to=self.pack_of(variant.name), stop_after=self.remaining_minutes()),
            artifact=self.packed / artifact_name(self.kernel.build.name, variant.name),
        )

    def build(self, variant: kci.Variant) -> kci.BuiltLeg | None:
        with group(f"Build {variant.name}{f' (part {self.part})' if self.part else ''}"):
            if self.options.part:
                build_part(self.workspace, self.request(variant), show)
                return None
            return kci.build_leg(self.workspace, self.request(variant), show)

    def pack_of(self, variant: str) -> Path | None:
        """The file for the objects of a variant, if they are kept."""
        part = read_part(self.part) if self.part else None
        name = pack_name(self.kernel.build.name, variant, part).removesuffix(".zst")
        return self.kept / name if self.objects else None

    @property
    def upload_name(self) -> str:
        return upload_name(self.kernel.build.name, self.name)


def packs(folder: Path) -> tuple[Path, ...]:
    """The packed objects of earlier runs, attempts and parts."""
    return tuple(sorted(folder.rglob("objects.*.tar")))


def main() -> None:
    """Build each variant of the leg; a failed one does not stop the others."""
    signal.signal(signal.SIGTERM, on_sigterm)
    leg = LegBuild()
    if leg.threads:
        os.environ["NVCC_THREADS"] = str(leg.threads)  # containers get it too
    need = leg.disk if leg.disk and leg.options.container != "none" else 0
    need += GPU_ROOM if any(variant.loads and variant.backend != HOST for variant in leg.variants) else 0
    if need:
        make_room(need, show)
    if flag_input("results", "false"):
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
    for variant in leg.variants:
        try:
            if (variant_build := leg.build(variant)) is not None:
                built.append(variant_build)
        except kci.KciError as error:
            failed.append((variant.name, error))
            report_failure(leg, variant.name, error)
    unfinished = [error for _, error in failed if isinstance(error, UnfinishedBuildError)]
    ends_itself = bool(failed) and len(unfinished) == len(failed)
    objects = keep_objects(leg)
    progress = objects and count_objects(leg)[1]
    # Set even if all failed, for the failure records. Artifacts cannot be replaced, so each attempt has one.
    if not leg.part:
        set_output("artifact-name", f"{leg.upload_name}-{leg.run.attempt or 1}")
    set_output("folder", str(leg.packed))
    set_output("variant-dir", "\n".join(str(item.directory) for item in built))
    set_output("artifact", "\n".join(str(item.artifact) for item in built))
    set_output("digest", "\n".join(item.record.digest for item in built))
    rows = [
        (item.kernel, item.variant, "built", str(item.loaded or "not known"), f"{item.seconds or 0:.0f} s", item.digest)
        for item in (one.record for one in built)
    ]
    rows += [(leg.kernel.build.name, name, "failed", "", first_error(error), "") for name, error in failed]
    headers = ("kernel", "variant", "state", "loaded", "time or reason", "digest")
    title = f"Part {leg.part}" if leg.part else f"Build: {len(built)} of {count(len(leg.variants), 'variant')}"
    add_tables([AnswerTable(title, headers, tuple(rows)), *objects])
    if ends_itself and leg.part:
        warn(f"{unfinished[0].message}; the link compiles the rest")
    elif ends_itself:
        fail(unfinished[0].message, unfinished[0].exit_code, GO_ON if progress else STUCK)
    elif failed:
        name, first = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        summary = f"{name} was not built{more} (exit code {first.exit_code})"
        fail(f"{summary}: {first_error(first)}", first.exit_code, findings=first.diagnostics)


GO_ON = "re-run the failed jobs, or push: it goes on from there"
STUCK = (
    "it compiled nothing that could be kept, so it would not get further: give it more time (`timeout-minutes`) or "
    "more `parts` under [[limits]] of kci.toml, or a machine with more cores and memory"
)


def count_objects(leg: LegBuild) -> tuple[int, int, int]:
    """Objects found, compiled and missing, from the packs."""
    heads = [read_head(path) for path in packs(leg.kept)]
    reused, compiled = (sum(getattr(head.use, name) for head in heads if head.use) for name in ("found", "made"))
    return reused, compiled, sum(head.wanted - head.objects for head in heads)


def minutes_left(leg: LegBuild) -> float | None:
    """The minutes that the missing objects need at the present rate; None without a rate or missing ones."""
    _, compiled, missing = count_objects(leg)
    return leg.minutes * missing / compiled if compiled and missing else None


def keep_objects(leg: LegBuild) -> list[AnswerTable]:
    """Set the outputs that upload the objects and return a table about them."""
    packed = packs(leg.kept)
    if not packed:
        return []
    reused, compiled, missing = count_objects(leg)
    attempt = leg.run.attempt or 1
    name = f"{leg.objects}-{attempt}"
    rate = f"{100 * reused // max(1, reused + compiled)} %"
    source_runs = sorted({run for path in packs(leg.kept) if (use := read_head(path).use) for run in use.runs})
    runs = ", ".join(source_runs) or "no earlier run"
    minutes = minutes_left(leg)
    row = (leg.name, f"{reused + compiled} of {reused + compiled + missing}", reused, rate, runs, compiled,
           "none" if not missing else "not known" if minutes is None else f"{minutes:.0f}")  # fmt: skip
    headers = ("leg", "objects there", "found", "hit rate", "from", "compiled", "minutes left, about")
    if (size := sum(path.stat().st_size for path in packed)) > MAX_OBJECT_BYTES:
        warn(f"the objects are not kept: they have {size / 1e9:.1f} GB, and {MAX_OBJECT_BYTES / 1e9:.0f} are the most")
        return []
    set_output("objects-name", name)
    set_output("objects-folder", str(leg.kept))
    if not leg.part:
        record = LegObjects(leg.kernel.build.name, leg.name, attempt, name, reused, compiled)
        write_record(leg.packed / OBJECTS_FILE, record)
    return [AnswerTable("Objects", headers, (tuple(map(str, row)),))]


def watch(leg: LegBuild) -> None:
    """Build and load each variant for a scheduled run; failures are results, and do not fail the job."""
    run = scheduled_result(leg.workspace.catalog.name, leg.run.attempt or 1, leg.run.id or "")
    results: list[LegResult] = []
    for variant in leg.variants:
        with group(f"Build and load {variant.name}"):
            results += watch_leg(leg.workspace, leg.request(variant), run, leg.replay(variant.name), show)
    upload_results(results, f"{leg.upload_name.removeprefix('kci-')}-{run.attempt}")
    if leg.packed.is_dir() and any(needs_hardware(name, leg.workspace.runners) for name in leg.names):
        set_output("artifact-name", f"{leg.upload_name}-{run.attempt}{'-retry' if run.look > 1 else ''}")
        set_output("folder", str(leg.packed))


def report_failure(leg: LegBuild, variant: str, error: kci.KciError) -> None:
    """Report a failed variant with its replay command: in the log, the summary, and a record for the gate."""
    replay = leg.replay(variant)
    print_error(error, annotate=False)
    print(f"To do the same on your machine:\n  {replay}", flush=True)
    add_summary([f"### {variant} was not built", "", "To do the same on your machine:", "", f"    {replay}"], [])
    write_failure(leg.packed, failure_record(leg, variant, error))


def failure_record(leg: LegBuild, variant: str, error: kci.KciError) -> VariantFailure:
    """The record of a failed variant."""
    unfinished, reason = isinstance(error, UnfinishedBuildError), first_error(error)
    if unfinished and (minutes := minutes_left(leg)) is not None:
        reason += f", and about {count(round(minutes), 'minute')} are left; {GO_ON}"
    return VariantFailure(
        leg.kernel.build.name, leg.name, variant, leg.run.attempt or 1, reason, leg.replay(variant)[:4000], unfinished
    )


_GIGA = 10**9
_STORES = ("/var/lib/docker", "/var/lib/containers", "/")
"""Where images are stored: the first that exists."""


class HostedDisk(Dated, frozen=True):
    """`data/hosted-disk.toml`."""

    directories: tuple[str, ...]


def make_room(need: int, log: Log, environ: Mapping[str, str] = os.environ) -> bool:
    """Free gigabytes for a container image by removing tools; only on a GitHub-hosted runner. True if they are free."""
    store = next(place for place in _STORES if Path(place).exists())
    if _free(store) >= need:
        return True
    if environ.get("RUNNER_ENVIRONMENT") == "github-hosted":
        directories = shipped("run/data/hosted-disk.toml", HostedDisk)().directories
        for directory in directories:
            if Path(directory).is_dir():
                subprocess.run(["sudo", "rm", "-rf", "--", directory], check=False)
                log(f"removed {directory}: {_free(store)} GB are free now")
            if _free(store) >= need:
                return True
    log(f"::warning::{_free(store)} GB of disk are free in {store}, and this leg needs {need}")
    return False


def _free(place: str) -> int:
    return shutil.disk_usage(place).free // _GIGA
