"""What a C, C++, CUDA or HIP source surely includes: too little rather than too much, so that a finding can name it.

A text is taken as compilers take it: a byte order mark is skipped; lines end with LF, CR LF or CR; a backslash at the
end joins two; form feeds and the like are blanks; comments may stand between the words of a directive; `%:` is `#`.
"""

from __future__ import annotations

import re

_SPLICE = re.compile(rb"\\[ \t\v\f]*\n")
# A string without an end goes to that of its line: looking for the end from each quote anew might take for ever.
_COMMENT_OR_STRING = re.compile(
    rb"""//[^\n]*|/\*.*?(?:\*/|\Z)|'(?:\\[^\n]|[^'\\\n])'|"(?:\\[^\n]|[^"\\\n])*+"?""", re.DOTALL
)
_INCLUDE = re.compile(
    rb"""^[ \t\v\f]*(?:\#|%:)[ \t\v\f]*include[ \t\v\f]*(?:"([^"\n]{1,400})"|<([^<>\n]{1,400})>)""", re.MULTILINE
)

_CONDITIONAL = re.compile(
    rb"""^[ \t\v\f]*\#[ \t\v\f]*(include|define|endif|ifdef|ifndef|if)\b"""
    rb"""[ \t\v\f]*(?:[<"]([^">\n]{1,400})[>"]|(\w+))?""",
    re.MULTILINE,
)


def quoted_includes(raw: bytes) -> list[str]:
    """The names that a source includes in quotes, outside of comments and strings, in order."""
    return [name for name, quoted in _included(raw) if quoted] if b'"' in raw else []


def included(raw: bytes) -> list[str]:
    """The same, and those in angle brackets."""
    return [name for name, _ in _included(raw)]


def certain_includes(raw: bytes) -> list[str]:
    """The names that a source includes on no condition but that of an include guard, in order."""
    if b"include" not in raw:
        return []
    text = _plain(raw)
    found = []
    certain: list[bool] = []
    guard = b""
    for word, name, macro in _CONDITIONAL.findall(text):
        match word:
            case b"include" if name and all(certain):
                found.append(name.decode("utf-8", "replace"))
            case b"endif" if certain:
                certain.pop()
            case b"define" if macro == guard and certain:
                certain[-1] = True  # right behind its #ifndef
            case b"if" | b"ifdef" | b"ifndef":
                certain.append(False)
        guard = macro if word == b"ifndef" else b""
    return found


def _included(raw: bytes) -> list[tuple[str, bool]]:
    if b"include" not in raw:
        return []
    found = _INCLUDE.finditer(_plain(raw))
    return [((match[1] or match[2]).decode("utf-8", "replace"), bool(match[1])) for match in found]


def _plain(raw: bytes) -> bytes:
    # without comments and the byte order mark, with LF at the ends of its lines, and joined where a line goes on
    text = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\\" in text:
        text = _SPLICE.sub(b"", text)
    return _COMMENT_OR_STRING.sub(lambda found: b" " if found[0][:1] == b"/" else found[0], text)
