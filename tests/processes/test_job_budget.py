"""Builds that share the cores: ninja's own jobserver, what it says of its progress, and the limits."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

import pytest

from buildkit import warm_cache
from kci.errors import UsageError
from kci.processes.job_budget import JobBudget, Progress, alone, is_chatter, read_progress
from kci.processes.process import guarded
from kci.toolchains.compilers import ninja_version


def test_a_ninja_that_speaks_the_protocol_is_given_the_pipe_and_no_number() -> None:
    with JobBudget(3) as budget, budget.share((1, 13)) as share:
        assert share.arguments == ()
        flags = share.settings["MAKEFLAGS"].split()
        place = flags[1].removeprefix("--jobserver-auth=fifo:")
        assert flags[0] == "-j3"
        assert Path(place).is_fifo()
        assert "%W" in share.settings["NINJA_STATUS"]
    assert not Path(place).exists()


@pytest.mark.parametrize("version", [(1, 11), ()])
def test_an_older_ninja_is_given_its_part(version: tuple[int, ...]) -> None:
    with JobBudget(5, builds=2) as budget, budget.share(version) as share:
        assert share.arguments == ("-j", "2")
        assert "%W" not in share.settings["NINJA_STATUS"]  # it would refuse it
    with JobBudget(1, builds=2) as budget, budget.share(version) as share:
        assert share.arguments == ("-j", "1")


def test_a_build_of_its_own_needs_no_pipe() -> None:
    assert alone(7, (1, 13)).arguments == ("-j", "7")
    assert alone(7, (1, 11)).settings == {"NINJA_STATUS": "[%f/%t] "}


def test_a_build_waits_until_another_one_gives_its_job_back() -> None:
    order: list[str] = []
    with JobBudget(1) as budget:
        waiting = threading.Thread(target=lambda: _take(budget, order))
        with budget.share((1, 13)):
            waiting.start()
            order.append("first")
        waiting.join()
    assert order == ["first", "second"]


def _take(budget: JobBudget, order: list[str]) -> None:
    with budget.share((1, 13)):
        order.append("second")


def test_more_jobs_than_a_pipe_holds_do_not_block() -> None:
    with JobBudget(10**6) as budget, budget.share((1, 13)) as share:
        assert "-j1000000" in share.settings["MAKEFLAGS"]


def test_no_job_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        JobBudget(0)


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
def test_two_ninjas_take_what_the_other_leaves(tmp_path: Path) -> None:
    """The two commands of one ninja wait for each other, so they end only if it has both jobs of the budget."""
    cache = warm_cache(tmp_path)
    ninja = next((cache / "envs").glob("torch-2.13.0-cpu-*/bin/ninja")).absolute()
    os.mkfifo(tmp_path / "meet")
    (tmp_path / "build.ninja").write_text(
        "rule run\n  command = $c && touch $out\n  description = $out\n"
        f"build a: run\n  c = echo met > {tmp_path / 'meet'}\n"
        f"build b: run\n  c = grep -q met {tmp_path / 'meet'}\n"
    )
    said: list[str] = []
    with JobBudget(2, builds=2) as budget, budget.share(ninja_version(ninja)) as share:
        assert share.arguments == ()
        command = [str(ninja), "-C", str(tmp_path), *share.arguments]
        assert guarded(command, said.append, env={**os.environ, **share.settings}).code == 0
    assert any(is_chatter(line) for line in said)
    told = [progress for line in said if (progress := read_progress(line))]
    assert [(item.done, item.total) for item in told] == [(1, 2), (2, 2)]
    assert told[-1].left == 0


@pytest.mark.torch
def test_a_ninja_that_is_killed_leaves_at_least_its_first_job(tmp_path: Path) -> None:
    with JobBudget(1) as budget:
        with budget.share((1, 13)) as share:
            place = share.settings["MAKEFLAGS"].split(":")[1]
            guarded(["sh", "-c", "kill -9 $$"], lambda _line: None)
        handle = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
        assert select.select([handle], [], [], 0)[0]
        os.close(handle)
