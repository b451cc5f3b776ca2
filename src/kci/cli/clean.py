"""`kci clean`: what kci keeps in its cache, and removing it."""

from __future__ import annotations

from pathlib import Path

import click

from kci.cli import PATH, Command, options
from kci.cli._output import Layout, table
from kci.files.cache import PARTS, KeptFolder, default_cache, kept_folders, remove_kept
from kci.plurals import count


@click.command("clean", cls=Command)
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)), metavar=f"[{'|'.join(PARTS)}]...")
@click.option(
    "--older-than",
    type=click.IntRange(0),
    default=0,
    metavar="DAYS",
    help="Only what has not changed for so many days.",
)
@click.option("-y", "--yes", is_flag=True, help="Remove it; otherwise only show it.")
@click.option("--cache", type=PATH, help="The cache (default: KCI_CACHE, or kci in the user's cache directory).")
def command(parts: tuple[str, ...], older_than: int, yes: bool, cache: Path | None) -> None:
    """Show what kci keeps in its cache, or remove it with --yes. Nothing outside of the cache is touched.

    The next build makes `builds` again, downloads `toolchains` (torch, CUDA) again, and is slow without
    `compiler-caches`. Without its folder in `runs`, a run of `kci run --engine` cannot be resumed. What another kci
    uses stays.

    Examples:
        # remove old builds from the cache
        kci clean builds --older-than 30 --yes
    """
    place = cache or default_cache()
    found = [item for item in kept_folders(place, parts) if item.days >= older_than]
    removed = 0
    for item in found if yes else ():
        if remove_kept(place, item):
            removed += item.size
        elif not options().quiet:
            click.echo(f"{item.path} stays: it is in use by another kci", err=True)
    if yes:
        click.echo(f"{_size(removed)} removed from {place}")
        return
    if found:
        headers = ("part", "what", "size", "last used")
        layout = Layout(drop=("last used", "part"), cut=("what",))
        click.echo(table(headers, [_row(item, place) for item in found], layout))
    total = sum(item.size for item in found)
    click.echo(f"{_size(total)} in {place}" + ("; `kci clean --yes` removes it" if found else ""))


def _row(item: KeptFolder, cache: Path) -> tuple[str, str, str, str]:
    days = item.days
    used = "today" if days == 0 else f"{count(days, 'day')} ago"
    return item.part, str(item.path.relative_to(cache)), _size(item.size), used


def _size(count: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"
