"""A directory or file is replaced whole, in one step, whatever happens to the process that
does it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import failure
from kci.errors import FindingsError
from kci.utils import atomic
from kci.utils.atomic import locked, replacing, sibling_path, write_atomic


def fill(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(directory.iterdir())}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def replaced(target: Path, said: list[str] | None = None, **files: str) -> None:
    """Replace a directory by another with these files."""
    with replacing(target, (said if said is not None else []).append) as made:
        fill(made.staging, **files)
        made.commit()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A directory that is there already."""
    return fill(tmp_path / "build", a="old")


@pytest.fixture
def two_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    """This system cannot exchange directories."""
    monkeypatch.setattr(atomic, "_exchange", lambda _one, _other: False)


@pytest.fixture(params=["one step", "two renames"])
def way(request: pytest.FixtureRequest) -> None:
    """Both ways of putting a directory in place of another."""
    if request.param == "two renames":
        request.getfixturevalue("two_renames")


def test_this_system_exchanges_directories_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = fill(tmp_path / "one", a="1"), fill(tmp_path / "other", b="2")
    assert atomic._exchange(one, other)
    assert (contents(one), contents(other)) == ({"b": "2"}, {"a": "1"})
    monkeypatch.chdir(tmp_path)
    assert atomic._exchange(Path("one"), Path("other"))
    assert (contents(one), contents(other)) == ({"a": "1"}, {"b": "2"})
    failure(FileNotFoundError, "", atomic._exchange, one, tmp_path / "gone")
    assert contents(one) == {"a": "1"}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("committed", [True, False])
def test_a_directory_is_replaced_as_a_whole_or_stays(target: Path, committed: bool) -> None:
    fill(target, stale="")
    with replacing(target) as made:
        fill(made.staging, a="new")
        assert contents(target) == {"a": "old", "stale": ""}
        if committed:
            made.commit()
    assert contents(target) == ({"a": "new"} if committed else {"a": "old", "stale": ""})
    assert names(target.parent) == ["build"]


@pytest.mark.usefixtures("two_renames")
def test_an_old_directory_that_cannot_be_put_back_is_not_removed(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Path.rename, [0]

    def rename(self: Path, to: Path) -> Path:
        calls[0] += 1
        if calls[0] in (2, 3, 4):  # putting the new one in place, the old one back, and back again
            raise OSError(5, "Input/output error")
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    said: list[str] = []
    failure(FindingsError, "Input/output", replaced, target, said, a="new")
    assert not target.exists()
    assert "cannot clean up" in said[0]
    with replacing(target, said.append):
        assert contents(target) == {"a": "old"}
    assert names(target.parent) == ["build"]


def test_a_clean_up_that_fails_is_said_and_left_to_the_next(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with monkeypatch.context() as patch, replacing(target, said.append) as made:
        fill(made.staging, a="new")
        made.commit()
        patch.setattr(atomic.shutil, "rmtree", fail(5, "Input/output error"))
    assert contents(target) == {"a": "new"}
    assert len(said) == 1
    with replacing(target):
        pass
    assert names(target.parent) == ["build"]


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ({"old": "old", "new": "half"}, ["/", "removed "]),  # died between the renames
        ({"": "old", "new": "older"}, ["removed "]),  # died after the exchange
        ({"": "old", "old": "older"}, []),
    ],
)
def test_what_a_death_leaves_is_mended_by_the_next_process(
    tmp_path: Path, there: dict[str, str], says: list[str]
) -> None:
    target = tmp_path / "build"
    for purpose, text in there.items():
        inner = fill(sibling_path(target, purpose) if purpose else target, a=text)
        inner.chmod(0o500 if text == "older" else 0o700)  # a read-only one does not stay either
    said: list[str] = []
    with replacing(target, said.append):
        assert contents(target) == {"a": "old"}
    assert names(tmp_path) == ["build"]
    assert [line.startswith(begin) for line, begin in zip(said, says, strict=True)] == [True] * len(
        says
    )


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed and exchanged, in order."""
    noted: list[str] = []
    real_fsync, real_exchange = os.fsync, atomic._exchange

    def fsync(handle: int) -> None:
        noted.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        real_fsync(handle)

    def exchange(one: Path, other: Path) -> bool:
        noted.append("exchange")
        return real_exchange(one, other)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(atomic, "_exchange", exchange)
    return noted


def fail(error: int, says: str) -> Callable[..., None]:
    """Stands in for a call of the system that fails."""

    def failing(*_: object, **__: object) -> None:
        raise OSError(error, says)

    return failing


def test_everything_is_on_the_disk_before_the_name_is_taken(
    target: Path, events: list[str]
) -> None:
    with replacing(target) as made:
        fill(made.staging / "inner", a="1", b="2")
        made.commit()
    swap = events.index("exchange")
    assert sorted(events[:swap]) == sorted(["a", "b", "inner", made.staging.name])
    assert events[swap + 1 :] == [target.parent.name]


def test_a_directory_of_many_files_is_flushed_whole_too(
    tmp_path: Path, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "many" / "inner", **{f"f{number}": "x" for number in range(100)})
    atomic.flush(tmp_path / "many")
    assert sorted(events) == sorted([*(f"f{number}" for number in range(100)), "inner", "many"])
    monkeypatch.setattr(os, "fsync", fail(5, "Input/output error"))
    failure(OSError, "Input/output", atomic.flush, tmp_path / "many")
    # as file systems say of directories
    monkeypatch.setattr(os, "fsync", fail(22, "Invalid argument"))
    (tmp_path / "empty").mkdir()
    atomic.flush(tmp_path / "empty")
    failure(OSError, "Invalid argument", atomic.flush, tmp_path / "many" / "inner" / "f0")


def test_a_disk_that_cannot_write_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fail(28, "No space left on device"))
    with pytest.raises(FindingsError, match=r"cannot replace .*plan\.json: No space left"):
        write_atomic(tmp_path / "plan.json", b"{}")
    assert names(tmp_path) == []


HOLD = """
import sys, pathlib
from kci.utils.atomic import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

