"""C++ as text: comments, balanced brackets, arguments. Each walk is linear in the text, whatever it holds."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

_SKIPPED = re.compile(
    r"//(?:[^\n\\]|\\.|\\\n)*|/\*.*?(?:\*/|\Z)|R\"([^\s()\\]{0,16})\(.*?\)\1\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.){1,8}'",
    re.S,
)
_OPEN, _CLOSE = "([{", ")]}"


def without_comments(text: str) -> str:
    """The text with each comment as spaces, so that places and lines stay."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0]) if found[0].startswith("/") else found[0]

    return _SKIPPED.sub(blank, text)


def block_end(text: str, start: int) -> int:
    """The place behind the bracket that closes the one at `start`, or 0. Strings and comments do not count."""
    depth = 0
    place = start
    token = re.compile(rf"[()\[\]{{}}]|{_SKIPPED.pattern}", re.S)
    while (found := token.search(text, place)) is not None:
        place = found.end()
        if found[0] in _OPEN:
            depth += 1
        elif found[0] in _CLOSE:
            depth -= 1
            if depth == 0:
                return place
    return 0


def split_arguments(text: str) -> list[str]:
    """Arguments, split at the commas that stand in no bracket, string or template."""
    parts: list[str] = []
    depth = angle = start = 0
    token = re.compile(rf"[()\[\]{{}}>,;]|<<?|->|{_SKIPPED.pattern}", re.S)
    for found in token.finditer(text):
        word = found[0]
        if word in _OPEN:
            depth += 1
        elif word in _CLOSE:
            depth -= 1
        elif word == "<" and depth == 0:
            angle += 1
        elif word == ">" and depth == 0:
            angle = max(0, angle - 1)
        elif word == "," and depth == 0 and angle == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def statements(text: str) -> Iterator[tuple[int, str]]:
    """The statements of a block and where they begin: what ends with a `;` that stands in no bracket."""
    depth = start = 0
    for found in re.finditer(rf"[()\[\]{{}};]|{_SKIPPED.pattern}", text, re.S):
        if found[0] in _OPEN:
            depth += 1
        elif found[0] in _CLOSE:
            depth -= 1
        elif found[0] == ";" and depth == 0:
            yield start, text[start : found.start()]
            start = found.end()
    yield start, text[start:]


_CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b[ \t]*(.*)$")


def conditions(text: str, line: int) -> tuple[str, ...]:
    """The conditions of the preprocessor around a line, `!` before those that must not hold; of `#elif` the last."""
    open_now: list[str] = []
    for number, words in enumerate(without_comments(text).split("\n"), 1):
        if number == line:
            break
        if (found := _CONDITION.match(words)) is None:
            continue
        kind, said = found[1], found[2].strip()
        if kind in ("if", "ifdef", "ifndef"):
            open_now.append({"if": said, "ifdef": f"defined({said})", "ifndef": f"!defined({said})"}[kind])
        elif not open_now:
            continue
        elif kind == "endif":
            open_now.pop()
        else:
            open_now[-1] = said if kind == "elif" else f"!{open_now[-1]}".removeprefix("!!")
    return tuple(open_now)


def holds(condition: str, defined: Container[str]) -> bool:
    """Whether a condition of `defined(X)`, `!`, `&&` and `||` holds with some macros; any other is taken to hold."""
    answers = []
    for either in condition.split("||"):
        parts = [re.fullmatch(r"(!?)defined\s*\(?\s*(\w+)\s*\)?", part.strip()) for part in either.split("&&")]
        answers.append(all(part is None or (part[2] in defined) == (not part[1]) for part in parts))
    return any(answers)
