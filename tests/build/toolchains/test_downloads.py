"""What pip downloads is told in bytes, by the real pip, from an index on this machine."""

from __future__ import annotations

import functools
import http.server
import itertools
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kci.build.process.run import ProgramResult
from kci.build.toolchains import downloads
from kci.build.toolchains.downloads import (
    PipLines,
    Transfer,
    TransferLine,
    install,
    newer_pip,
    pip_install,
    run_pip,
    timed,
)
from kci.errors import MissingToolError
from kci.utils.cache import LAST_TIMES
from wheels import make_wheel

WHEEL = "big-1.0-py3-none-any.whl"


class HalfAndHalf(http.server.ThreadingHTTPServer):
    """An index whose files come in two halves, the second of them when it is let go."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
        self.go_on = threading.Event()


class Handler(http.server.SimpleHTTPRequestHandler):
    server: HalfAndHalf

    def copyfile(self, source: object, outputfile: object) -> None:
        if not self.path.endswith(".whl"):
            return super().copyfile(source, outputfile)  # type: ignore[arg-type]
        half = Path(self.translate_path(self.path)).stat().st_size // 2
        outputfile.write(source.read(half))  # type: ignore[attr-defined]
        outputfile.flush()  # type: ignore[attr-defined]
        self.server.go_on.wait(60)
        shutil.copyfileobj(source, outputfile)  # type: ignore[misc]
        return None

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HalfAndHalf]:
    files = {"big/__init__.py": "", "big/data.txt": "x = 0\n" * 700_000}
    make_wheel(tmp_path / "index" / "simple" / "big", "big", "1.0", files)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_CONSTRAINT", "PIP_QUIET"):
        monkeypatch.delenv(name, raising=False)
    with HalfAndHalf(tmp_path / "index") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_address[1]}/simple")
        yield server
        server.go_on.set()
        server.shutdown()


@pytest.mark.programs
def test_bytes_are_told_while_they_come(index: HalfAndHalf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(downloads, "Transfer", functools.partial(Transfer, clock=lambda: float(next(seconds))))
    said: list[TransferLine] = []

    def log(line: str) -> None:
        assert isinstance(line, TransferLine)
        said.append(line)
        index.go_on.set()  # without this line the other half would not come

    command = [*pip_install(Path(sys.executable)), "--no-deps", "--target", str(tmp_path / "made"), "big"]
    done = run_pip(command, "big 1.0", log)
    assert done.code == 0, done.output
    assert (tmp_path / "made/big/__init__.py").is_file()
    assert {line.what for line in said} == {"big 1.0"}
    assert (said[-1].amount, said[-1].left) == ("4.2 of 4.2 MB", "")
    assert "Progress" not in done.output  # what an error message would show
    assert f"Downloading {WHEEL}" in done.output


def test_an_index_that_is_turned_off_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        MissingToolError, match="cannot install ninja: PIP_NO_INDEX is set, so no index is asked"
    ) as info:
        install([*pip_install(Path(sys.executable)), "--target", str(tmp_path), "big"], "ninja", print, tmp_path)
    assert "PIP_INDEX_URL or PIP_FIND_LINKS" in (info.value.hint or "")


def test_a_full_disk_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ProgramResult(1, "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n")
    monkeypatch.setattr(downloads, "run_pip", lambda *_: said)
    with pytest.raises(MissingToolError, match="cannot install torch: the disk is full") as info:
        install(["pip"], "torch", print, tmp_path)
    assert info.value.hint.startswith(f"free space in {tmp_path}")


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("ERROR: No matching distribution found for torch==2.13.0", "check that this Python has wheels for it"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", ""),
        ("ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/x'", ""),
    ],
)
def test_other_failures_of_pip_speak_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, hint: str
) -> None:
    monkeypatch.setattr(downloads, "run_pip", lambda *_: ProgramResult(1, said))
    with pytest.raises(MissingToolError, match="cannot install torch\n") as info:
        install(["pip"], "torch", print, tmp_path)
    assert info.value.hint == hint


def test_an_older_pip_is_not_asked_for_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []

    def run(_command: list[str], log: PipLines, *, env: dict[str, str]) -> ProgramResult:
        asked.append(env)
        log("  Downloading https://host/whl/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl (184.3 MB)")
        return ProgramResult(0, "")

    monkeypatch.setattr(downloads, "run_in_group", run)
    said: list[str] = []
    for version in ("23.2.1", "24.1"):
        monkeypatch.setattr(downloads, "program_output", lambda *_, version=version: f"pip {version} from /x\n")
        run_pip(["python", "-m", "pip", "install"], "torch", said.append, {"A": "1"})
    assert asked == [{"A": "1"}, {"A": "1", "PIP_PROGRESS_BAR": "raw"}]
    assert said == []


def test_each_file_is_counted_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(downloads, "Transfer", functools.partial(Transfer, clock=lambda: float(next(seconds))))
    said: list[str] = []
    lines = PipLines("torch", said.append)
    for line in ("Progress 0 of 2000000", "Collecting x", "Progress 2000000 of 2000000", "Progress 1000000 of 4000000"):
        lines(line)
    assert [line.partition(" MB,")[0] for line in said] == [
        "torch: 0.0 of 2.0", "torch: 2.0 of 2.0", "torch: 1.0 of 4.0",
    ]  # fmt: skip


@pytest.mark.parametrize(("version", "asked"), [("23.2.1", 1), ("24.0", 1), ("24.1", 0), ("26.3", 0)])
def test_an_environment_gets_a_pip_that_says_bytes(version: str, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> ProgramResult:
        commands.append(command)
        return ProgramResult(0 if "--version" in command else 1, f"pip {version} from /x\n")

    monkeypatch.setattr(downloads, "run", run)
    monkeypatch.setattr(downloads, "program_output", lambda *command: run([*command]).output)
    newer_pip(Path("python"))  # that the index has none is no failure
    upgrades = [command for command in commands if "--upgrade" in command]
    assert len(upgrades) == asked
    assert all(command[-1].startswith("pip==") for command in upgrades)


def test_what_takes_a_while_says_how_long_it_took_the_last_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The like of it: another version, and not the headers of another system."""
    clock = itertools.count(step=41.2)
    monkeypatch.setattr(downloads.time, "monotonic", lambda: next(clock))
    said: list[str] = []
    for name in ("torch-2.13.0-cpu-cp311-0a1b2c", "torch-2.14.0-cpu-cp312-0a1b2c", "torch-2.14.0-cpu-headers"):
        with timed(tmp_path / name, said.append):
            pass
    assert said == [
        "note: torch-2.13.0-cpu is not in the cache: getting it",
        "note: got torch-2.13.0-cpu in 41 s",
        "note: torch-2.14.0-cpu is not in the cache: getting it, which took 41 s the last time",
        "note: got torch-2.14.0-cpu in 41 s",
        "note: torch-2.14.0-cpu-headers is not in the cache: getting it",
        "note: got torch-2.14.0-cpu-headers in 41 s",
    ]
    (tmp_path / LAST_TIMES).write_text("[" * 100_000)
    with timed(tmp_path / "torch-2.13.0-cpu", said.append):
        pass
    assert said[-1] == "note: got torch-2.13.0-cpu in 41 s"


def test_what_failed_is_no_time_to_tell(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), timed(tmp_path / "torch", lambda _line: None):
        raise KeyboardInterrupt
    assert not (tmp_path / LAST_TIMES).exists()
