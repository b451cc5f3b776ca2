"""Whether a tree is signed by who may, and is what was signed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.files.bounded_json import read_bounded
from kci.tree.dsse import open_statement
from kci.tree.signing import ATTESTATION_NAME, SigningContext, tree_differences

_SHOWN = 20


def check_signatures(tree: Path, shown: str, keys: Sequence[str], context: SigningContext) -> Iterator[Diagnostic]:
    """The rules about a tree's attestation.

    Args:
        tree: the tree.
        shown: its path for diagnostics.
        keys: the public keys that may sign.
        context: what the attestation has to name.
    """
    where = f"{shown}/{ATTESTATION_NAME}"
    try:
        statement = open_statement(read_bounded(tree / ATTESTATION_NAME), keys)
    except FileNotFoundError:
        yield finding("KCI790", f"there is no {ATTESTATION_NAME}", path=shown)
        return
    except (OSError, ValueError) as error:
        yield finding("KCI791", f"the attestation does not count: {error}", path=where)
        return
    try:
        wrong = tree_differences(tree, statement, context)
    except FindingsError as error:
        yield finding("KCI700", error.message.replace(str(tree), shown), path=shown)
        return
    for message in wrong[:_SHOWN]:
        yield finding("KCI792", message, path=where)
