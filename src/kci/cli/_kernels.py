"""What several commands share: the options that choose kernels and variants, and reading them."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kci.catalog.rows import load_catalog
from kci.config.discover import read_kernels
from kci.config.settings import settings_for
from kci.config.values import Backend
from kci.matrix.names import SYSTEMS
from kci.matrix.selection import compute_matrix
from kci.matrix.types import Matrix, Variant
from kci.plan.settings import resolve_tier, runners_from

if TYPE_CHECKING:
    from kci.catalog.runners import Runners
    from kci.cli import State
    from kci.config.reader import Kernel

BACKENDS = [str(backend) for backend in Backend]


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--tier`, `--system`, `--backend`, `--only` and `--catalog`."""
    options = [
        click.option(
            "--tier", metavar="TIER", default="release", show_default=True,
            help="How much to build: pr, release, compat, all, or a tier of kci.toml.",
        ),
        click.option("--system", "systems", multiple=True, type=click.Choice(SYSTEMS), help="Only this system."),
        click.option("--backend", "backends", multiple=True, type=click.Choice(BACKENDS), help="Only this backend."),
        click.option("--only", multiple=True, metavar="GLOB", help="Only variants whose name matches."),
        click.option("--catalog", metavar="FILE", help="A catalog file, or the name of an edition."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def selected_matrix(
    state: State,
    kernels: Sequence[str],
    *,
    tier: str,
    systems: Sequence[str] = (),
    backends: Sequence[str] = (),
    only: Sequence[str] = (),
    catalog: str | None = None,
    explain: bool = False,
) -> tuple[Matrix, list[Kernel]]:
    """Read the kernels and their kci.toml, show what reading found, and compute their matrix."""
    read = read_kernels(kernels)
    settings = settings_for([kernel.directory for kernel in read])
    found = [diagnostic for kernel in read for diagnostic in kernel.diagnostics]
    if found:
        from kci.cli._output import print_diagnostics

        print_diagnostics(found, quiet=state.quiet)
    base, narrowed = resolve_tier(tier, settings.settings)
    asked = variant_filter(systems, backends, only) if systems or backends or only else None
    keep = _both(narrowed, asked) if narrowed and asked else narrowed or asked
    matrix = compute_matrix(read, load_catalog(catalog or settings.catalog), base, keep=keep, explain=explain)
    return msgspec.structs.replace(matrix, tier=tier), read


_Filter = Callable[[Variant], str | None]


def _both(first: _Filter, second: _Filter) -> _Filter:
    return lambda variant: first(variant) or second(variant)


def variant_filter(
    systems: Sequence[str], backends: Sequence[str], only: Sequence[str]
) -> Callable[[Variant], str | None]:
    """A filter for `compute_matrix`; repeated options widen, different options narrow."""

    def keep(variant: Variant) -> str | None:
        if systems and variant.system not in systems:
            return f"--system {' '.join(systems)} leaves it out"
        if backends and variant.backend not in backends:
            return f"--backend {' '.join(backends)} leaves it out"
        if only and not any(fnmatch.fnmatchcase(variant.name, glob) for glob in only):
            return f"--only {' '.join(only)} leaves it out"
        return None

    return keep


def runners_for(kernels: Sequence[Kernel]) -> Runners:
    """The runners, images and limits that hold for kernels: those that kci ships, with their kci.toml laid over."""
    return runners_from(settings_for([kernel.directory for kernel in kernels]).settings)
