"""What ninja says of its progress, and its pools."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buildkit import warm_cache
from kci.builders.native.ninja import Step, ninja_text
from kci.builders.process.machine import Progress, ninja_status, read_progress
from kci.builders.process.run import run_in_group
from kci.builders.toolchains.compilers import ninja_version


def test_only_a_newer_ninja_is_asked_for_the_time() -> None:
    assert "%W" in ninja_status((1, 13))
    assert "%W" not in ninja_status((1, 11))  # it would refuse it
    assert "%W" not in ninja_status(())


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        ("[3/10] c++ csrc/relu.cpp", Progress(3, 10, None, "c++ csrc/relu.cpp")),
        ("[3/10 01:05] nvcc a b.cu", Progress(3, 10, 65, "nvcc a b.cu")),
        ("[3/10 1:00:05] link x.so", Progress(3, 10, 3605, "link x.so")),
        ("[3/10 ?] link x.so", Progress(3, 10, None, "link x.so")),
        ("[note] hello", None),
        ("a.cpp:3: [1/2] warning", None),
        ("[1/2", None),
    ],
)
def test_what_ninja_says_of_its_progress(line: str, progress: Progress | None) -> None:
    assert read_progress(line) == progress


@pytest.mark.torch
def test_a_real_ninja_says_its_progress_and_keeps_to_a_pool(tmp_path: Path) -> None:
    cache = warm_cache(tmp_path)
    ninja = next((cache / "envs").glob("torch-2.13.0-cpu-*/bin/ninja")).absolute()
    alone = "mkdir busy && touch $@ && rmdir busy"  # fails beside another one
    steps = [
        Step(f"{name}.o", (), ("sh", "-c", alone.replace("$@", f"{name}.o")), name, pool="cuda")
        for name in "abc"
    ]
    (tmp_path / "build.ninja").write_text(ninja_text(steps, "a.o", "b.o", "c.o", pools={"cuda": 1}))
    said: list[str] = []
    environment = {**os.environ, "NINJA_STATUS": ninja_status(ninja_version(ninja))}
    command = [str(ninja), "-C", str(tmp_path), "-j3"]
    assert run_in_group(command, said.append, env=environment).code == 0
    told = [progress for line in said if (progress := read_progress(line))]
    assert [(item.done, item.total) for item in told] == [(1, 3), (2, 3), (3, 3)]
    assert told[-1].seconds_left == 0
