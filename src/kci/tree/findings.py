"""How the rooms of the tree refuse: an error that carries its one finding."""

from __future__ import annotations

from collections.abc import Sequence

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError


def tree_error(rule: str, message: str, *, hint: str = "", path: str = "") -> FindingsError:
    """A FindingsError that carries the one finding it is about."""
    return FindingsError(message, hint=hint, diagnostics=[finding(rule, message, hint=hint, path=path)])


def several(found: Sequence[Diagnostic], hint: str) -> FindingsError:
    """A FindingsError that carries at least one finding, and says the first."""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return FindingsError(found[0].message + more, hint=hint, diagnostics=found)
