"""Many build.toml files, right and wrong: seed files, changed as people and editors change files.

Everything is deterministic. What the format allows is not written down here: the tests ask two
readers.
"""

from __future__ import annotations

import copy
import datetime
import itertools
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

import conformance_cases

DATA = Path(__file__).parent / "config" / "data"


def seeds() -> dict[str, bytes]:
    """The seed files by name: those of `config/data` and those of the conformance cases."""
    return {path.stem: path.read_bytes() for path in sorted(DATA.glob("*.toml"))} | {
        case.name: case.raw for case in conformance_cases.cases()
    }


# --- values ---------------------------------------------------------------------------------------

VERSIONS = """2.12 12. .12 12 +1.2 1.+2 1.-2 -1.2 1e3 1.2e3 １.２ 2.12.0 2.12.1 0 0.0 00.01 1..2 .
18446744073709551615.0 18446744073709551616.0 1.18446744073709551616 99999999999999999999999999.0
1.2-rc
1_0.2 0x1.2 v1.2 1,2 ++1.2 +.2 1.٢ 3.0 3""".split()  # noqa: SIM905
VERSIONS += [
    "", " ", " 2.12 ", "2 .12", "2. 12", "\t2.12\n", "\u00a02.12", "\u20092.12", "\u200b2.12",
    "\u00852.12", "\x1c2.12", "\x1f2.12", "\ufeff2.12", "2.12\x00", "1." * 50 + "1",
    "0" * 5000 + "1.2", "1" * 5000 + ".2",
]  # fmt: skip

URLS = """https://github.com/a/b HTTPS://github.com/a/b Https://GitHub.com git@github.com:a/b.git
github.com/a/b
host:path host:/path ftp://x/y file:///x https:// https:///a ssh://git@h:22/x ssh://h:99999/x
ssh://h:/x
https://[::1]/x https://[::1/x https://[::1]x/ https://[::g]/ https://[v1.a]/ https://[::1]:80/
https://[::1%25eth0]/ git@[::1]:x http:foo https:foo https:/foo https:\\\\foo ssh:foo git:foo C:/x
C:\\x
http://a_b/c https://xn--/ https://xn--a/ https://xn--mnchen-3ya.de https://%zz/ https://a%20b/
https://a%41/ ssh://a%41/ ssh://a%zz/x :// a: :b "/:b git+ssh://h/x git+https://h git+http://h
git+ftp://h/x mailto:a@b https://u:p@h/x https://u@/x https://@/x https://@h/x https://u:@h
ssh://u@/x
ssh://@/x ssh://:@h ssh://:80/x ssh://u:p@/x ssh://@h/x https://1.2.3.4.5/ https://999.1.1.1/
https://256/ https://4294967296/ https://1.2.3/ https://0x7f.1/ https://0x/ https://08.1/
https://1.2.3.4./ https://1..2/ https://a.0xg https://a.1 https://1.2.3.256 https://ü.de/x ü.de:x
https://h?x https://h#x git@h:~/x git@h:/x git@h: h:? h:# ssh://h git://h git:///x ssh:///x ssh://
git:// localhost:8080 localhost:8080/x foo:bar:baz a@b@c:d a/b:c a?b:c a#b:c a\\b:c
javascript:alert(1)
data:x https://h:0/x https://h:65535/ https://h:65536/ https://h:0000080/ https://h:+1/x ssh://h:+1/
https://h:8a/ https://h:80:80/ h<x>:y h^x:y a%:b a%41:b 1:2 -h:x git+https:x git+http:x git+ssh:x
git+x:y https://ｇ.com/x https://a..b/ https://.a/ https://a./ https://-a/ https://a|b/ ssh://a|b/
ssh://a"b/ ssh://a`b/ https://a"b https://a`b https://a{b} https://a^b git://a^b //h/x /x ./x ../x
~/x
https://h\\x https://u\\@h ssh://u\\@h git@h_x:y git@a,b:c git@a:b:c git@:x
user@host.xz:path/to/repo.git/ ssh//h:x 1https://h +https://h https+x://h git@h:80/x
git@h:99999999/x
svn+ssh://h/x rsync://h/x hg+https://h HTTP://H:080/""".split()  # noqa: SIM905
URLS += [
    "", " ", "  https://a/b", "https://a/b  ", "https://a/b c", "https://a b/c", "a b:c",
    "git@h:x y", "git@h: x", "h:x y", "https\n://h/x", "ht\ttps://h/x", "\0https://h/x",
    "https://h\0/x", "https://h/\0", "ssh://h\tx/", "ssh://h\x01x/", "https://h\x01x/",
    "https://\u00ad/", "https://a\u00adb/", "\ufeffhttps://h", "\u00a0https://h", "ssh://ü/x",
    "http: x", "ftp: x", "https: //h", "https://h\x7f/", "ssh://h\x7f/", "https://。/",
    "https://a。b/", "x" * 9000 + "@h:y",
]  # fmt: skip

