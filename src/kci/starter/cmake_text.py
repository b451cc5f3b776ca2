"""The text of CMake files: commands in their blocks, conditions, and expressions that are for one language."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

_MOST_TEXT = 200_000
_TOKEN = re.compile(
    r"#\[(=*)\[.{0,2000}?\]\1\]|#[^\n]*|\[(=*)\[(.{0,2000}?)\]\2\]|\"((?:[^\"\\]|\\.)*)\"|([()])|((?:[^\s()#\"\\]|\\.)+)",
    re.S,
)
_OPENS = {"if": "endif", "foreach": "endforeach", "function": "endfunction", "macro": "endmacro", "while": "endwhile"}


class Argument(msgspec.Struct, frozen=True):
    """One argument as it is written."""

    text: str
    quoted: bool = False


class CMakeCommand(msgspec.Struct, frozen=True):
    """One command, with the branches that it opens: each has the command that opens it, and what is in it."""

    name: str
    arguments: tuple[Argument, ...]
    line: int
    branches: tuple[tuple[CMakeCommand, tuple[CMakeCommand, ...]], ...] = ()


def read_commands(text: str) -> tuple[CMakeCommand, ...]:
    """The commands of a file; ValueError if it is too long, or its blocks are not closed."""
    if len(text) > _MOST_TEXT:
        raise ValueError("it is too long")
    plain = list(_commands(text))
    made, at = _block(plain, 0, "", 0)
    if at < len(plain):
        raise ValueError(f"line {plain[at].line}: {plain[at].name} closes nothing")
    return made


def _commands(text: str) -> Iterator[CMakeCommand]:
    name, arguments, line, depth = "", list[Argument](), 0, 0
    for found in _TOKEN.finditer(text):
        bracket, quoted, paren, word = found[3], found[4], found[5], found[6]
        if not depth:
            if word is not None:
                name, line = word.lower(), text.count("\n", 0, found.start()) + 1
            elif paren == "(" and name:
                arguments, depth = [], 1
            continue
        if paren:
            depth += 1 if paren == "(" else -1
            if not depth:
                yield CMakeCommand(name, tuple(arguments), line)
                name = ""
                continue
        said = next((item for item in (bracket, quoted, paren, word) if item is not None), None)
        if said is not None:
            arguments.append(Argument(said.replace("\\\n", "").replace('\\"', '"'), word is None and paren is None))


def _block(plain: list[CMakeCommand], at: int, end: str, depth: int) -> tuple[tuple[CMakeCommand, ...], int]:
    """The commands from a place to the one that ends the block, and where that is."""
    made: list[CMakeCommand] = []
    if depth > 50:
        raise ValueError("its blocks are too deep")
    while at < len(plain):
        command = plain[at]
        if command.name == end or command.name in ("else", "elseif") or command.name in _OPENS.values():
            return tuple(made), at
        at += 1
        if closes := _OPENS.get(command.name):
            branches = []
            opens = command
            while True:
                body, at = _block(plain, at, closes, depth + 1)
                branches.append((opens, body))
                if at >= len(plain) or (plain[at].name not in ("else", "elseif", closes)):
                    raise ValueError(f"line {command.line}: {command.name} is not closed")
                opens = plain[at]
                at += 1
                if opens.name == closes:
                    break
            command = CMakeCommand(command.name, command.arguments, command.line, tuple(branches))
        made.append(command)
    return tuple(made), at


_FALSE = ("", "0", "OFF", "NO", "FALSE", "N", "IGNORE", "NOTFOUND")


def is_true(value: str) -> bool:
    """What CMake takes a value for."""
    return value.upper() not in _FALSE and not value.upper().endswith("-NOTFOUND")


def _matches(text: str, expression: str) -> bool:
    """Texts, with `|` between, `^` and `$`: no expression of somebody else is run."""
    starts, ends = expression.startswith("^"), expression.endswith("$")
    return any(
        one in text and (not starts or text.startswith(one)) and (not ends or text.endswith(one))
        for one in expression.strip("^$()").split("|")
    )


_COMPARED: dict[str, Callable[[str, str], bool]] = {
    "STREQUAL": lambda one, two: one == two,
    "EQUAL": lambda one, two: _numbers(one) == _numbers(two),
    "LESS": lambda one, two: _numbers(one) < _numbers(two),
    "GREATER": lambda one, two: _numbers(one) > _numbers(two),
    "LESS_EQUAL": lambda one, two: _numbers(one) <= _numbers(two),
    "GREATER_EQUAL": lambda one, two: _numbers(one) >= _numbers(two),
    "IN_LIST": lambda one, two: one in two.split(";"),
    "MATCHES": _matches,
}


def is_expression(text: str) -> bool:
    """Whether MATCHES takes this for more than kci follows."""
    return re.search(r"[][.*+?\\]", text) is not None or "(" in text.strip("^$()")


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d{1,9}", text)]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


class Condition:
    """The condition of an `if`, with what tells the value of a word and what tests such as TARGET answer."""

    def __init__(
        self, words: list[Argument], value: Callable[[str], str | None], test: Callable[[str, str], bool]
    ) -> None:
        self.words, self.value, self.test = words, value, test

    def holds(self) -> bool:
        """Whether it holds; ValueError if it is not a condition."""
        answer = self._any()
        if self.words:
            raise ValueError("its condition is not one")
        return answer

    def _any(self) -> bool:
        answer = self._all()
        while self._next("OR"):
            answer = self._all() or answer
        return answer

    def _all(self) -> bool:
        answer = self._not()
        while self._next("AND"):
            answer = self._not() and answer
        return answer

    def _not(self) -> bool:
        turned = False
        while self._next("NOT"):
            turned = not turned
        return self._one() is not turned

    def _one(self) -> bool:
        if self._next("("):
            answer = self._any()
            if not self._next(")"):
                raise ValueError("its condition is not one")
            return answer
        if not self.words:
            raise ValueError("its condition is not one")
        first = self.words.pop(0)
        if first.text in ("DEFINED", "TARGET", "EXISTS", "COMMAND", "POLICY", "IS_DIRECTORY") and not first.quoted:
            return self.test(first.text, self.words.pop(0).text) if self.words else False
        if self.words and (how := _COMPARED.get(self.words[0].text.removeprefix("VERSION_"))) is not None:
            self.words.pop(0)
            second = self.words.pop(0) if self.words else Argument("")
            return how(self._of(first), self._of(second))
        if first.text.upper() in ("ON", "YES", "TRUE", "Y") or re.fullmatch(r"[1-9]\d{0,9}", first.text):
            return True
        return not first.quoted and is_true(self.value(first.text) or "")

    def _of(self, word: Argument) -> str:
        value = None if word.quoted else self.value(word.text)
        return word.text if value is None else value

    def _next(self, text: str) -> bool:
        if self.words and self.words[0] == Argument(text):
            self.words.pop(0)
            return True
        return False


def by_language(text: str) -> list[tuple[str, str]]:
    """The values of a list that are for a language ("" for each), CXX or CUDA; with "?" what kci does not follow."""
    made: list[tuple[str, str]] = []
    for item in _apart(text):
        if found := re.fullmatch(r"\$<\$<COMPILE_LANGUAGE:([\w,]+)>:(.*)>", item, re.S):
            made += [(name, value) for name in found[1].split(",") for _, value in by_language(found[2])]
        elif found := re.fullmatch(
            r"\$<(?:BUILD_INTERFACE|\$<CONFIG:Release>|\$<NOT:\$<CONFIG:Debug>>):(.*)>", item, re.S
        ):
            made += by_language(found[1])
        elif re.match(r"\$<(?:INSTALL_INTERFACE|\$<CONFIG:)", item):
            continue
        elif item:
            made.append(("?" if "$<" in item else "", item))
    return made


def _apart(text: str) -> list[str]:
    """A list's values, where a `;` within `$<...>` parts none."""
    parts, depth, start = [], 0, 0
    for found in re.finditer(r"\$<|>|;", text):
        depth += {"$<": 1, ">": -1 if depth else 0}.get(found[0], 0)
        if found[0] == ";" and not depth:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]
