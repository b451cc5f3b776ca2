"""CMake's generator expressions in flags, such as `$<$<CXX_COMPILER_ID:MSVC>:/arch:AVX2>`.

The reference gives an author's flags to CMake, which evaluates them. Those that ask about the compiler, the language,
the platform and the configuration are evaluated here; a flag with another one is refused, because nobody else would.
"""

from __future__ import annotations

import msgspec

_LITERALS = {"COMMA": ",", "SEMICOLON": ";", "ANGLE-R": ">", "QUOTE": '"'}
_FALSE = ("", "0", "FALSE", "OFF", "N", "NO", "IGNORE", "NOTFOUND")


class Facts(msgspec.Struct, frozen=True):
    """What expressions can ask about a source."""

    language: str
    """Its language as CMake calls it: `CXX`, `CUDA` or `HIP`."""
    compilers: dict[str, str]
    """The name of the compiler of each language, such as `GNU`."""
    configuration: str = "Release"


def expanded(flag: str, facts: Facts) -> tuple[str, ...]:
    """The flags that one with generator expressions stands for; often none.

    Raises:
        ValueError: there is an expression that is not known, or not closed.
    """
    return tuple(part for part in _text(flag, facts).split(";") if part) if "$<" in flag else (flag,)


def _text(text: str, facts: Facts) -> str:
    made, place = "", 0
    while (start := text.find("$<", place)) >= 0:
        end = _closing(text, start)
        made += text[place:start] + _value(text[start + 2 : end], facts)
        place = end + 1
    return made + text[place:]


def _closing(text: str, start: int) -> int:
    depth, place = 0, start
    while place < len(text):
        if text.startswith("$<", place):
            depth, place = depth + 1, place + 1
        elif text[place] == ">":
            depth -= 1
            if depth == 0:
                return place
        place += 1
    raise ValueError(f"the generator expression {text[start:]} is not closed")


def _value(inside: str, facts: Facts) -> str:
    first, *rest = _split(inside, ":", 1)
    name, given = _text(first, facts), rest[0] if rest else None
    if given is None:
        if name not in _LITERALS and name not in _known(facts):
            raise ValueError(f"kci does not know the generator expression $<{inside}>")
        return _LITERALS.get(name) or _known(facts)[name]
    match name:
        case "0":
            return ""
        case "1":
            return _text(given, facts)
        case "IF":
            condition, *choices = (_text(part, facts) for part in _split(given, ",", 2))
            return [*choices, "", ""][0 if condition == "1" else 1]
    arguments = [_text(part, facts) for part in _split(given, ",")]
    return "1" if _holds(name, arguments, facts, inside) else "0"


def _holds(name: str, arguments: list[str], facts: Facts, inside: str) -> bool:
    match name:
        case "NOT":
            return arguments[0] != "1"
        case "AND":
            return all(argument == "1" for argument in arguments)
        case "OR":
            return "1" in arguments
        case "BOOL":
            return arguments[0].upper() not in _FALSE and not arguments[0].upper().endswith("-NOTFOUND")
        case "STREQUAL":
            return len(arguments) == 2 and arguments[0] == arguments[1]
        case "COMPILE_LANGUAGE":
            return facts.language in arguments
        case "COMPILE_LANG_AND_ID":
            return arguments[0] == facts.language and facts.compilers.get(facts.language) in arguments[1:]
        case "CONFIG":
            return facts.configuration.upper() in (argument.upper() for argument in arguments)
    if name not in _known(facts):
        raise ValueError(f"kci does not know the generator expression $<{inside}>")
    return _known(facts)[name] in arguments


def _known(facts: Facts) -> dict[str, str]:
    """Expressions that have a value, and are compared with one if they are given some."""
    found = {f"{language}_COMPILER_ID": name for language, name in facts.compilers.items()}
    return {**found, "PLATFORM_ID": "Linux", "COMPILE_LANGUAGE": facts.language, "CONFIG": facts.configuration}


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    """Split outside of nested expressions."""
    parts: list[str] = []
    depth, begin = 0, 0
    for place, char in enumerate(text):
        if text.startswith("$<", place):
            depth += 1
        elif char == ">" and depth:
            depth -= 1
        elif char == separator and depth == 0 and limit != 0:
            parts.append(text[begin:place])
            begin, limit = place + 1, limit - 1
    return [*parts, text[begin:]]
