"""What a C, C++, CUDA or HIP source includes: the one reading of `#include` in kci.

Two questions are asked of a text. What may a compiler read because of it? That errs on the side of too much: comments
and strings are searched as well (`scan`). And what does it surely include by a name in quotes? That errs on the side of
too little, and is what a finding can be based on (`quoted_includes`).

A text is taken as compilers take it: a byte order mark is skipped; lines end with LF, CR LF or CR; a backslash at the
end joins two; form feeds and the like are blanks; comments may stand between the words of a directive; `%:` is `#`.
"""

from __future__ import annotations

import os
import re

import msgspec

READ_AT_MOST = 8 * 1024 * 1024
"""Bytes of a source that are searched; a longer one counts as including anything."""

_WORDS = (b"include", b"import", b"embed", b"incbin")
_BLANK = rb"(?:[ \t\v\f\0]|/\*[^*]{0,200}\*/)*"
_NAME = rb"""(?:"([^"\n]{1,1024})"|<([^<>\n]{1,1024})>)"""
_DIRECTIVES = {
    word: re.compile(re.escape(word) + tail)
    for word, tail in (
        (b"include", rb"(?:_next)?" + _BLANK + rb"(?:" + _NAME + rb"|(\S[\w.]*))?"),
        (b"import", _BLANK + rb"(?:" + _NAME + rb"|(\w+))?"),
        (b"embed", _BLANK + rb"(?:" + _NAME + rb"|(\w+))?"),
    )
}
_HASH_BEFORE = re.compile(rb"(?:\#|%:|\?\?=)" + _BLANK + rb"\Z")
_LINE_BEFORE = re.compile(rb"(?:\A|\n)" + _BLANK + rb"(?:\#|%:|\?\?=)" + _BLANK + rb"\Z")
_ASKED = re.compile(rb"__has_(?:include|embed)(?:_next)?" + _BLANK + rb"\(" + _BLANK + rb"(?:" + _NAME + rb"|(\w+))?")
_ASSEMBLED = re.compile(rb"""incbin\b[^"\n]{0,64}"([^"\\\n]{1,4096})""")
_DEFINED = re.compile(rb"define" + _BLANK + rb"(\w+)[ \t]" + _BLANK + _NAME + _BLANK + rb"(?=\n|//|\Z)")
_LOOK_BACK = 256
_COMMENT_OR_STRING = re.compile(rb'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_QUOTED = re.compile(rb'^[ \t\v\f]*(?:\#|%:)[ \t\v\f]*include[ \t\v\f]*"([^"\n]{1,400})"', re.MULTILINE)


class Scan(msgspec.Struct, frozen=True, array_like=True):
    """What a text may make a compiler read."""

    names: tuple[str, ...] = ()
    """Names as they are written, in quotes or angle brackets: included, asked for, embedded; sorted."""
    macros: tuple[str, ...] = ()
    """What stands in place of a name, as in `#include HEADER`; empty where not even that can be told. Sorted."""
    embedded: tuple[str, ...] = ()
    """Those of the names that assembler includes, which no compiler lists; sorted."""


NOTHING = Scan()
ANYTHING = Scan(macros=("",))


def scan(raw: bytes) -> Scan:
    """Everything that a source may include; see the module's text."""
    if len(raw) > READ_AT_MOST:
        return ANYTHING
    text = _joined(raw)
    if not any(word in text for word in _WORDS):
        return NOTHING
    names: set[bytes] = set()
    macros: set[bytes] = set()
    if not _search(text, names, macros):
        # A long comment stands in a directive: once more without comments.
        _search(_without_comments(text), names, macros)
    embedded = {match[1] for match in _ASSEMBLED.finditer(text)} if b"incbin" in text else set()
    return Scan(_texts(names | embedded), _texts(macros), _texts(embedded))


def defined_names(raw: bytes) -> set[tuple[str, str]]:
    """The macros that a source defines as the name of a file, and that name."""
    if b"define" not in raw:
        return set()
    return {(os.fsdecode(found[1]), os.fsdecode(found[2] or found[3])) for found in _DEFINED.finditer(_joined(raw))}


def quoted_includes(raw: bytes) -> list[str]:
    """The names that a source includes in quotes, outside of comments and strings, in order."""
    if b"include" not in raw or b'"' not in raw:
        return []
    text = _COMMENT_OR_STRING.sub(lambda found: found[0] if found[0][:1] == b'"' else b" ", _joined(raw))
    return [name.decode("utf-8", "replace") for name in _QUOTED.findall(text)]


def _joined(raw: bytes) -> bytes:
    """The text without its byte order mark, with LF at the ends of its lines, and joined where a line goes on."""
    text = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\\" in text:
        text = re.sub(rb"\\[ \t\v\f]*\n", b"", text)
    return text


def _search(text: bytes, names: set[bytes], macros: set[bytes]) -> bool:
    """Collect the names that are included, and the macros in place of one.

    Returns:
        False if a comment stands in a directive that is too long to be looked through.
    """
    clear = True
    for word, pattern in _DIRECTIVES.items():
        start = text.find(word)
        while start >= 0:
            here, start = start, text.find(word, start + 1)
            before = text[max(0, here - _LOOK_BACK) : here]
            if not _HASH_BEFORE.search(before):
                clear = clear and not before.rstrip(b" \t\v\f\0").endswith(b"*/")
                continue
            match = pattern.match(text, here)
            if match is None:
                continue
            if name := match[1] or match[2]:
                names.add(name)
            elif match[3] and match[3].startswith(b"/"):
                clear = False
            elif match[3] and _LINE_BEFORE.search(before):  # and no prose about an #include
                macros.add(match[3])
    if b"__has_" in text:
        for match in _ASKED.finditer(text):
            if name := match[1] or match[2]:
                names.add(name)
            elif match[3]:
                macros.add(match[3])
    return clear


def _texts(found: set[bytes]) -> tuple[str, ...]:
    return tuple(sorted(os.fsdecode(text) for text in found))


def _without_comments(text: bytes) -> bytes:
    parts = []
    position = 0
    while (start := text.find(b"/*", position)) >= 0 and (end := text.find(b"*/", start + 2)) >= 0:
        parts.append(text[position:start])
        position = end + 2
    return b" ".join([*parts, text[position:]])
