"""Headers that components depend on besides torch: CUTLASS, where PyPI carries the version."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from kci.builders.cuda import fetch
from kci.builders.environment import pip_install
from kci.builders.request import Log
from kci.builders.toolchains import toolchains
from kci.config.values import Depend
from kci.errors import MissingToolError
from kci.files.lock import locked


class Headers(msgspec.Struct, frozen=True):
    """A header-only dependency that comes as a wheel."""

    name: str
    package: str
    folder: Path

    @property
    def include(self) -> tuple[str, ...]:
        """Where its headers are in the folder."""
        return ("cutlass_library/source/include", "cutlass_library/source/tools/util/include")

    @property
    def complete(self) -> bool:
        """Whether it is installed."""
        return self.folder.is_dir()

    def setup(self, python: Path, target: Path | None = None) -> list[str]:
        """The command that installs it."""
        return [*pip_install(python), "--no-deps", "--target", str(target or self.folder), self.package]


def find_headers(depends: Iterable[Depend], cache: Path) -> tuple[Headers, ...]:
    """The wheels behind a variant's `depends`.

    Args:
        depends: all dependencies of the variant's components; torch is always there.
        cache: the cache directory.

    Raises:
        MissingToolError: one of them cannot be had as a wheel.
    """
    found: list[Headers] = []
    for depend in depends:
        if depend is Depend.TORCH:
            continue
        package = toolchains().cutlass.get(depend)
        if package is None:
            have = ", ".join(sorted(toolchains().cutlass))
            hint = f"the native builder has torch, {have}; build with --builder nix for others"
            raise MissingToolError(f"the native builder does not support the dependency {depend.value}", hint=hint)
        found.append(Headers(depend.value, package, cache / "headers" / package.replace("==", "-")))
    return tuple(found)


def ensure_headers(headers: Iterable[Headers], python: Path, log: Log) -> None:
    """Install the headers that are not there yet.

    Raises:
        MissingToolError: a wheel cannot be installed.
    """
    for item in headers:
        with locked(item.folder, log):
            if not item.complete:
                log(f"installing {item.package} into {item.folder}")
                fetch(item.folder, lambda target, item=item: item.setup(python, target), item.name)  # type: ignore[misc]
