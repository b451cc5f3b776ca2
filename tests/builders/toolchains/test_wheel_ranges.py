"""Headers out of wheels by range requests, against a small index on this machine that counts what
it serves.
"""

from __future__ import annotations

import http.server
import io
import os
import re
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildkit import quiet, write_tree
from conftest import failure
from kci.builders.toolchains.cuda import (
    Toolkit,
    WheelFiles,
    find_library_headers,
    mentions_libraries,
    wheel_path,
)
from kci.builders.toolchains.data import toolchains
from kci.builders.toolchains.downloads import WheelFile, extract, find_wheel
from kci.builders.toolchains.environment import needed_to_compile
from kci.errors import MissingToolError

WHEEL = "nvidia_cublas-13.1.0.3-py3-none-manylinux_2_27_x86_64.whl"
HEADERS = {f"nvidia/cu13/include/sub/h{number}.h": f"// {number}\n" * 40 for number in range(300)}


class Index(http.server.ThreadingHTTPServer):
    """Serves wheels, with ranges, and counts requests and bytes."""

    def __init__(self, wheels: dict[str, bytes], *, ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.wheels, self.ranges = wheels, ranges
        self.requests = 0
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if not name:
            link = '<a href="../../files/{0}#sha256=00">{0}</a>'
            links = "".join(link.format(wheel) for wheel in self.server.wheels)
            self._send(200, f"<html>{links}</html>".encode(), "text/html")
            return
        data = self.server.wheels[name]
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers["Range"])
        self.server.requests += 1
        if not self.server.ranges or asked is None:
            self._send(200, data, "application/zip")
            return
        start, end = asked.groups()
        first = int(start) if start else max(0, len(data) - int(end))
        last = min(int(end) if start else len(data) - 1, len(data) - 1)
        self.server.sent += last + 1 - first
        part = f"bytes {first}-{last}/{len(data)}"
        self._send(206, data[first : last + 1], "application/zip", part)

    def _send(self, code: int, data: bytes, kind: str, content_range: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def test_a_list_of_files_longer_than_the_tail_is_read_too(tmp_path: Path) -> None:
    name = "nvidia/cu13/include/sub/a_long_name_of_a_header_{}.h"
    many = {name.format(number): f"// {number}\n" for number in range(2000)}
    for index in serving(Index({WHEEL: wheel(many, 1_000_000)})):
        extract(cublas(index), wheel_path, tmp_path)
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


def cublas(index: Index) -> WheelFile:
    return find_wheel("nvidia-cublas", "13.1.0.3", "x86_64", index.url)


def serving(index: Index) -> Iterator[Index]:
    thread = threading.Thread(target=index.serve_forever, args=(0.01,))
    thread.start()
    yield index
    index.shutdown()
    thread.join()
    index.server_close()


@pytest.fixture
def index() -> Iterator[Index]:
    yield from serving(Index({WHEEL: wheel(HEADERS, 4_000_000)}))


def test_only_the_headers_are_downloaded_and_in_few_requests(tmp_path: Path, index: Index) -> None:
    extract(cublas(index), wheel_path, tmp_path)
    place = tmp_path.as_posix()
    made = {path.as_posix(): path.read_text() for path in tmp_path.rglob("*.h")}
    assert made == {
        name.replace("nvidia/cu13/include", place): text for name, text in HEADERS.items()
    }
    assert index.sent < 300_000, "of eight megabytes"
    assert index.requests <= 4


@pytest.mark.parametrize(("version", "platform"), [("13.1.0.4", "x86_64"), ("13.1.0.3", "aarch64")])
def test_a_wheel_that_is_not_there_is_named(index: Index, version: str, platform: str) -> None:
    says = rf"no wheel of nvidia-cublas {re.escape(version)} for Linux on {platform}"
    failure(MissingToolError, says, find_wheel, "nvidia-cublas", version, platform, index.url)


def test_a_local_version_is_told_from_another() -> None:
    name = "torch-2.13.0{}-cp311-cp311-manylinux_2_28_x86_64.whl"
    cpu, cuda = name.format("%2Bcpu"), name.format("+cu130")
    for found in serving(Index({cpu: b"", cuda: b""})):
        assert find_wheel("torch", "2.13.0+cu130", "x86_64", found.url).name == cuda


def test_an_index_without_ranges_or_answer_is_named(tmp_path: Path) -> None:
    for index in serving(Index({WHEEL: wheel(HEADERS)}, ranges=False)):
        found = cublas(index)
        failure(MissingToolError, "cannot be read in parts", extract, found, wheel_path, tmp_path)
    failure(MissingToolError, "does not answer", cublas, index)


@pytest.mark.parametrize("data", [b"", b"no zip at all" * 100])
def test_a_wheel_that_is_none_is_named(tmp_path: Path, data: bytes) -> None:
    for index in serving(Index({WHEEL: data})):
        found = WheelFile(WHEEL, f"{index.url}/{WHEEL}")
        failure(MissingToolError, "cannot take files out of", extract, found, wheel_path, tmp_path)


def test_no_file_of_a_wheel_leaves_its_folder(tmp_path: Path) -> None:
    for index in serving(Index({WHEEL: wheel({"nvidia/cu13/include/../../../../x.h": "x"})})):
        extract(WheelFile(WHEEL, f"{index.url}/{WHEEL}"), wheel_path, tmp_path / "a" / "b")
    assert list(tmp_path.rglob("x.h")) == [tmp_path / "a" / "b" / "x.h"]


def test_the_headers_of_cudas_libraries_are_whole_or_not_there(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    made = WheelFiles(tmp_path / "cuda" / "headers", ("nvidia-cublas==13.1.0.3",))
    broken = WheelFiles(made.folder, (*made.requirements, "nvidia-cufft==12.0.0.61"))
    failure(MissingToolError, "", broken.ensure, Path("python"), quiet)
    assert not list(made.folder.parent.iterdir())
    made.ensure(Path("python"), quiet)
    assert made.complete
    before = index.requests
    made.ensure(Path("python"), quiet)
    assert index.requests == before


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
