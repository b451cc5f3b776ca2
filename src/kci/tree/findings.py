"""How the rooms of the tree refuse: an error that carries its one finding."""

from __future__ import annotations

from kci.diagnostics import finding
from kci.errors import FindingsError


def tree_error(rule: str, message: str, *, hint: str = "", path: str = "") -> FindingsError:
    """A FindingsError that carries the one finding it is about."""
    return FindingsError(message, hint=hint, diagnostics=[finding(rule, message, hint=hint, path=path)])
