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

# Blanks and short comments between the words of a directive; a name in quotes or angle brackets.
_BLANK = rb"(?:[ \t\v\f\0]|/\*(?:[^*]|\*(?!/)){0,200}+\*/)*+"
_NAME = rb"""(?:"([^"\n]{1,1024})"|<([^<>\n]{1,1024})>)"""
# Every pattern begins with a character that is rare and found fast.
_INCLUDED = rb"(?:include(?:_next)?|import|embed)\b" + _BLANK + rb"(?:" + _NAME + rb"|(\S[\w.]*))?"
_DEFINED = rb"define" + _BLANK + rb"(\w+)[ \t]" + _BLANK + _NAME + _BLANK + rb"(?=\n|//|\Z)"
_DIRECTIVE = re.compile(rb"\#" + _BLANK + rb"(?:" + _INCLUDED + rb"|" + _DEFINED + rb")")
_LINE_BEFORE = re.compile(rb"(?:\A|\n)" + _BLANK + rb"\Z")
_ASKED = re.compile(rb"__has_(?:include|embed)(?:_next)?" + _BLANK + rb"\(" + _BLANK + rb"(?:" + _NAME + rb"|(\w+))?")
_ASSEMBLED = re.compile(rb"""(?:incbin|[.]include)\b[^"\n]{0,64}"([^"\\\n]{1,4096})""")
# A name that is put together, as in `".incbin \\"" FILE "\\""` and `".incbin " FILE`.
_PIECED = re.compile(
    rb"""(?<!\w)[.](?:incbin|include)[ \t]*+(?:\\"["\\]|"[ \t]*+(?:\Z|[^\w./\\ \t]|\w+[ \t]*+[(),"]))"""
)
# One byte is found many times faster than two, so these look for their first one.
_SPLICE = re.compile(rb"\\[ \t\v\f]*\n")
_DIGRAPH = re.compile(rb"%(?=:):")
_TRIGRAPH = re.compile(rb"\?(?=\?=)\?=")
_LOOK_BACK = 256
# A string without an end goes to that of its line: looking for the end from each quote anew might take for ever.
_COMMENT_OR_STRING = re.compile(
    rb"""//[^\n]*|/\*.*?(?:\*/|\Z)|'(?:\\[^\n]|[^'\\\n])'|"(?:\\[^\n]|[^"\\\n])*+"?""", re.DOTALL
)
_QUOTED = re.compile(rb'^[ \t\v\f]*(?:\#|%:)[ \t\v\f]*include[ \t\v\f]*"([^"\n]{1,400})"', re.MULTILINE)
_CONDITIONAL = re.compile(
    rb"""^[ \t\v\f]*\#[ \t\v\f]*(include|define|endif|ifdef|ifndef|if)\b"""
    rb"""[ \t\v\f]*(?:[<"]([^">\n]{1,400})[>"]|(\w+))?""",
    re.MULTILINE,
)


class Scan(msgspec.Struct, frozen=True, array_like=True):
    """What a text may make a compiler read."""

    names: tuple[str, ...] = ()
    """Names as they are written, in quotes or angle brackets: included, asked for, embedded; sorted."""
    macros: tuple[str, ...] = ()
    """What stands in place of a name, as in `#include HEADER`; empty where not even that can be told. Sorted."""
    embedded: tuple[str, ...] = ()
    """Those of the names that assembler includes, which no compiler lists; sorted."""
    defined: tuple[tuple[str, str], ...] = ()
    """Macros that are defined as the name of a file, and that name; sorted."""


NOTHING = Scan()
ANYTHING = Scan(macros=("",))


def scan(raw: bytes) -> Scan:
    """Everything that a source may include; see the module's text."""
    if len(raw) > READ_AT_MOST:
        return ANYTHING
    text = _joined(raw)
    names: set[bytes] = set()
    macros: set[bytes] = set()
    defined: set[tuple[str, str]] = set()
    if _directives(text, names, macros, defined):
        _directives(_without_comments(text), names, macros, defined)
    if b"__has_" in text:
        asked = list(_ASKED.finditer(text))
        names |= {name for match in asked if (name := match[1] or match[2])}
        macros |= {match[3] for match in asked if match[3]}
    embedded = set()
    if b"incbin" in text or b".include" in text:
        embedded = {match[1] for match in _ASSEMBLED.finditer(text)}
        if _PIECED.search(text):
            macros.add(b"")
    if not (names or macros or embedded or defined):
        return NOTHING
    return Scan(_texts(names | embedded), _texts(macros), _texts(embedded), tuple(sorted(defined)))


def _directives(text: bytes, names: set[bytes], macros: set[bytes], defined: set[tuple[str, str]]) -> bool:
    # True where a long comment stands in a directive, so that it has to be searched without comments too.
    # Matches are not kept: Python's collector would walk over those of a hostile source again and again.
    commented = False
    for match in _DIRECTIVE.finditer(text):
        if name := match[1] or match[2]:
            names.add(name)
        elif instead := match[3]:
            commented = commented or instead.startswith(b"/")
            # A macro counts at the beginning of a line only, and not in prose about an #include.
            before = text[max(0, match.start() - _LOOK_BACK) : match.start()]
            if _LINE_BEFORE.search(before):
                macros.add(instead)
        elif macro := match[4]:
            defined.add((os.fsdecode(macro), os.fsdecode(match[5] or match[6])))
    return commented


def asked_names(raw: bytes) -> tuple[str, ...]:
    """The names that a text asks for by `__has_include`, and those of macros, of which it may ask; sorted."""
    if b"__has_" not in raw or len(raw) > READ_AT_MOST:
        return ()
    text = _joined(raw)
    asked = list(_ASKED.finditer(text))
    names = {name for match in asked if (name := match[1] or match[2])}
    if any(match[3] for match in asked):
        names |= {name for match in _DIRECTIVE.finditer(text) if (name := match[5] or match[6])}
    return _texts(names)


def quoted_includes(raw: bytes) -> list[str]:
    """The names that a source includes in quotes, outside of comments and strings, in order."""
    if b"include" not in raw or b'"' not in raw:
        return []
    text = _COMMENT_OR_STRING.sub(lambda found: b" " if found[0][:1] == b"/" else found[0], _joined(raw))
    return [name.decode("utf-8", "replace") for name in _QUOTED.findall(text)]


def certain_includes(raw: bytes) -> list[str]:
    """The names that a source includes on no condition but that of an include guard, in order."""
    if b"include" not in raw:
        return []
    text = _COMMENT_OR_STRING.sub(lambda found: b" " if found[0][:1] == b"/" else found[0], _joined(raw))
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


def _joined(raw: bytes) -> bytes:
    # without its byte order mark, with LF at the ends of its lines, and joined where a line goes on
    text = raw.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\\" in text:
        text = _SPLICE.sub(b"", text)
    if b"%" in text:
        text = _DIGRAPH.sub(b"#", text)
    if b"?" in text:
        text = _TRIGRAPH.sub(b"#", text)
    return text


def _texts(found: set[bytes]) -> tuple[str, ...]:
    return tuple(os.fsdecode(b"\n".join(sorted(found))).split("\n")) if found else ()


def _without_comments(text: bytes) -> bytes:
    parts = []
    position = 0
    while (start := text.find(b"/*", position)) >= 0 and (end := text.find(b"*/", start + 2)) >= 0:
        parts.append(text[position:start])
        position = end + 2
    return b" ".join([*parts, text[position:]])
