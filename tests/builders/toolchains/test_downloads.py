"""Installing with the real uv, from an index on this machine, and why it fails."""

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

from buildkit import write_tree
from conftest import failure
from kci.builders.process.run import ProgramResult
from kci.builders.toolchains import downloads
from kci.builders.toolchains.downloads import install, pip_index, pip_install, run_uv
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
    for name in ("FIND_LINKS", "EXTRA_INDEX_URL", "NO_INDEX", "CONSTRAINT", "QUIET"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    with HalfAndHalf(tmp_path / "index") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
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

    words = ["--no-deps", "--target", str(tmp_path / "made"), "big"]
    done = run_uv([*pip_install(Path(sys.executable)), *words], log)
    assert done.code == 0, done.output
    assert (tmp_path / "made/big/__init__.py").is_file()
    assert said == ["Downloading big (4.0MiB)"]


NOBODY = "http://127.0.0.1:9/simple"


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("PIP_NO_INDEX", "1", "PIP_NO_INDEX is set, so no index is asked"),
        ("PIP_INDEX_URL", NOBODY, f"the package index {NOBODY} cannot be reached: "),
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
    says, target = f"cannot install ninja: {why}", ["--target", str(tmp_path), "big"]
    command = [*pip_install(Path(sys.executable)), *target]
    caught = failure(MissingToolError, says, install, command, "ninja", print, tmp_path)
    assert "PIP_INDEX_URL or PIP_FIND_LINKS" in caught.hint


@pytest.mark.parametrize(
    ("said", "why", "hint"),
    [
        ("error: No space left on device (os error 28)\n", ": the disk is full", "free space in "),
        ("  x No solution found when resolving dependencies:", "\n", "check that this Python has"),
        ("error: failed to create directory `/x`: Permission denied (os error 13)", "\n", ""),
    ],
    ids=["a full disk", "no solution", "what speaks for itself"],
)
def test_what_uv_said_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, why: str, hint: str
) -> None:
    monkeypatch.setattr(downloads, "run_uv", lambda *_: ProgramResult(1, said))
    says = f"cannot install torch{why}"
    told = failure(MissingToolError, says, install, ["uv"], "torch", print, tmp_path).hint
    assert told.startswith(hint)
    assert bool(told) == bool(hint)


def test_what_pip_is_told_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files from the system's to that of the user, and its variables, as pip reads them."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "system"))
    system = "[global]\nindex-url = https://system/simple\ntimeout = 7\nretries = 0\n"
    user = "[global]\nindex-url = https://user/simple\nfind-links = /a\n  /b\n"
    user += "[install]\nno-index = false\n"
    write_tree(tmp_path, {"system/pip/pip.conf": system, ".config/pip/pip.conf": user})
    assert pip_index() == "https://user/simple"
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://one/simple https://two/simple")
    told = downloads._uv_environment()
    assert told["UV_FIND_LINKS"] == "/a,/b"
    assert told["UV_INDEX"] == "https://one/simple https://two/simple"
    assert (told["UV_HTTP_TIMEOUT"], told["UV_HTTP_RETRIES"]) == ("7", "0")
    assert "--no-index" not in pip_install(Path(sys.executable))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert "--no-index" in pip_install(Path(sys.executable))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert pip_index() == "https://pypi.org/simple"


def test_a_login_is_for_the_host_that_it_names(
    index: HalfAndHalf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str | None]] = []

    def send_head(handler: Handler) -> None:
        seen.append((handler.path, handler.headers.get("Authorization")))
        port = index.server_address[1]
        handler.send_response(302 if handler.path == "/simple/big/" else 404)
        handler.send_header("Location", f"http://localhost:{port}/elsewhere/")
        handler.end_headers()

    monkeypatch.setattr(Handler, "send_head", send_head)
    address = os.environ["PIP_INDEX_URL"].replace("//", "//bob:s%40cret@")
    failure(MissingToolError, "", downloads.find_wheel, "big", "1.0", "x86_64", address)
    assert seen == [("/simple/big/", "Basic Ym9iOnNAY3JldA=="), ("/elsewhere/", None)]
