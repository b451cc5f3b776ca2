"""kci/build: the variants of one leg, built and packed."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import msgspec

import kci
from common import (
    add_summary,
    add_tables,
    count_input,
    fail,
    flag_input,
    group,
    required_input,
    run_action,
    runner_temp,
    set_output,
    show,
    text_input,
    warn,
)
from kci.builders.object_packs import pack_name, read_head
from kci.builders.request import read_part
from kci.ci.run_records import OBJECTS_FILE, LegObjects, VariantFailure, ci_run, write_failure, write_record
from kci.ci.watched_leg import watch_leg
from kci.cli._output import print_error
from kci.cli._tables import AnswerTable
from kci.diagnostics import printable
from kci.errors import UnfinishedBuildError, first_error
from kci.matrix.names import upload_name
from kci.plan.hardware_tests import needs_hardware
from kci.plurals import count
from kci.run.build_leg import build_part
from kci.run.disk_room import make_room
from kci.toolchains.downloads import SeldomTransfers
from kci.tree.leg_record import artifact_name
from kci.watch.history import LegResult
from watched_results import upload_results, watched_run

SHARE_OF_TIMEOUT, SETUP_MINUTES = 0.92, 4
"""How much of a job's time a build may take, and the minutes that the steps around it need."""


MOST_BYTES = 4 * 10**9
"""Objects of a leg, packed; larger ones would cost more to carry than to compile."""


class Leg:
    """The inputs, and what is made of them."""

    def __init__(self) -> None:
        self.names = required_input("variant").split()
        self.directory = text_input("kernel", ".")
        self.output = Path(text_input("output", str(runner_temp() / "kci-build")))
        self.name = text_input("leg", self.names[0] if len(self.names) == 1 else "")
        flag_input("upload")  # the upload step compares text; a word that it would take for false must not pass
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
            stop_after=stop_after(count_input("timeout")),
            objects_from=packs(runner_temp() / "kci-objects"),
        )
        self.objects = text_input("objects")
        self.kept = runner_temp() / "kci-objects-out"
        if not self.name:
            fail("the input `leg` is missing: several variants need a name for their artifact", 2)
        self.packed = runner_temp() / "kci-artifacts-out"
        self.workspace = kci.open_workspace([self.directory])
        self.kernel = self.workspace.only_kernel()
        # All of them are looked up before the first is built: a misspelt name is known at once.
        self.variants = [self.workspace.variant(name, tier=self.options.tier) for name in self.names]

    def replay(self, variant: str) -> str:
        here = msgspec.structs.replace(self.options, part=None, link=False, stop_after=None, objects_from=())
        options = [f"--variant={variant}", *here.words()]
        threads = f"NVCC_THREADS={self.threads} " if self.threads else ""
        return threads + printable(shlex.join(["kci", "build", *options, "--output=build", "--", self.directory]))

    def request(self, variant: kci.Variant) -> kci.LegRequest:
        return kci.LegRequest(
            kernel=self.kernel,
            variant=variant,
            output=self.output,
            options=msgspec.structs.replace(self.options, objects_to=self.pack_of(variant.name)),
            artifact=self.packed / artifact_name(self.kernel.build.name, variant.name),
        )

    def build(self, variant: kci.Variant) -> kci.BuiltLeg | None:
        """Build a variant; None for a part of one, which makes objects only."""
        with group(f"Build {variant.name}{f' (part {self.part})' if self.part else ''}"):
            if self.part:
                build_part(self.workspace, self.request(variant), log)
                return None
            return kci.build_leg(self.workspace, self.request(variant), log)

    def pack_of(self, variant: str) -> Path | None:
        """Where the objects of a variant go, if they are to be kept."""
        part = read_part(self.part) if self.part else None
        name = pack_name(self.kernel.build.name, variant, part).removesuffix(".zst")  # the upload compresses it
        return self.kept / name if self.objects else None

    @property
    def upload_name(self) -> str:
        """What it uploads is called, without what tells attempts apart."""
        return upload_name(self.kernel.build.name, self.name)


def packs(folder: Path) -> tuple[Path, ...]:
    """The objects of earlier runs, of earlier attempts, and of the parts of a link."""
    return tuple(sorted(folder.rglob("objects.*.tar")))


def stop_after(timeout: int | None) -> float | None:
    """After how many minutes a build ends itself, so that the job can upload its objects before GitHub ends it."""
    return None if timeout is None else max(1.0, timeout * SHARE_OF_TIMEOUT - SETUP_MINUTES)


log = SeldomTransfers(show)


