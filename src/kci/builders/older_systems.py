"""What holds a binary back to older systems than this machine: generated files, and the steps that compile them."""

from __future__ import annotations

from collections.abc import Iterator

from kci.builders import generate
from kci.builders.commands import (
    COMPAT,
    COMPAT_OBJECT,
    COMPAT_SOURCE,
    OLDER,
    Target,
    Toolchain,
    compat_command,
    glibc_stubs,
    plain_command,
)
from kci.builders.ninjafile import Step
from kci.builders.old_glibc import CALLS


def files(chain: Toolchain) -> dict[str, str]:
    """The generated files, by their place in the work directory; none where the machine is old enough itself."""
    if not chain.glibc_compat:
        return {}
    made = {
        f"{COMPAT}/sys/single_threaded.h": generate.SINGLE_THREADED_H,
        f"{COMPAT}/bits/sstream.tcc": generate.SSTREAM_TCC,
        COMPAT_SOURCE: generate.COMPAT_CPP,
    }
    made |= CALLS
    for library in glibc_stubs(chain):
        made |= library.files()
    return made


def steps(chain: Toolchain, target: Target, generated: tuple[str, ...]) -> Iterator[Step]:
    """The commands; the link command names their outputs.

    Args:
        chain: what compiles.
        target: what is built.
        generated: the generated files, on which every step depends.
    """
    if not chain.glibc_compat:
        return
    yield Step(COMPAT_OBJECT, (COMPAT_SOURCE,), tuple(compat_command(chain, target)), "c++ compat", generated)
    for library in glibc_stubs(chain):
        link = tuple(library.command(chain.cxx))
        yield Step(library.path, (library.source,), link, f"link {library.path}", generated)
    archived: tuple[str, ...] = ()
    for source in CALLS:
        made = f"{source}.o"
        archived = (*archived, made)
        yield Step(made, (source,), tuple(plain_command(chain, source, made)), f"c++ {source}", generated)
    inputs, parts = archived, chain.newer_parts
    if parts is not None:
        inputs, archived = (*inputs, parts.unpacked[0]), (*archived, *parts.unpacked)
        yield Step(parts.unpacked[0], (parts.library,), tuple(parts.unpack()), "ar newer", generated)
    yield Step(OLDER, inputs, ("ar", "rcsD", OLDER, *archived), f"ar {OLDER}", generated)
