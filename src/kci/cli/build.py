"""`kci build`: one variant, as a leg of a run builds it."""

from __future__ import annotations

import re
from pathlib import Path

import click

from kci.ci.run_records import ci_run
from kci.cli import PATH, Command, Options, completed
from kci.cli._output import print_diagnostics, progress_log
from kci.cli._workspace import CATALOG, opened
from kci.errors import UsageError
from kci.files.cache import default_cache
from kci.run.build_leg import LegRequest, artifact_place, build_leg, leg_commands
from kci.run.one_variant import BuildOptions
from kci.tree.leg_record import artifact_name


@click.command("build", cls=Command)
@click.argument("kernel", default=".")
@click.option(
    "--variant",
    "names",
    required=True,
    multiple=True,
    metavar="NAME",
    shell_complete=completed("variants"),
    help="The variant; repeat for more.",
)
@click.option("--output", type=PATH, help="Where DIR/NAME is made (default: KERNEL/build).")
@click.option(
    "--builder",
    type=click.Choice(["auto", "noarch", "native", "nix"]),
    default="auto",
    show_default=True,
    help="auto is noarch for a variant of Python only, and native for a compiled one.",
)
@click.option("--container", default="none", show_default=True, help="An image, auto (the image of its leg), or none.")
@click.option(
    "--pack",
    "artifact",
    type=PATH,
    metavar="FILE",
    help="Also make this artifact; a folder for those of several variants.",
)
@click.option(
    "--tier", shell_complete=completed("tiers"), help="Where to look the variant up (default: release, then all)."
)
@CATALOG
@click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="ARCH",
    help="Only for this GPU, such as 9.0a: quick, and only for your own use.",
)
@click.option("--unique-id", help="In place of the id derived from the sources.")
@click.option("--commit", metavar="SHA", help="The commit of the sources, where they lie outside of their repository.")
@click.option("--no-isolation", is_flag=True, help="Compile against the torch of this Python, not one of kci's own.")
@click.option("--jobs", type=click.IntRange(1), help="Compilers that may run in parallel.")
@click.option("--cache", type=PATH, help="Where kci keeps its environments.")
@click.option("--check-reproducible", is_flag=True, help="Build twice, in two directories; exit 1 if the bytes differ.")
@click.option("--dry-run", is_flag=True, help="Print the exact commands and build nothing.")
@click.pass_obj
def command(
    options: Options,
    kernel: str,
    names: tuple[str, ...],
    output: Path | None,
    builder: str,
    container: str,
    artifact: Path | None,
    tier: str | None,
    catalog: str | None,
    archs: tuple[str, ...],
    unique_id: str | None,
    commit: str | None,
    no_isolation: bool,
    jobs: int | None,
    cache: Path | None,
    check_reproducible: bool,
    dry_run: bool,
) -> None:
    """Build variants of KERNEL, one after the other. Prints each directory that was made."""
    workspace = opened(options, [kernel], catalog)
    read = workspace.only_kernel()
    variants = [workspace.variant(name, tier=tier) for name in dict.fromkeys(names)]
    run = ci_run()
    how = BuildOptions(
        cache=cache or default_cache(),
        builder=builder,
        isolation=not no_isolation,
        jobs=jobs,
        unique_id=unique_id,
        commit=_full(commit),
        attempt=run.attempt or 1,
        run=run.id,
        archs=archs,
        mirrors=workspace.settings.settings.mirrors.addresses(),
    )
    artifacts = {variant.name: artifact_name(read.build.name, variant.name) for variant in variants}
    for variant in variants:
        request = LegRequest(
            kernel=read,
            variant=variant,
            output=output or Path(read.directory) / "build",
            options=how,
            container=container,
            artifact=artifact_place(artifact, artifacts, variant.name),
            tier=tier,
            check_reproducible=check_reproducible,
        )
        if dry_run:
            click.echo("\n".join(leg_commands(workspace, request)))
        else:
            built = build_leg(workspace, request, progress_log(options))
            print_diagnostics(built.findings, quiet=options.quiet)
            click.echo(str(built.directory))


def _full(commit: str | None) -> str | None:
    """A full commit id as it is."""
    if commit is not None and not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        raise UsageError(f"--commit {commit[:80]!r} is not a full commit id", hint="git rev-parse HEAD")
    return commit
