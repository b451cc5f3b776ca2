"""Whether a tree is signed by who may and is what was signed, and whether every signature is about what it lies at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.files.bounded_json import read_bounded
from kci.tree.digest import SIGNATURE
from kci.tree.dsse import Signers, SigningContext, Statement, claimed_statement
from kci.tree.metadata import FILE_NAME
from kci.tree.signing import ATTESTATION_NAME, BUNDLE_NAME, opened, tree_differences
from kci.tree.sigstore_bundles import signature_problem
from kci.verify.subject import VariantDir

_SHOWN = 20


def check_variant(variant: VariantDir) -> Iterator[Diagnostic]:
    """The rule about the loader's signature of a variant. Whose it is, is not asked here."""
    if not any(item.name == SIGNATURE and item.regular and not item.link for item in variant.files):
        return
    try:
        problem = signature_problem(read_bounded(variant.path / SIGNATURE), read_bounded(variant.path / FILE_NAME))
    except (OSError, ValueError) as error:
        problem = f"it cannot be read: {error}"
    if problem and variant.metadata is not None:
        yield finding("KCI729", problem, path=variant.at(SIGNATURE))


def check_attestations(tree: Path, shown: str) -> Iterator[Diagnostic]:
    """Hold the attestations that a tree has to its files, whoever has signed them: a stale one is worse than none."""
    for name in (ATTESTATION_NAME, BUNDLE_NAME):
        if (tree / name).exists():
            yield from _differences(tree, shown, name, claimed_statement, SigningContext())


def check_signatures(tree: Path, shown: str, signers: Signers, context: SigningContext) -> Iterator[Diagnostic]:
    """The rules about a tree's attestation: who may sign it, and what it has to name."""
    with_key = bool(signers.keys) and ((tree / ATTESTATION_NAME).exists() or not context.repository)
    name = ATTESTATION_NAME if with_key else BUNDLE_NAME
    if not (tree / name).exists():
        yield finding("KCI790", f"there is no {ATTESTATION_NAME}, and no {BUNDLE_NAME}", path=shown)
        return
    yield from _differences(
        tree, shown, name, partial(opened, signers=signers, context=context, with_key=with_key), context
    )


def _differences(
    tree: Path, shown: str, name: str, read: Callable[[bytes], Statement], context: SigningContext
) -> Iterator[Diagnostic]:
    where = f"{shown}/{name}"
    try:
        statement = read(read_bounded(tree / name))
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
