"""The workspace: kernels, kci.toml and catalog of one invocation, read once; it knows which
variants exist.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kci.config.discovery import (
    FaultyKernel,
    RepositorySettings,
    find_kernels,
    invalid_kernels_error,
    read_kernels,
    settings_for,
)
from kci.config.document import parse_document
from kci.config.reader import Kernel, read_as
from kci.config.settings import KCI_TOML, Settings
from kci.config.values import SYSTEMS, Backend, Tier
from kci.diagnostics import Diagnostic, errors_in
from kci.errors import FindingsError, KciError, UsageError, rule_error
from kci.matrix.catalog.loading import catalog_of, editions, load_catalog, overlays_of
from kci.matrix.catalog.rows import Catalog, Overlay
from kci.matrix.selection import Narrow, compute_matrix, noarch_by_name
from kci.matrix.variants import Matrix, Variant, this_system
from kci.utils.frozen import Frozen
from kci.utils.suggest import command_line, containing, count, nearest, nearest_name, suggestion

if TYPE_CHECKING:
    from kci.matrix.catalog.runners import Runners


BACKENDS = tuple(map(str, Backend))


class Choice(Frozen, kw_only=True):
    """A tier and filters.

    Different filters narrow, several entries of one filter widen; empty means all.
    """

    tier: str = str(Tier.RELEASE)
    """`pr`, `release`, `compat`, `all`, or a custom tier of kci.toml."""
    systems: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    """Patterns of variant names, such as `torch213-*`."""
    where: str | None = None
    """An expression about variants, such as `cuda >= 13.0 and torch == newest`."""

    @property
    def filtered(self) -> bool:
        return bool(self.systems or self.backends or self.only) or self.where is not None

    def filters(self, scopes: Mapping[str, Sequence[str]]) -> list[Narrow]:
        """The filters for `compute_matrix`; `scopes` are backends by directory.

        UsageError for an unknown name.
        """
        for kind, values, allowed in (
            ("system", self.systems, SYSTEMS),
            ("backend", self.backends, BACKENDS),
        ):
            for name in values:
                if name not in allowed:
                    raise UsageError(f"{name[:60]!r} is not a {kind}", hint=nearest(name, allowed))
        if not (self.filtered or scopes):
            return []
        from kci.matrix.catalog.expressions import expression
        from kci.matrix.tiers import FIELDS, by_choice, by_expression, by_scope

        narrow = [by_scope(scopes), by_choice(self.systems, self.backends, self.only)]
        if self.where is not None:
            narrow.append(by_expression(expression(self.where, FIELDS)))
        return narrow


_ALL = Choice()


class Workspace(Frozen, dict=True):
    """Kernels and everything that decides about their variants; see `open_workspace`."""

    kernels: tuple[Kernel, ...]
    settings: RepositorySettings
    catalog: Catalog
    overlays: tuple[tuple[str | None, Overlay], ...] = ()
    """The overlays of kci.toml, each with its kernel's name, or None for all."""
    scopes: Mapping[str, Sequence[str]] = {}
    catalog_name: str | None = None
    unread: tuple[FaultyKernel, ...] = ()
    """Kernels with an invalid build.toml that were set aside."""

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        return tuple(item for kernel in self.kernels for item in kernel.diagnostics)

    @cached_property
    def runners(self) -> Runners:
        """The runners, images and limits of kci, with those of kci.toml."""
        from kci.matrix.catalog.runners import runners_from

        return runners_from(self.settings.settings)

    def kernel(self, name: str) -> Kernel:
        """A kernel by name; UsageError for none or several."""
        matches = [kernel for kernel in self.kernels if kernel.build.name == name]
        if len(matches) > 1:
            places = ", ".join(kernel.directory for kernel in matches)
            raise UsageError(
                f"{len(matches)} kernels are named {name!r}: {places}", hint="name one's directory"
            )
        if not matches:
            hint = nearest(name, (kernel.build.name for kernel in self.kernels))
            raise UsageError(f"no kernel here is named {name[:60]!r}", hint=hint)
        return matches[0]

    def only_kernel(self) -> Kernel:
        """The one kernel; UsageError for several."""
        if len(self.kernels) != 1:
            raise UsageError(
                f"there are {len(self.kernels)} kernels here", hint="name one's directory"
            )
        return self.kernels[0]

    def whole(self, choice: Choice = _ALL) -> Matrix:
        """The superset of a tier: without pairwise thinning, and the release for `pr`.

        Raises as `matrix`.
        """
        release = replace(choice, tier=str(Tier.RELEASE))
        return self.matrix(release if choice.tier == Tier.PR else choice, thinned=False)

    def matrix(
        self, choice: Choice = _ALL, *, explain: bool = False, thinned: bool = True
    ) -> Matrix:
        """The variants of a choice, with `explain` also the reason of each decision; pairwise tiers
        are `thinned`.

        UsageError for an unknown name, FindingsError for an invalid custom tier.
        """
        narrow, base = choice.filters(self.scopes), Tier.RELEASE
        if choice.tier in list(Tier):
            base = Tier(choice.tier)
        else:
            from kci.matrix.tiers import tier_of

            base, own = tier_of(choice.tier, self.settings, thinned=thinned)
            narrow = [*own, *narrow]
        matrix = compute_matrix(
            self.kernels, self.catalog, base, narrow=narrow, overlays=self.overlays, explain=explain
        )
        chosen = self.settings.settings.plan.load
        kernels = (
            matrix.kernels
            if chosen is None
            else tuple(kernel.loading(chosen) for kernel in matrix.kernels)
        )
        return replace(matrix, tier=choice.tier, kernels=kernels)

    def with_kernels(self, kernels: Sequence[Kernel]) -> Workspace:
        return replace(self, kernels=tuple(kernels))

    @property
    def catalog_file(self) -> Path | None:
        name = self.catalog_name or self.settings.catalog
        return Path(name) if name is not None and Path(name).is_file() else None

    def at(self, read: Callable[[Path], bytes | None]) -> Workspace:
        """The same kernels with the kci.toml and catalog of another time; FindingsError if they
        were invalid.

        `read` returns the content of a file then, None if it was absent.
        """
        root = self.settings.root
        raw, repository = read(root / KCI_TOML), RepositorySettings(root=root)
        if raw is not None:
            document = parse_document(raw, KCI_TOML)
            repository = replace(
                repository, settings=read_as(document, Settings), document=document
            )
        name = self.catalog_name or repository.catalog
        file = Path(name) if name is not None and name not in editions() else None
        old = read(file) if file is not None else None
        if file and old is None and file.resolve().is_relative_to(root.resolve()):
            raise FindingsError(f"the catalog {name} did not exist")
        rows = load_catalog(name) if old is None else catalog_of(parse_document(old, str(name)))
        return replace(
            self, settings=repository, catalog=rows, overlays=tuple(overlays_of(repository))
        )

    def only(self, names: Sequence[str]) -> Workspace:
        """The same workspace with the kernels of these names; FindingsError for one with an invalid
        build.toml.
        """
        chosen = [kernel for kernel in self.kernels if kernel.build.name in names]
        unread = [item for item in self.unread if Path(item.path).name in names]
        for name in names:
            if not any(Path(item.path).name == name for item in unread):
                self.kernel(name)
        if unread and not chosen:
            raise invalid_kernels_error(unread, len(unread))
        return replace(self, kernels=tuple(chosen), unread=tuple(unread))

    def require_variants(self, matrix: Matrix, choice: Choice) -> None:
        """KCI217 for an empty selection: in CI it would be a green run that built nothing."""
        if any(kernel.variants for kernel in matrix.kernels):
            return
        names = (
            " and ".join(kernel.name for kernel in matrix.kernels)
            if len(matrix.kernels) < 4
            else ""
        )
        what = names or count(len(matrix.kernels), "kernel")
        if choice.filtered or self.scopes:
            message = f"nothing is selected: no variant of {what} in the tier {matrix.tier} matches"
        else:
            message = f"nothing is selected: {what} has no variant in the tier {matrix.tier}"
        raise rule_error("KCI217", message, hint=self._nearest_selection(choice))

    def _nearest_selection(self, choice: Choice) -> str:
        everything = replace(self, scopes={}).matrix(Choice(tier=str(Tier.ALL)))
        variants = [variant for kernel in everything.kernels for variant in kernel.variants]
        names = sorted({variant.name for variant in variants})
        words = sorted({word for name in names for word in name.split("-")})
        hints = []
        for glob in choice.only:
            near = (
                suggestion(glob, names)
                or suggestion(glob.casefold(), names)
                or containing(glob, names)
            )
            hints.append(near or containing(nearest_name(glob.strip("*"), words), names))
        for key, values in (("system", choice.systems), ("backend", choice.backends)):
            available = {str(getattr(variant, key)) for variant in variants}
            if values and available.isdisjoint(values):
                others = ", ".join(sorted(available)) or "nothing"
                hints.append(f"there are no variants for {', '.join(values)}, only for {others};")
        if choice.only or choice.where:
            usual = sorted({variant.name for variant in variants if variant.bundled}) or names
            hints.append(f"there are {', '.join(usual[-2:])} and others;" if usual else "")
        shown = next(filter(None, hints), "")
        return f"{shown} " * bool(shown) + "`kci matrix --explain` says why"

    def variant(
        self, name: str, *, kernel: Kernel | None = None, tier: str | None = None
    ) -> Variant:
        """The variant of a name, of the only kernel by default; UsageError for none.

        Of several variants of one name (stable ABI, noarch), the release tier and this machine's
        system go first. A noarch variant without catalog rows is in no tier and can still be named.
        """
        kernel = kernel or self.only_kernel()
        tiers, here = (
            [tier] if tier is not None else [str(Tier.RELEASE), str(Tier.ALL)],
            this_system(),
        )
        one = replace(self, kernels=(kernel,), scopes={})
        variants = [
            variant
            for item in tiers
            for variant in one.matrix(Choice(tier=item)).kernels[0].variants
        ]
        for variant in sorted(variants, key=lambda item: item.system != here):
            if variant.name == name:
                return variant
        if tier is None and (noarch := noarch_by_name(kernel.build, name, here)):
            return noarch
        names = sorted(
            {variant.name for variant in variants}, key=lambda item: (not item.endswith(here), item)
        )
        options = f"--tier={tiers[-1]}", "--format=names"
        listing = command_line("matrix", *options, place=kernel.directory)
        hint = suggestion(name, names) or containing(name, names) or f"`{listing}` lists them"
        where = f" in the tier {tier}" if tier is not None else ""
        raise UsageError(
            f"{name[:120]!r} is not a variant of {kernel.build.name}{where}", hint=hint
        )


