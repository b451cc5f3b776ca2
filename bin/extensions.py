"""The extensions of the package index that `kci init --from` is held against: tests/starter/extensions.toml.

    python bin/extensions.py              # takes each over, and says where the result is not what the table says
    python bin/extensions.py --write      # writes what came out into the table: read the difference before you commit it
    python bin/extensions.py --summary    # how many come over whole, with little left, not at all

The archives are never committed. They come from their addresses with their digests into KCI_CACHE/extensions.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

import tomlkit
from msgspec import Struct, convert, field, to_builtins

from kci.config.reader import parse_kernel
from kci.diagnostics import Severity
from kci.errors import KciError
from kci.files.cache import default_cache
from kci.starter.create import create
from kci.starter.new_kernel import choose
from kci.starter.take_over import from_setup_py

TABLE = Path(__file__).resolve().parent.parent / "tests" / "starter" / "extensions.toml"
_LISTED = 20
"""So many sources are listed by name; of more, only the number stands in the table."""
_BACKEND = 'BACKEND = "cuda" if torch.version.cuda else "rocm" if torch.version.hip else "cpu"'
LITTLE = 4
"""A draft with no more left than this is one with little left."""


class Taken(Struct, forbid_unknown_fields=True):
    """What `[kernel.*]` of one backend has."""

    sources: list[str] | int
    headers: int
    flags: list[str]


class Entry(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One package."""

    url: str
    sha256: str
    extension: list[str] = []
    license: str = ""
    refused: str = ""
    left: int = 0
    """Lines of the draft that a person has to do."""
    errors: int = 0
    """What `kci check` reports besides: each ends a build."""
    operators: list[str] = []
    backends: dict[str, Taken] = field(default_factory=dict)
    built: list[str] = []
    """The backends for which a person has built it, and loaded it with the loader; CUDA without a GPU is verified."""
    edits: int = 0
    """So many of the lines that are left had to be done before it built."""


def entries() -> dict[str, Entry]:
    """The table."""
    return convert(tomlkit.parse(TABLE.read_text(encoding="utf-8")).unwrap(), dict[str, Entry])


def unpacked(entry: Entry, place: Path) -> Path:
    """The project of an entry, from the cache or the index; ValueError if it is not what the table says."""
    kept = default_cache() / "extensions" / entry.sha256
    if not kept.is_file():
        with urllib.request.urlopen(entry.url, timeout=120) as answer:
            raw = answer.read(64 * 1024 * 1024)
        if hashlib.sha256(raw).hexdigest() != entry.sha256:
            raise ValueError(f"{entry.url}: not the archive of the table")
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(raw)
    raw = kept.read_bytes()
    if hashlib.sha256(raw).hexdigest() != entry.sha256:
        kept.unlink()
        raise ValueError(f"{kept}: changed since it was fetched")
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        archive.extractall(place, filter="data")
    (top,) = place.iterdir()
    return top


def result(name: str, entry: Entry) -> Entry:
    """What comes out when kci takes a package over."""
    found = Entry(entry.url, entry.sha256, entry.extension, built=entry.built, edits=entry.edits)
    with tempfile.TemporaryDirectory() as folder:
        root = unpacked(entry, Path(folder))
        try:
            adopted = from_setup_py(root, choose(name, license=""), entry.extension)
        except KciError as error:
            found.refused = error.message.replace(str(root), "").lstrip("/: ")
            return found
    build = parse_kernel(adopted.files["build.toml"]).build
    found.license, found.left = build.general.license, len(adopted.left)
    with tempfile.TemporaryDirectory() as folder:
        _, said = create(Path(folder) / name, adopted.files, workflows=False)
    found.errors = sum(item.severity is Severity.ERROR and item.rule not in ("KCI165", "KCI166") for item in said)
    tests = adopted.files[f"tests/test_{name.replace('-', '_')}.py"].decode()
    listed = tests.partition("OPERATORS = [")[2].partition("@pytest")[0]
    found.operators = sorted(set(re.findall(r'"(\w+)"(?!:)', listed.replace(_BACKEND, ""))))
    for component in build.kernel.values():
        data = to_builtins(component)
        mine = found.backends.setdefault(str(component.backend), Taken([], 0, []))
        sources = [item for item in component.src if item.endswith((".cpp", ".cu", ".cc", ".c", ".cxx", ".hip"))]
        mine.sources = [*mine.sources, *sources]  # type: ignore[misc]
        mine.headers += len(component.src) - len(sources)
        flags = [
            *(data.get("cxx-flags") or data.get("cxx_flags") or ()),
            *(data.get("cuda-flags") or data.get("cuda_flags") or data.get("hip-flags") or data.get("hip_flags") or ()),
        ]
        mine.flags = list(dict.fromkeys([*mine.flags, *flags]))
    for mine in found.backends.values():
        if isinstance(mine.sources, list) and len(mine.sources) > _LISTED:
            mine.sources = len(mine.sources)
    return found


def rank(entry: Entry) -> str:
    """How much is left of a take-over; what only its tests are left of is whole."""
    if entry.refused:
        return "not at all"
    left = max(entry.left, entry.errors)  # most errors are lines that are left
    return "whole" if left <= 1 else "with little left" if left <= LITTLE else "with much left"


def _written(table: dict[str, Entry]) -> str:
    head = TABLE.read_text(encoding="utf-8").partition("\n[")[0].rstrip() if TABLE.is_file() else ""
    text = tomlkit.dumps(to_builtins(table))
    return f"{head}\n\n{text}"


def main(arguments: list[str]) -> int:
    """Compare, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--summary", action="store_true")
    given = parser.parse_args(arguments)
    table = entries()
    if given.summary:
        kinds: dict[str, list[str]] = {}
        for name, entry in table.items():
            kinds.setdefault(rank(entry), []).append(name)
        for kind, names in kinds.items():
            print(f"{len(names):>3} {kind}: {', '.join(names)}")
        built = [f"{name} ({', '.join(entry.built)})" for name, entry in table.items() if entry.built]
        print(f"{len(built):>3} built, and loaded or verified: {', '.join(built)}")
        return 0
    wrong = 0
    for name in given.names or table:
        found = result(name, table[name])
        if found != table[name]:
            wrong += 1
            print(f"{name}: {rank(found)}; not what the table says", file=sys.stderr)
        table[name] = found
    if given.write:
        TABLE.write_text(_written(table), encoding="utf-8")
    return int(bool(wrong) and not given.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
