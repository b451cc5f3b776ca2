"""One small answer from the web: encrypted, bounded in size and time, or an error that says that nothing is known."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from kci.errors import FindingsError

MAX_BYTES = 64 * 1024 * 1024
_SECONDS = 120
_CHUNK = 1024 * 1024
_HERE = ("127.0.0.1", "::1", "localhost")
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class WebAnswer(NamedTuple):
    """What a server said."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


def fetch(
    url: str, headers: Mapping[str, str] = _NO_HEADERS, *, method: str = "GET", limit: int = MAX_BYTES
) -> WebAnswer:
    """Ask a server once; a refusal is an answer too.

    Args:
        url: `https`, or `http` on this machine.
        headers: they do not follow a redirection, so that no token gets to another server.
        method: `GET` or `HEAD`.
        limit: bytes of an answer.

    Raises:
        FindingsError: there is no answer.
    """
    refuse_address(url)
    request = urllib.request.Request(url, method=method)  # noqa: S310  - it was looked at
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    until = time.monotonic() + _SECONDS
    try:
        try:
            answer = urllib.request.build_opener(_Careful).open(request, timeout=_SECONDS)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            body = bytearray()
            while chunk := answer.read1(_CHUNK):  # `read` would wait for a whole one, however slowly it comes
                body += chunk
                if len(body) > limit:
                    raise FindingsError(f"{url}: the answer is larger than {limit // 1024} KiB")
                if time.monotonic() > until:
                    raise FindingsError(f"{url}: the answer takes longer than {_SECONDS} s")
            if answer.length:
                raise FindingsError(f"{url}: the answer ends too early: {answer.length} bytes are missing")
            told = {name.lower(): value for name, value in answer.headers.items()}
            return WebAnswer(answer.status or 0, told, bytes(body))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise FindingsError(f"{url}: no answer: {reason}", hint="is there a network?") from None


def refuse_address(url: str) -> None:
    """Refuse an address that is asked for without encryption.

    Raises:
        FindingsError: it is neither `https` nor of this machine.
    """
    try:
        parts = urlsplit(url)
        fine = parts.hostname is not None and url.isprintable() and " " not in url
    except ValueError:
        fine = False
    if not fine or (parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _HERE)):
        raise FindingsError(f"{url[:200]!r} is not an address that kci asks", hint="such as https://example.org/page")


class _Careful(urllib.request.HTTPRedirectHandler):
    """Follows no redirection to what would be refused as an address."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        refuse_address(urljoin(req.full_url, newurl))
        return super().redirect_request(req, fp, code, msg, headers, newurl)
