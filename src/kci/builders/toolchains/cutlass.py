"""Header-only dependencies such as CUTLASS: from a folder, a wheel, or a pinned commit."""

from __future__ import annotations

import enum
import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from kci.builders.process.run import Log, run, shell_line
from kci.builders.toolchains.data import CutlassRelease, SyclTlaVersion, toolchains
from kci.builders.toolchains.downloads import FetchedTool, pip_install, run_uv
from kci.config.values import Depend, Version
from kci.errors import MissingToolError
from kci.utils.atomic import full_disk_program_hint
from kci.utils.cache import CACHE_VARIABLE

SOURCE_DIR = "CUTLASS_SRC_DIR"
"""The reference's variable: a checkout of CUTLASS."""

SYCL_SOURCE_DIR = "SYCL_TLA_SRC_DIR"
"""The same for SYCL*TLA."""

_INCLUDE = ("include", "tools/util/include")
"""Include directories of a checkout, as in the reference."""

_WHEEL_INCLUDE = tuple(f"cutlass_library/source/{path}" for path in _INCLUDE)
_VERSION = re.compile(r"^#define CUTLASS_(MAJOR|MINOR)\s+(\d+)", re.MULTILINE)
_PROTOCOLS = "file:git:http:https:ssh"
_SECONDS = 60


class HeaderSource(enum.StrEnum):
    """Origin of headers."""

    FOLDER = "folder"
    WHEEL = "wheel"
    GIT = "git"


class Headers(FetchedTool):
    """A header-only dependency."""

    name: str
    """Name in `depends`, `cutlass_4_0`, and of the link in the work directory."""
    folder: Path
    include: tuple[str, ...]
    """Include directories in the folder."""
    source: HeaderSource
    where: str = ""
    """Requirement of the wheel, or URL of the repository."""
    release: CutlassRelease | None = None

    @property
    def place(self) -> Path | None:
        return None if self.source is HeaderSource.FOLDER else self.folder

    def setup(self, python: Path, target: Path | None = None) -> list[list[str]]:
        into = str(target or self.folder)
        match self.source:
            case HeaderSource.WHEEL:
                return [[*pip_install(python), "--no-deps", "--target", into, self.where]]
            case HeaderSource.GIT:
                assert self.release  # noqa: S101  - what git fetches is a release
                git = ["git", "-C", into]
                return [
                    ["git", "init", "--quiet", into],
                    [
                        *git,
                        "fetch",
                        "--quiet",
                        "--depth=1",
                        "--no-tags",
                        "--",
                        self.where,
                        self.release.commit,
                    ],
                    [*git, "checkout", "--quiet", "FETCH_HEAD", "--", *self.include],
                ]
            case _:
                return []

    def fetch(self, python: Path, place: Path, log: Log) -> None:
        log(f"getting {self.name} from {self.where}")
        for command in self.setup(python, place):
            # git's settings may redirect (`insteadOf`) or run commands (`ext::`)
            limits = {"GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_TERMINAL_PROMPT": "0"}
            environment = {**os.environ, **limits}
            wheel = self.source is HeaderSource.WHEEL
            done = run_uv(command, log, environment) if wheel else run(command, env=environment)
            if done.code != 0:
                raise MissingToolError(
                    f"cannot get {self.name}\n{shell_line(command)}\n{done.tail()}",
                    full_disk_program_hint(done.output, place, CACHE_VARIABLE) or _hint(self.name),
                )
        shutil.rmtree(place / ".git", ignore_errors=True)
        if self.source is not HeaderSource.WHEEL and self.release:
            digest = headers_digest(place)
            if digest != self.release.digest:
                message = (
                    f"{self.where} does not hold {self.name} {self.release.tag}: its headers have "
                    f"the digest {digest}"
                )
                raise MissingToolError(
                    f"{message}, not {self.release.digest}", "see git's `insteadOf`"
                )


