"""`kci pack`: the artifact of a built variant directory."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import replace

from kci.cli import FileName, file_option, flag, kci_command
from kci.cli._output import answer, options, say
from kci.matrix.variants import artifact_name, this_system
from kci.run.records import ci_run
from kci.tree.manifest import leg_for
from kci.tree.metadata import FILE_NAME, read_metadata, seal
from kci.tree.pack import pack
from kci.utils.archive import SUFFIXES


@kci_command
@click.argument(
    "variant_dir", type=FileName(path_type=Path, exists=True, file_okay=False, resolve_path=True)
)
@file_option(
    "--output",
    "-o",
    "PATH",
    "File or directory to write to; a name that ends with .zst compresses.  [default: .]",
)
@flag("--seal", "reseal", "Remove bytecode and hash the files anew before packing.")
def command(variant_dir: Path, output: Path | None, reseal: bool) -> None:
    """Make the artifact of VARIANT_DIR, a built variant directory. Prints the artifact's path.

    Examples:
        # make the artifact of a variant
        kci pack build/torch-cpu
    """
    if reseal:
        seal(variant_dir, read_metadata(variant_dir / FILE_NAME))
    run = ci_run()
    leg = leg_for(variant_dir, system=this_system(), builder="")
    leg = replace(leg, attempt=run.attempt or 1, run=run.id)
    target = output or Path()
    if not target.name.endswith(SUFFIXES):
        target /= artifact_name(leg.kernel, leg.variant)
    answer(pack(variant_dir, target, leg))
    if not options().quiet:
        say(f"{leg.variant}: digest {leg.digest}")
