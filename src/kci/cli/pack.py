"""`kci pack`: the artifact of a built variant directory."""

from __future__ import annotations

from pathlib import Path

import click

from kci.cli import PATH, Command, FileName, options
from kci.matrix.variants import artifact_name, this_system
from kci.tree.manifest import MAX_ATTEMPT, leg_for
from kci.tree.metadata import FILE_NAME, read_metadata, seal
from kci.tree.pack import pack
from kci.utils.archive import SUFFIXES


@click.command("pack", cls=Command)
@click.argument("variant_dir", type=FileName(path_type=Path, exists=True, file_okay=False, resolve_path=True))
@click.option("--output", "-o", type=PATH, help="File or directory to write to.  [default: .]")
@click.option("--zstd", is_flag=True, help="Compress, as with a file name that ends with .zst.")
@click.option("--seal", "reseal", is_flag=True, help="Remove bytecode and hash the files anew before packing.")
@click.option("--builder", default="", help="The builder that made the variant, for the leg's record.")
@click.option("--system", help="The system that built a noarch variant.  [default: this machine]")
@click.option(
    "--attempt",
    type=click.IntRange(1, MAX_ATTEMPT),
    default=1,
    envvar="GITHUB_RUN_ATTEMPT",
    help="The attempt of the run: of two artifacts for a variant, the higher wins.  [env: GITHUB_RUN_ATTEMPT]",
)
@click.option("--run", default="", envvar="GITHUB_RUN_ID", help="The CI run that built it.  [env: GITHUB_RUN_ID]")
def command(
    variant_dir: Path,
    output: Path | None,
    zstd: bool,
    reseal: bool,
    builder: str,
    system: str | None,
    attempt: int,
    run: str,
) -> None:
    """Make the artifact of VARIANT_DIR, a built variant directory. Prints the artifact's path.

    Examples:
        # make the artifact of a variant
        kci pack build/torch-cpu
    """
    if reseal:
        seal(variant_dir, read_metadata(variant_dir / FILE_NAME))
    leg = leg_for(variant_dir, system=system or this_system(), builder=builder, attempt=attempt, run=run)
    target = output or Path()
    if not target.name.endswith(SUFFIXES):
        target /= artifact_name(leg.kernel, leg.variant, zstd=zstd)
    click.echo(pack(variant_dir, target, leg))
    if not options().quiet:
        click.echo(f"{leg.variant}: digest {leg.digest}", err=True)
