"""What a shell completes beyond commands, options and files: variants, tiers, catalogs and rules.

This runs at every press of the tab key, in directories that may hold anything: what cannot be read completes to
nothing. Commands name the lists with `kci.cli.completed`, so that this is imported for a shell only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from kci.catalog.loading import editions
from kci.config.find_settings import settings_for
from kci.config.values import Tier
from kci.diagnostics import rules
from kci.errors import KciError
from kci.tree.metadata import FILE_NAME
from kci.workspace.workspace import Choice, open_workspace


def completions(what: str, context: click.Context, incomplete: str) -> list[CompletionItem[str]]:
    """The values of the list `what` that begin like this; `context` has the words before it."""
    try:
        found = _LISTS[what](context)
    except (KciError, OSError):  # a file that is not valid is for the command to refuse
        found = {}
    begun = incomplete.upper() if what == "rules" else incomplete
    items = [CompletionItem(name, help=text or None) for name, text in found.items() if name.startswith(begun)]
    return items or ([CompletionItem(incomplete, type="file")] if what == "catalogs" else [])


def _variants(context: click.Context) -> dict[str, str]:
    whole = open_workspace(_places(context), catalog=context.params.get("catalog")).matrix(Choice(tier="all"))
    return dict.fromkeys(sorted({variant.name for kernel in whole.kernels for variant in kernel.variants}), "")


def _built_variants(context: click.Context) -> dict[str, str]:
    place = Path(context.params.get("tree") or _places(context)[0])
    found = [*place.glob(f"*/{FILE_NAME}"), *place.glob(f"build/*/{FILE_NAME}")]
    return dict.fromkeys(sorted({path.parent.name for path in found}), "")


def _with_settings(usual: Iterable[str], table: str) -> Callable[[click.Context], dict[str, str]]:
    """The usual names, and those of a table of kci.toml."""

    def names(context: click.Context) -> dict[str, str]:
        own: Iterable[str] = ()
        with suppress(KciError, OSError):
            own = sorted(getattr(settings_for(_places(context)).settings, table))
        return dict.fromkeys([*usual, *own], "")

    return names


_LISTS: dict[str, Callable[[click.Context], dict[str, str]]] = {
    "variants": _variants,
    "built_variants": _built_variants,
    "tiers": _with_settings(list(Tier), "tiers"),
    "catalogs": lambda _context: dict.fromkeys(editions(), "an edition of the catalog"),
    "rules": lambda _context: {rule.id: rule.name for rule in rules().values()},
}
"""What can be completed: a function of what was typed before, to the values with what explains them."""


def _places(context: click.Context) -> list[str]:
    """The directories on the command line."""
    for name in ("kernels", "kernel", "place"):
        if given := context.params.get(name):
            return [os.fspath(item) for item in given] if isinstance(given, tuple) else [os.fspath(given)]
    return ["."]
