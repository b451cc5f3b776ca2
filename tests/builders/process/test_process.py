"""Programs that a build runs: nothing of them is left when the build is stopped."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from conftest import failure
from kci.builders.process.run import run, run_in_group
from kci.errors import MissingToolError
from kci.utils.atomic import locked


def test_a_program_does_not_outlive_the_call(tmp_path: Path) -> None:
    """Ctrl-C may reach this process alone, as `kill -INT` does."""
    os.mkfifo(tmp_path / "never")
    said: list[str] = []

    def interrupt(line: str) -> None:
        said.append(line)
        raise KeyboardInterrupt

    waits = ["sh", "-c", f"echo $$; exec cat {tmp_path / 'never'}"]
    with pytest.raises(KeyboardInterrupt):
        run(waits, interrupt)
    failure(ProcessLookupError, "", os.kill, int(said[0]), 0)


TREE = """
import os, sys
from kci.builders.process.run import run_in_group
from kci.utils.atomic import locked
from contextlib import ExitStack
from pathlib import Path
with locked(Path(sys.argv[1])) as lock:
    # The first of the two leaves its session; the other ignores a request to end.
    fifo = sys.argv[2]
    other = f"trap '' TERM; echo $$; cat {fifo}; cat {fifo}"
    inner = f"setsid sh -c 'echo $$; exec cat {fifo}' & {other}"
    run_in_group(["sh", "-c", inner], lambda line: print(line, flush=True), lock=lock)
"""


def gone(pid: int) -> bool:
    """Wait for the end of a process; it need not be a child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 60)[0])
    finally:
        os.close(handle)


WAITS = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="waits for processes of others, which takes Linux"
)


@WAITS
def test_nothing_is_left_however_kci_ends(tmp_path: Path) -> None:
    """Three ends at once: each takes as long as a program may take that ignores a request
    to end.
    """
    with ExitStack() as started:
        trees = [running_tree(started, tmp_path / how.name) for how in ENDS]
        for how, (kci, _) in zip(ENDS, trees, strict=True):
            kci.send_signal(how)
        for how, (kci, pids) in zip(ENDS, trees, strict=True):
            kci.wait()
            # The lock is free only once the last of them is gone: whoever gets it has the work
            # directory to himself.
            with locked(tmp_path / how.name / "work"):
                assert [pid for pid in pids if is_running(pid)] == [], how


def python(code: str, *words: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *words]
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdout=pipe, stderr=none, text=True)


ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def running_tree(started: ExitStack, folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A process with those two below it, and their ids."""
    folder.mkdir()
    os.mkfifo(folder / "never")
    kci = started.enter_context(python(TREE, folder / "work", folder / "never"))
    assert kci.stdout is not None
    return kci, [int(kci.stdout.readline()) for _ in range(2)]


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


ORPHAN = """
import sys
from kci.builders.process.run import run_in_group
fifo = sys.argv[1]
inner = f"(setsid sh -c 'echo $$; exec cat {fifo}' &); exec cat {fifo}"
run_in_group(["sh", "-c", inner], lambda line: print(line, flush=True))
"""


@pytest.fixture
def never(tmp_path: Path) -> Path:
    """What nobody writes to."""
    os.mkfifo(tmp_path / "never")
    return tmp_path / "never"


@WAITS
def test_what_has_lost_its_parent_is_ended_too(never: Path) -> None:
    with python(ORPHAN, never) as kci:
        assert kci.stdout is not None
        orphan = int(kci.stdout.readline())
        kci.kill()
    try:
        assert gone(orphan)
    finally:
        with suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)


def interrupt(_line: str) -> None:
    raise KeyboardInterrupt


def test_a_program_is_asked_to_end_and_what_it_leaves_is_undone(never: Path) -> None:
    place = never.parent
    asked = f"trap 'echo asked > {place}/asked; exit' TERM; echo $$; read line < {never}"
    undo = ["sh", "-c", f"cat {place}/asked > {place}/undone"]
    with pytest.raises(KeyboardInterrupt):
        run_in_group(["sh", "-c", asked], interrupt, undo=undo)
    assert (place / "undone").read_text() == "asked\n"


@WAITS
def test_a_guard_that_is_killed_takes_the_program_along(never: Path) -> None:
    pids: list[int] = []

    def kill_parent(line: str) -> None:
        pids.extend(map(int, line.split()))
        os.kill(pids[1], signal.SIGKILL)

    done = run_in_group(["sh", "-c", f"echo $$ $PPID; exec cat {never}"], kill_parent)
    assert done.code == -signal.SIGKILL
    assert gone(pids[0])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="takes what /proc tells")
def test_what_a_program_leaves_ends_with_it(never: Path) -> None:
    pids: list[str] = []
    leaves = f"(trap '' TERM; cat {never}) & echo $!"
    assert run_in_group(["sh", "-c", leaves], pids.append).code == 0
    assert not is_running(int(pids[0]))


def test_a_guarded_program_tells_its_code_and_output(tmp_path: Path) -> None:
    said: list[str] = []
    done = run_in_group(["sh", "-c", "echo one; echo two >&2; exit 7"], said.append)
    assert (done.code, said) == (7, ["one", "two"])
    assert run_in_group(["sh", "-c", "kill -9 $$"], said.append).code == 128 + 9
    failure(MissingToolError, "no-such-program", run_in_group, ["no-such-program"], said.append)
    # What cannot be begun has the code that shells give.
    script = tmp_path / "script"
    script.write_text("#!/nowhere/at/all\n")
    script.chmod(0o755)
    assert run_in_group([str(script)], said.append).code == 127
    assert said[2:] == [f"cannot run {script}: No such file or directory"]
