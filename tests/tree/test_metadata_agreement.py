"""Whatever the loader's own reader and validator refuse, kci refuses: measured against the
`kernels` package.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outside_tools
from kci.tree import metadata
from variants import make_variant

rust = outside_tools.reference()

CASES = int(os.environ.get("KCI_FUZZ", "600"))

WHOLE: dict[str, Any] = {
    "name": "gated-norm",
    "id": "_gated_norm_cuda_1a2b3c4",
    "version": 2,
    "kernels-minver": "0.14.0",
    "license": "apache-2.0",
    "upstream": "https://github.com/a/b",
    "source": "git@github.com:a/b.git",
    "python-depends": ["einops"],
    "kernel-depends": [{"repo-id": "a/b", "version": 1}, {"repo-id": "a/b", "revision": "main"}],
    "backend": {"type": "cuda", "archs": ["8.0", "9.0a"]},
    "digest": {
        "algorithm": "sha256",
        "files": {"__init__.py": "oJkKRxmymMxOBcRXhqsfbO0E+ZiDfCQ2pRXm7qmMTA8="},
    },
    "provenance": {
        "kernel-builder": {"version": "0.17.0", "commit": "a" * 40, "dirty": False},
        "kernel": {"commit": "B" * 40, "dirty": True},
    },
    "kci": {"variant": "torch213-cxx11-cu130-x86_64-linux"},
}

VALUES = [
    None, True, False, 0, -1, 1.0, 1.5, 2**63, 2**64 - 1, 2**64, 10**400, "", "0", "1.2", "1.2.3",
    "1.2.3.4", "01.2.3",
    "99999999999999999999.0.0", "abc", "a\nb", "\ud800", "\u0000", "é", [], [None], ["x"], [1], {},
    {"type": "cpu"},
    {"x": 1}, "cuda", "npu", "sha512", "ftp://x/y", "https://", "a/b", "-a", "A" * 40, "g" * 40,
    "_x", "class",
]  # fmt: skip
RAW = [
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"1E2", b"\\ud83d", b"\xff",
    b"\xef\xbb\xbf", b"//", b",", b"\x00",
]  # fmt: skip


def places(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    listed = enumerate(value) if isinstance(value, list) else ()
    for key, inner in value.items() if isinstance(value, dict) else listed:
        yield (*prefix, key)
        yield from places(inner, (*prefix, key))


def mutated(random_: random.Random) -> bytes:
    data = copy.deepcopy(WHOLE)
    for _ in range(random_.choice([1, 1, 1, 2])):
        *path, last = random_.choice(list(places(data)))
        owner = data
        for key in path:
            owner = owner[key]
        match random_.randrange(4):
            case 0:
                del owner[last]
            case 1 if isinstance(owner, dict):
                name = random_.choice(["sha", "commit", "extra", "version", last + "x"])
                owner[name] = owner.pop(last)
            case _:
                owner[last] = random_.choice(VALUES)
    raw = json.dumps(data, ensure_ascii=random_.random() < 0.5).encode("utf-8", "surrogatepass")
    match random_.randrange(8):
        case 0:
            position = random_.randrange(len(raw))
            return raw[:position] + random_.choice(RAW) + raw[position + random_.randrange(3) :]
        case 1:
            return raw[: random_.randrange(len(raw))]
        case 2:
            encoding = random_.choice(["utf-16", "utf-32", "utf-8-sig", "utf-16-le"])
            return raw.decode("utf-8", "replace").encode(encoding)
        case 3:
            changed = bytearray(raw)
            changed[random_.randrange(len(raw))] = random_.randrange(256)
            return bytes(changed)
    return raw


def refused_by_reference(raw: bytes) -> bool:
    try:
        rust.Metadata.from_bytes(raw)
    except (ValueError, OverflowError):
        return True
    return False


def refused(raw: bytes) -> bool:
    try:
        metadata.decode(raw)
    except ValueError:
        return True
    return False


def test_what_the_reference_refuses_kci_refuses() -> None:
    random_ = random.Random(9)
    cases = [mutated(random_) for _ in range(CASES)]
    wrong = [raw for raw in cases if refused_by_reference(raw) and not refused(raw)]
    assert wrong == []
    assert any(not refused(raw) for raw in cases)


@pytest.mark.parametrize(
    "text", [b"NaN", b"1e999", b'"\\ud800"', b"[" * 200 + b"]" * 200, b'{"a": 1, "a": 2}']
)
def test_no_reader_of_json_has_to_guess(text: bytes) -> None:
    """The reference passes over what it does not know, whatever it is; other tools read these files
    as well.
    """
    whole = json.dumps(WHOLE).encode()[:-1]
    assert not refused(whole + b', "unknown": 1}')
    assert refused(whole + b', "unknown": ' + text + b"}")


def test_a_file_may_not_be_nested_without_end() -> None:
    raw = json.dumps({**WHOLE, "x": 0}).encode()
    for depth, too_deep in ((126, False), (127, True), (200_000, True)):
        assert refused(raw[:-2] + b"[" * depth + b"]" * depth + b"}") is too_deep


def test_the_reference_reads_what_kci_writes(tmp_path: Path) -> None:
    files = {"__init__.py": "", "a.b": "1", "a/b.py": "2", "sub/metadata.json": "3"}
    directory = make_variant(tmp_path, files=files)
    ours = metadata.read_metadata(directory / "metadata.json")
    theirs = rust.Metadata.read_from_file(directory / "metadata.json")
    assert (theirs.id, theirs.version, theirs.license) == (ours.id, ours.version, ours.license)
    assert ours.digest is not None
    assert dict(theirs.digest.files) == ours.digest.files
    actual = rust.Digest.hash_variant(rust.DigestAlgorithm.SHA256, directory)
    theirs.digest.validate(actual)
    assert list(theirs.digest.files.items()) == list(actual.files.items())
