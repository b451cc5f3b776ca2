"""Git URLs, parsed like the reference: by the WHATWG URL standard, which accepts more than
`urllib`.
"""

from __future__ import annotations

import re
import unicodedata

from kci.config.values import quoted

GIT_SCHEMES = ("git", "git+http", "git+https", "git+ssh", "http", "https", "ssh")

_SPECIAL = frozenset(["ftp", "http", "https", "ws", "wss"])
"""Schemes that need a host, which must be a domain, and that treat a backslash as a slash."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_AROUND = "".join(map(chr, range(0x21)))
_SKIPPED = {ord(char): None for char in "\t\n\r"}
_NOT_IN_HOST = frozenset("\0\t\n\r #/:<>?@[\\]^|")
_NOT_IN_DOMAIN = _NOT_IN_HOST | frozenset(map(chr, range(0x20))) | {"%", "\x7f"}


class GitUrl(str):
    """A URL that git can fetch from."""

    __slots__ = ()

    @classmethod
    def parse(cls, url: object) -> GitUrl:
        """Validate an absolute git URL, or the scp form `user@host:path` (docs/format.md#values).

        Raises ValueError.
        """
        if not isinstance(url, str):
            raise ValueError("expected a string")
        scheme = url_scheme(url)
        shown = url if len(url) <= 100 else f"{url[:97]}..."
        if scheme is None:
            host, _, path = url.partition(":")
            if (
                not host
                or not path
                or path.startswith("/")
                or url_scheme(f"ssh://{host}/{path}") is None
            ):
                raise ValueError(
                    f"{quoted(shown)} is not a git URL: write it in full, for example "
                    "'https://host/owner/name'"
                )
        elif scheme not in GIT_SCHEMES:
            hint = (
                f", or write git@{scheme}:..."
                if re.fullmatch(r"[^/:]+:[^/].*", url, re.DOTALL)
                else ""
            )
            schemes = ", ".join(GIT_SCHEMES)
            raise ValueError(
                f"{quoted(shown)} has the scheme {quoted(scheme[:40])}; a git URL starts with one "
                f"of {schemes}{hint}"
            )
        return cls(url)


class Upstream(tuple[GitUrl, ...]):
    """`general.upstream`: any number of URLs (docs/format.md#later)."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Upstream:
        """Accept a URL or a list of URLs. Raises ValueError."""
        urls = [value] if isinstance(value, str) else value
        if not isinstance(urls, list):
            raise ValueError("expected a git URL, or a list of git URLs")
        return cls(map(GitUrl.parse, urls))

    def to_toml(self) -> str | tuple[str, ...]:
        """A single URL as a string, because older readers know no list."""
        urls = tuple(map(str, self))
        return urls[0] if len(urls) == 1 else urls


def url_scheme(url: str) -> str | None:
    """The scheme in lower case; None for a relative URL, a bad host or a bad port."""
    url = url.strip(_AROUND).translate(_SKIPPED)
    match = _SCHEME.match(url)
    if not match:
        return None
    scheme, rest = match[1].lower(), url[match.end() :]
    special = scheme in _SPECIAL
    if special:
        rest = "//" + rest.lstrip("/\\").replace("\\", "/")
    elif scheme == "file" or not rest.startswith("//"):
        return scheme
    authority = re.split(r"[/?#]", rest[2:], maxsplit=1)[0]
    return scheme if _good_authority(authority, special=special) else None


def _good_authority(authority: str, *, special: bool) -> bool:
    user, at, host_and_port = authority.rpartition("@")
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::([0-9]*))?", host_and_port)
    if not match:
        return False
    host, port = match[1], match[2]
    if port and (len(port.lstrip("0")) > 5 or int(port.lstrip("0") or "0") > 65535):
        return False
    if not host:
        return not special and not user and not at and port is None
    if host.startswith("["):
        return _is_ipv6(host[1:-1])
    return _is_domain(host) if special else not _NOT_IN_HOST & set(host)


def _is_ipv6(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text


def _is_domain(host: str) -> bool:
    # names beyond ASCII get IDNA's checks without its table
    if "%" in host:
        from urllib.parse import unquote

        host = unquote(host, errors="replace")
    if not host.isascii():
        host = "".join(
            char for char in unicodedata.normalize("NFKC", host) if char not in _IGNORED
        ).lower()
        host = host.replace("\u3002", ".")
    if (
        not host
        or _NOT_IN_DOMAIN & set(host)
        or not all(_good_label(label) for label in host.split("."))
    ):
        return False
    pieces = host.removesuffix(".").split(".")
    return not re.fullmatch(r"[0-9]+|0[xX][0-9a-fA-F]*", pieces[-1]) or _is_ipv4(pieces)


_IGNORED = frozenset("\u00ad\u200b\u2060\ufeff")
_LONGEST_LABEL = 1000
"""Decoding takes quadratic time; host names are far shorter."""
_REFUSED_CATEGORIES = frozenset(["Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"])


def _good_label(label: str) -> bool:
    if len(label) > _LONGEST_LABEL:
        return label.isascii()
    if label[:4].lower() == "xn--":
        try:
            label = label[4:].encode("ascii").decode("punycode")
        except (UnicodeError, OverflowError):
            return False
        if label.isascii():
            return False
    return label.isascii() or not any(
        unicodedata.category(char) in _REFUSED_CATEGORIES for char in label
    )


_NUMBER = re.compile("0[xX]0*([0-9a-fA-F]{0,12})|0+([0-7]{0,12})|([1-9][0-9]{0,12})")


def _is_ipv4(pieces: list[str]) -> bool:
    numbers = []
    for piece in pieces:
        match = _NUMBER.fullmatch(piece)
        if match is None:
            return False
        base = {1: 16, 2: 8}.get(match.lastindex or 0, 10)
        numbers.append(int(match[match.lastindex or 0] or "0", base))
    *first, last = numbers
    return (
        len(first) < 4 and all(number < 256 for number in first) and last < 256 ** (4 - len(first))
    )
