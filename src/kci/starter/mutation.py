"""Does a function write to a tensor that it is given: as its body says, and what it calls with that tensor."""

from __future__ import annotations

import re
from functools import lru_cache

from kci.starter.cpp_code import Code, CppFunction, functions_named
from kci.starter.cpp_text import block_end, split_arguments

_DEEPEST = 4
_LONGEST = 200_000
_MOST_NAMES, _MOST_USES = 20, 300
_READS = re.compile(
    r"^(?:at|torch|std|c10|ATen)::|^(?:TORCH_|AT_|CHECK|C10_|STD_|assert|if|while|for|switch|return|sizeof|printf|atomic|gpuAtomic|fastAtomic|static_cast|reinterpret_cast|get_|is_)|^[A-Z][A-Z0-9_]*$"
)


def writes_to(function: CppFunction, index: int, code: Code, depth: int = 0) -> bool | None:
    """Whether it writes to the tensor at an index; None where the text does not say."""
    if not function.body:
        many, same = len(function.parameters), functions_named(code, function.name)
        defined = [item for item in same if item.body and len(item.parameters) == many]
        if not defined:
            return None
        function = defined[0]
    if index >= len(function.parameters) or len(function.body) > _LONGEST or depth > _DEEPEST:
        return None
    item = function.parameters[index]
    if not item.name:
        return False
    body = _CAST.sub("", function.body)
    answers = [_tensor(name, body, code, depth) for name in _same_as(item.name, body)]
    if True in answers:
        return True
    named = function.name.endswith("_") and not function.name.endswith("__")
    if named and depth == 0 and all("Tensor" not in before.type for before in function.parameters[:index]):
        return True
    return None if None in answers or _OUT.search(item.name) else False


_OUT = re.compile(r"(?:^|_)(?:out|output|outputs|result)(?:_|$)")
"""A name that says that it is written to, whatever is found."""


_VIEW = (
    r"(?:\s*(?:\.|->)\s*(?:value|view|view_as|reshape|flatten|select|slice|narrow|index|transpose|permute|squeeze|unsqueeze|t)"
    r"\s*\((?:[^;()]|\([^;()]*\))*+\)|\s*\[[^\]]{0,200}\])*+"
)
"""What follows a tensor, or a list of them, and has the same memory."""


def _same_as(name: str, body: str) -> list[str]:
    """The tensor and local names for it."""
    kind, word = r"(?:auto|Tensor)\s*+&{0,2}\s*+(?<=[\s&])", re.escape(name)
    given = re.findall(rf"{kind}(\w+)\s*=\s*+\*?\s*+{word}{_VIEW}\s*;", body)
    return [name, *given, *re.findall(rf"\bfor\s*\([^;:()]*{kind}(\w+)\s*:\s*{word}\s*\)", body)]


def _tensor(name: str, body: str, code: Code, depth: int) -> bool | None:
    word = rf"(?<![\w.>]){re.escape(name)}\b"
    if re.search(rf"{word}{_VIEW}\s*(?:\.|->)\s*(?!requires_grad_)[a-z]\w*_\s*\(", body):
        return True
    if re.search(
        rf"{word}\s*\[[^\]=]*\]\s*=[^=]|\b\w+_out\s*\(\s*{word}\s*,|{word}{_VIEW}\s*(?:\.|->)\s*mutable_data_ptr", body
    ):
        return True
    word = rf"{word}(?:\s*\.\s*value\s*\(\s*\)|\s*->)?"
    unknown = False
    for found in re.finditer(
        rf"{word}(\s*\.\s*(?:template\s+)?(data_ptr|packed_accessor\w*|accessor|data)\s*(<[^();]*?>)?\s*\(\s*\))?", body
    ):
        answer: bool | None
        if found[1] is None:
            answer = _passed_whole(found.start(), found.end(), body, code, depth)
        elif "const" in (found[3] or ""):
            answer = False
        else:
            answer = _use(found.start(), found.end(), body, code, depth)
        if answer:
            return True
        unknown = unknown or answer is None
    return None if unknown else False


