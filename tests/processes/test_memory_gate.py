"""Which compilers run at once: those for which there is memory, and time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from buildkit import write_tree
from eaters import MIB, eat, let_go, linux, ninja_runs
from kci.processes.machine import free_memory
from kci.processes.memory_gate import MemoryGate, Need, RunningCommand, decide
from kci.processes.running_commands import RunningCommands

GIB = 2**30


def command(
    number: int, memory: float, resident: float = 0.0, *, running: bool = False, **more: object
) -> RunningCommand:
    need = Need(int(memory * GIB), seconds=float(str(more.pop("seconds", 0))), alone=bool(more.pop("alone", False)))
    made = RunningCommand(f"{number}.o", need, float(number), number, resident=int(resident * GIB), running=running)
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("free", "commands", "runs"),
    [
        (16, [command(n, 4) for n in range(4)], {0, 1, 2}),
        (None, [command(n, 4) for n in range(4)], {0, 1, 2, 3}),
        (2, [command(n, 4) for n in range(4)], {0}),
        (10, [command(0, 8), command(1, 8), command(2, 1)], {0, 2}),
        # what it holds already is not free any more, and is not counted twice
        (8, [command(0, 8, 6, running=True), command(1, 5), command(2, 6)], {0, 1}),
        # one that takes more than was expected
        (4, [command(0, 1, 6, running=True), command(1, 4), command(2, 3)], {0, 2}),
        # what was let run goes on, whatever the order
        (9, [command(0, 8), command(1, 8, 0.1, running=True)], {1}),
        (0.4, [command(0, 1, 1, running=True), command(1, 1, 1, running=True), command(2, 0)], {0}),
        (0.4, [command(0, 1, 1, running=True)], {0}),
        # it was killed before: the others end first, nothing begins beside it
        (99, [command(0, 1, running=True), command(1, 9, alone=True), command(2, 1)], {0}),
        (99, [command(1, 9, alone=True), command(2, 1)], {1}),
        (99, [command(1, 9, alone=True, running=True), command(2, 1)], {1}),
        # a link waits for nothing
        (0.1, [command(0, 4, 4, running=True), command(1, 0, output="")], {0, 1}),
    ],
)
def test_those_run_for_which_there_is_room(free: float | None, commands: list[RunningCommand], runs: set[int]) -> None:
    assert decide(commands, None if free is None else int(free * GIB)) == runs


def test_what_would_not_be_done_in_time_does_not_begin() -> None:
    commands = [
        command(0, 1, running=True, begun=True, ends_at=100.0, seconds=200),
        command(1, 1, ends_at=100.0, seconds=60),
        command(2, 1, ends_at=100.0, seconds=40),
        command(3, 1, seconds=60),
    ]
    assert decide(commands, 16 * GIB, now=50.0) == {0, 2, 3}
    assert [item.late(50.0) for item in commands] == [False, True, False, False]


def test_one_that_was_stopped_needs_more_than_it_had() -> None:
    commands = [command(0, 1, 2, running=True), command(1, 1, 2, running=True)]
    assert decide(commands, GIB // 4) == {0}
    assert commands[1].growth == GIB


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        (
            "0::/job\n",
            {
                "job/memory.max": f"{8 * GIB}\n",
                "job/memory.current": f"{6 * GIB}\n",
                "job/memory.stat": f"anon 7\ninactive_file {2 * GIB}\nactive_file {GIB}\n",
            },
        ),
        (
            "8:memory:/job\n",
            {
                "memory/job/memory.limit_in_bytes": f"{8 * GIB}\n",
                "memory/job/memory.usage_in_bytes": f"{6 * GIB}\n",
                "memory/job/memory.stat": f"inactive_file 5\ntotal_inactive_file {2 * GIB}\ntotal_active_file {GIB}\n",
            },
        ),
    ],
)
def test_what_is_free_by_the_machine_and_the_group(tmp_path: Path, membership: str, files: dict[str, str]) -> None:
    mounted = {f"mount/{name}": text for name, text in files.items()}
    for available, free in ((16, 5), (3, 3)):
        said = f"MemTotal: 1 kB\nMemAvailable:   {available * 2**20} kB\n"
        root = write_tree(tmp_path, {"membership": membership, "meminfo": said, **mounted})
        assert free_memory(root / "membership", root / "mount", root / "meminfo") == free * GIB
    assert free_memory(root / "membership", root / "mount", root / "nothing") is None


@linux
def test_compilers_wait_for_each_other_where_memory_is_short(tmp_path: Path, after_look: Callable[..., None]) -> None:
    """Four processes of 40 MiB are expected to take 400, and there is room for two: no more than two ever grow."""
    said: list[str] = []
    told: list[str] = []
    grown: list[set[str]] = []
    outputs = [f"{number}.o" for number in range(4)]

    def free() -> int:
        return 1200 * MIB

    def go(running: RunningCommands) -> None:
        # the one that was held first was seen to hold nothing; it has to be let go by the gate before it can grow
        now = {item.output for item in running._running.values() if item.running}
        grown.append(now)
        ready = [item.output for item in running._running.values() if item.running and item.resident > 40 * MIB]
        if len(now) == 2 and len(ready) == 2:
            let_go(tmp_path, ready[0])
        if len(told) >= 2:
            for output in ready:
                let_go(tmp_path, output)

    after_look(go)
    needs = dict.fromkeys(outputs, Need(400 * MIB, measured=True))
    commands = {output: eat(40, output) for output in outputs}
    gate = MemoryGate(free)
    ninja_runs(
        tmp_path, commands, lambda item: told.append(item.output), "-j4", needs=needs, gate=gate, log=said.append
    )
    assert sorted(told) == outputs
    assert max(map(len, grown)) == 2
    assert len(said) == 1
    assert "memory is short" in said[0]
    assert "0.4 GiB" in said[0]


@linux
def test_what_similar_objects_took_replaces_a_guess(tmp_path: Path, after_look: Callable[..., None]) -> None:
    """Guessed at a gigabyte, one would run after the other; after three of 30 MiB the rest runs at once."""
    told: list[str] = []
    most: list[int] = []
    outputs = [f"{number}.o" for number in range(6)]

    def go(running: RunningCommands) -> None:
        ready = [item.output for item in running._running.values() if item.running and item.resident > 30 * MIB]
        most.append(len(ready))
        if len(running._made) < 3 or max(most) == 3:
            for output in ready:
                let_go(tmp_path, output)

    after_look(go)
    needs = dict.fromkeys(outputs, Need(1000 * MIB))
    gate = MemoryGate(lambda: 1300 * MIB)
    commands = {output: eat(30, output) for output in outputs}
    ninja_runs(tmp_path, commands, lambda item: told.append(item.output), "-j3", needs=needs, gate=gate)
    assert sorted(told) == outputs
    assert max(most) == 3
