"""kci/build: the variants of one leg, built and packed."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

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
)
from kci.ci.run_records import VariantFailure, ci_run, write_failure
from kci.ci.watched_leg import watch_leg
from kci.cli._output import print_error
from kci.cli._tables import AnswerTable
from kci.diagnostics import printable
from kci.errors import UnfinishedBuildError, first_error
from kci.matrix.names import upload_name
from kci.plan.hardware_tests import needs_hardware
from kci.plurals import count
from kci.run.disk_room import make_room
from kci.toolchains.downloads import SeldomTransfers
from kci.tree.leg_record import artifact_name
from kci.watch.history import LegResult
from watched_results import upload_results, watched_run


class Leg:
    """The inputs, and what is made of them."""

    def __init__(self) -> None:
        self.names = required_input("variant").split()
        self.directory = text_input("kernel", ".")
        self.output = Path(text_input("output", str(runner_temp() / "kci-build")))
        self.name = text_input("leg", self.names[0] if len(self.names) == 1 else "")
        flag_input("upload")  # the upload step compares text; a word that it would take for false must not pass
        self.threads, self.disk, self.run = count_input("threads"), count_input("disk"), ci_run()
        self.options = kci.BuildOptions(
            builder=text_input("builder", "auto"),
            container=text_input("container", "auto"),
            tier=text_input("tier") or None,
            jobs=count_input("jobs"),
            attempt=self.run.attempt or 1,
            run=self.run.id,
        )
        if not self.name:
            fail("the input `leg` is missing: several variants need a name for their artifact", 2)
        self.packed = runner_temp() / "kci-artifacts-out"
        self.workspace = kci.open_workspace([self.directory])
        self.kernel = self.workspace.only_kernel()
        # All of them are looked up before the first is built: a misspelt name is known at once.
        self.variants = [self.workspace.variant(name, tier=self.options.tier) for name in self.names]

    def replay(self, variant: str) -> str:
        options = [f"--variant={variant}", *self.options.words()]
        threads = f"NVCC_THREADS={self.threads} " if self.threads else ""
        return threads + printable(shlex.join(["kci", "build", *options, "--output=build", "--", self.directory]))

    def request(self, variant: kci.Variant) -> kci.LegRequest:
        return kci.LegRequest(
            kernel=self.kernel,
            variant=variant,
            output=self.output,
            options=self.options,
            artifact=self.packed / artifact_name(self.kernel.build.name, variant.name),
        )

    def build(self, variant: kci.Variant) -> kci.BuiltLeg:
        with group(f"Build {variant.name}"):
            return kci.build_leg(self.workspace, self.request(variant), log)

    @property
    def upload_name(self) -> str:
        """What it uploads is called, without what tells attempts apart."""
        return upload_name(self.kernel.build.name, self.name)


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
            built.append(leg.build(variant))
        except kci.KciError as error:
            failed.append((variant.name, error))
            report_failure(leg, variant.name, error)
    # Set even if all failed: then what is uploaded is the reasons. An artifact cannot be replaced, and those of all
    # attempts of a run are one set: merging takes the newest.
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
    add_tables([AnswerTable(f"Build: {len(built)} of {count(len(leg.variants), 'variant')}", headers, tuple(rows))])
    if failed:
        name, first = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        told = f"{name} was not built{more} (exit code {first.exit_code})"
        fail(f"{told}: {first_error(first)}", first.exit_code, findings=first.diagnostics)


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
