"""One answer from a server: what is asked, what is believed, and what is said when there is none."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from kci.errors import FindingsError
from kci.files import small_fetch
from kci.files.small_fetch import fetch


class Pages(BaseHTTPRequestHandler):
    """Answers by path, and notes what it was sent."""

    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        """Answer."""
        self.asked.append((self.path, self.headers["Authorization"]))
        status, _, text = self.path[1:].partition("/")
        self.send_response(int(status))
        if status.startswith("3"):
            self.send_header("Location", text if "://" in text else f"/{text}")
        if status == "200" and text:
            self.send_header("Content-Length", text)
        self.send_header("X-Told", "yes")
        self.end_headers()
        if status == "200":
            self.wfile.write(b"x" * 100)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """The address of a server, and what it is asked."""
    asked: list[tuple[str, str | None]] = []
    made = HTTPServer(("127.0.0.1", 0), type("Here", (Pages,), {"asked": asked}))
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}", asked
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def test_an_answer(server: tuple[str, list[tuple[str, str | None]]]) -> None:
    address, asked = server
    found = fetch(f"{address}/200", {"Authorization": "Bearer t"})
    assert (found.status, found.body, found.headers["x-told"]) == (200, b"x" * 100, "yes")
    assert asked == [("/200", "Bearer t")]


def test_a_refusal_is_an_answer_too(server: tuple[str, list[tuple[str, str | None]]]) -> None:
    assert fetch(f"{server[0]}/401").status == 401
    assert fetch(f"{server[0]}/404").status == 404


def test_a_token_does_not_follow_a_redirection(server: tuple[str, list[tuple[str, str | None]]]) -> None:
    address, asked = server
    assert fetch(f"{address}/302/200", {"Authorization": "Bearer t"}).status == 200
    assert asked == [("/302/200", "Bearer t"), ("/200", None)]


def test_a_redirection_to_an_address_without_encryption_is_refused(
    server: tuple[str, list[tuple[str, str | None]]],
) -> None:
    with pytest.raises(FindingsError, match="not an address"):
        fetch(f"{server[0]}/302/http://192.0.2.1/")


@pytest.mark.parametrize(
    "address",
    ["http://example.invalid/", "file:///etc/passwd", "ftp://127.0.0.1/", "https://", "x", "https://a b/", "http://[/"],
)
def test_only_encrypted_addresses_are_asked(address: str) -> None:
    with pytest.raises(FindingsError, match="not an address that kci asks"):
        fetch(address)


def test_an_answer_without_end_is_cut(server: tuple[str, list[tuple[str, str | None]]]) -> None:
    with pytest.raises(FindingsError, match="larger than"):
        fetch(f"{server[0]}/200", limit=99)


def test_an_answer_that_is_cut_short_is_none(server: tuple[str, list[tuple[str, str | None]]]) -> None:
    assert len(fetch(f"{server[0]}/200/100").body) == 100
    with pytest.raises(FindingsError, match="ends too early: 1 bytes are missing"):
        fetch(f"{server[0]}/200/101")


def test_an_answer_that_comes_in_drops_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    minutes, done = itertools.count(0, 60), threading.Event()
    monkeypatch.setattr(small_fetch, "time", SimpleNamespace(monotonic=lambda: next(minutes)))
    monkeypatch.setattr(small_fetch, "_SECONDS", 20)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")
                done.wait()

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            with pytest.raises(FindingsError, match="takes longer than"):
                fetch(f"http://127.0.0.1:{server.getsockname()[1]}/")
        finally:
            done.set()
            dripping.join()


def test_no_answer_is_said() -> None:
    with HTTPServer(("127.0.0.1", 0), Pages) as gone:
        port = gone.server_port
    with pytest.raises(FindingsError, match="no answer"):
        fetch(f"http://127.0.0.1:{port}/")
