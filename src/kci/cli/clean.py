"""`kci clean`: shows or empties kci's cache."""

from __future__ import annotations

import click

from kci.cli import flag, kci_command
from kci.cli._output import Layout, answer, options, say, table
from kci.utils.cache import (
    PART_DESCRIPTIONS,
    PARTS,
    default_cache,
    list_cache_entries,
    remove_cache_entry,
)
from kci.utils.suggest import count


@kci_command("clean")
@click.argument(
    "parts", nargs=-1, type=click.Choice(list(PARTS)), metavar=f"[{'|'.join(PARTS)}]..."
)
@flag("-y", "--yes", "Remove it; otherwise only show it.")
def command(parts: tuple[str, ...], yes: bool) -> None:
    """Show what kci keeps in its cache, or remove it with --yes.

    Nothing outside of the cache is touched.

    The next build makes `builds` again, downloads `toolchains` (torch, CUDA) again, and is slow
    without `compiler-caches`. What another kci uses stays. `-v` lists every folder.

    Examples:
        # remove builds from the cache
        kci clean builds --yes
    """
    from rich.filesize import decimal

    cache = default_cache()
    entries = list_cache_entries(cache, parts)
    removed = 0
    for item in entries if yes else ():
        if remove_cache_entry(cache, item):
            removed += item.size
        elif not options().quiet:
            say(f"{item.path} stays: another kci uses it")
    if yes:
        answer(f"{decimal(removed)} removed from {cache}")
        return
    shown = [(item.part, str(item.path.relative_to(cache)), [item]) for item in entries]
    if not options().verbose:
        by_part = [(part, [item for item in entries if item.part == part]) for part in PARTS]
        shown = [(part, PART_DESCRIPTIONS[part], items) for part, items in by_part if items]
    rows = [
        (
            part,
            what,
            decimal(sum(item.size for item in items)),
            f"{count(min(item.days for item in items), 'day')} ago",
        )
        for part, what, items in shown
    ]
    if rows:
        answer(
            table(
                ("part", "what", "size", "last used"),
                rows,
                Layout(drop=("last used", "part"), cut=("what",)),
            )
        )
    total = sum(item.size for item in entries)
    answer(f"{decimal(total)} in {cache}" + ("; `kci clean --yes` removes it" if entries else ""))
