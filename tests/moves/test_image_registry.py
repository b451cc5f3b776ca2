"""Pinned images and what their tags mean now, against a registry on this machine; and what cannot be told."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from buildkit import write_tree
from cli.runner import kci
from kci.errors import FindingsError
from kci.moves.image_registry import ImageReference, behind_tag, parse_image

AMD, ARM, OLD = (f"sha256:{letter * 64}" for letter in "abc")
INDEX = json.dumps({"manifests": [{"digest": AMD}, {"digest": ARM}]}).encode()
NOW = f"sha256:{hashlib.sha256(INDEX).hexdigest()}"
KERNEL = '[general]\nname = "relu"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n[torch-noarch]\n'


@dataclass
class Registry:
    """What it has and how it behaves."""

    address: str = ""
    token: str = ""
    """What a client must show; empty for none."""
    realm: str = ""
    body: bytes = INDEX
    status: int = 200
    digest: str = NOW
    """In the header."""
    asked: list[str] = field(default_factory=list)


class Protocol(BaseHTTPRequestHandler):
    """The part of the distribution protocol that kci asks for."""

    registry: Registry

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer."""
        here, parts = self.registry, urlsplit(self.path)
        here.asked.append(f"{self.command} {parts.path}")
        if parts.path == "/token":
            asked = parse_qs(parts.query)
            fine = asked == {"service": ["here"], "scope": ["repository:acme/builder:pull"]}
            self._send(200 if fine else 400, json.dumps({"token": here.token}).encode())
        elif here.token and self.headers["Authorization"] != f"Bearer {here.token}":
            ask = f'Bearer realm="{here.realm}",service="here",scope="repository:acme/builder:pull"'
            self._send(401, b"", {"WWW-Authenticate": ask})
        elif parts.path != "/v2/acme/builder/manifests/v1":
            self._send(404, b"")
        else:
            assert "image.index" in self.headers["Accept"]
            self._send(here.status, here.body, {"Docker-Content-Digest": here.digest} if here.digest else {})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry that has `acme/builder:v1`."""
    made = Registry()
    server = HTTPServer(("127.0.0.1", 0), type("Here", (Protocol,), {"registry": made}))
    made.address = f"127.0.0.1:{server.server_port}"
    made.realm = f"http://{made.address}/token"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def pinned(registry: Registry, digest: str, tag: str = ":v1") -> ImageReference:
    found = parse_image(f"{registry.address}/acme/builder{tag}@{digest}")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ubuntu", ("registry-1.docker.io", "library/ubuntu", "", "")),
        ("docker.io/pytorch/builder:cpu", ("registry-1.docker.io", "pytorch/builder", "cpu", "")),
        (f"pytorch/builder:cu130@{OLD}", ("registry-1.docker.io", "pytorch/builder", "cu130", OLD)),
        (f"ghcr.io/acme/a/b:v1@{OLD}", ("ghcr.io", "acme/a/b", "v1", OLD)),
        ("quay.io/pypa/manylinux_2_28_x86_64:2026", ("quay.io", "pypa/manylinux_2_28_x86_64", "2026", "")),
        ("localhost:5000/x:1", ("localhost:5000", "x", "1", "")),
        (f"docker.io/a/b@{OLD}", ("registry-1.docker.io", "a/b", "", OLD)),
        ("a/../b", None), ("A/b", None), ("a:b:c", None), ("ghcr.io/a b", None), ("x@sha256:12", None), ("", None),
    ],
)  # fmt: skip
def test_names_as_docker_reads_them(text: str, expected: tuple[str, str, str, str] | None) -> None:
    assert parse_image(text) == expected


@pytest.mark.parametrize("token", ["", "t0ken"])
def test_a_tag_that_is_what_was_pinned(registry: Registry, token: str) -> None:
    registry.token = token
    assert behind_tag(pinned(registry, NOW)) == ""
    assert [item for item in registry.asked if item.startswith("GET") and "token" not in item] == [], "HEAD is enough"


@pytest.mark.parametrize("token", ["", "t0ken"])
def test_a_tag_that_has_moved(registry: Registry, token: str) -> None:
    registry.token = token
    assert behind_tag(pinned(registry, OLD)) == NOW


@pytest.mark.parametrize("digest", [AMD, ARM])
def test_the_image_of_one_system_is_not_behind_the_tag_of_all(registry: Registry, digest: str) -> None:
    assert behind_tag(pinned(registry, digest)) == ""


def test_a_registry_that_names_no_digest_is_read(registry: Registry) -> None:
    registry.digest = ""
    assert behind_tag(pinned(registry, NOW)) == ""
    assert behind_tag(pinned(registry, OLD)) == NOW


@pytest.mark.parametrize(
    ("behave", "tag", "said"),
    [
        ({}, ":v2", "there is no tag v2"),
        ({}, "", "no tag, so nothing says"),
        ({"status": 429}, ":v1", "the registry says 429"),
        ({"status": 500}, ":v1", "the registry says 500"),
        ({"body": b"<html>"}, ":v1", "cannot read the registry's answer"),
        ({"token": "t", "realm": "http://192.0.2.1/token"}, ":v1", "not an address that kci asks"),
        ({"token": "bad\ntoken"}, ":v1", "cannot read its token"),
    ],
)
def test_what_cannot_be_told_is_no_answer(registry: Registry, behave: dict[str, object], tag: str, said: str) -> None:
    for name, value in behave.items():
        setattr(registry, name, value)
    with pytest.raises(FindingsError, match=said):
        behind_tag(pinned(registry, OLD, tag))


# --- the command ------------------------------------------------------------------------------------------------------


def freshness(place: Path, image: str, *options: str) -> tuple[int, str]:
    files = {"relu/build.toml": KERNEL, "kci.toml": f'catalog = "2026-09-17"\n[images.cpu]\nx86_64-linux = "{image}"\n'}
    write_tree(place, files)
    done = kci("compat", "freshness", place / "relu", "--today", "2026-09-18", *options)
    return done.code, done.stdout


def test_freshness_says_what_an_image_is_behind(registry: Registry, tmp_path: Path) -> None:
    image = f"{registry.address}/acme/builder:v1@"
    code, said = freshness(tmp_path, image + OLD, "--images")
    assert code == 1
    assert f"the tag v1 is {NOW} now" in " ".join(said.split())
    assert freshness(tmp_path, image + NOW, "--images") == (0, "nothing is outdated\n")
    assert freshness(tmp_path, image + OLD) == (0, "nothing is outdated\n"), "without --images nothing is asked"


def test_freshness_does_not_take_no_answer_for_a_good_one(registry: Registry, tmp_path: Path) -> None:
    registry.status = 503
    code, said = freshness(tmp_path, f"{registry.address}/acme/builder:v1@{NOW}", "--images", "--format", "json")
    assert code == 1
    (item,) = json.loads(said)["behind"]
    assert item["kind"] == "unknown"
    assert item["message"].endswith("the registry says 503")


def test_an_image_that_is_not_pinned_is_behind_nothing(registry: Registry, tmp_path: Path) -> None:
    assert freshness(tmp_path, f"{registry.address}/acme/builder:v1", "--images")[0] == 0
    assert registry.asked == []
