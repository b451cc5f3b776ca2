"""What several commands share: the options that choose kernels and variants, and reading them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kci.catalog.rows import Catalog, editions, load_catalog
from kci.config.discover import find_kernels, read_kernels
from kci.config.document import parse_document
from kci.config.settings import KCI_TOML, FoundSettings, Settings, interpret_settings, settings_for
from kci.config.values import Backend
from kci.errors import FindingsError, UsageError
from kci.matrix.names import SYSTEMS
from kci.matrix.selection import Narrow, compute_matrix
from kci.matrix.variants import Matrix, Tier
from kci.suggest import one_of, suggestion

if TYPE_CHECKING:
    from kci.catalog.overlay import Overlay
    from kci.catalog.runners import Runners
    from kci.catalog.where import Where
    from kci.cli import Options
    from kci.config.reader import Kernel
    from kci.matrix.tiers import TierDefinition

BACKENDS = [str(backend) for backend in Backend]


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--tier`, `--system`, `--backend`, `--only`, `--where` and `--catalog`."""
    options = [
        click.option("--tier", default="release", show_default=True, metavar="TIER",
                     help=f"How much to build: {', '.join(Tier)}, or a tier of kci.toml."),
        click.option("--system", "systems", multiple=True, type=click.Choice(SYSTEMS), help="Only this system."),
        click.option("--backend", "backends", multiple=True, type=click.Choice(BACKENDS), help="Only this backend."),
        click.option("--only", multiple=True, metavar="GLOB", help="Only variants whose name matches."),
        click.option("--where", metavar="EXPR",
                     help="Only variants that match, such as 'cuda>=13.0 and torch==newest'."),
        click.option("--catalog", metavar="FILE", help="A catalog file, or the name of an edition."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


class Selection(NamedTuple):
    """What a command line asks for, read and checked."""

    kernels: list[Kernel]
    catalog: Catalog
    overlays: list[tuple[str | None, Overlay]]
    tier: Tier | TierDefinition
    narrow: list[Narrow]
    """The filters of the command line."""
    settings: FoundSettings = FoundSettings()
    asked_tier: str = "release"
    asked_catalog: str | None = None

    @property
    def catalog_file(self) -> Path | None:
        """The file that the catalog comes from; None for an edition that kci ships."""
        name = self.asked_catalog or self.settings.catalog
        return Path(name) if name is not None and Path(name).is_file() else None

    def at(self, read: Callable[[Path], bytes | None]) -> Selection:
        """The same selection under the kci.toml and the catalog of another time.

        Args:
            read: what a file said then; None if it was not there.

        Raises:
            FindingsError: one of the two was not valid then.
        """
        raw = read(self.settings.root / KCI_TOML)
        document = parse_document(raw, KCI_TOML) if raw is not None else None
        settings = interpret_settings(document) if document is not None else Settings()
        found = FoundSettings(settings, self.settings.root, document)
        name = self.asked_catalog or found.catalog
        file = Path(name) if name is not None and name not in editions() else None
        old = read(file) if file is not None else None
        if file is not None and old is None and file.resolve().is_relative_to(self.settings.root.resolve()):
            raise FindingsError(f"the catalog {name} was not there")
        if old is None:
            rows = load_catalog(name)
        else:
            with tempfile.TemporaryDirectory() as place:
                file = Path(place) / "catalog.toml"
                file.write_bytes(old)
                rows = load_catalog(str(file))
        tier = _tier(self.asked_tier, found)
        return self._replace(catalog=rows, overlays=_overlays(found), tier=tier, settings=found)

    def matrix(self, *, explain: bool = False) -> Matrix:
        """The matrix that was asked for."""
        if isinstance(self.tier, Tier):
            return self._compute(self.tier, self.narrow, explain)
        from kci.matrix.tiers import narrowing

        matrix = self._compute(self.tier.base, [*narrowing(self.tier), *self.narrow], explain)
        return _named(matrix, self.tier.name)

    def full(self) -> Matrix:
        """The whole that the tier is a part of: a tier of one's own without thinning; else all that is released."""
        if isinstance(self.tier, Tier):
            return self._compute(Tier.RELEASE if self.tier is Tier.PR else self.tier, self.narrow, explain=False)
        from kci.matrix.tiers import narrowing

        narrow = [*narrowing(self.tier, thinned=False), *self.narrow]
        return _named(self._compute(self.tier.base, narrow, explain=False), self.tier.name)

    def _compute(self, tier: Tier, narrow: Sequence[Narrow], explain: bool) -> Matrix:
        return compute_matrix(self.kernels, self.catalog, tier, narrow=narrow, overlays=self.overlays, explain=explain)


def _named(matrix: Matrix, tier: str) -> Matrix:
    import msgspec

    return msgspec.structs.replace(matrix, tier=tier)


def selected_matrix(
    state: Options, kernels: Sequence[str], *, explain: bool = False, **selection: Any
) -> tuple[Matrix, list[Kernel]]:
    """Read the kernels, show what reading found, and compute their matrix; see `read_selection`."""
    asked = read_selection(state, kernels, **selection)
    return asked.matrix(explain=explain), asked.kernels


def read_selection(
    state: Options,
    kernels: Sequence[str],
    *,
    tier: str,
    systems: Sequence[str] = (),
    backends: Sequence[str] = (),
    only: Sequence[str] = (),
    where: str | None = None,
    catalog: str | None = None,
    read: list[Kernel] | None = None,
) -> Selection:
    """Read the kernels and the settings that a command line names, and show what reading them found.

    Kernels that were read elsewhere (`read`, out of a git revision) have the settings of the working directory.

    Raises:
        UsageError: an argument, a tier, an edition or an expression that does not exist or cannot be read.
        FindingsError: a file is not valid.
    """
    narrow: list[Narrow] = []
    paths, scopes = _scoped(kernels)
    if scopes:
        from kci.matrix.filters import by_scope

        narrow.append(by_scope(scopes))
    if systems or backends or only:
        from kci.matrix.filters import by_choice

        narrow.append(by_choice(systems=systems, backends=backends, only=only))
    if where is not None:
        narrow.append(_where(where))
    places: list[str] = []
    if read is None:
        read = read_kernels(paths)
        places = [kernel.directory for kernel in read]
    found = [diagnostic for kernel in read for diagnostic in kernel.diagnostics]
    if found:
        from kci.cli._output import print_diagnostics

        print_diagnostics(found, quiet=state.quiet)
    settings = settings_for(places)
    rows = load_catalog(catalog or settings.catalog)
    return Selection(read, rows, _overlays(settings), _tier(tier, settings), narrow, settings, tier, catalog)


def _tier(name: str, settings: FoundSettings) -> Tier | TierDefinition:
    if name in list(Tier):
        return Tier(name)
    from kci.matrix.tiers import tier_of

    return tier_of(name, settings)


def _overlays(settings: FoundSettings) -> list[tuple[str | None, Overlay]]:
    if not settings.settings.overlay:
        return []
    from kci.catalog.overlay import overlays_of

    return overlays_of(settings)


def expression(text: str, fields: Mapping[str, Sequence[str]]) -> Where:
    """Read the value of a `--where`.

    Raises:
        UsageError: it is no expression; the message shows where.
    """
    from kci.catalog.comparisons import WhereError
    from kci.catalog.where import parse_where

    try:
        return parse_where(text, fields)
    except WhereError as error:
        from kci.diagnostics import printable

        excerpt = f"\n  {printable(text)}\n  {' ' * error.column}^"
        raise UsageError(f"--where: {error.message}{excerpt if len(text) <= 200 else ''}", hint=error.hint) from None


def _where(text: str) -> Narrow:
    from kci.matrix.filters import FIELDS, by_expression

    return by_expression(expression(text, FIELDS))


def _scoped(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Arguments without their `[backend,...]`, and the backends by kernel directory for those that had some."""
    if not any(argument.endswith("]") for argument in arguments):
        return list(arguments), {}
    paths: list[str] = []
    scopes: dict[str, list[str]] = {}
    everything: set[str] = set()
    for argument in arguments:
        path, bracket, names = argument.removesuffix("]").rpartition("[")
        if not (argument.endswith("]") and bracket) or os.path.isdir(argument):  # noqa: PTH112
            paths.append(argument)
            everything.update(find_kernels([argument]))
            continue
        backends = [name.strip() for name in names.split(",")]
        for name in backends:
            if name not in BACKENDS:
                hint = suggestion(name, BACKENDS) or one_of(BACKENDS)
                raise UsageError(f"{argument}: {name!r} is not a backend", hint=hint)
        paths.append(path or ".")
        for directory in find_kernels([path or "."]):
            scopes[directory] = list(dict.fromkeys([*scopes.get(directory, []), *backends]))
    return paths, {directory: names for directory, names in scopes.items() if directory not in everything}


def runners_for(kernels: Sequence[Kernel]) -> Runners:
    """The runners, images and limits that hold for kernels: those that kci ships, with their kci.toml laid over."""
    from kci.plan.machines import runners_from

    return runners_from(settings_for([kernel.directory for kernel in kernels]).settings)