def find_headers(
    depends: Iterable[Depend], cache: Path, log: Log, *, compute: str = ""
) -> tuple[Headers, ...]:
    """Find `depends`: variables first, then the wheel, then the pinned commit.

    Raises MissingToolError.

    `compute` is the oneAPI version of an XPU variant, for SYCL*TLA.
    """
    return tuple(
        _find(depend, cache, log, compute) for depend in depends if depend is not Depend.TORCH
    )


def headers_digest(folder: Path) -> str:
    """SHA-256 over a checkout's headers, as `sha256sum` lists them by path."""
    files = (path for part in _INCLUDE for path in (folder / part).rglob("*"))
    regular = (path for path in files if path.is_file() and not path.is_symlink())
    whole = hashlib.sha256()
    for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in regular):
        whole.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n".encode())
    return whole.hexdigest()


def tla_version(compute: str) -> SyclTlaVersion:
    """The SYCL*TLA of a oneAPI version. Raises MissingToolError."""
    known = toolchains().sycl_tla.versions
    version = Version.parse(compute).minor_text
    if version not in known:
        raise MissingToolError(
            f"there is no sycl_tla for oneAPI {version}",
            f"the reference has it for oneAPI {', '.join(sorted(known))}",
        )
    return known[version]


def _find(depend: Depend, cache: Path, log: Log, compute: str) -> Headers:
    sycl = depend is Depend.SYCL_TLA
    release = tla_version(compute).release if sycl else toolchains().cutlass.get(depend.value)
    if not release:
        have = ", ".join(sorted(toolchains().cutlass))
        raise MissingToolError(
            f"the native builder does not have the dependency {depend.value}",
            f"the native builder has torch, sycl_tla, {have}; build with --builder nix for others",
        )
    variable, project = (SYCL_SOURCE_DIR, "sycl-tla") if sycl else (SOURCE_DIR, "cutlass")
    if folder := os.environ.get(variable):
        return _checkout_headers(depend, variable, Path(folder).absolute(), release, log)
    if not release.commit:
        raise MissingToolError(
            f"kci cannot fetch {depend.value} {release.tag}: it knows no digest of it",
            f"set {variable} to a checkout of {toolchains().repositories[project]} at "
            f"{release.tag}",
        )
    wheel = release.wheel
    name = wheel.replace("==", "-") or f"{project}-{release.tag}-{release.commit[:12]}"
    return Headers(
        depend.value,
        cache / "headers" / name,
        _WHEEL_INCLUDE if wheel else _INCLUDE,
        HeaderSource.WHEEL if wheel else HeaderSource.GIT,
        wheel or toolchains().repositories[project],
        release,
    )


def _checkout_headers(
    depend: Depend, variable: str, folder: Path, release: CutlassRelease, log: Log
) -> Headers:
    version = folder / "include" / "cutlass" / "version.h"
    if not version.is_file():
        raise MissingToolError(
            f"{variable}={folder} holds no include/cutlass/version.h",
            "name the top directory of a checkout of CUTLASS, or unset it",
        )
    macros = dict(_VERSION.findall(version.read_text(encoding="utf-8", errors="replace")))
    has = f"{macros.get('MAJOR', '?')}.{macros.get('MINOR', '?')}"
    # SYCL*TLA has CUTLASS's version there
    if depend is not Depend.SYCL_TLA and not release.tag.startswith(f"v{has}."):
        log(
            f"{variable} holds CUTLASS {has}, and the kernel asks for {release.tag}: kci uses it "
            "as it is"
        )
    return Headers(depend.value, folder, _INCLUDE, HeaderSource.FOLDER, str(folder), release)


def _hint(name: str) -> str:
    variable = SYCL_SOURCE_DIR if name == Depend.SYCL_TLA.value else SOURCE_DIR
    return (
        f"set {variable} to a checkout, or lead git to a mirror by its setting "
        "`url.<mirror>.insteadOf`"
    )
