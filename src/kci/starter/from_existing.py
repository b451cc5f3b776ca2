"""A kernel from a repository of kernel-builder, and the files of any project that becomes one."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from kci.config.reader import BUILD_TOML, parse_kernel
from kci.config.update import plan_update
from kci.config.values import python_name
from kci.errors import FindingsError
from kci.files.bounded_json import read_bounded
from kci.files.walk import is_own, walk

MOST_FILES = 20_000
MOST_BYTES = 256 * 1024 * 1024


class Adopted(msgspec.Struct, frozen=True):
    """The files of a new kernel, and where they come from."""

    name: str
    files: dict[str, bytes]
    taken: tuple[str, ...]
    """What was taken over, a line each."""
    left: tuple[str, ...]
    """What is left to do, a line each, with its place."""


def read_project(root: Path) -> tuple[dict[str, bytes], list[str]]:
    """The files of a project, without hidden and built ones; and its links, which kci does not follow."""
    files: dict[str, bytes] = {}
    links: list[str] = []
    room = MOST_BYTES
    hint = "name the directory of one kernel, without what was built from it"
    too_much = FindingsError(f"{root} holds more than the sources of a kernel", hint=hint)
    for entry in walk(root):
        if not is_own(entry.name):
            continue
        if entry.link:
            links.append(entry.name)
        elif entry.regular:
            try:
                files[entry.name] = read_bounded(entry.path, room)
            except OSError as error:
                raise FindingsError(f"cannot read {entry.path}: {error.strerror}") from None
            except ValueError:
                raise too_much from None
            room -= len(files[entry.name])
        if len(files) > MOST_FILES:
            raise too_much
    return files, links


_NOT_NEEDED = {
    "flake.nix": "kci builds without Nix; to build with Nix, copy the file and use --builder nix",
    "flake.lock": "belongs to flake.nix",
    "CMakeLists.txt": "kernel-builder generates it, and kci does not use it",
    "setup.py": "kernel-builder generates it, and kci does not use it",
    "pyproject.toml": "kernel-builder generates it, and kci does not use it",
    "torch-ext/registration.h": "kci's build generates it",
}
"""Files that stay behind, and why."""

_GENERATED = re.compile(r"(cmake/.*|metadata-[a-z]+\.json|(torch|tvm-ffi)-ext/[^/]+/_ops\.py)")


def from_kernel_builder(root: Path) -> Adopted:
    """Take over a kernel-builder repository."""
    found, links = read_project(root)
    shown = str(root / BUILD_TOML)
    update = plan_update(found.get(BUILD_TOML, b""), str(root), shown)
    kernel = parse_kernel(update.after, str(root), shown)
    stays = {name: reason for name, reason in _NOT_NEEDED.items() if name in found}
    generated = sorted(name for name in found if _GENERATED.fullmatch(name))
    files = {name: data for name, data in found.items() if name not in stays and name not in generated}
    files[BUILD_TOML] = update.after
    taken = [f"{BUILD_TOML}: {', '.join(update.changes)}" if update.changes else f"{BUILD_TOML}: unchanged"]
    taken.append(f"{len(files) - 1} other files, unchanged")
    left = [f"{name} was not copied: {reason}" for name, reason in stays.items()]
    left += [f"{name} was not copied: it is generated" for name in generated]
    left += [f"{name} was not copied: it is a link" for name in links]
    package = f"{'tvm-ffi' if kernel.build.tvm_ffi else 'torch'}-ext/{python_name(kernel.build.name)}"
    if f"{package}/__init__.py" not in files:
        left.append(f"{package}/__init__.py is missing: it is what users import")
    if not any(re.search(rb"kernels_ci", data) for name, data in files.items() if name.startswith("tests/")):
        left.append("no test has the mark `pytest.mark.kernels_ci`: `kci test` runs only marked tests")
    return Adopted(kernel.build.name, files, tuple(taken), tuple(left))
