"""What holds a binary back to older systems than this machine: kci's own sources, and the steps that compile them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kci.builders.commands import COMPAT_OBJECT, OLDER, Target, Toolchain, standard
from kci.builders.ninjafile import Step
from kci.toolchains.old_glibc import FOLDER, old_libraries

COMPAT_SOURCE = "compat.cpp"

_STAND_INS = Path(__file__).parent / "stand_ins"
"""Headers that come before the system's, a source that is part of every kernel, and sources of functions of which the
linker takes what is needed."""


@cache
def stand_ins() -> dict[str, str]:
    """The files, by their place in the work directory."""
    files = (path for path in sorted(_STAND_INS.rglob("*")) if path.is_file())
    return {path.relative_to(_STAND_INS).as_posix(): path.read_text(encoding="utf-8") for path in files}


def older_files(chain: Toolchain, target: Target) -> dict[str, str]:
    """What is written, by its place in the work directory; nothing where the machine is old enough itself."""
    if not chain.glibc_compat:
        return {}
    libraries = old_libraries(target.system)
    return dict(stand_ins()) | {name: text for library in libraries for name, text in library.files().items()}


def older_steps(chain: Toolchain, target: Target, generated: tuple[str, ...]) -> Iterator[Step]:
    """The commands; the link command names their outputs."""
    if not chain.glibc_compat:
        return

    def compiled(source: str, made: str, what: str, *flags: str) -> Step:
        command = (*chain.cxx, *flags, "-O3", "-fPIC", "-c", source, "-o", made)
        return Step(made, (source,), command, f"c++ {what}", generated)

    yield compiled(COMPAT_SOURCE, COMPAT_OBJECT, "compat", *standard(target, gnu=True))
    for library in old_libraries(target.system):
        link = tuple(library.command(chain.cxx))
        yield Step(library.path, (library.source,), link, f"link {library.path}", generated)
    archived: tuple[str, ...] = ()
    for source in (name for name in stand_ins() if name.startswith(f"{FOLDER}/") and name.endswith(".cpp")):
        made = f"{source}.o"
        archived = (*archived, made)
        yield compiled(source, made, source)
    inputs, parts = archived, chain.newer_parts
    if parts is not None:
        inputs, archived = (*inputs, parts.unpacked[0]), (*archived, *parts.unpacked)
        yield Step(parts.unpacked[0], (parts.library,), tuple(parts.unpack(chain.ar)), "ar newer", generated)
    yield Step(OLDER, inputs, (chain.ar, "rcsD", OLDER, *archived), f"ar {OLDER}", generated)
