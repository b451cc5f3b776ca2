"""What part of everything that could be built is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kci.config.values import SYSTEMS, Backend, Tier
from kci.errors import UsageError
from kci.matrix.selection import Narrow
from kci.suggest import nearest

BACKENDS = tuple(str(backend) for backend in Backend)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A tier and filters. Different filters narrow, several entries of one filter widen; empty means all."""

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
        """Whether anything but the tier narrows."""
        return bool(self.systems or self.backends or self.only) or self.where is not None

    def filters(self, scopes: Mapping[str, Sequence[str]]) -> list[Narrow]:
        """The filters of `compute_matrix`.

        Args:
            scopes: backends by kernel directory, from arguments such as `kernels/relu[cuda]`.

        Raises:
            UsageError: a system or backend does not exist, or the expression cannot be read.
        """
        for kind, given, known in (("system", self.systems, SYSTEMS), ("backend", self.backends, BACKENDS)):
            for name in given:
                if name not in known:
                    raise UsageError(f"{name[:60]!r} is not a {kind}", hint=nearest(name, known))
        if not (self.filtered or scopes):
            return []
        from kci.catalog.where import expression
        from kci.matrix.filters import FIELDS, by_choice, by_expression, by_scope

        narrow = [by_scope(scopes)] if scopes else []
        if self.systems or self.backends or self.only:
            narrow.append(by_choice(systems=self.systems, backends=self.backends, only=self.only))
        if self.where is not None:
            narrow.append(by_expression(expression(self.where, FIELDS)))
        return narrow
