"""`kci build`: one variant, as a leg of a run builds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kci.cli import Command, State
from kci.cli._kernels import selected_matrix
from kci.errors import UsageError

if TYPE_CHECKING:
    from kci.config.reader import Kernel
    from kci.matrix.types import Variant
    from kci.run.variant import BuildOptions

BUILDERS = ["auto", "noarch", "native", "nix"]


@click.command("build", cls=Command)
@click.argument("kernel", default=".")
@click.option("--variant", "name", required=True, metavar="NAME", help="The variant to build.")
@click.option("--output", type=click.Path(path_type=Path), help="Where DIR/NAME is made (default: KERNEL/build).")
@click.option("--builder", type=click.Choice(BUILDERS), default="auto", show_default=True)
@click.option("--container", default="none", show_default=True, help="An image to build in; auto; none.")
@click.option("--pack", "artifact", type=click.Path(path_type=Path), help="Also make this artifact.")
@click.option("--tier", help="Where to look the variant up (default: release, then all).")
@click.option("--catalog", metavar="FILE", help="A catalog file, or the name of an edition.")
@click.option("--unique-id", help="In place of the id derived from the sources.")
@click.option("--no-isolation", is_flag=True, help="Compile against the torch of this Python, not one of kci's own.")
@click.option("--jobs", type=click.IntRange(1), help="Compilers that may run side by side.")
@click.option("--cache", type=click.Path(path_type=Path), envvar="KCI_CACHE", help="Where kci keeps its environments.")
@click.option("--dry-run", is_flag=True, help="Print the exact commands and build nothing.")
@click.pass_obj
def command(
    state: State,
    kernel: str,
    name: str,
    output: Path | None,
    builder: str,
    container: str,
    artifact: Path | None,
    tier: str | None,
    catalog: str | None,
    unique_id: str | None,
    no_isolation: bool,
    jobs: int | None,
    cache: Path | None,
    dry_run: bool,
) -> None:
    """Build one variant of KERNEL. Prints the directory that was made."""
    from kci.builders.cache import default_cache
    from kci.run.variant import BuildOptions, make_variant_dir

    read, variant = _look_up(state, kernel, name, tier, catalog)
    options = BuildOptions(
        cache=cache or default_cache(),
        builder=builder,
        isolation=not no_isolation,
        jobs=jobs,
        unique_id=unique_id,
        attempt=_attempt(),
    )
    output = output or Path(read.directory) / "build"
    if dry_run:
        _print_commands(read, variant, options, output)
        return
    made = make_variant_dir(read, variant, output, options, _log(state))
    if artifact is not None:
        from kci.tree.pack import pack

        pack(made.directory, artifact, made.leg)
    click.echo(str(made.directory))


def _look_up(state: State, kernel: str, name: str, tier: str | None, catalog: str | None) -> tuple[Kernel, Variant]:
    """The kernel, and the variant that a name stands for.

    A stable ABI name can be built against several torch versions; the release tier's is meant unless another is named.
    """
    known: list[str] = []
    for candidate in [tier] if tier else ["release", "all"]:
        matrix, read = selected_matrix(state, [kernel], tier=candidate, catalog=catalog)
        if len(read) > 1:
            raise UsageError(f"{kernel} holds {len(read)} kernels", hint="name one of them")
        for variant in matrix.kernels[0].variants:
            if variant.name == name:
                return read[0], variant
        known = sorted({variant.name for variant in matrix.kernels[0].variants})
    from kci.config.explain import suggestion

    hint = suggestion(name, known) or f"`kci matrix {kernel} --format names` lists them"
    raise UsageError(f"{name!r} is no variant of {kernel}", hint=hint)


def _attempt() -> int:
    text = os.environ.get("GITHUB_RUN_ATTEMPT", "1")
    return int(text) if text.isdecimal() and int(text) else 1


def _log(state: State) -> Any:
    def log(line: str) -> None:
        if not state.quiet:
            click.echo(line, err=True)

    return log


def _print_commands(kernel: Kernel, variant: Variant, options: BuildOptions, output: Path) -> None:
    from kci.builders.build import plan_commands
    from kci.tree import identity

    directory = Path(kernel.directory)
    unique = options.unique_id or identity.unique_id(directory)
    commands = plan_commands(
        directory,
        kernel.build,
        variant,
        identity.kernel_id(kernel.build.name, variant.backend, unique),
        output / variant.name,
        builder=options.builder,
        isolation=options.isolation,
        jobs=options.jobs,
        cache=options.cache,
    )
    for line in commands:
        click.echo(line)