def _enclosing(start: int, body: str) -> tuple[str, int, int, str] | None:
    """The call that a place is an argument of: the name called, the argument's number, how many there are, its text."""
    depth = 0
    for place in range(start - 1, max(-1, start - 4000), -1):
        letter = body[place]
        if letter in ")]}":
            depth += 1
        elif letter in "([{":
            if depth:
                depth -= 1
                continue
            if letter != "(":
                return None
            before = body[max(0, place - 300) : place].rstrip()
            before = re.sub(r"<<<.*>>>$", "", before, flags=re.S).rstrip()
            before = re.sub(r"<(?:[^<>]|<(?:[^<>]|<[^<>]*+>)*+>)*+>$", "", before).rstrip()
            name = re.search(r"([A-Za-z_][\w:.]*)$", before)
            end = block_end(body, place)
            if not end:
                return None
            if name is None:  # brackets of an expression
                continue
            arguments = split_arguments(body[place + 1 : end - 1])
            number = len(split_arguments(body[place + 1 : start] + "x")) - 1
            return name[1], number, len(arguments), arguments[number] if number < len(arguments) else ""
        elif letter == ";" and not depth:
            return None
    return None


def _passed_whole(start: int, end: int, body: str, code: Code, depth: int) -> bool | None:
    if re.match(r"\s*(?:\.|->|\[)", body[end:]):
        return False  # a method of it; those that write are looked for by name
    call = _enclosing(start, body)
    if call is None or "." in call[0] or _READS.match(call[0]):
        return False
    if call[3].strip() not in (body[start:end].strip(), f"*{body[start:end].strip()}"):
        return False
    known = [item for item in functions_named(code, call[0]) if len(item.parameters) >= call[2]]
    return writes_to(known[0], call[1], code, depth + 1) if known else None


def _use(
    start: int, end: int, body: str, code: Code, depth: int, names: list[tuple[str, int]] | None = None
) -> bool | None:
    """What is done with `x.data_ptr()`, or with one of the names of a pointer, which grow by those that it is given."""
    call = _enclosing(start, body)
    if call is not None and not _READS.match(call[0]):
        return None if "." in call[0] else _argument(*call[:3], code, depth)
    before = _statement(start, body)
    if (call is not None and "_cast" in call[0]) or (names is not None and not re.search(r"=[\s&(]*$", before)):
        return False  # the casts that are left are to constant ones
    return _set(before, body, end, code, depth, names)


def _statement(start: int, body: str) -> str:
    """What stands before a place in its statement."""
    return re.split("[;{}]", body[max(0, start - 200) : start])[-1]


def _set(
    before: str, body: str, end: int, code: Code, depth: int, names: list[tuple[str, int]] | None = None
) -> bool | None:
    """What is done with the local pointer, or the field, that a statement sets."""
    if found := _LOCAL.search(before):
        if re.search(r"\bconst\b[^*]*\*", before):  # any other `const` is the pointer's own
            return False
        if names is None:
            return _pointer(found[1], body[end:], code, depth + 1)
        names += [(found[1], end)] if found[1] not in dict(names) else []
        return False
    field = re.search(r"(?:\.|->)\s*(\w+)\s*=[\s(]*$", before)
    return _field(field[1], code, depth) if field else None


_CAST = re.compile(
    r"\b(?:reinterpret|static)_cast\s*<(?![^()]{0,200}?\bconst\b[^()]{0,200}?>\s*\()[^()]{0,200}?>\s*(?=\()|\(\s*(?!const\b)[\w:]+(?:<[^<>()]*>)?\s*\*\s*\)(?=\s*[\w&(])"
)
"""A cast of a pointer, but to a constant one."""
_LOCAL = re.compile(r"(?:[\w>][\s*&]+|^\s*)(\w+)\s*=(?!=)[^;{}]*$")
"""A local pointer that is being set."""


@lru_cache(maxsize=4096)
def _field(name: str, code: Code, depth: int) -> bool | None:
    """What is done with a pointer that was put into a field of a struct: whoever takes it out of there says so."""
    if depth > _DEEPEST:
        return None
    answers: list[bool | None] = []
    for function in (item for items in code.functions.values() for item in items if len(item.body) < _LONGEST):
        if re.search(rf"(?:\.|->)\s*{name}\b", function.body) is None:
            continue
        if re.search(rf"(?:\.|->)\s*{name}\s*\[[^;=]*\]\s*[-+*/|]?=(?!=)", function.body):
            return True
        for found in re.finditer(rf"(?:\.|->)\s*{name}\b", function.body):
            before = _statement(found.start(), function.body)
            if _LOCAL.search(before) or not re.match(r"\s*(?:=(?!=)|[!=]=|\))", function.body[found.end() :]):
                answers.append(_set(before, function.body, found.end(), code, depth + 1))
            if answers and answers[-1]:
                return True
    return None if not answers or None in answers else False


