"""Installing with the real uv, and headers out of wheels by range requests, from indexes on this
machine; and why it fails.
"""

from __future__ import annotations

import http.server
import io
import os
import re
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from buildkit import quiet, write_tree
from conftest import failure
from kci.builders.process.run import ProgramResult
from kci.builders.toolchains import downloads
from kci.builders.toolchains.cuda import (
    Toolkit,
    WheelFiles,
    find_library_headers,
    mentions_libraries,
    wheel_path,
)
from kci.builders.toolchains.data import toolchains
from kci.builders.toolchains.downloads import (
    WheelFile,
    extract,
    find_wheel,
    install,
    pip_index,
    pip_install,
    run_uv,
)
from kci.builders.toolchains.environment import needed_to_compile
from kci.errors import MissingToolError
from wheels import make_wheel


class Index(http.server.ThreadingHTTPServer):
    """Serves wheels, with ranges, and counts requests and bytes; without them the second half of a
    wheel comes when it is let go.
    """

    daemon_threads = True

    def __init__(self, wheels: dict[str, bytes], *, ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheels, self.ranges, self.go_on = wheels, ranges, threading.Event()
        self.requests = self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if not name:
            link = '<a href="../../files/{0}#sha256=00">{0}</a>'
            if not self.server.ranges:
                link = link.replace("#sha256=00", "")
            self._send(200, "".join(map(link.format, self.server.wheels)).encode())
            return
        data = self.server.wheels[name]
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        self.server.requests += 1
        if not self.server.ranges or asked is None:
            self._send(200, data)
            return
        start, end = asked.groups()
        first = int(start) if start else max(0, len(data) - int(end))
        last = min(int(end) if start else len(data) - 1, len(data) - 1)
        self.server.sent += last + 1 - first
        part = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        self._send(206, data[first : last + 1], part)

    do_HEAD = do_GET

    def _send(self, code: int, data: bytes, more: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(code)
        kind = "text/html" if data[:1] == b"<" else "application/zip"
        for name, value in {"Content-Type": kind, "Content-Length": len(data), **more}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            half = len(data) if data[:1] == b"<" or code == 206 else len(data) // 2
            self.wfile.write(data[:half])
            if half < len(data):
                self.server.go_on.wait(60)
                self.wfile.write(data[half:])

    def log_message(self, *_: object) -> None:
        pass


def serving(served: Index) -> Iterator[Index]:
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    yield served
    served.go_on.set()
    served.shutdown()
    thread.join()
    served.server_close()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    make_wheel(tmp_path, "big", "1.0", {"big/__init__.py": "", "big/data.txt": "x = 0\n" * 700_000})
    wheels = {path.name: path.read_bytes() for path in tmp_path.glob("*.whl")}
    for name in ("FIND_LINKS", "EXTRA_INDEX_URL", "NO_INDEX", "CONSTRAINT", "QUIET"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    for served in serving(Index(wheels, ranges=False)):
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        yield served


@pytest.mark.programs
def test_a_download_is_told_when_it_begins(index: Index, tmp_path: Path) -> None:
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
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, str | None]] = []

    def answer(handler: Handler) -> None:
        seen.append((handler.path, handler.headers.get("Authorization")))
        port = index.server_address[1]
        handler.send_response(302 if handler.path == "/simple/big/" else 404)
        handler.send_header("Location", f"http://localhost:{port}/elsewhere/")
        handler.end_headers()

    monkeypatch.setattr(Handler, "do_GET", answer)
    address = os.environ["PIP_INDEX_URL"].replace("//", "//bob:s%40cret@")
    failure(MissingToolError, "", downloads.find_wheel, "big", "1.0", "x86_64", address)
    assert seen == [("/simple/big/", "Basic Ym9iOnNAY3JldA=="), ("/elsewhere/", None)]


# --- headers out of wheels by range requests, against an index that counts what it serves ---

CUBLAS = "nvidia_cublas-13.1.0.3-py3-none-manylinux_2_27_x86_64.whl"
HEADERS = {f"nvidia/cu13/include/sub/h{number}.h": f"// {number}\n" * 40 for number in range(300)}


def test_a_list_of_files_longer_than_the_tail_is_read_too(tmp_path: Path) -> None:
    name = "nvidia/cu13/include/sub/a_long_name_of_a_header_{}.h"
    many = {name.format(number): f"// {number}\n" for number in range(2000)}
    for served in serving(Index({CUBLAS: wheel(many, 1_000_000)})):
        extract(cublas(served), wheel_path, tmp_path)
    assert len(list(tmp_path.rglob("*.h"))) == 2000


def wheel(files: dict[str, str], padding: int = 0) -> bytes:
    """A wheel with large files before and behind these."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("nvidia/cu13/lib/a.so"), os.urandom(padding))
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(zipfile.ZipInfo("nvidia/cu13/lib/z.so"), os.urandom(padding))
    return made.getvalue()


def cublas(served: Index) -> WheelFile:
    return find_wheel("nvidia-cublas", "13.1.0.3", "x86_64", served.url)


@pytest.fixture
def served() -> Iterator[Index]:
    yield from serving(Index({CUBLAS: wheel(HEADERS, 4_000_000)}))


def test_only_the_headers_are_downloaded_and_in_few_requests(tmp_path: Path, served: Index) -> None:
    extract(cublas(served), wheel_path, tmp_path)
    place = tmp_path.as_posix()
    made = {path.as_posix(): path.read_text() for path in tmp_path.rglob("*.h")}
    assert made == {
        name.replace("nvidia/cu13/include", place): text for name, text in HEADERS.items()
    }
    assert served.sent < 300_000, "of eight megabytes"
    assert served.requests <= 4


def test_a_wheel_that_is_not_there_is_named(served: Index) -> None:
    for version, platform in (("13.1.0.4", "x86_64"), ("13.1.0.3", "aarch64")):
        says = rf"no wheel of nvidia-cublas {re.escape(version)} for Linux on {platform}"
        failure(MissingToolError, says, find_wheel, "nvidia-cublas", version, platform, served.url)
    served.ranges = False
    says = "cannot be read in parts"
    failure(MissingToolError, says, extract, cublas(served), wheel_path, Path("/nowhere"))


def test_a_local_version_is_told_from_another() -> None:
    name = "torch-2.13.0{}-cp311-cp311-manylinux_2_28_x86_64.whl"
    cpu, cuda = name.format("%2Bcpu"), name.format("+cu130")
    for found in serving(Index({cpu: b"", cuda: b""})):
        assert find_wheel("torch", "2.13.0+cu130", "x86_64", found.url).name == cuda
    failure(MissingToolError, "does not answer", cublas, found)


@pytest.mark.parametrize("data", [b"", b"no zip at all" * 100])
def test_a_wheel_that_is_none_is_named(tmp_path: Path, data: bytes) -> None:
    for served in serving(Index({CUBLAS: data})):
        found = WheelFile(CUBLAS, f"{served.url}/{CUBLAS}")
        failure(MissingToolError, "cannot take files out of", extract, found, wheel_path, tmp_path)


def test_no_file_of_a_wheel_leaves_its_folder(tmp_path: Path) -> None:
    for served in serving(Index({CUBLAS: wheel({"nvidia/cu13/include/../../../../x.h": "x"})})):
        extract(WheelFile(CUBLAS, f"{served.url}/{CUBLAS}"), wheel_path, tmp_path / "a" / "b")
    assert list(tmp_path.rglob("x.h")) == [tmp_path / "a" / "b" / "x.h"]


def test_the_headers_of_cudas_libraries_are_whole_or_not_there(
    tmp_path: Path, served: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", served.url)
    made = WheelFiles(tmp_path / "cuda" / "headers", ("nvidia-cublas==13.1.0.3",))
    broken = WheelFiles(made.folder, (*made.requirements, "nvidia-cufft==12.0.0.61"))
    failure(MissingToolError, "", broken.ensure, Path("python"), quiet)
    assert not list(made.folder.parent.iterdir())
    made.ensure(Path("python"), quiet)
    assert made.complete
    before = served.requests
    made.ensure(Path("python"), quiet)
    assert served.requests == before


def test_a_toolkit_that_has_its_libraries_needs_nothing(tmp_path: Path) -> None:
    toolkit = Toolkit("13.0", tmp_path / "bin/nvcc", tmp_path)
    missing = find_library_headers(toolkit, tmp_path)
    assert missing is not None
    assert "nvidia-cusparse==12.6.3.3" in missing.requirements
    write_tree(tmp_path / "include", dict.fromkeys(toolchains().cuda_headers["13.0"], ""))
    assert find_library_headers(toolkit, tmp_path) is None
    (tmp_path / "include/cusparse.h").unlink()
    few = find_library_headers(toolkit, tmp_path)
    assert few is not None
    assert few.requirements == ("nvidia-cusparse==12.6.3.3",)
    assert few.folder != missing.folder
    assert find_library_headers(Toolkit("99.0", toolkit.nvcc, tmp_path / "x"), tmp_path) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#include <curand_kernel.h>", True),
        ('# include "nvtx3/nvtx3.hpp"', True),
        ("// cublas", False),
    ],
)
def test_a_stable_kernel_gets_them_if_it_asks(tmp_path: Path, text: str, expected: bool) -> None:
    (tmp_path / "a.cu").write_text(text)
    assert mentions_libraries([tmp_path / "a.cu"]) is expected


def test_what_a_build_reads_of_torch() -> None:
    wanted = "include/ATen/ATen.h version.py lib/libc10.so lib/libgomp.so.1"
    for name in wanted.split():
        assert needed_to_compile(f"torch/{name}") == f"torch/{name}"
    others = (
        "torch/lib/libtorch_cuda.so torch/__init__.py torch/bin/include/x.h torchgen/version.py"
    )
    assert {needed_to_compile(path) for path in others.split()} == {None}
