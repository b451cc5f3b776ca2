"""kci/build: one variant, built and packed."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import kci
from common import (
    add_summary,
    fail,
    flag_input,
    group,
    printable,
    required_input,
    run_action,
    runner_temp,
    set_output,
    table_row,
    text_input,
)
from kci.builders.cache import default_cache
from kci.cli._output import print_error
from kci.matrix.names import artifact_stem
from kci.run.build_leg import ci_run


def main() -> None:
    """Build, then set the outputs; on failure print how to do the same at home."""
    names = required_input("variant")
    directory, builder = text_input("kernel", "."), text_input("builder", "auto")
    container = text_input("container", "auto")
    output = Path(text_input("output", str(runner_temp() / "kci-build")))
    tier, jobs = text_input("tier") or None, text_input("jobs")
    flag_input("upload")  # the upload step compares text; a word that it would take for false must not pass
    if jobs and not re.fullmatch(r"[1-9][0-9]{0,3}", jobs):
        fail(f"the input `jobs` must be a number from 1 on, not {jobs[:40]!r}", 2)
    options = [f"--variant={names}", f"--builder={builder}", f"--container={container}"]
    options += [f"--tier={tier}"] if tier else []
    options += [f"--jobs={jobs}"] if jobs else []
    replay = printable(shlex.join(["kci", "build", *options, "--output=build", "--", directory]))
    workspace = kci.open_workspace([directory])
    kernel = workspace.only_kernel()
    variant = workspace.variant(names, tier=tier)
    run = ci_run()
    stem = artifact_stem(kernel.build.name, variant.name)
    request = kci.LegRequest(
        kernel=kernel,
        variant=variant,
        output=output,
        options=kci.BuildOptions(
            cache=default_cache(),
            builder=builder,
            jobs=int(jobs) if jobs else None,
            attempt=run.attempt or 1,
            run=run.id,
        ),
        container=container,
        artifact=runner_temp() / "kci-artifacts-out" / f"{stem}.tar",
        tier=tier,
    )
    try:
        with group(f"Build {variant.name}"):
            built = kci.build_leg(workspace, request, lambda line: print(line, flush=True))
    except kci.KciError as error:
        print_error(error)
        print(f"To do the same on your machine:\n  {replay}", flush=True)
        add_summary([f"### {names} was not built", "", "To do the same on your machine:", "", f"    {replay}"], [])
        fail(f"{names} was not built (exit code {error.exit_code}); the same at home: {replay}", error.exit_code)
    record = built.record
    set_output("variant-dir", str(built.directory))
    set_output("artifact", str(built.artifact))
    # An artifact cannot be replaced, and those of all attempts of a run are one set: merging takes the newest.
    set_output("artifact-name", f"{stem}-{os.environ.get('GITHUB_RUN_ATTEMPT', '1')}")
    set_output("digest", record.digest)
    add_summary(
        ["| kernel | variant | builder | seconds | digest |", "|---|---|---|---|---|"],
        [table_row(record.kernel, variant.name, record.builder, record.seconds, record.digest)],
    )


if __name__ == "__main__":
    run_action(main)