@lru_cache(maxsize=4096)
def _argument(name: str, number: int, many: int, code: Code, depth: int) -> bool | None:
    if (item := next((item for item in functions_named(code, name) if len(item.parameters) >= many), None)) is None:
        return None
    taken = item.parameters[number]
    if "const" in taken.type and ("*" in taken.type or re.search(r"<\s*const", taken.type)):
        return False
    if not item.body:
        return "*" in taken.type or None
    return _pointer(taken.name, item.body, code, depth + 1)


_INDEX = r"\[(?:[^][;]|\[(?:[^][;]|\[[^][;]*+\])*+\])*+\]"
"""What stands in brackets, with two more in it."""


@lru_cache(maxsize=4096)
def _writes(name: str, body: str) -> bool:
    word = re.escape(name)
    indexed = rf"(?<![\w.]){word}\s*(?:{_INDEX}\s*)+(?:\.\w+\s*)?(?:[-+*/|&^]|<<|>>)?=(?!=)"
    pointed = rf"\*\s*(?:\(\s*)?{word}\b[^;=()]*\)?\s*(?:[-+*/|&^])?(?<![!<>])=(?!=)"
    atomic = rf"\batomic\w*\s*\(\s*&?\s*\(?{word}\b|\bgpuAtomic\w*\s*\(\s*&?\s*{word}\b|\bfastAtomicAdd\s*\(\s*{word}\b"
    counted = rf"(?:\+\+|--)\s*{word}\s*\[|{word}\s*\[[^;\]]*\]\s*(?:\+\+|--)"
    moved = rf"\(\s*{word}\b[^;=()]*\)\s*{_INDEX}\s*[-+*/|&^]?=(?!=)"
    return re.search(f"{indexed}|{pointed}|{atomic}|{counted}|{moved}", body) is not None


def _pointer(name: str, body: str, code: Code, depth: int) -> bool | None:
    if not name or len(body) > _LONGEST or depth > _DEEPEST:
        return None
    body = _CAST.sub("", body)
    names, unknown = [(name, 0)], False
    for one, start in names:
        after = body[start:]
        if _writes(one, after):
            return True
        if len(names) > _MOST_NAMES or len(re.findall(rf"\b{one}\b", body)) > _MOST_USES:
            return None
        if _writes_to_part(one, after, code, depth):
            return True
        uses = re.compile(rf"(?<=[(,=])\s*&\s*{one}\s*\[|(?<![\w.]){one}\b(?![\s)]*\[)(?!\s*\.)")
        for found in uses.finditer(body, start):
            answer = _use(found.start(), found.end(), body, code, depth, names)
            if answer:
                return True
            unknown = unknown or answer is None
    return None if unknown else False


def _writes_to_part(name: str, body: str, code: Code, depth: int) -> bool:
    """Whether it writes to `p[n]` under another name: a reference, or a row of an accessor."""
    for found in re.finditer(rf"(?<![\w.&]){name}\s*(?:{_INDEX}\s*)+(?=([;,)]))", body):
        if local := re.search(r"(?:auto|(&))\s*&*\s*(\w+)\s*=\s*$", _statement(found.start(), body)):
            after = body[found.end() :]
            if _writes(local[2], after) or (local[1] and re.search(rf"\b{local[2]}\s*[-+*/|&^]?=(?!=)", after)):
                return True
        elif found[1] != ";" and (call := _enclosing(found.start(), body)) is not None:
            known = [item for item in functions_named(code, call[0]) if len(item.parameters) >= call[2]]
            taken = known[0].parameters[call[1]].type if known and call[3] == found[0].strip() else "const"
            if "const" not in taken and re.search("ccessor|&", taken) and _argument(*call[:3], code, depth):
                return True
    return False
