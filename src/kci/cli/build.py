"""`kci build`: builds variants, as a leg of a run does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from kci.builders.native.objects import pack_name
from kci.builders.request import BuildOptions, read_part
from kci.cli import (
    FileName,
    choice_option,
    file_option,
    flag,
    kci_command,
    option,
    refuse_idle,
    repeated,
)
from kci.cli._output import answer, print_diagnostics, print_error, progress_log
from kci.cli._workspace import ISOLATION, JOBS, load_workspace
from kci.diagnostics import errors_in
from kci.errors import KciError, UsageError, without_secrets
from kci.matrix.variants import artifact_name
from kci.run.build_leg import LegRequest, artifact_path, build_leg, build_part, leg_commands
from kci.run.records import ci_run, write_failure


@kci_command
@click.argument("kernel", type=FileName(), default=".")
@repeated("--variant", "names", "NAME", "The variant to build; repeat for more.", required=True)
@file_option("--output", "PATH", "The folder for the variant directories (default: KERNEL/build).")
@choice_option(
    "--builder",
    "auto uses noarch for variants without compiled code, native for the others.",
    of=["auto", "noarch", "native", "nix"],
    default="auto",
    show_default=True,
)
@option(
    "--container",
    "TEXT",
    "The image to build in: a name, auto (the image of the leg), or none.",
    default="none",
    show_default=True,
)
@file_option(
    "--pack",
    "artifact",
    "FILE",
    "Also write the artifact to this file; with several variants, to this folder.",
)
@option("--tier", "TEXT", "Where to look the variant up (default: release, then all).")
@repeated(
    "--arch",
    "archs",
    "ARCH",
    "Compile only for this GPU, such as 9.0a: faster, but not for publishing; repeat for more.",
)
@click.option(
    "--load/--no-load",
    default=True,
    help="Load the variant with each torch that it is for (default), or record that it was not "
    "loaded.",
)
@option("--unique-id", "TEXT", "The kernel id (default: derived from the sources).")
@ISOLATION
@JOBS
@option(
    "--stop-after",
    "MINUTES",
    "End the build after this time and keep the objects that are done; the next build continues "
    "from there.",
    type=click.FloatRange(min=0),
)
@option(
    "--part",
    "I/N",
    "Compile only this share of the objects, such as 3/16, and --pack them; no variant.",
)
@flag("--link", "Link the variant from the objects of its parts, and compile what is missing.")
@file_option(
    "--objects-from",
    "PATH",
    "Take objects from this pack, or folder of packs, instead of the cache; repeat for more.",
    multiple=True,
)
@file_option("--objects-to", "FILE", "Pack all objects into this file, even if the build fails.")
@file_option(
    "--failures",
    "DIR",
    "If a variant fails, write the reason to this folder, for the gate, and go on with the next "
    "variant.",
)
@flag("--dry-run", "Print the exact commands and build nothing.")
def command(
    kernel: str,
    names: tuple[str, ...],
    output: Path | None,
    artifact: Path | None,
    failures: Path | None,
    dry_run: bool,
    **build_options: Any,
) -> int:
    """Build variants of KERNEL, one after the other, and load each. Prints the directory of each.

    Exit 1 if a variant does not load or does not meet the requirements; its directory stays,
    because it may still work on this machine. A variant whose torch cannot be installed is not
    loaded; only in a CI run is that an error.

    Examples:
        # build one variant
        kci build --variant torch213-cxx11-cpu-x86_64-linux
        # compile it in two parts, on one machine each, and link it on a third
        kci build --variant torch213-cxx11-cpu-x86_64-linux --part 1/2 --pack 1.tar.zst
        kci build --variant torch213-cxx11-cpu-x86_64-linux --part 2/2 --pack 2.tar.zst
        kci build --variant torch213-cxx11-cpu-x86_64-linux --link --objects-from 1.tar.zst
        --objects-from 2.tar.zst
        # print its commands
        kci build --variant torch213-cxx11-cu130-x86_64-linux --dry-run
    """
    if build_options["part"] is not None:
        refuse_idle("with --part", output=output, failures=failures)
    if dry_run:
        refuse_idle("with --dry-run", failures=failures)
    workspace = load_workspace(kernel)
    read = workspace.only_kernel()
    run = ci_run()
    how = BuildOptions(**build_options, attempt=run.attempt or 1, run=run.id)
    part = read_part(how.part) if how.part is not None else None
    if how.link and (part or not how.objects_from):
        hint = "give the packs of its parts with --objects-from"
        raise UsageError("--link makes a variant of objects", hint)
    variants = [workspace.variant(name, tier=how.tier) for name in dict.fromkeys(names)]
    several, kernel = len(variants) > 1, read.build.name
    objects_to = how.objects_to or (artifact if part else None)
    begun = time.monotonic()
    failed: list[KciError] = []
    code = 0
    for variant in variants:
        spent = 0.0 if variant is variants[0] else (time.monotonic() - begun) / 60
        minutes_left = None if how.stop_after is None else max(0.0, how.stop_after - spent)
        packed = artifact_path(objects_to, pack_name(kernel, variant.name, part), several=several)
        name = artifact_name(kernel, variant.name)
        request = LegRequest(
            kernel=read,
            variant=variant,
            output=output or Path(read.directory) / "build",
            options=replace(how, stop_after=minutes_left, objects_to=packed),
            artifact=artifact_path(None if part else artifact, name, several=several),
        )
        if dry_run:
            answer(without_secrets("\n".join(leg_commands(workspace, request))))
        elif part:
            answer(build_part(workspace, request, progress_log()))
        else:
            try:
                built = build_leg(workspace, request, progress_log())
            except KciError as error:
                if not failures:
                    raise
                write_failure(failures, request.failure(error, variant.name, request.replay()))
                failed.append(error)
                continue
            print_diagnostics(built.findings)
            answer(built.directory)
            code |= bool(errors_in(built.findings))
    for other in failed[1:]:
        print_error(other)
    if failed:
        raise failed[0]
    return code
