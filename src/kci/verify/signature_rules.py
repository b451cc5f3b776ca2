"""Whether a tree is signed by who may, and is what was signed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.files.bounded_json import read_bounded
from kci.tree.dsse import open_statement
from kci.tree.signing import ATTESTATION_NAME, BUNDLE_NAME, Signers, SigningContext, tree_differences
from kci.tree.sigstore_bundles import open_bundle

_SHOWN = 20


def check_signatures(tree: Path, shown: str, signers: Signers, context: SigningContext) -> Iterator[Diagnostic]:
    """The rules about a tree's attestation.

    Args:
        tree: the tree.
        shown: its path for diagnostics.
        signers: who may sign.
        context: what the attestation has to name.
    """
    with_key = bool(signers.keys) and ((tree / ATTESTATION_NAME).exists() or not context.repository)
    name = ATTESTATION_NAME if with_key else BUNDLE_NAME
    where = f"{shown}/{name}"
    try:
        data = read_bounded(tree / name)
        statement = open_statement(data, signers.keys) if with_key else open_bundle(data, context, signers.trust)
    except FileNotFoundError:
        yield finding("KCI790", f"there is no {ATTESTATION_NAME}, and no {BUNDLE_NAME}", path=shown)
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
