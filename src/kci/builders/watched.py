"""What a native build depends on outside of the kernel: compilers, torch, and every file that was compiled in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import pairwise

from kci.builders.process import run
from kci.builders.recipe import Recipe

_PARTS: tuple[str, ...] = (
    "cc1plus",
    "collect2",
    "lto1",
    "lto-wrapper",
    "as",
    "ld",
    "ld.bfd",
    "ld.lld",
    "libstdc++.a",
    "libstdc++.so",
)
_PARTS += ("libgcc.a", "libgcc_eh.a", "libgcc_s.so", "libgcc_s.so.1", "libc.so", "libc.so.6", "libm.so", "libm.so.6")
_SEARCHED = ("-isystem", "-iquote", "-idirafter", "-include")
_ALWAYS_SEARCHED = "/usr/local/include"
_OF_TOOLKIT = ("bin", "nvvm/bin", "nvvm/libdevice", "lib", "lib64")


def watched_paths(recipe: Recipe, named: Iterable[str]) -> tuple[str, ...] | None:
    """Every path outside of the kernel whose change could make another binary, with the directories of those files.

    Args:
        recipe: what was compiled.
        named: what the compilers read (`named_by_compilers`).

    Returns:
        the paths as the compilers name them, so that a link that leads elsewhere counts too; None for ROCm and XPU,
        whose compilers do not list all that they read.
    """
    chain = recipe.chain
    if recipe.target.variant.backend in ("rocm", "xpu"):
        return None
    found = set(_read(recipe, named))
    found |= {os.path.dirname(path) for path in found}
    found |= {*_compiler(chain.cxx), *_compiler(chain.launcher), *_files(str(chain.environment.torch / "lib"))}
    found |= {str(chain.environment.ninja), str(chain.environment.torch), str(chain.environment.python)}
    if chain.cxx:
        found |= set(_parts(chain.cxx))
    if chain.cuda is not None:
        found |= {str(chain.cuda.nvcc), os.path.realpath(chain.cuda.nvcc)}
        found |= {path for name in _OF_TOOLKIT for path in _files(f"{chain.cuda.root}/{name}")}
    return tuple(sorted(found))


def _read(recipe: Recipe, named: Iterable[str]) -> Iterator[str]:
    """The files that compilers read and the directories that they were told to search, without what kci generates.

    A link in the work directory is followed.
    """
    links = {name: str(target) for name, target in recipe.links.items()}
    compiled = [step for step in recipe.steps if step.depfile]
    searched = {word[2:] for step in compiled for word in step.command if word.startswith("-I")}
    searched |= {after for step in compiled for word, after in pairwise(step.command) if word in _SEARCHED}
    for name in sorted({*named, *searched}):
        first, _, rest = name.partition("/")
        if name.startswith("/"):
            yield name
        elif first in links:
            yield f"{links[first]}/{rest}"
    yield _ALWAYS_SEARCHED


def _compiler(words: tuple[str, ...]) -> Iterator[str]:
    for word in words:
        if not word.startswith("-") and (found := shutil.which(word)):
            yield found
            yield os.path.realpath(found)


def _parts(cxx: tuple[str, ...]) -> Iterator[str]:
    """The directories in which a compiler looks for its parts and libraries, and the parts that they have."""
    for line in run([*cxx, "-print-search-dirs"]).output.splitlines():
        what, _, places = line.partition(": ")
        if what in ("install", "programs", "libraries"):
            for place in places.removeprefix("=").split(":"):
                directory = os.path.realpath(place)
                yield directory
                yield from (f"{directory}/{name}" for name in _PARTS if os.path.exists(f"{directory}/{name}"))


def _files(directory: str) -> Iterator[str]:
    """A directory and what is in it."""
    yield directory
    if os.path.isdir(directory):
        yield from (f"{directory}/{name}" for name in os.listdir(directory))
