"""Whatever a file holds, reading and updating it take no longer than its size asks for, and end with an answer.

benchmarks/fuzz_reader.py does the same with 100,000 inputs and watches memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

import fuzzing
from conftest import many
from growth import assert_in_proportion
from kci.config.document import MAX_BYTES
from kci.config.mismatch import MAX_PROBLEMS
from kci.config.reader import parse_kernel, read_kernel
from kci.config.update import plan_update
from kci.diagnostics import Diagnostic, render_github, render_text
from kci.errors import FindingsError


def read(raw: bytes) -> int:
    """Read and update a file; how many problems it has."""
    problems: tuple[Diagnostic, ...] = ()
    try:
        assert parse_kernel(raw).build.name
    except FindingsError as error:
        problems = error.diagnostics
        check_diagnostics(problems)
    if problems:
        with pytest.raises(FindingsError):
            plan_update(raw)
    else:
        assert parse_kernel(plan_update(raw).after).edition == max(5, parse_kernel(raw).edition)
    return len(problems)


def check_diagnostics(problems: tuple[Diagnostic, ...]) -> None:
    """There are some, each short enough to read and possible to show."""
    assert problems
    for found in problems:
        assert found.path == "build.toml"
        assert len(found.message) < 1000
        assert render_text(found)
        assert render_github(found)


def test_random_inputs() -> None:
    problems = [read(raw) for _, raw in itertools.islice(fuzzing.endless(seed=1), many(1000))]
    assert problems.count(0) > many(20)
    assert sum(problems) > many(2000)


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in fuzzing.HOSTILE.items()])
def test_hostile_shapes(make: Callable[[int], str]) -> None:
    def work(size: int) -> None:
        assert read(make(size).encode()) <= MAX_PROBLEMS + 5  # what is asked beside the shape: framework, edition

    assert_in_proportion(work, 12_000)


def test_a_file_of_50_mb_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_bytes(b'x = "' + b"a" * 50_000_000)
    with pytest.raises(FindingsError, match="larger than 1024 KiB"):
        read_kernel(tmp_path)
    with pytest.raises(FindingsError, match="larger than"):
        parse_kernel(b"#" * (MAX_BYTES + 1))
    assert parse_kernel(fuzzing.HEAD.encode().ljust(MAX_BYTES, b"\n")).build.name == "ab"


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "build.toml").symlink_to("/dev/zero")
    with pytest.raises(FindingsError, match="not a regular file"):
        read_kernel(tmp_path)
