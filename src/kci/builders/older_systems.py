"""What holds a binary back to older systems than this machine: generated files, and the steps that compile them."""

from __future__ import annotations

from collections.abc import Iterator

from kci.builders import generate, newer_cxx
from kci.builders.commands import (
    COMPAT,
    COMPAT_OBJECT,
    COMPAT_SOURCE,
    Target,
    Toolchain,
    compat_command,
    glibc_stubs,
    plain_command,
)
from kci.builders.ninjafile import Step


def files(chain: Toolchain) -> dict[str, str]:
    """The generated files, by their place in the work directory; none where the machine is old enough itself."""
    if not chain.glibc_compat:
        return {}
    made = {
        f"{COMPAT}/sys/single_threaded.h": generate.SINGLE_THREADED_H,
        f"{COMPAT}/bits/sstream.tcc": generate.SSTREAM_TCC,
        COMPAT_SOURCE: generate.COMPAT_CPP,
    }
    if chain.newer_parts is not None:
        made[newer_cxx.SOURCE] = newer_cxx.OLDER_CPP
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
    parts = chain.newer_parts
    if parts is not None:
        compiled = tuple(plain_command(chain, newer_cxx.SOURCE, newer_cxx.OBJECT))
        yield Step(newer_cxx.OBJECT, (newer_cxx.SOURCE,), compiled, "c++ older", generated)
        yield Step(parts.unpacked, (parts.library,), tuple(parts.unpack()), "ar newer", generated)
        archived = tuple(parts.archive())
        inputs = (newer_cxx.OBJECT, parts.unpacked)
        yield Step(newer_cxx.ARCHIVE, inputs, archived, f"ar {newer_cxx.ARCHIVE}", generated)
