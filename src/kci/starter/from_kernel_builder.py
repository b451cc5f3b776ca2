"""A kernel from a repository of kernel-builder: its sources, and its build.toml in the newest edition."""

from __future__ import annotations

import re
from pathlib import Path

from kci.config.reader import BUILD_TOML, parse_kernel
from kci.config.update import plan_update
from kci.config.values import python_name
from kci.starter.adopted import Adopted, read_project

_NOT_NEEDED = {
    "flake.nix": "kci builds without Nix; to build with it all the same, copy it and use --builder nix",
    "flake.lock": "belongs to flake.nix",
    "CMakeLists.txt": "kernel-builder generates it, and kci does not use it",
    "setup.py": "kernel-builder generates it, and kci does not use it",
    "pyproject.toml": "kernel-builder generates it, and kci does not use it",
    "torch-ext/registration.h": "kci's build generates it",
}
"""Files that stay behind, and why."""

_GENERATED = re.compile(r"(cmake/.*|metadata-[a-z]+\.json|(torch|tvm-ffi)-ext/[^/]+/_ops\.py)")


def from_kernel_builder(root: Path) -> Adopted:
    """Take over a kernel-builder repository.

    Raises:
        UsageError: there is no such directory.
        FindingsError: its build.toml is invalid, or of a version that cannot be updated.
    """
    found, links = read_project(root)
    shown = str(root / BUILD_TOML)
    update = plan_update(found.get(BUILD_TOML, b""), str(root), shown)
    kernel = parse_kernel(update.after, str(root), shown)
    stays = {name: reason for name, reason in _NOT_NEEDED.items() if name in found}
    generated = sorted(name for name in found if _GENERATED.fullmatch(name))
    files = {name: data for name, data in found.items() if name not in stays and name not in generated}
    files[BUILD_TOML] = update.after
    taken = [f"{BUILD_TOML}: {', '.join(update.changes)}" if update.changes else f"{BUILD_TOML}: as it was"]
    taken.append(f"{len(files) - 1} other files, as they were")
    left = [f"{name} was not copied: {reason}" for name, reason in stays.items()]
    left += [f"{name} was not copied: it is generated" for name in generated]
    left += [f"{name} was not copied: it is a link" for name in links]
    package = f"{'tvm-ffi' if kernel.build.tvm_ffi else 'torch'}-ext/{python_name(kernel.build.name)}"
    if f"{package}/__init__.py" not in files:
        left.append(f"{package}/__init__.py is missing: it is what users import")
    if not any(re.search(rb"kernels_ci", data) for name, data in files.items() if name.startswith("tests/")):
        left.append("no test is marked with `pytest.mark.kernels_ci`: `kci test` would run none")
    return Adopted(kernel.build.name, files, tuple(taken), tuple(left))
