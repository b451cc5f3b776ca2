"""`kci clean`: shows or empties kci's cache."""

from __future__ import annotations

import click

from kci.cli import flag, kci_command
from kci.cli._output import Layout, answer, options, say, table
from kci.utils.cache import (
    PART_DESCRIPTIONS,
    PARTS,
    CacheEntry,
    default_cache,
    list_cache_entries,
    remove_cache_entry,
)
from kci.utils.suggest import count


@kci_command
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
    cache = default_cache()
    entries = list_cache_entries(cache, parts)
    if yes:
        removed = [item for item in entries if remove_cache_entry(cache, item)]
        for item in entries:
            if item not in removed and not options().quiet:
                say(f"{item.path} stays: another kci uses it")
        answer(f"{_size(removed)} removed from {cache}")
        return
    shown: dict[tuple[str, str], list[CacheEntry]] = {}
    for item in entries:
        folder = str(item.path.relative_to(cache))
        what = folder if options().verbose else PART_DESCRIPTIONS[item.part]
        shown.setdefault((item.part, what), []).append(item)
    rows = [
        (*what, _size(items), f"{count(min(item.days for item in items), 'day')} ago")
        for what, items in shown.items()
    ]
    if rows:
        layout = Layout(drop=("last used", "part"), cut=("what",))
        answer(table(("part", "what", "size", "last used"), rows, layout))
    answer(f"{_size(entries)} in {cache}" + ("; `kci clean --yes` removes it" if entries else ""))


def _size(entries: list[CacheEntry]) -> str:
    from rich.filesize import decimal

    return decimal(sum(item.size for item in entries))
