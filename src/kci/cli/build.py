"""`kci build`: one variant, as a leg of a run builds it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kci.cli import Command, Options
from kci.cli._kernels import runners_for, selected_matrix
from kci.errors import UsageError
from kci.suggest import suggestion

if TYPE_CHECKING:
    from kci.config.reader import Kernel
    from kci.matrix.variants import Variant
    from kci.run.make_variant import BuildOptions

BUILDERS = ["auto", "noarch", "native", "nix"]


@click.command("build", cls=Command)
@click.argument("kernel", default=".")
@click.option("--variant", "names", required=True, multiple=True, metavar="NAME", help="The variant; repeat for more.")
@click.option("--output", type=click.Path(path_type=Path), help="Where DIR/NAME is made (default: KERNEL/build).")
@click.option("--builder", type=click.Choice(BUILDERS), default="auto", show_default=True)
@click.option("--container", default="none", show_default=True, help="An image, auto (the image of its leg), or none.")
@click.option(
    "--pack",
    "artifact",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also make this artifact; a folder for those of several variants.",
)
@click.option("--tier", help="Where to look the variant up (default: release, then all).")
@click.option("--catalog", metavar="FILE", help="A catalog file, or the name of an edition.")
@click.option("--unique-id", help="In place of the id derived from the sources.")
@click.option("--no-isolation", is_flag=True, help="Compile against the torch of this Python, not one of kci's own.")
@click.option("--jobs", type=click.IntRange(1), help="Compilers that may run side by side.")
@click.option("--cache", type=click.Path(path_type=Path), envvar="KCI_CACHE", help="Where kci keeps its environments.")
@click.option("--dry-run", is_flag=True, help="Print the exact commands and build nothing.")
@click.pass_obj
def command(
    state: Options,
    kernel: str,
    names: tuple[str, ...],
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
    """Build variants of KERNEL, one after the other. Prints each directory that was made."""
    from kci.builders.cache import default_cache
    from kci.run.make_variant import BuildOptions

    looked_up = [_look_up(state, kernel, name, tier, catalog) for name in dict.fromkeys(names)]
    options = BuildOptions(
        cache=cache or default_cache(),
        builder=builder,
        isolation=not no_isolation,
        jobs=jobs,
        unique_id=unique_id,
        attempt=_attempt(),
        run=os.environ.get("GITHUB_RUN_ID", ""),
    )
    for read, variant in looked_up:
        packed = _artifact(artifact, read, variant, alone=len(looked_up) == 1)
        place = output or Path(read.directory) / "build"
        _build(state, read, variant, options, place, packed, container=container, dry_run=dry_run, tier=tier,
               catalog=catalog)  # fmt: skip


def _artifact(given: Path | None, kernel: Kernel, variant: Variant, *, alone: bool) -> Path | None:
    """The artifact to make: the file that was named, or one in that folder. Settled before anything is built."""
    if given is None:
        return None
    from kci.tree.archive import SUFFIXES
    from kci.tree.leg_record import artifact_name

    if given.is_dir() or (not alone and not given.exists()):
        return given / artifact_name(kernel.build.name, variant.name)
    if not alone:
        raise UsageError(f"{given} is a file", hint="with several variants, --pack names a folder")
    if not given.name.endswith(SUFFIXES):
        hint = f"end it with {' or '.join(SUFFIXES)}, or name a folder that exists"
        raise UsageError(f"--pack {given} is no artifact name", hint=hint)
    return given


def _build(
    state: Options,
    kernel: Kernel,
    variant: Variant,
    options: BuildOptions,
    output: Path,
    artifact: Path | None,
    *,
    container: str,
    dry_run: bool,
    tier: str | None,
    catalog: str | None,
) -> None:
    from kci.builders.container import choose_image
    from kci.run.make_variant import make_variant_dir

    own = _image_of(kernel, variant)
    image = _dry_image(container, own) if dry_run else choose_image(container, own, _log(state))
    if image is not None:
        inner = _inner_arguments(kernel, variant, options, output, artifact, tier=tier, catalog=catalog)
        _in_container(image, kernel, inner, options, output, artifact, dry_run, _log(state))
        return
    if dry_run:
        _print_commands(kernel, variant, options, output)
        return
    made = make_variant_dir(kernel, variant, output, options, _log(state))
    if artifact is not None:
        from kci.tree.pack import pack

        artifact.parent.mkdir(parents=True, exist_ok=True)
        pack(made.directory, artifact, made.leg)
    click.echo(str(made.directory))


def _look_up(state: Options, kernel: str, name: str, tier: str | None, catalog: str | None) -> tuple[Kernel, Variant]:
    """The kernel, and the variant that a name stands for, for this system where there is a choice.

    A stable ABI name can be built against several torch versions; the release tier's is meant unless another is named.
    """
    from kci.catalog.rows import load_catalog
    from kci.matrix.names import this_system
    from kci.matrix.selection import select
    from kci.matrix.variants import Tier

    matrix, read = selected_matrix(state, [kernel], tier=tier or "release", catalog=catalog)
    if len(read) > 1:
        raise UsageError(f"{kernel} holds {len(read)} kernels", hint="name one of them")
    variants = list(matrix.kernels[0].variants)
    if tier is None:
        variants += select(read[0], load_catalog(catalog), Tier.ALL).variants
    for variant in sorted(variants, key=lambda item: item.system != this_system()):
        if variant.name == name:
            return read[0], variant
    known = sorted({variant.name for variant in variants})
    hint = suggestion(name, known) or f"`kci matrix {kernel} --format names` lists them"
    raise UsageError(f"{name!r} is no variant of {kernel}", hint=hint)


def _image_of(kernel: Kernel, variant: Variant) -> str:
    """The image that a leg for this variant has; empty for none."""
    from kci.plan.legs import place

    placed = place(variant, runners_for([kernel]), container=True, kernel=kernel.build.name)
    return "" if isinstance(placed, tuple) else placed.image


def _dry_image(container: str, own: str) -> str | None:
    """The image that a real build would ask docker for."""
    return {"none": None, "auto": own or None}.get(container, container)


def _inner_arguments(
    kernel: Kernel,
    variant: Variant,
    options: BuildOptions,
    output: Path,
    artifact: Path | None,
    *,
    tier: str | None,
    catalog: str | None,
) -> list[str]:
    """The `kci build` that the container runs: the same build, with absolute paths and without a container."""
    arguments = ["build", str(Path(kernel.directory).resolve()), "--variant", variant.name, "--container", "none"]
    arguments += ["--output", str(output.resolve()), "--builder", options.builder]
    optional = {
        "--pack": artifact.resolve() if artifact else None,
        "--tier": tier,
        "--catalog": Path(catalog).resolve() if catalog and Path(catalog).exists() else catalog,
        "--unique-id": options.unique_id,
        "--jobs": options.jobs,
    }
    for name, value in optional.items():
        arguments += [name, str(value)] if value is not None else []
    return arguments if options.isolation else [*arguments, "--no-isolation"]


def _in_container(
    image: str,
    kernel: Kernel,
    arguments: list[str],
    options: BuildOptions,
    output: Path,
    artifact: Path | None,
    dry_run: bool,
    log: Callable[[str], None],
) -> None:
    import shlex

    from kci.builders.container import build_command, run_in_container

    directory = Path(kernel.directory).resolve()
    writable = [output.resolve(), *([artifact.resolve().parent] if artifact else [])]
    if dry_run:
        click.echo(shlex.join(build_command(image, directory, arguments, writable=writable, cache=options.cache)))
        return
    run_in_container(image, directory, arguments, writable=writable, cache=options.cache, log=log)
    click.echo(str(output / arguments[arguments.index("--variant") + 1]))


def _attempt() -> int:
    text = os.environ.get("GITHUB_RUN_ATTEMPT", "1")
    return int(text) if text.isdecimal() and int(text) else 1


def _log(state: Options) -> Callable[[str], None]:
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