def open_workspace(
    kernels: Sequence[str | os.PathLike[str]] = (),
    *,
    catalog: str | None = None,
    set_aside: bool = False,
) -> Workspace:
    """Read kernels with their kci.toml and catalog.

    `kernels` are directories with or above a build.toml, optionally as `path[cuda,rocm]`; the
    working directory by default. `catalog` is an edition or file in place of kci.toml's.
    `set_aside` tolerates an invalid build.toml among others. UsageError for an unknown name or
    several kci.toml, FindingsError for an invalid file.
    """
    paths, scopes = _scoped([os.fspath(kernel) for kernel in kernels])
    read, unread = read_kernels(paths)
    if unread and not (set_aside and read):
        raise invalid_kernels_error(unread, len(read) + len(unread))
    return replace(_assemble(read, catalog=catalog, scopes=scopes), unread=tuple(unread))


def _assemble(
    kernels: Sequence[Kernel], *, catalog: str | None, scopes: Mapping[str, Sequence[str]]
) -> Workspace:
    settings = settings_for([kernel.directory for kernel in kernels])
    if settings.document is not None:
        from kci.plan.settings_lints import lint_settings

        if errors := errors_in(lint_settings(settings)) + tier_errors(settings):
            message = f"{settings.document.path} is not valid"
            raise FindingsError(
                message, hint="`kci check` shows all that is wrong", diagnostics=errors
            )
    rows = load_catalog(catalog or settings.catalog)
    return Workspace(tuple(kernels), settings, rows, tuple(overlays_of(settings)), scopes, catalog)


def _scoped(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    if not any(argument.endswith("]") for argument in arguments):
        return list(arguments), {}
    paths: list[str] = []
    scopes: dict[str, list[str]] = {}
    for argument in arguments:
        path, bracket, names = argument.removesuffix("]").rpartition("[")
        backends: Sequence[str] = [name.strip() for name in names.split(",")]
        if not (argument.endswith("]") and bracket) or Path(argument).is_dir():
            path, backends = argument, BACKENDS
        for name in backends:
            if name not in BACKENDS:
                raise UsageError(
                    f"{argument}: {name!r} is not a backend", hint=nearest(name, BACKENDS)
                )
        paths.append(path or ".")
        for directory in find_kernels(paths[-1:]):
            scopes[directory] = list(dict.fromkeys([*scopes.get(directory, []), *backends]))
    every = len(BACKENDS)
    return paths, {place: names for place, names in scopes.items() if len(names) < every}


def tier_errors(settings: RepositorySettings) -> list[Diagnostic]:
    """The findings about custom tiers of a kci.toml."""
    from kci.matrix.tiers import tier_of

    problems: list[Diagnostic] = []
    for name in settings.settings.tiers:
        try:
            tier_of(name, settings)
        except KciError as error:
            problems += error.diagnostics
    return problems