def main() -> None:
    """Build every variant of the leg, one after the other; one that fails does not stop the others."""
    leg = Leg()
    if leg.threads:
        os.environ["NVCC_THREADS"] = str(leg.threads)  # a container is told too
    if leg.disk and leg.options.container != "none":
        make_room(leg.disk, show)
    if flag_input("results", "false"):
        watch(leg)
        return
    built: list[kci.BuiltLeg] = []
    failed: list[tuple[str, kci.KciError]] = []
    for variant in leg.variants:
        try:
            if (made := leg.build(variant)) is not None:
                built.append(made)
        except kci.KciError as error:
            failed.append((variant.name, error))
            report_failure(leg, variant.name, error)
    objects = keep_objects(leg)
    # Set even if all failed: then what is uploaded is the reasons. An artifact cannot be replaced, and those of all
    # attempts of a run are one set: merging takes the newest.
    if not leg.part:
        set_output("artifact-name", f"{leg.upload_name}-{leg.run.attempt or 1}")
    set_output("folder", str(leg.packed))
    set_output("variant-dir", "\n".join(str(item.directory) for item in built))
    set_output("artifact", "\n".join(str(item.artifact) for item in built))
    set_output("digest", "\n".join(item.record.digest for item in built))
    rows = [
        (item.record.kernel, item.record.variant, "built", f"{item.record.seconds or 0:.0f} s", item.record.digest)
        for item in built
    ]
    rows += [(leg.kernel.build.name, name, "failed", first_error(error), "") for name, error in failed]
    headers = ("kernel", "variant", "state", "time or reason", "digest")
    title = f"Part {leg.part}" if leg.part else f"Build: {len(built)} of {count(len(leg.variants), 'variant')}"
    add_tables([AnswerTable(title, headers, tuple(rows)), *objects])
    if failed and leg.part and isinstance(failed[0][1], UnfinishedBuildError):
        warn(failed[0][1].message)  # the link compiles the rest
    elif failed:
        name, first = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        told = f"{name} was not built{more} (exit code {first.exit_code})"
        fail(f"{told}: {first_error(first)}", first.exit_code, findings=first.diagnostics)


def keep_objects(leg: Leg) -> list[AnswerTable]:
    """Hand the objects over to the upload, say in a record which there are, and how many were not compiled."""
    packed = {path: read_head(path) for path in packs(leg.kept)}
    if not packed:
        return []
    uses = [head.use for head in packed.values() if head.use is not None]
    found, made = (sum(getattr(use, name) for use in uses) for name in ("found", "made"))
    seconds, attempt = sum(use.seconds for use in uses), leg.run.attempt or 1
    name = f"{leg.objects}-{attempt}"
    wanted = sum(head.wanted for head in packed.values())
    rate = f"{100 * found // max(1, found + made)} %"
    runs = ", ".join(sorted({run for use in uses for run in use.runs})) or "no earlier run"
    row = (leg.name, f"{found + made} of {wanted}", found, rate, runs, made, f"{seconds / 60:.0f}")
    headers = ("leg", "objects there", "found", "hit rate", "from", "compiled", "minutes saved")
    if (size := sum(path.stat().st_size for path in packed)) > MOST_BYTES:
        warn(f"the objects are not kept: they have {size / 1e9:.1f} GB, and {MOST_BYTES / 1e9:.0f} are the most")
    else:
        set_output("objects-name", name)
        set_output("objects-folder", str(leg.kept))
        if not leg.part:  # those of a part are with the leg that links, too
            kept = LegObjects(leg.kernel.build.name, leg.name, attempt, name, found, made, seconds)
            write_record(leg.packed / OBJECTS_FILE, kept)
    return [AnswerTable("Objects", headers, (tuple(map(str, row)),))]


def watch(leg: Leg) -> None:
    """Build and load every variant for a scheduled run: what became of it is a result, and never fails the job."""
    run = watched_run(leg.workspace.catalog.name, leg.run.attempt or 1, leg.run.id or "")
    results: list[LegResult] = []
    for variant in leg.variants:
        with group(f"Build and load {variant.name}"):
            results += watch_leg(leg.workspace, leg.request(variant), run, leg.replay(variant.name), log)
    upload_results(results, f"{leg.upload_name.removeprefix('kci-')}-{run.attempt}")
    # What a machine with the hardware is to load has to get there.
    if leg.packed.is_dir() and any(needs_hardware(name, leg.workspace.runners) for name in leg.names):
        set_output("artifact-name", f"{leg.upload_name}-{run.attempt}")
        set_output("folder", str(leg.packed))


def report_failure(leg: Leg, variant: str, error: kci.KciError) -> None:
    """Say why a variant was not built, and how to do the same at home: here, in the summary, and to the gate."""
    replay = leg.replay(variant)
    print_error(error, annotate=False)
    print(f"To do the same on your machine:\n  {replay}", flush=True)
    add_summary([f"### {variant} was not built", "", "To do the same on your machine:", "", f"    {replay}"], [])
    kernel = leg.kernel.build.name
    attempt, unfinished = leg.run.attempt or 1, isinstance(error, UnfinishedBuildError)
    failure = VariantFailure(kernel, leg.name, variant, attempt, first_error(error), replay[:4000], unfinished)
    write_failure(leg.packed, failure)


if __name__ == "__main__":
    run_action(main)