NAMES = [
    "a", "ab", "a-", "-a", "1a", "a1", "a--b", "A1", "aB", "a_b", "ab\n", "\nab", "é1", "a1٣",
    "a.b", "a b", "", "a" * 5000,
]  # fmt: skip
BACKENDS = [
    "cann", "cpu", "cuda", "metal", "neuron", "rocm", "tpu", "xpu", "CUDA", "Cuda", "npu", "hip",
    "", " cuda", "gpu",
]  # fmt: skip
DEPENDS = """torch metal-cpp sycl_tla cutlass_2_10 cutlass_3_5 cutlass_3_6 cutlass_3_8 cutlass_3_9
cutlass_4_0
cutlass_4_4 cutlass_4_5 metal_cpp sycl-tla cutlass-3-6 cutlass_3_7 cutlass_4_1 Torch
einops""".split()  # noqa: SIM905
DEPENDS.append("")
INTEGERS = [
    0, 1, -1, 4, 5, 6, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63),
    -(2**63) - 1, 10**30,
]  # fmt: skip
KERNEL_DEPENDS: list[Any] = [
    [{"repo-id": "a/b", "version": 1}], [{"repo-id": "a/b", "revision": "x"}], [{"repo-id": "a/b"}],
    [{"version": 1}],
    [{"repo-id": "a/b", "version": 1, "revision": "x"}], [{"repo-id": "a/b", "version": "1"}], [{}],
    {}, "a/b", ["a/b"],
    [{"repo-id": "a/b", "version": -1}], [{"repo-id": "a/b", "version": 1, "extra": 1}],
    [{"repo-id": 1, "version": 1}],
    [{"repo_id": "a/b", "version": 1}], {"repo-id": "a/b", "version": 1}, [["a/b", 1]],
    [{"repo-id": "", "version": 1}],
    [{"repo-id": "a/b", "version": 1.0}], [{"repo-id": "a/b", "version": 2**63}],
    [{"repo-id": "a/b", "revision": ""}],
    [{"repo-id": "a/b", "revision": 1}], [{"repo-id": "a/b", "version": 1}, {"repo-id": "a/b",
        "version": 1}],
]  # fmt: skip
STABLE_ABI: list[Any] = [
    {}, "2.11", "2.11.0", "3.0", "3", "", {"cuda": "2.11"}, {"tpu": "2.11"}, {"npu": "2.11"},
    {"cuda": "2.11", "npu": "2.11"}, {"cuda": 2.11}, {"cuda": {}}, {"cuda": "x"}, 2.11, [],
    ["2.11"], {"": "2.11"},
]  # fmt: skip
OTHER_TYPES: list[Any] = [
    "", "x", 0, 1, -1, 1.0, 5.0, float("inf"), float("nan"), True, False, [], [1], ["x"], [[]],
    [{}], {}, {"x": 1},
    {"cuda": "2.11"}, datetime.date(1979, 5, 27), datetime.time(7, 32),
    datetime.datetime(1979, 5, 27, 7, 32),
    datetime.datetime(1979, 5, 27, 7, 32, tzinfo=datetime.UTC),
]  # fmt: skip
KEYS = """name version edition license upstream source backends python-depends kernel-depends hub
cuda xpu neuron
tpu rocm cpu repo-id branch minver maxver src pyext include cxx-flags stable-abi cuda_capabilities
cuda-capabilities rocm_archs rocm-archs cuda-flags cuda-minver hip-flags sycl-flags backend depends
universal language general torch torch-noarch tvm-ffi kernel""".split()  # noqa: SIM905

_VALUES: dict[str, list[Any]] = {
    "upstream": URLS, "source": URLS, "name": NAMES, "license": ["", " ", "mit\n"],
    "version": INTEGERS,
    "edition": INTEGERS, "stable-abi": [*STABLE_ABI, *VERSIONS], "kernel-depends": KERNEL_DEPENDS,
    "backend": BACKENDS,
    "backends": [[], ["cuda", "cuda"], [1], "cuda", [["cuda"]], [{"cuda": {}}], [{"cuda": 1}]]
    + [[backend] for backend in BACKENDS],
    "depends": [[dep] for dep in DEPENDS] + [["torch", "torch"], "torch", [1], [{"torch": {}}]],
    "hub": [["x", "y"], ["x"], {"repo-id": ""}], "cuda": [["12.6", "13.0", [], []]],
    "tpu": [[["x"]]],
    "xpu": [[[], []]], "python-depends": [["einops"], ["nope"], ["einops", 1], "einops"],
} | dict.fromkeys(("minver", "maxver", "cuda-minver"), VERSIONS)  # fmt: skip


# --- changing a document --------------------------------------------------------------------------

KeyPath = tuple[str | int, ...]


