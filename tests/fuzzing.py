"""Inputs that nobody would write: random bytes, mutated files, and shapes that make parsers slow.

benchmarks/fuzz_reader.py runs very many of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import tomli_w

import mutations

HEAD = (
    '[general]\nname = "ab"\nversion = 1\nedition = 5\nlicense = "x"\nbackends = ["cuda"]\n'
    "[torch]\n"
)


def _fill(unit: str, size: int) -> str:
    return (unit * (size // len(unit.encode()) + 1))[: size // (len(unit.encode()) // len(unit))]


def _numbered(template: str, size: int) -> str:
    return "".join(template.format(number) for number in range(size // (len(template) + 3)))


HOSTILE: dict[str, Callable[[int], str]] = {
    "dotted key": lambda size: _fill("a.", size) + "a = 1",
    "dotted header": lambda size: f"[{_fill('a.', size)}a]",
    "dotted quoted key": lambda size: _fill('"a" . ', size) + "a = 1",
    "dotted key in a table": lambda size: HEAD + "x = {" + _fill("a.", size) + "a = 1}",
    "many dotted keys": lambda size: _numbered("a{}.b.c.d.e.f.g = 1\n", size),
    "many long headers": lambda size: _numbered("[a{}." + "b." * 29 + "c]\n", size),
    "integers in an array": lambda size: HEAD + "src = [" + _fill("1,", size) + "]",
    "strings in an array": lambda size: HEAD + "src = [" + _fill('"a",', size) + "1]",
    "letters beyond ASCII in one line": lambda size: HEAD + "src = [" + _fill('"é",', size) + "1]",
    "wrong elements, one a line": lambda size: HEAD + "src = [" + _fill("1,\n", size) + "]",
    "unknown keys": lambda size: HEAD + _numbered("k{} = 1\n", size),
    "unknown tables": lambda size: HEAD + _numbered("[t{}]\n", size),
    "empty arrays": lambda size: HEAD + _numbered("k{} = []\n", size),
    "inline tables": lambda size: HEAD + _numbered("k{} = {{}}\n", size),
    "components": lambda size: HEAD + _numbered("[kernel.k{}]\nbackend = 'cuda'\nx = 1\n", size),
    "arrays of tables": lambda size: _fill("[[a]]\n[[a.b]]\n", size),
    "wrong backends": lambda size: HEAD.replace('"cuda"', _fill('"x",', size)),
    "wrong dependencies": lambda size: HEAD.replace(
        "[torch]", f"kernel-depends = [{_fill('{},', size)}]\n[torch]"
    ),
    "stable ABI of everything": lambda size: (
        HEAD + "stable-abi = {" + _numbered("k{} = '1',", size) + "z = '1'}"
    ),
    "nested arrays": lambda size: HEAD + "x = " + _fill("[", size // 2) + _fill("]", size // 2),
    "arrays never closed": lambda size: HEAD + "x = " + _fill("[", size),
    "nested tables": lambda size: HEAD + "x = " + _fill("{a = ", size),
    "arrays nested as deep as can be": lambda size: (
        HEAD + f"src = {'[' * min(size, 480)}{']' * min(size, 480)}"
    ),
    "digits": lambda size: "x = " + _fill("1", size),
    "hexadecimal digits": lambda size: "x = 0x" + _fill("f", size),
    "digits of a float": lambda size: "x = 1." + _fill("1", size),
    "exponent": lambda size: "x = 1e" + _fill("9", size),
    "underscores": lambda size: "x = " + _fill("1_", size) + "1",
    "version of many parts": lambda size: HEAD + 'minver = "' + _fill("1.", size) + '1"',
    "version of many digits": lambda size: HEAD + 'minver = "' + _fill("1", size) + '"',
    "long name": lambda size: HEAD.replace('"ab"', f'"{_fill("a", size)}_"'),
    "long URL": lambda size: HEAD.replace(
        "[torch]", f'upstream = "https://{_fill("@", size)}/x"\n[torch]'
    ),
    "long punycode": lambda size: HEAD.replace(
        "[torch]", f'upstream = "https://xn--{_fill("a9", size)}"\n[torch]'
    ),
    "long address": lambda size: HEAD.replace(
        "[torch]", f'upstream = "https://[{_fill("1:", size)}]"\n[torch]'
    ),
    "long backend": lambda size: HEAD.replace('"cuda"', f'"{_fill("c", size)}"'),
    "long key": lambda size: HEAD + _fill("a", size) + " = 1",
    "escapes": lambda size: HEAD + 'src = "' + _fill("\\n", size) + '"',
    "lines of a string": lambda size: HEAD + 'src = """' + _fill("a\n", size) + '"""',
    "continued lines": lambda size: HEAD + 'src = """' + _fill("\\\n", size) + '"""',
    "quotes in a string": lambda size: HEAD + 'src = """' + _fill('""a', size) + '"""',
    "string never closed": lambda size: HEAD + 'src = "' + _fill("a", size),
    "comments": lambda size: HEAD + _fill("# a\n", size) + "x",
    "line ends": lambda size: HEAD + _fill("\r\n\n", size) + "x",
    "carriage returns": lambda size: HEAD + _fill("\r", size),
    "spaces": lambda size: HEAD + _fill(" ", size) + "x",
    "NULs": lambda size: _fill("\0", size),
    "byte order marks": lambda size: _fill("\ufeff", size),
    "dates": lambda size: HEAD + "src = [" + _fill("1979-05-27,", size - size % 11) + "]",
}
"""Shapes that make some parser take the square of their size, each for a size in bytes."""


def endless(seed: int) -> Iterator[tuple[str, bytes]]:
    """Random inputs without end, each with the name of its kind; the same for the same seed."""
    random_ = random.Random(seed)
    seeds = list(mutations.seeds().values())
    documents = [mutations.tomllib.loads(raw.decode().replace("\r\n", "\n")) for raw in seeds]
    changes = [list(mutations.data_mutations(data)) for data in documents]
    alphabet = "\"\"''[[]]{}==..,#\n\n\n\r\t   -_\\0aZ19+:\x00é\ufeff\u2028"
    while True:
        index = random_.randrange(len(seeds))
        match random_.randrange(6):
            case 0:
                yield "bytes", random_.randbytes(random_.randrange(400))
            case 1:
                yield (
                    "TOML characters",
                    "".join(random_.choices(alphabet, k=random_.randrange(400))).encode(),
                )
            case 2:
                change = random_.choice(changes[index])
                yield (
                    "changed value",
                    tomli_w.dumps(mutations.changed(documents[index], *change)).encode(),
                )
            case 3:
                yield (
                    "changed text",
                    random_.choice(list(mutations.text_mutations(seeds[index], random_, 3))),
                )
            case 4:
                raw = bytearray(seeds[index])
                for _ in range(random_.randrange(1, 9)):
                    start = random_.randrange(len(raw) + 1)
                    inserted = "".join(random_.choices(alphabet, k=random_.randrange(9)))
                    raw[start : start + random_.randrange(12)] = inserted.encode()
                yield "changed bytes", bytes(raw)
            case _:
                name = random_.choice(list(HOSTILE))
                yield "hostile", HOSTILE[name](random_.randrange(1, 3000)).encode()
