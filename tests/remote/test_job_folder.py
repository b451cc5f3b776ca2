"""What a job says of itself is not believed: result, files and log come from a machine that ran foreign code."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kci.errors import FindingsError, UnsafeError
from kci.remote.job import LOG_BYTES, EngineJob, Fetched, fetch_into, log_tail, printable, read_file

JOB = EngineJob(
    name="kci-job-1", run="r", attempt=1, kernel="k", leg="l", variants=("v",), command=("x",), cores=1, memory_gb=1,
    timeout=1, most_bytes=10, artifacts=("a.tar",),
)  # fmt: skip
DIGEST = hashlib.sha256(b"content").hexdigest()


def fetch(place: Path, files: dict[str, bytes], *handed: dict[str, Any], **changes: Any) -> Fetched:
    result = {"schema": 1, "job": "kci-job-1", "code": 0, "seconds": 1, "ended": "exit", "files": handed, **changes}

    def read(name: str) -> Iterator[bytes]:
        found = {"result.json": msgspec.json.encode(result), **files}
        if name not in found:
            raise FileNotFoundError(name)
        yield from (found[name][start : start + 3] for start in range(0, len(found[name]), 3))

    return fetch_into(place, JOB, read)


def handed(**changes: Any) -> dict[str, Any]:
    return {"name": "a.tar", "sha256": DIGEST, "size": 7, **changes}


def test_what_was_agreed_is_fetched(tmp_path: Path) -> None:
    got = fetch(tmp_path, {"out/a.tar": b"content", "log.txt": b"said\n"}, handed())
    assert [path.read_bytes() for path in got.artifacts] == [b"content"]
    assert log_tail(got.log) == "said"


@pytest.mark.parametrize(
    ("files", "item", "changes", "error", "said"),
    [
        ({}, None, {"job": "kci-job-2"}, FindingsError, "was answered with the result of kci-job-2"),
        ({}, None, {"schema": 2}, FindingsError, "schema 2 is not known"),
        ({}, None, {"ended": "well"}, FindingsError, "cannot be read"),
        ({"result.json": b"[" * 100_000}, None, {}, FindingsError, "cannot be read"),
        ({"result.json": b" " * 300_000}, None, {}, UnsafeError, "larger than it may be"),
        ({}, handed(name="b.tar"), {}, FindingsError, "which it was not asked for"),
        ({}, handed(name="../a.tar"), {}, FindingsError, "cannot be read"),
        ({}, handed(), {}, FindingsError, "a.tar is in the result of its job, but was not handed back"),
        ({"out/a.tar": b"content"}, handed(size=11), {}, UnsafeError, "at most 10"),
        ({"out/a.tar": b"content" * 9}, handed(), {}, UnsafeError, "at most 7"),
        ({"out/a.tar": b"CONTENT"}, handed(), {}, FindingsError, "does not have the digest that its result names"),
    ],
)
def test_what_was_not_agreed_is_refused(
    tmp_path: Path,
    files: dict[str, bytes],
    item: dict[str, Any] | None,
    changes: dict[str, Any],
    error: type,
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        fetch(tmp_path, files, *([item] if item else []), **changes)


def test_a_log_without_end_is_cut(tmp_path: Path) -> None:
    got = fetch_into(tmp_path, JOB, endless)
    assert got.log.stat().st_size < LOG_BYTES + 100
    assert log_tail(got.log, 1) == "[the rest was not kept]"


def endless(name: str) -> Iterator[bytes]:
    if name == "result.json":
        yield b'{"job": "kci-job-1", "code": 0, "seconds": 1, "ended": "exit"}'
    while name == "log.txt":
        yield b"x" * 1_000_000


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_plain_files_are_read(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "result.json"
    {"link": lambda: place.symlink_to("/etc/passwd"), "pipe": lambda: os.mkfifo(place), "folder": place.mkdir}[kind]()
    with pytest.raises(UnsafeError, match="is not a plain file"):
        list(read_file(tmp_path, "result.json"))


def test_letters_stay_and_what_drives_a_terminal_is_written_out() -> None:
    assert printable("größer 中 ✓\tx\n") == "größer 中 ✓\tx\n"
    assert printable("\x1b[2J\x9b\u202e\u2066\r") == r"\x1b[2J\x9b\u202e\u2066\r"
