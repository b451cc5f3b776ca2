"""Whether a pinned image is still what its tag means: asked of its registry, without an account.

Registries answer by the distribution protocol of OCI. Those that want a token say where anybody gets one.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec

from kci.errors import FindingsError
from kci.files.bounded_json import decode_json
from kci.files.small_fetch import WebAnswer, fetch

_MANIFEST_BYTES = 4 * 1024 * 1024
_KINDS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_PART = r"[a-z0-9]+(?:(?:__?|\.|-+)[a-z0-9]+)*"
# `host:port/name:tag@digest`; only the name must be there, and a host has a dot or a port.
_REFERENCE = re.compile(
    r"(?:(?P<host>[a-z0-9.-]+\.[a-z0-9.-]+(?::[0-9]+)?|localhost(?::[0-9]+)?|[a-z0-9-]+:[0-9]+)/)?"
    rf"(?P<name>{_PART}(?:/{_PART})*)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?",
    re.ASCII,
)
_LONGEST = 1000
# `realm="…"` in the header WWW-Authenticate.
_PARAMETER = re.compile(r'([a-z]+)="([^"]*)"')
_HUB, _HUB_NAMES = "registry-1.docker.io", ("docker.io", "index.docker.io", None)
_LOCAL = re.compile(r"(?:localhost|127\.0\.0\.1)(?::[0-9]+)?")
_OK, _UNAUTHORIZED, _MISSING = 200, 401, 404


class ImageReference(NamedTuple):
    """An image as it is named in kci.toml."""

    host: str
    """Of the registry that is asked."""
    name: str
    tag: str
    digest: str
    """Empty if it is not pinned."""


def parse_image(text: str) -> ImageReference | None:
    """The parts of an image's name as docker reads it; None for what is no name."""
    found = _REFERENCE.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return None
    host, name = found["host"], found["name"]
    if host in _HUB_NAMES:
        host, name = _HUB, name if "/" in name else f"library/{name}"
    return ImageReference(host, name, found["tag"] or "", found["digest"] or "")


def behind_tag(image: ImageReference) -> str:
    """The digest that the tag of a pinned image means now; empty if it is the pinned one.

    A tag for several systems means one digest for all, and one for each; all of these count.

    FindingsError if the registry does not say.
    """
    if not image.tag:
        raise FindingsError("it has a digest and no tag, so nothing says what is newer")
    scheme = "http" if _LOCAL.fullmatch(image.host) else "https"
    address = f"{scheme}://{image.host}/v2/{image.name}/manifests/{image.tag}"
    headers = {"Accept": _KINDS}
    answer = fetch(address, headers, method="HEAD", limit=_MANIFEST_BYTES)
    if answer.status == _UNAUTHORIZED:
        headers["Authorization"] = f"Bearer {_token(image, answer)}"
        answer = fetch(address, headers, method="HEAD", limit=_MANIFEST_BYTES)
    newest = answer.headers.get("docker-content-digest", "")
    if answer.status == _OK:
        if newest == image.digest:
            return ""
        answer = fetch(address, headers, limit=_MANIFEST_BYTES)
    if answer.status != _OK:
        reason = f"there is no tag {image.tag}" if answer.status == _MISSING else f"the registry says {answer.status}"
        raise FindingsError(f"{image.host}: {reason}")
    newest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
    try:
        listed = {item.digest for item in decode_json(answer.body, _Index).manifests}
    except ValueError as error:
        raise FindingsError(f"{image.host}: cannot read the registry's answer: {error}") from None
    return "" if image.digest in {newest, *listed} else newest


class _Platform(msgspec.Struct, frozen=True):
    digest: str = ""


class _Index(msgspec.Struct, frozen=True):
    manifests: tuple[_Platform, ...] = ()


class _Told(msgspec.Struct, frozen=True):
    token: str | None = None
    access_token: str | None = None


def _token(image: ImageReference, refused: WebAnswer) -> str:
    scheme, _, rest = refused.headers.get("www-authenticate", "").partition(" ")
    asked = dict(_PARAMETER.findall(rest))
    if scheme.lower() != "bearer" or "realm" not in asked:
        raise FindingsError(f"{image.host}: it needs an account")
    query = {"scope": asked.get("scope") or f"repository:{image.name}:pull"}
    query |= {"service": asked["service"]} if "service" in asked else {}
    joint = "&" if "?" in asked["realm"] else "?"
    answer = fetch(f"{asked['realm']}{joint}{urlencode(query)}", limit=_MANIFEST_BYTES)
    if answer.status != _OK:
        raise FindingsError(f"{image.host}: it gives no token without an account ({answer.status})")
    try:
        told = decode_json(answer.body, _Told)
    except ValueError as error:
        raise FindingsError(f"{image.host}: cannot read its token: {error}") from None
    token = told.token or told.access_token
    if not token or not token.isprintable() or not token.isascii():
        raise FindingsError(f"{image.host}: cannot read its token")
    return token
