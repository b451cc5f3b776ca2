"""A full disk: the place that is full is named, whether kci or a compiler meets it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from buildkit import CPU, copy_kernel, quiet, request
from conftest import failure
from kci.builders.native import builder
from kci.builders.native.failures import failure_hint
from kci.builders.process.run import ProgramResult
from kci.errors import BuildFailedError


def test_a_full_cache_is_not_taken_for_a_full_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = request(copy_kernel("plus-one", tmp_path), CPU, tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a write names no file

    monkeypatch.setattr(builder, "this_system", lambda: "x86_64-linux")
    monkeypatch.setattr(builder.Environment, "ensure", lambda *_: None)
    monkeypatch.setattr(builder, "_check_torch", lambda *_: None)
    monkeypatch.setattr(builder, "_prepare", full)
    caught = failure(BuildFailedError, "No space left on device", builder.build, what, quiet)
    assert str(tmp_path / "cache" / "work") in caught.message
    assert "KCI_CACHE" in caught.hint


def hint(said: str, system: str = "aarch64-linux") -> str:
    return failure_hint(ProgramResult(1, f"{said}\n"), Path("work"), system)


UNKNOWN = "g++: error: unrecognized command-line option"


@pytest.mark.parametrize(
    ("said", "flag"),
    [
        (f"aarch64-linux-gnu-{UNKNOWN} ‘-mavx2’; did you mean ‘-maix’?", "-mavx2"),
        ("cc1plus: error: unknown value ‘native’ for ‘-march’", "-march=native"),
        ("clang++: error: unsupported option '-mavx512f' for target 'aarch64'", "-mavx512f"),
    ],
)
def test_a_flag_of_another_processor_gets_a_hint(said: str, flag: str) -> None:
    assert hint(said).startswith(f"compilers for aarch64-linux have no flag {flag}")
    assert hint("error: unrecognized command-line option ‘-fno’", "x86_64-linux") == ""


def test_a_compiler_that_has_no_space_gets_a_hint() -> None:
    full = "fatal error: error writing to /tmp/x.s: No space left on device"
    assert "free space" in hint(full)
    assert "free space" not in hint("error: expected ';'")
