"""The extensions of the package index that `kci init --from --run` is held against:
tests/scaffold/extensions.toml.

    python bin/extensions.py [NAME ...]   # takes each over, and says where the result is not what
    the table says
    python bin/extensions.py --write      # writes what came out into the table: read the difference
    before you commit it

The archives are never committed. They come from their addresses with their digests into
KCI_CACHE/extensions.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

import tomlkit
from msgspec import Struct, convert, to_builtins

from kci.config.model import CudaComponent
from kci.config.reader import parse_kernel
from kci.errors import KciError
from kci.scaffold.from_setup import from_setup_py
from kci.scaffold.new_kernel import choose
from kci.utils.cache import default_cache

TABLE = Path(__file__).resolve().parent.parent / "tests" / "scaffold" / "extensions.toml"
_LISTED = 20
"""So many sources are listed by name; of more, only the number stands in the table."""


class Taken(Struct, forbid_unknown_fields=True):
    """What `[kernel.*]` of one backend has."""

    sources: list[str] | int
    flags: list[str]
    archs: list[str] = []


class Entry(Struct, forbid_unknown_fields=True):
    """One package."""

    url: str
    sha256: str
    backends: dict[str, Taken]


def entries() -> dict[str, Entry]:
    """The table."""
    return convert(tomlkit.parse(TABLE.read_text(encoding="utf-8")).unwrap(), dict[str, Entry])


def unpacked(entry: Entry, place: Path) -> Path:
    """The project of an entry, from the cache or the index; ValueError if it is not what the table
    says.
    """
    kept = default_cache() / "extensions" / entry.sha256
    if not kept.is_file():
        with urllib.request.urlopen(entry.url, timeout=120) as answer:
            raw = answer.read(64 * 1024 * 1024)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(raw)
    raw = kept.read_bytes()
    if hashlib.sha256(raw).hexdigest() != entry.sha256:
        kept.unlink()
        raise ValueError(f"{entry.url}: not the archive of the table")
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        archive.extractall(place, filter="data")
    (top,) = place.iterdir()
    return top


def result(name: str, entry: Entry) -> dict[str, Taken]:
    """What comes out when kci takes a package over, by backend."""
    with tempfile.TemporaryDirectory() as folder:
        adopted = from_setup_py(
            unpacked(entry, Path(folder)), choose(name), default_cache(), lambda _: None
        )
    found: dict[str, Taken] = {}
    for component in parse_kernel(adopted.files["build.toml"]).build.kernel.values():
        sources = [
            item for item in component.src if item.endswith((".cpp", ".cu", ".cc", ".c", ".cxx"))
        ]
        flags, archs = [*(component.cxx_flags or ())], []
        if isinstance(component, CudaComponent):
            flags += component.cuda_flags or ()
            archs += component.cuda_capabilities or ()
        mine = found.setdefault(str(component.backend), Taken([], [], []))
        mine.sources = [*mine.sources, *sources]  # type: ignore[misc]
        mine.flags = list(dict.fromkeys([*mine.flags, *flags]))
        mine.archs = list(dict.fromkeys([*mine.archs, *archs]))
    for mine in found.values():
        mine.sources = len(mine.sources) if len(mine.sources) > _LISTED else sorted(mine.sources)  # type: ignore[arg-type]
    return found


def main(arguments: list[str]) -> int:
    """Compare, or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    table = entries()
    wrong = 0
    for name in given.names or table:
        try:
            found = result(name, table[name])
        except KciError as error:
            print(f"{name}: {error.message}", file=sys.stderr)
            wrong += 1
            continue
        same = found == table[name].backends
        print(f"{name}: {'the same' if same else 'not what the table says'}")
        wrong += not same
        table[name].backends = found
    if given.write:
        head = TABLE.read_text(encoding="utf-8").partition("\n[")[0].rstrip()
        TABLE.write_text(f"{head}\n\n{tomlkit.dumps(to_builtins(table))}", encoding="utf-8")
    return int(bool(wrong) and not given.write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
