"""Read very many random, mutated and hostile build.toml files; count what came of them, watch time
and memory.

    python benchmarks/fuzz_reader.py [COUNT] [SEED]
    python benchmarks/fuzz_reader.py --smallest        every shape at 12 KB, and 200 inputs, in one
    process

Every hostile shape is read once at the full size that is read at all, each in a process of its own,
then COUNT (default 100,000) random inputs in one process. Anything but a kernel or diagnostics, an
input that takes more than 2 seconds of processor time to read or to update, or a process larger
than 300 MB ends the run with exit code 1.
"""

from __future__ import annotations

import gc
import itertools
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import tomli_w  # noqa: E402

import mutations  # noqa: E402
from kci.config.document import MAX_BYTES  # noqa: E402
from kci.config.reader import parse_kernel  # noqa: E402
from kci.config.update import plan_update  # noqa: E402
from kci.errors import FindingsError  # noqa: E402

SECONDS = 2.0
MEGABYTES = 300


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


def read(raw: bytes) -> tuple[str, float]:
    """What came of an input, and the time that the slower of reading and updating took."""
    came, slowest = "accepted", 0.0
    for work in (plan_update, parse_kernel):
        start = time.process_time()
        try:
            work(raw)
        except FindingsError as error:
            came = f"refused {error.diagnostics[0].rule}"
        slowest = max(slowest, time.process_time() - start)
    return came, slowest


def megabytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(count: int, seed: int, shapes: list[str]) -> int:
    """Run everything; 1 if a limit was broken. A traceback is a failure as well."""
    wrong = False
    for name in shapes:
        line = subprocess.run(
            [sys.executable, __file__, "--one", name], check=True, capture_output=True, text=True
        ).stdout
        came, seconds, size = line.rsplit(maxsplit=2)
        bad = float(seconds) > SECONDS or int(size) > MEGABYTES
        wrong = wrong or bad
        print(
            f"{name:36} {came:18} {seconds:>6} s {size:>4} "
            f"MB{'  <-- over the limit' if bad else ''}",
            flush=True,
        )
    results: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    slowest = 0.0
    for kind, raw in itertools.islice(endless(seed), count):
        came, seconds = read(raw)
        kinds[kind] += 1
        results[came] += 1
        slowest = max(slowest, seconds)
    print(f"\n{count} inputs, seed {seed}; slowest {slowest:.2f} s; {megabytes()} MB")
    for counter in (kinds, results):
        print("  " + ", ".join(f"{name}: {number}" for name, number in sorted(counter.items())))
    # The process of the smallest form has read every shape itself.
    return int(wrong or slowest > SECONDS or (bool(shapes) and megabytes() > MEGABYTES))


if __name__ == "__main__":
    gc.set_threshold(100_000)  # as the command line does
    if sys.argv[1:2] == ["--one"]:
        shape = sys.argv[2]
        size = MAX_BYTES - 1000
        text = 'x = "' + "a" * 50_000_000 if shape == "50 MB string" else HOSTILE[shape](size)
        came, seconds = read(text.encode())
        print(came, f"{seconds:.2f}", megabytes())
    elif sys.argv[1:2] == ["--smallest"]:
        for name, made in HOSTILE.items():
            came, seconds = read(made(12_000).encode())
            if seconds > SECONDS:
                sys.exit(f"{name} of 12 KB takes {seconds:.2f} s")
        sys.exit(main(200, 0, []))
    else:
        every = [*HOSTILE, "50 MB string"]
        sys.exit(
            main(int((sys.argv[1:2] or ["100000"])[0]), int((sys.argv[2:3] or ["0"])[0]), every)
        )
