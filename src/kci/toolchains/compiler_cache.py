"""ccache, through which compilers are started; or sccache, where somebody asks for it.

ccache gives back the very bytes of the compiler. sccache takes nvcc apart, and the object that it puts together differs
from nvcc's own; it goes by its own variables alone.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.errors import MissingToolError
from kci.plurals import count

CHOICE = "KCI_COMPILER_CACHE"
"""`sccache` or its path, or `off`; else it is ccache."""

_CACHES = ("ccache", "sccache")

RunId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._+-]{0,64}\Z")]


class ObjectUse(msgspec.Struct, frozen=True):
    """How many objects a build found, and how many it compiled."""

    found: Annotated[int, Meta(ge=0)]
    made: Annotated[int, Meta(ge=0)]
    runs: tuple[RunId, ...] = ()
    """The CI runs whose packs it was given, if it found any."""

    def __str__(self) -> str:
        runs = f", of run {' and '.join(self.runs)}" if self.runs else ""
        return f"{self.found} of {count(self.found + self.made, 'object')} are as they were{runs}"

    def __add__(self, other: ObjectUse) -> ObjectUse:
        runs = tuple(sorted({*self.runs, *other.runs}))
        return ObjectUse(self.found + other.found, self.made + other.made, runs)


def find_cache(cxx: Sequence[str] = ()) -> Path | None:
    """The program that compilers are started through; None for none.

    ccache is the one of kci's own environment, which has it as a dependency, else one on the PATH.

    Args:
        cxx: the C++ compiler; if `CXX` names a cache in front of it, kci adds none.

    Raises:
        MissingToolError: `KCI_COMPILER_CACHE` names a program that is not there, or none that kci knows.
    """
    choice = os.environ.get(CHOICE, "")
    if choice == "off" or (cxx and is_cache(cxx[0])):
        return None
    own = Path(sysconfig.get_path("scripts")) / "ccache"
    wanted = choice or "ccache"
    found = str(own) if wanted == "ccache" and own.is_file() else shutil.which(wanted)
    if choice and not (found and is_cache(choice)):
        hint = f"set {CHOICE} to sccache, the path of ccache or sccache, or off"
        raise MissingToolError(f"{CHOICE}={choice} names no compiler cache that is here", hint=hint)
    return Path(found).absolute() if found else None


def is_cache(program: str) -> bool:
    """Whether a program starts compilers and is none."""
    return Path(program).stem in _CACHES
