"""Installing with the real pip, from an index on this machine, and why it fails."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kci.build.process.run import ProgramResult
from kci.build.toolchains import downloads
from kci.build.toolchains.downloads import install, pip_install, run_pip
from kci.errors import MissingToolError
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
def test_a_download_is_told_when_it_begins(index: HalfAndHalf, tmp_path: Path) -> None:
    said: list[str] = []

    def log(line: str) -> None:
        said.append(line)
        index.go_on.set()  # without this line the other half would not come

    command = [*pip_install(Path(sys.executable)), "--no-deps", "--target", str(tmp_path / "made"), "big"]
    done = run_pip(command, log)
    assert done.code == 0, done.output
    assert (tmp_path / "made/big/__init__.py").is_file()
    assert [line.split()[:2] for line in said if "metadata" not in line] == [["Downloading", WHEEL]]
    assert "4.2 MB" in said[-1] or "kB" in said[-1]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("PIP_NO_INDEX", "1", "PIP_NO_INDEX is set, so no index is asked"),
        (
            "PIP_INDEX_URL",
            "http://127.0.0.1:9/simple",
            "there is no way to the package index http://127.0.0.1:9/simple: ",
        ),
    ],
)
def test_an_index_that_does_not_answer_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv(name, value)
    with pytest.raises(MissingToolError, match=f"cannot install ninja: {why}") as info:
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
