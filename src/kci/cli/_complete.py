"""What a shell completes beyond commands, options and files: variants, tiers, catalogs and rules.

This runs at every press of the tab key, in directories that may hold anything: what cannot be read completes to
nothing. Commands name these functions with `kci.cli.completed`, so that they are imported for a shell only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from kci.catalog.loading import editions
from kci.config.find_settings import settings_for
from kci.config.values import Tier
from kci.diagnostics import rules as known
from kci.errors import KciError
from kci.tree.metadata import FILE_NAME
from kci.workspace.workspace import Choice, open_workspace


def variants(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Names of everything that could be built of the kernels that were named before."""
    names: set[str] = set()
    with _nothing_said():
        whole = open_workspace(_places(context), catalog=context.params.get("catalog")).matrix(Choice(tier="all"))
        names = {variant.name for kernel in whole.kernels for variant in kernel.variants}
    return _starting(((name, "") for name in sorted(names)), incomplete)


def built_variants(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Names of the variants that are there, in a kernel's `build` directory or in a tree."""
    place = Path(context.params.get("tree") or _places(context)[0])
    with _nothing_said():
        found = [*place.glob(f"*/{FILE_NAME}"), *place.glob(f"build/*/{FILE_NAME}")]
        return _starting(((name, "") for name in sorted({path.parent.name for path in found})), incomplete)
    return []


def tiers(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The tiers, those of kci.toml included."""
    names = [str(tier) for tier in Tier]
    with _nothing_said():
        names += sorted(settings_for(_places(context)).settings.tiers)
    return _starting(((name, "") for name in dict.fromkeys(names)), incomplete)


def catalogs(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The editions; files where it cannot be one."""
    found = _starting(((name, "an edition of the catalog") for name in editions()), incomplete)
    return found or [CompletionItem(incomplete, type="file")]


def rules(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Ids of rules, each with its name."""
    return _starting(((rule.id, rule.name) for rule in known().values()), incomplete.upper())


def engines(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """The engines, those of kci.toml included."""
    names = ["local", "slurm", "ssh", "hf-jobs", "auto"]
    with _nothing_said():
        names += sorted(settings_for(_places(context)).settings.engines)
    return _starting(((name, "") for name in dict.fromkeys(names)), incomplete)


def _places(context: click.Context) -> list[str]:
    """The directories that were named before what is being completed."""
    for name in ("kernels", "kernel", "place"):
        if given := context.params.get(name):
            return [os.fspath(item) for item in given] if isinstance(given, tuple) else [os.fspath(given)]
    return ["."]


def _starting(found: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem[str]]:
    return [CompletionItem(name, help=text or None) for name, text in found if name.startswith(incomplete)]


@contextmanager
def _nothing_said() -> Iterator[None]:
    """A file that is not valid is for the command to refuse."""
    try:
        yield
    except (KciError, OSError):
        return
