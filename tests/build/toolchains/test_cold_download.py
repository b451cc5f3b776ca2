"""What a cold full-ABI CUDA leg downloads, end to end: an index on this machine passes everything on, and counts it."""

from __future__ import annotations

import http.server
import re
import threading
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildkit import quiet, request, write_tree
from kci.build import build_variant
from kci.build.toolchains import cuda

VARIANT = "torch213-cxx11-cu130-x86_64-linux"
PYPI = "https://pypi.org/simple"
MOST = 250 * 10**6
BUILD_TOML = """
    [general]
    name = "tiny"
    version = 1
    edition = 5
    license = "MIT"
    backends = ["cuda"]

    [torch]
    src = ["torch-ext/binding.cpp"]

    [kernel.tiny]
    backend = "cuda"
    depends = ["torch"]
    src = ["csrc/tiny.cu"]
    cuda-capabilities = ["9.0"]
"""


class CountingIndex(http.server.ThreadingHTTPServer):
    """Passes requests on to PyPI, ranges included, and counts the bytes of what comes back."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PassOn)
        self.sent: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class PassOn(http.server.BaseHTTPRequestHandler):
    server: CountingIndex
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        kind, _, rest = self.path.strip("/").partition("/")
        address = urllib.parse.unquote(rest) if kind == "files" else f"{PYPI}/{rest}/"
        headers = {"Range": self.headers["Range"]} if "Range" in self.headers else {}
        try:
            answer = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60)
        except urllib.error.HTTPError as error:
            self.send_error(error.code)
            return
        with answer:
            data = answer.read()
        name = address.rpartition("/")[2] or rest
        if kind == "simple":
            data = re.sub(rb' data-(?:core|dist-info)-metadata="[^"]*"', b"", data)
            data = re.sub(rb'(?<=href=")[^"#]+', lambda found: self._here(found[0]), data)
        self.server.sent[name] += len(data)
        self.send_response(answer.status)
        self.send_header("Content-Type", "text/html" if kind == "simple" else "application/octet-stream")
        self.send_header("Content-Length", str(len(data)))
        if "Content-Range" in answer.headers:
            self.send_header("Content-Range", answer.headers["Content-Range"])
        self.end_headers()
        self.wfile.write(data)

    def _here(self, address: bytes) -> bytes:
        folder, _, name = address.rpartition(b"/")
        return f"{self.server.url}/files/{urllib.parse.quote(folder, safe='')}/".encode() + name

    do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[CountingIndex]:
    with CountingIndex() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.network
@pytest.mark.torch
@pytest.mark.slow
def test_a_cold_full_cuda_leg_downloads_less_than_250_mb(
    index: CountingIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "NVCC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
    monkeypatch.setenv("KCI_TORCH_INDEX", f"{index.url}/no-torch-index")
    monkeypatch.setattr(cuda, "_candidates", lambda _version: [])
    kernel = write_tree(
        tmp_path / "tiny",
        {
            "build.toml": BUILD_TOML,
            "torch-ext/binding.cpp": "int launch();\nint call() { return launch(); }\n",
            "torch-ext/tiny/__init__.py": "",
            "csrc/tiny.cu": "#include <ATen/cuda/CUDAContextLight.h>\n__global__ void work() {}\n"
            "int launch() { work<<<1, 1>>>(); return at::cuda::is_available(); }\n",
        },
    )
    asked = request(kernel, VARIANT, tmp_path)
    build_variant(asked, quiet)
    (module,) = asked.output.glob("*.so")
    assert b".nv_fatbin" in module.read_bytes()
    total = sum(index.sent.values())
    print(f"{total / 1e6:.1f} MB: " + ", ".join(f"{name} {size / 1e6:.1f}" for name, size in index.sent.most_common(8)))
    assert total < MOST, index.sent.most_common(5)
