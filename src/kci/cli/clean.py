"""`kci clean`: shows or empties kci's cache."""

from __future__ import annotations

import click

from kci.cli import Command, options
from kci.cli._output import Layout, table
from kci.utils.cache import PARTS, WHAT_PARTS_ARE, default_cache, kept_folders, remove_kept
from kci.utils.suggest import count


@click.command("clean", cls=Command)
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)), metavar=f"[{'|'.join(PARTS)}]...")
@click.option("-y", "--yes", is_flag=True, help="Remove it; otherwise only show it.")
def command(parts: tuple[str, ...], yes: bool) -> None:
    """Show what kci keeps in its cache, or remove it with --yes. Nothing outside of the cache is touched.

    The next build makes `builds` again, downloads `toolchains` (torch, CUDA) again, and is slow without
    `compiler-caches`. What another kci uses stays. `-v` lists every folder.

    Examples:
        # remove builds from the cache
        kci clean builds --yes
    """
    from rich.filesize import decimal

    cache = default_cache()
    found = kept_folders(cache, parts)
    removed = 0
    for item in found if yes else ():
        if remove_kept(cache, item):
            removed += item.size
        elif not options().quiet:
            click.echo(f"{item.path} stays: another kci uses it", err=True)
    if yes:
        click.echo(f"{decimal(removed)} removed from {cache}")
        return
    if found and not options().verbose:
        kept = [(part, [item for item in found if item.part == part]) for part in PARTS]
        rows = [
            (part, WHAT_PARTS_ARE[part], decimal(sum(item.size for item in items)),
             f"{count(min(item.days for item in items), 'day')} ago")
            for part, items in kept if items
        ]  # fmt: skip
        click.echo(table(("part", "what", "size", "last used"), rows, Layout(drop=("last used",), cut=("what",))))
    elif found:
        headers = ("part", "what", "size", "last used")
        layout = Layout(drop=("last used", "part"), cut=("what",))
        rows = [
            (item.part, str(item.path.relative_to(cache)), decimal(item.size), f"{count(item.days, 'day')} ago")
            for item in found
        ]
        click.echo(table(headers, rows, layout))
    total = sum(item.size for item in found)
    click.echo(f"{decimal(total)} in {cache}" + ("; `kci clean --yes` removes it" if found else ""))
