"""What a variant is made from, as one hash.

Two variants of the same fingerprint are the same binaries up to what every build has of its own: the unique id (which
names the module after the state of the repository) and the commit in the metadata. So a published variant need not be
built again while its fingerprint stays. In doubt the fingerprint moves: a build too many costs minutes, one too few
ships old code.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kci.catalog.arch_tables import OLDEST, arch_tables
from kci.catalog.runners import Runners, default_runners
from kci.config.model import Build, CudaComponent, RocmComponent
from kci.config.reader import Kernel
from kci.config.values import Version
from kci.errors import FindingsError
from kci.matrix.archs import component_archs
from kci.matrix.variants import Matrix, Variant
from kci.plan.inputs import active, effect, kernel_files, scan
from kci.plan.legs import Unplaced, each_once, place
from kci.version import __version__

SCHEMA = 1
"""Part of every fingerprint: a change of what is hashed, or how, makes all of them new."""

PACKAGE = Path(__file__).parent.parent
"""Where kci itself lies."""

_BUILDING = (
    "builders",
    "catalog/data/floors.toml",
    "run/one_variant.py",
    "tree/depends.py",
    "tree/digest.py",
    "tree/identity.py",
    "tree/metadata.py",
)
"""The parts of kci that decide what is in a variant directory."""

_NOT_IN_BYTES = ("archs_since", "bundled")
"""What is known of a variant and decides nothing about its bytes."""

_SELECTION_ONLY = ("cuda_minver",)
"""Keys of a component that say whether it is compiled, and nothing about how."""


def fingerprints(
    kernels: Iterable[Kernel], matrix: Matrix, runners: Runners | None = None, *, container: bool = True
) -> dict[tuple[str, str], str]:
    """The fingerprints of every variant of a matrix, by kernel and variant name.

    Args:
        kernels: the kernels of the matrix.
        matrix: their variants.
        runners: where the images of the legs come from.
        container: whether legs build in images.

    Raises:
        FindingsError: a file cannot be read.
    """
    runners = runners or default_runners()
    by_path = {kernel.directory: kernel for kernel in kernels}
    found = {}
    for selected in matrix.kernels:
        files = Files(by_path[selected.path])
        for name, variant in each_once(selected):
            placed = place(variant, runners, container=container, kernel=selected.name)
            image = "" if isinstance(placed, Unplaced) else placed.image
            found[selected.name, name] = files.fingerprint(variant, image)
    return found


class Files:
    """The files of one kernel, each hashed once, and which component reads which."""

    def __init__(self, kernel: Kernel) -> None:
        self.build = kernel.build
        self.root = Path(kernel.directory)
        uses = scan(self.root, self.build)
        self._effects = {path: effect(path, self.build, uses) for path in kernel_files(self.root, self.build, uses)}
        self._hashes: dict[str, str] = {}

    def of(self, variant: Variant) -> list[str]:
        """The files that decide a variant, sorted."""
        labels = active(self.build, variant).keys()
        return [path for path, found in self._effects.items() if found.labels is None or found.labels & labels]

    def fingerprint(self, variant: Variant, image: str) -> str:
        """The fingerprint of one variant, 64 hexadecimal digits.

        Args:
            variant: which one.
            image: the image that it is built in; empty for none.

        Raises:
            FindingsError: a file cannot be read.
        """
        total = hashlib.sha256(_encoded([SCHEMA, builder(), image, configuration(self.build, variant)]))
        for path in self.of(variant):
            total.update(f"{path}\0{self._hash(path)}\n".encode(errors="surrogateescape"))
        return total.hexdigest()

    def _hash(self, path: str) -> str:
        if path not in self._hashes:
            self._hashes[path] = content(self.root, path)
        return self._hashes[path]


def configuration(build: Build, variant: Variant) -> dict[str, Any]:
    """What build.toml and the catalog decide about a variant's bytes.

    Bounds on versions, the edition, the place on the Hub and the labels of components decide which variants there are
    and where they go, not what is in them.
    """
    general = build.general
    own = getattr(general, variant.backend, None)
    framework = build.framework
    return {
        "name": build.name,
        "version": general.version,
        "license": general.license,
        "upstream": general.upstream,
        "source": general.source,
        "python-depends": [general.python_depends, getattr(own, "python_depends", None)],
        "kernel-depends": [general.kernel_depends, getattr(own, "kernel_depends", None)],
        "framework": build.framework_name,
        "src": getattr(framework, "src", None),
        "include": getattr(framework, "include", None),
        "cxx-flags": getattr(framework, "cxx_flags", None),
        "pyext": framework.pyext,
        "variant": {key: value for key, value in msgspec.structs.asdict(variant).items() if key not in _NOT_IN_BYTES},
        "components": [_component(build, label, variant) for label in active(build, variant)],
    }


def _component(build: Build, label: str, variant: Variant) -> dict[str, Any]:
    part = build.kernel[label]
    keys = {key: value for key, value in msgspec.structs.asdict(part).items() if key not in _SELECTION_ONLY}
    if isinstance(part, CudaComponent | RocmComponent) and variant.compute is not None:
        tables = arch_tables(variant.archs_since or OLDEST)
        keys["built for"] = component_archs(part, Version.parse(variant.compute), tables)
    return keys


@cache
def builder() -> str:
    """The builder's version: kci's own, and a hash of the code and data that make variants.

    The version alone would not do: an action is used by commit, and commits between two releases share a version.
    """
    package = PACKAGE
    total = hashlib.sha256()
    for part in _BUILDING:
        where = package / part
        files = sorted(where.rglob("*")) if where.is_dir() else [where]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                name = file.relative_to(package).as_posix()
                total.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return f"{__version__}+{total.hexdigest()[:16]}"


def content(root: Path, path: str) -> str:
    """The hash of a file's content; of a link that leads out of the kernel's directory, where it leads.

    Raises:
        FindingsError: the file is there and cannot be read.
    """
    file = root / path
    real = Path(os.path.realpath(file))
    if not real.is_relative_to(os.path.realpath(root)) or real.is_dir():
        return f"-> {file.readlink()}" if file.is_symlink() else "directory"
    try:
        if not stat.S_ISREG(real.stat().st_mode):
            return "no file"
        with real.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return "missing"  # building it will fail and say so
    except OSError as error:
        raise FindingsError(f"cannot read {file}: {error.strerror}") from error


def same_configuration(old: Build, new: Build, before: Mapping[str, Variant], after: Variant) -> bool:
    """Whether a variant was in the matrix before, made from the same configuration."""
    earlier = before.get(after.name)
    return earlier is not None and _encoded(configuration(old, earlier)) == _encoded(configuration(new, after))


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str, order="deterministic")
