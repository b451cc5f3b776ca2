"""The digest: what it covers, the order of a report, and agreement with the reference."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

import outside_tools
from kci.tree.identity import file_hashes, make_digest, validate_dir
from variants import variant_digest


def fill(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.fixture
def variant(tmp_path: Path) -> Path:
    root = fill(
        tmp_path / "v",
        {
            "__init__.py": b"from ._ops import ops\n", "a.b": b"", "a/b.py": b"1",
            ".hidden": b"2", "x.pyo": b"3", "metadata.json": b"4", "metadata.json.sigstore": b"5",
            "sub/metadata.json": b"6", "sub/x.pyc": b"7", "sub/__pycache__/deep/f": b"8",
        },
    )  # fmt: skip
    (root / "link.py").symlink_to("__init__.py")
    (root / "dirlink").symlink_to("sub")
    os.mkfifo(root / "fifo")
    return root


def test_the_digest_covers_what_the_reference_covers(variant: Path) -> None:
    files = make_digest(file_hashes(variant)).files
    covered = [".hidden", "__init__.py", "a.b", "a/b.py", "link.py", "sub/metadata.json", "x.pyo"]
    assert list(files) == covered
    digest = "oJkKRxmymMxOBcRXhqsfbO0E+ZiDfCQ2pRXm7qmMTA8="
    assert files["__init__.py"] == digest == files["link.py"]


@pytest.mark.torch
@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_the_reference_computes_the_same_digest(variant: Path, algorithm: str) -> None:
    reference = outside_tools.reference()
    kind = getattr(reference.DigestAlgorithm, algorithm.upper())
    theirs = reference.Digest.hash_variant(kind, str(variant))
    ours = make_digest(file_hashes(variant, algorithm), algorithm)  # type: ignore[arg-type]
    assert list(theirs.files.items()) == list(ours.files.items())


def test_sha512_is_read(variant: Path) -> None:
    expected = make_digest(file_hashes(variant, "sha512"), "sha512")
    assert expected.files["a.b"] == base64.b64encode(hashlib.sha512(b"").digest()).decode()
    assert validate_dir(variant, expected, file_hashes(variant)) == []


def test_the_variant_digest_covers_metadata_and_ignores_bytecode_names_and_times(
    tmp_path: Path,
) -> None:
    one = fill(tmp_path / "one", {"a.py": b"1", "metadata.json": b"2"})
    two = fill(tmp_path / "two", {"a.py": b"1", "metadata.json": b"2", "__pycache__/a.pyc": b"x"})
    os.utime(two / "a.py", (1, 1))
    assert variant_digest(one) == variant_digest(two)
    (two / "metadata.json").write_bytes(b"3")
    assert variant_digest(one) != variant_digest(two)
