"""Which kept build `kci run` takes again: the one of the same fingerprint; and work at once."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builders.process.test_process import is_running
from buildkit import CPU, variant, write_tree
from conftest import failure, torch_toml
from kci.builders.process.run import Log, run_in_group
from kci.builders.request import BuildOptions
from kci.config.reader import read_kernel
from kci.plan.workspace import open_workspace
from kci.run import local
from kci.run.build_leg import LegRequest
from kci.run.local import KeptBuilds, is_kept, run_in_parallel
from kci.tree.manifest import LegRecord
from planning import append
from variants import leg_of, make_variant

SOURCES = {"cpu": 'csrc/a.cpp", "csrc/never.h'}
FILES = {
    "build.toml": torch_toml(SOURCES, "kk", "torch-ext/binding.cpp"),
    "torch-ext/binding.cpp": "int bound;\n",
    "torch-ext/kk/__init__.py": "",
    "csrc/a.cpp": '#if 0\n#include "never.h"\n#endif\n',
    "csrc/never.h": "int never;\n",
    "README.md": "# kk\n",
}
WANTED = variant(CPU)
HERE = "the compilers of this machine"


class Builder:
    """In place of a real build."""

    def __init__(self) -> None:
        self.builds = 0
        self.until: Callable[[], object] = lambda: None

    def __call__(self, request: LegRequest, *_: object) -> LegRecord:
        self.until()
        self.builds += 1
        output, name = request.output, request.variant.name
        shutil.rmtree(output / name, ignore_errors=True)
        files = {"__init__.py": f"NUMBER = {self.builds}\n"}
        return leg_of(make_variant(output, name, name="kk", files=files))


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    monkeypatch.setattr(local, "make_variant_dir", made)
    return made


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "kk", FILES)


class Kept:
    """The kept builds of a kernel, as one run sees them."""

    def __init__(self, kernel: Path, toolchain: str = HERE, builder: str = "auto") -> None:
        self.kernel = read_kernel(kernel)
        options = BuildOptions(kernel.parent / "cache", builder)
        self.builds = KeptBuilds(open_workspace([kernel]), options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "toolchain_identity", lambda *_, **__: toolchain)
            self.now = self.builds.place(self.kernel, WANTED)

    def make(self, log: Log = lambda _line: None) -> Path:
        self.builds.make(self.kernel, WANTED, self.now, log)
        return self.now


@pytest.mark.parametrize(
    ("path", "compiler"),
    [
        ("torch-ext/binding.cpp", HERE),
        ("torch-ext/kk/__init__.py", HERE),
        ("csrc/a.cpp", HERE),
        ("csrc/never.h", HERE),
        ("README.md", "another compiler"),
    ],
)
@pytest.mark.usefixtures("builder")
def test_a_change_of_any_input_makes_it_another_variant(
    kernel: Path, path: str, compiler: str
) -> None:
    Kept(kernel).make()
    append(path)(kernel)
    assert not is_kept(Kept(kernel, compiler).now)


def test_of_two_runs_at_once_one_builds_and_the_other_takes_what_it_made(
    kernel: Path, builder: Builder
) -> None:
    """The first may be copying its build into a tree while the second would replace it."""
    begun, waits = threading.Event(), threading.Event()
    builder.until = lambda: (begun.set(), waits.wait(60))
    with ThreadPoolExecutor(2) as both:
        first = both.submit(Kept(kernel).make)
        assert begun.wait(60)
        second = both.submit(Kept(kernel).make, lambda _line: waits.set())
        assert first.result() == second.result()
    assert builder.builds == 1


def test_another_run_may_remove_builds_meanwhile(
    kernel: Path, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, gone = Path.glob, kernel / "gone" / CPU
    glob = lambda path, *words, **how: [*found(path, *words, **how), gone]  # noqa: E731
    monkeypatch.setattr(Path, "glob", glob)
    assert Kept(kernel).make().is_dir()


def test_nix_may_look_at_any_file(kernel: Path) -> None:
    before = Kept(kernel), Kept(kernel, builder="nix")
    append("README.md")(kernel)
    assert Kept(kernel).now == before[0].now
    assert Kept(kernel, builder="nix").now != before[1].now


# --- several pieces of work at once: one thread hears of them, and they end together ---

Tell = Callable[[str], None]


def test_they_run_at_once_and_are_heard_in_one_thread() -> None:
    meet = threading.Barrier(2, timeout=60)
    heard: list[tuple[str, threading.Thread]] = []

    def work(tell: Tell) -> None:
        tell("begun")
        meet.wait()  # for ever, if the other one began only after this one
        tell("ended")

    run_in_parallel([work, work], 2, lambda told: heard.append((told, threading.current_thread())))
    assert sorted(told for told, _ in heard) == ["begun", "begun", "ended", "ended"]
    assert {thread for _, thread in heard} == {threading.current_thread()}


def test_an_error_of_one_ends_the_others(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    pids: list[int] = []
    started = threading.Event()

    def endless(tell: Tell) -> None:
        def log(line: str) -> None:
            pids.append(int(line))
            started.set()

        run_in_group(["sh", "-c", f"echo $$; exec cat {tmp_path / 'never'}"], log)
        tell("it must not come to this")

    def failing(tell: Tell) -> None:
        started.wait()
        raise ValueError("of one")

    heard: list[str] = []
    failure(ValueError, "of one", run_in_parallel, [endless, failing], 2, heard.append)
    assert not is_running(pids[0])
    assert heard == []


def test_an_interrupt_ends_the_programs_of_all_and_starts_no_more(tmp_path: Path) -> None:
    """Programs that read no signal of the terminal, because they have a session of their own, and
    plain ones.
    """
    os.mkfifo(tmp_path / "never")
    pids: list[int] = []
    later: list[str] = []

    def endless(tell: Tell) -> None:
        run_in_group(["sh", "-c", f"echo $$; exec cat {tmp_path / 'never'}"], tell)

    def never_begun(tell: Tell) -> None:
        later.append("begun")

    def hear(told: str) -> None:
        pids.append(int(told))
        if len(pids) == 2:
            raise KeyboardInterrupt

    failure(KeyboardInterrupt, "", run_in_parallel, [endless, endless, never_begun], 2, hear)
    assert [pid for pid in pids if is_running(pid)] == []
    assert later == []