ADD = """
import sys, pathlib
from kci.utils.atomic import replacing
target = pathlib.Path(sys.argv[1])
for number in range(20):
    with replacing(target) as made:
        made.staging.mkdir()
        for file in target.iterdir():
            (made.staging / file.name).write_text(file.read_text())
        (made.staging / f"{sys.argv[2]}-{number}").write_text("x")
        made.commit()
"""


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def held(target: Path) -> subprocess.Popen[str]:
    """A process that has the lock."""
    holder = run(HOLD, target)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_lock_ends_with_the_process_that_holds_it_and_leaves_nothing(tmp_path: Path) -> None:
    with held(tmp_path / "build") as holder, run(HOLD, tmp_path / "build") as waiter:
        holder.kill()
        assert waiter.communicate("")[0] == "held\n"
    assert names(tmp_path) == []


def test_who_waits_says_so(tmp_path: Path) -> None:
    said: list[str] = []

    def let_go(line: str) -> None:
        said.append(line)
        holder.communicate("")

    with held(tmp_path / "build") as holder, locked(tmp_path / "build", let_go):
        assert names(tmp_path) == [".kci-build.lock"]
    assert said == [f"waiting for another kci process that uses {tmp_path / 'build'}"]


def test_nothing_is_lost_between_processes_that_read_change_and_replace(tmp_path: Path) -> None:
    target = fill(tmp_path / "build")
    writers = [run(ADD, target, name) for name in ("a", "b", "c")]
    assert [(writer.communicate(), writer.returncode)[1] for writer in writers] == [0, 0, 0]
    assert len(names(target)) == 60
    assert names(tmp_path) == ["build"]


def test_a_pipe_in_a_directory_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    os.mkfifo(tmp_path / "made" / "pipe")
    line = "import pathlib; from kci.utils import atomic; atomic.flush(pathlib.Path('made'))"
    subprocess.run([sys.executable, "-c", line], cwd=tmp_path, check=True, timeout=60)


@pytest.mark.usefixtures("two_renames")
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt("^C")])
def test_the_old_directory_is_put_back_when_the_second_rename_does_not_happen(
    target: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    real = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if isinstance(error, OSError) and self.name.endswith(".new"):
            raise error
        done = real(self, to)
        if not isinstance(error, OSError) and to.name.endswith(".old"):
            raise error
        return done

    monkeypatch.setattr(Path, "rename", rename)
    kind = FindingsError if isinstance(error, OSError) else KeyboardInterrupt
    failure(kind, "No space left|C", replaced, target, a="new")
    assert contents(target) == {"a": "old"}
    assert names(target.parent) == ["build"]


def test_a_file_is_replaced_too(tmp_path: Path) -> None:
    for text in (b"old", b"new"):
        write_atomic(tmp_path / "artifact.tar", text)
    assert contents(tmp_path) == {"artifact.tar": "new"}


def test_who_waits_for_its_own_run_is_told_that(tmp_path: Path) -> None:
    waits, said = threading.Event(), list[str]()

    def told(line: str) -> None:
        said.append(line)
        waits.set()

    def second() -> None:
        with locked(tmp_path / "envs", told):
            pass

    with locked(tmp_path / "envs"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(60)
    thread.join(60)
    assert said == [f"waiting for another build of this run that uses {tmp_path / 'envs'}"]
