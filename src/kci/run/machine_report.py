"""Reports what this machine can build, test and run, without building or fetching anything."""

from __future__ import annotations

import enum
import os
import platform
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from kci.builders.process.container import require_engine
from kci.builders.process.run import run
from kci.builders.toolchains.compilers import (
    MANYLINUX_GLIBC,
    cxx_compiler,
    examine_device,
    find_compiler_cache,
    glibc_is_newer,
    version_line,
)
from kci.builders.toolchains.data import toolchains
from kci.builders.toolchains.downloads import OTHER_INDEX, is_reachable, pip_index
from kci.builders.toolchains.environment import TO_TEST
from kci.config.facts import BACKENDS, HOST
from kci.errors import KciError, MissingToolError, without_secrets
from kci.matrix.catalog.rows import Catalog
from kci.matrix.variants import this_system
from kci.utils.frozen import Frozen

_ROOM = 10 * 10**9
"""Bytes for torch with CUDA and its builds."""


class Health(enum.StrEnum):
    """The state of a tool."""

    OK = "ok"
    MISSING = "missing"
    NOTE = "note"


class ToolReport(Frozen):
    """A tool or resource and its state."""

    name: str
    health: Health
    detail: str
    remedy: str = ""
    """Usually a command; empty if nothing is missing."""


def examine_machine(cache: Path, catalog: Catalog, backends: Collection[str]) -> list[ToolReport]:
    """Examine this machine.

    `cache` is kci's cache directory; `catalog` has the toolkits of `backends` to look for.
    """
    return [*_basics(cache), *_toolkits(cache, catalog, backends), *_helpers()]


def _basics(cache: Path) -> Iterator[ToolReport]:
    machine = f"{this_system()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    yield ToolReport("system", Health.OK, machine)
    yield _examined_tool("C++ compiler", lambda: version_line(cxx_compiler()))
    with suppress(KciError):
        if glibc_is_newer(cxx_compiler()):
            remedy = "for publishing build in an image: kci build --container auto"
            remedy = f"nothing for your own use; {remedy}"
            message = f"newer than {MANYLINUX_GLIBC.text}, which published kernels may need"
            yield ToolReport("glibc", Health.NOTE, message, remedy)
    without = "install git; without it kci does not know commits and affected kernels"
    yield _program("git", ["git", "--version"], without)
    place = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    free = shutil.disk_usage(place).free
    message = f"{cache}, {free / 1e9:.0f} GB free"
    health, remedy = Health.OK, ""
    if not os.access(place, os.W_OK):
        health, message = Health.MISSING, f"{cache} cannot be written"
        remedy = "set KCI_CACHE to a directory that you can write"
    elif free < _ROOM:
        health = Health.NOTE
        remedy = "kci clean shows what it can remove; or set KCI_CACHE to another disk"
    yield ToolReport("cache", health, message, remedy)
    index = without_secrets(address := toolchains().index_url(HOST))
    health, message, remedy = Health.NOTE, f"{index} cannot be reached", _ONLY_CUDA
    if is_reachable(address):
        health, message, remedy = Health.OK, index, ""
    elif not is_reachable(pip_index()):
        message = f"neither {index} nor {without_secrets(pip_index())} can be reached"
        remedy = OTHER_INDEX
    yield ToolReport("torch's index", health, message, remedy)


_ONLY_CUDA = (
    "pip's own index may have torch for CUDA only, which `kci test` cannot import. To test, "
    f"{TO_TEST}"
)


def _toolkits(cache: Path, catalog: Catalog, backends: Collection[str]) -> Iterator[ToolReport]:
    # one per version in the catalog for this system
    system = this_system()
    rows = [row for row in catalog.rows if row.system == system and row.backend in backends]
    toolkits = {(row.backend, row.compute) for row in rows if row.compute}
    for backend, compute in sorted(toolkits):
        if BACKENDS[backend].compiled:
            find = partial(examine_device, backend, compute.minor_text, system, cache)
            yield _examined_tool(f"{backend} {compute.minor_text}", find)
    for backend in sorted({row.backend for row in rows}):
        if BACKENDS[backend].macos:
            message = "xcrun is here" if shutil.which("xcrun") else "there is no xcrun"
            remedy = "kci does not compile for it itself: kci build --builder nix"
            yield ToolReport(backend, Health.MISSING, message, remedy)


def _helpers() -> Iterator[ToolReport]:
    here = "builds then run on this machine itself"
    yield _examined_tool("containers", lambda: f"{require_engine()} answers", here)
    tool = None
    with suppress(KciError):
        tool = find_compiler_cache(cxx_compiler())
    lacks = (Health.NOTE, "none", "install ccache: rebuilds then take a fraction of the time")
    yield ToolReport("compiler cache", *((Health.OK, str(tool)) if tool else lacks))
    gpus = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    yield _program("GPU", gpus, "tests of GPU variants need one")
    yield _program(
        "nix", ["nix", "--version"], "only --builder nix needs it: https://nixos.org/download"
    )


def _examined_tool(
    name: str, find: Callable[[], str], otherwise: str = "", lacks: Health = Health.MISSING
) -> ToolReport:
    try:
        return ToolReport(name, Health.OK, find())
    except KciError as error:
        return ToolReport(name, lacks, error.message.splitlines()[0], error.hint or otherwise)


def _program(name: str, command: list[str], remedy: str) -> ToolReport:
    def first_line() -> str:
        if not shutil.which(command[0]):
            raise MissingToolError(f"{command[0]} is not installed")
        done = run(command)
        if done.code or not done.output.strip():
            raise MissingToolError(f"{command[0]} does not answer")
        return done.output.strip().splitlines()[0][:100]

    return _examined_tool(name, first_line, remedy, Health.NOTE)
