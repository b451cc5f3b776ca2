"""Header-only dependencies such as CUTLASS: from a folder, a wheel, or a pinned commit."""

from __future__ import annotations

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


class Headers(FetchedTool):
    """A header-only dependency."""

    name: str
    """Name in `depends`, `cutlass_4_0`, and of the link in the work directory."""
    folder: Path
    include: tuple[str, ...]
    """Include directories in the folder."""
    release: CutlassRelease | None = None
    """To be fetched from its wheel or from `repository`; None for a folder of this machine."""
    repository: str = ""

    @property
    def place(self) -> Path | None:
        return self.folder if self.release else None

    def setup(self, python: Path, target: Path | None) -> list[list[str]]:
        if not self.release:
            return []
        into = str(target)
        if wheel := self.release.wheel:
            return [[*pip_install(python), "--no-deps", "--target", into, wheel]]
        git = ["git", "-C", into]
        how = ["--quiet", "--depth=1", "--no-tags", "--"]
        return [
            ["git", "init", "--quiet", into],
            [*git, "fetch", *how, self.repository, self.release.commit],
            [*git, "checkout", "--quiet", "FETCH_HEAD", "--", *self.include],
        ]

    def fetch(self, python: Path, place: Path, log: Log) -> None:
        release = self.release
        assert release  # noqa: S101  - only a release is fetched
        where = release.wheel or self.repository
        log(f"getting {self.name} from {where}")
        # git's settings may redirect (`insteadOf`) or run commands (`ext::`)
        limits = {"GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_TERMINAL_PROMPT": "0"}
        for command in self.setup(python, place):
            done = run_uv(command, log) if release.wheel else run(command, env=os.environ | limits)
            if done.code != 0:
                variable, _ = _source_of(self.name)
                raise MissingToolError(
                    f"cannot get {self.name}\n{shell_line(command)}\n{done.tail()}",
                    full_disk_program_hint(done.output, place, CACHE_VARIABLE)
                    or f"set {variable} to a checkout, or lead git to a mirror by its setting "
                    "`url.<mirror>.insteadOf`",
                )
        shutil.rmtree(place / ".git", ignore_errors=True)
        if not release.wheel and (digest := headers_digest(place)) != release.digest:
            raise MissingToolError(
                f"{where} does not hold {self.name} {release.tag}: its headers have the digest "
                f"{digest}, not {release.digest}",
                "see git's `insteadOf`",
            )


def find_headers(
    depends: Iterable[Depend], cache: Path, log: Log, *, compute: str = ""
) -> tuple[Headers, ...]:
    """Find `depends`: variables first, then the wheel, then the pinned commit.

    Raises MissingToolError.

    `compute` is the oneAPI version of an XPU variant, for SYCL*TLA.
    """
    found = []
    for depend in depends:
        if depend is Depend.TORCH:
            continue
        known = toolchains().cutlass.get(depend.value)
        release = tla_version(compute).release if depend is Depend.SYCL_TLA else known
        if not release:
            have = ", ".join(sorted(toolchains().cutlass))
            raise MissingToolError(
                f"the native builder does not have the dependency {depend.value}",
                f"the native builder has torch, sycl_tla, {have}; build with --builder nix for "
                "others",
            )
        variable, project = _source_of(depend.value)
        repository, wheel = toolchains().repositories[project], release.wheel
        if folder := os.environ.get(variable):
            place = Path(folder).absolute()
            _require_checkout(depend, variable, place, release, log)
            found.append(Headers(depend.value, place, _INCLUDE))
        elif release.commit:
            name = wheel.replace("==", "-") or f"{project}-{release.tag}-{release.commit[:12]}"
            place, include = cache / "headers" / name, _WHEEL_INCLUDE if wheel else _INCLUDE
            found.append(Headers(depend.value, place, include, release, repository))
        else:
            raise MissingToolError(
                f"kci cannot fetch {depend.value} {release.tag}: it knows no digest of it",
                f"set {variable} to a checkout of {repository} at {release.tag}",
            )
    return tuple(found)


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


def _source_of(depend: str) -> tuple[str, str]:
    # the variable with a checkout, and the project
    if depend == Depend.SYCL_TLA.value:
        return SYCL_SOURCE_DIR, "sycl-tla"
    return SOURCE_DIR, "cutlass"


def _require_checkout(
    depend: Depend, variable: str, folder: Path, release: CutlassRelease, log: Log
) -> None:
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
