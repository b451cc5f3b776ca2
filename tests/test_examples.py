"""The examples, held to the reference's own reader and validators."""

from __future__ import annotations

from pathlib import Path

import pytest

import outside_tools
from conftest import ROOT

EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/build.toml"))


def test_the_references_reader_accepts_the_examples(capfd: pytest.CaptureFixture[str]) -> None:
    assert EXAMPLES == ["relu", "relu-tvm-ffi", "rms-norm", "swiglu"], "one of each kind"
    for name in EXAMPLES:
        outside_tools.reference().Build.open(str(ROOT / "examples" / name))
    assert capfd.readouterr().err == "", "it warns of nothing either"


def accepted_by_the_reference(tree: Path) -> list[str]:
    """The variants of a tree; each one's metadata was read and its files hashed by the
    reference.
    """
    reference = outside_tools.reference()
    found = []
    for metadata in sorted(tree.glob("*/metadata.json")):
        read = reference.Metadata.read_from_file(str(metadata))
        read.digest.validate(
            reference.Digest.hash_variant(reference.DigestAlgorithm.SHA256, str(metadata.parent))
        )
        found.append(metadata.parent.name)
    return found