def key_paths(data: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every place in a document, tables before what is in them."""
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for name, value in items:
        yield (*path, name)
        yield from key_paths(value, (*path, name))


def changed(data: dict[str, Any], path: KeyPath, value: Any, rename: str | None) -> dict[str, Any]:
    """A copy with one place dropped (no value), replaced, or renamed."""
    result = copy.deepcopy(data)
    parent: Any = result
    for part in path[:-1]:
        parent = parent[part]
    if rename is not None:
        items = [(rename if name == path[-1] else name, part) for name, part in parent.items()]
        parent.clear()
        parent.update(items)
    elif value is None:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return result


def data_mutations(data: dict[str, Any]) -> Iterator[tuple[KeyPath, Any, str | None]]:
    """Every change of one place of a document, as arguments of `changed`."""
    tables: list[KeyPath] = [()]
    for path in key_paths(data):
        name = path[-1]
        value: Any = data
        for part in path:
            value = value[part]
        if isinstance(value, dict):
            tables.append(path)
        yield path, None, None
        replacements = [*OTHER_TYPES, *(_VALUES.get(name, []) if isinstance(name, str) else [])]
        if path[:2] == ("torch", "stable-abi") and len(path) == 3:
            replacements += VERSIONS
        for replacement in replacements:
            yield path, replacement, None
        if isinstance(name, str):
            renames = {
                name.replace("-", "_"), name.replace("_", "-"), name.upper(), name + "s",
                name[:-1], f" {name}", "",
            }  # fmt: skip
            for rename in sorted(renames - {name}):
                yield path, None, rename
    for path, added in itertools.product(tables, [*KEYS, "unknown", ""]):
        for value in [*_VALUES.get(added, []), {}, ["x"], "1.2"]:
            yield (*path, added), value, None


SNIPPETS = """\
[general]¦[torch]¦[torch-noarch]¦[tvm-ffi]¦[[general]]¦[[torch]]¦[[kernel]]¦[[kernel.x]]¦
[kernel.x]¦[general.hub]¦[general.cuda]¦[general.]¦[ general . hub ]¦["general"]¦[]¦x = 1¦
general = 1¦general.x = 1¦general.hub.branch = "b"¦torch.src = []¦kernel.x.backend = "cpu"¦
name = "twice"¦x¦= 1¦x =¦"" = 1¦x = 'a' 'b'¦x = "\\e"¦x = "\\x41"¦x = "\\u0041\\U0001F600"¦
x = "\\ud800"¦x = "a¦x = \"\"\"a¦x = {a = 1,}¦x = {¦x = {a = 1 # c¦x = {a.b = 1, a.c = 2}¦
x = {a = 1, a.b = 2}¦x = [1, 2,]¦x = [1, , 2]¦x = 1_000¦x = 1__0¦x = 0x_1¦x = 01¦x = +0¦x = -0x1¦
x = 1e5¦x = 1.¦x = .5¦x = +nan¦x = 1979-02-30¦x = 07:32¦x = 1979-05-27T07:32¦
x = 1979-05-27 07:32:00Z¦x = 24:00:00¦# comment \x01¦# comment \x7f¦# comment é¦\x0c¦\ufeff¦
\u00a0¦é = 1¦\ttorch.include\t=\t[]\t# tabs""".replace("¦\n", "¦").split("¦")


def text_mutations(raw: bytes, random_: random.Random, count: int) -> Iterator[bytes]:
    """What editors, merges and slips do to a file: lines lost, doubled, swapped or pasted, bytes
    changed.
    """
    yield b"\xef\xbb\xbf" + raw
    yield b"\xef\xbb\xbf\xef\xbb\xbf" + raw
    yield raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    yield raw.replace(b"\n", b"\r")
    yield raw.replace(b"\n", b"\r\n", 3)
    yield raw.replace(b"\n", b" \t\n")
    yield raw.rstrip()
    yield raw + b"\x00"
    yield raw.decode().encode("utf-16")
    yield raw + b"\xff"
    for _ in range(count):
        lines = raw.splitlines(keepends=True)
        first, second = random_.randrange(len(lines)), random_.randrange(len(lines))
        match random_.randrange(8):
            case 0:
                del lines[first]
            case 1:
                lines.insert(second, lines[first])
            case 2:
                lines[first], lines[second] = lines[second], lines[first]
            case 3 | 4:
                lines.insert(first, random_.choice(SNIPPETS).encode() + b"\n")
            case 5:
                text = b"".join(lines)
                at = random_.randrange(len(text))
                lines = [
                    text[:at],
                    random_.choice(b"\"'[]{}=.,#\n\r\t -_\\0aZ\x00\xff").to_bytes(),
                    text[at + 1 :],
                ]
            case 6:
                lines = lines[:first]
            case _:
                low, high = sorted((first, second))
                lines = lines[:low] + lines[high:] + lines[low:high]
        yield b"".join(lines)


def corpus(changes: int, texts: int) -> Iterator[bytes]:
    """Seed files and changed ones, each once: about so many changes of the data and of the text,
    over all seeds.
    """
    seen: set[bytes] = set()
    every = seeds()
    for name, raw in every.items():
        random_ = random.Random(name)
        data = tomllib.loads(raw.decode().replace("\r\n", "\n"))
        possible = list(data_mutations(data))
        chosen = random_.sample(possible, min(changes // len(every), len(possible)))
        mutations = (tomli_w.dumps(changed(data, *change)).encode() for change in chosen)
        for text in (
            raw,
            tomli_w.dumps(data).encode(),
            *mutations,
            *text_mutations(raw, random_, texts // len(every)),
        ):
            if text not in seen:
                seen.add(text)
                yield text
