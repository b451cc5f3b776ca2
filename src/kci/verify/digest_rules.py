"""The digest in the metadata against the files (docs/format.md#digest)."""

from __future__ import annotations

from collections.abc import Iterator

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.tree.digest import Deviation, digest_of, validate, validate_dir
from kci.tree.metadata import FILE_NAME
from kci.verify.subject import VariantDir


def check_variant(variant: VariantDir) -> Iterator[Diagnostic]:
    """The rules about a variant's digest."""
    if variant.metadata is None:
        return
    if variant.metadata.digest is None:
        yield finding("KCI730", "the metadata has no digest", path=variant.at(FILE_NAME))
        return
    expected = variant.metadata.digest
    if variant.hashes is None:
        return  # reported when the directory was read
    try:
        same = expected.algorithm == "sha256"
        violations = validate(expected, digest_of(variant.hashes)) if same else validate_dir(variant.path, expected)
    except FindingsError as error:
        yield finding("KCI700", error.message.replace(str(variant.path), variant.shown), path=variant.shown)
        return
    for violation in violations:
        where = variant.shown if violation.kind is Deviation.ALGORITHM else variant.at(violation.path)
        yield finding("KCI731", str(violation), path=where)
