"""Finds the places to verify below a path, and reads variant directories."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from pathlib import Path

from kci.config.reader import BUILD_TOML
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError, UsageError
from kci.matrix.variants import Kind, VariantName, is_variant_name, parse_variant_name
from kci.tree.artifacts import is_variant_dir
from kci.tree.identity import directory_digest, file_hashes
from kci.tree.manifest import FILE_NAME as MANIFEST_NAME
from kci.tree.metadata import FILE_NAME, Metadata, read_metadata
from kci.utils.atomic import sibling_path
from kci.utils.frozen import Frozen
from kci.utils.suggest import count
from kci.utils.walk import Entry, walk

_PE_OFFSET = 0x3C
_HEAD = 4096
_DEVICE_MACHINES = (190, 224)
"""ELF machines of GPU code (cubin, AMD code object), which is data for the host."""
_EXEC = 2
"""ELF type of a program with a fixed load address."""


class BinaryKind(enum.StrEnum):
    """Formats of native code."""

    ELF = "ELF"
    MACH_O = "Mach-O"
    PE = "PE"
    ARCHIVE = "static library"
    PROGRAM = "program"


def binary_kind(path: Path) -> BinaryKind | None:
    """Detect native code by content. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"\x7fELF"):
        kind, machine = (int.from_bytes(head[at : at + 2], "little") for at in (16, 18))
        host = BinaryKind.PROGRAM if kind == _EXEC else BinaryKind.ELF
        return None if machine in _DEVICE_MACHINES else host
    if head.startswith(
        (b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xfe\xed\xfa\xcf", b"\xfe\xed\xfa\xce")
    ):
        return BinaryKind.MACH_O
    # a Java class has the same magic; its version stands in place of the number of parts
    if head[:4] == b"\xca\xfe\xba\xbe" and len(head) >= 8 and int.from_bytes(head[4:8]) < 20:
        return BinaryKind.MACH_O
    if head.startswith(b"!<arch>\n"):
        return BinaryKind.ARCHIVE
    if head.startswith(b"MZ") and len(head) >= _PE_OFFSET + 4:
        offset = int.from_bytes(head[_PE_OFFSET : _PE_OFFSET + 4], "little")
        if head[offset : offset + 4] == b"PE\0\0":
            return BinaryKind.PE
    return None


LIBRARY_SUFFIXES = (".dll", ".dylib", ".pyd", ".so")


class VariantDir(Frozen):
    """A variant directory; None stands for parts that are unreadable and reported."""

    path: Path
    name: VariantName | None
    metadata: Metadata | None
    files: tuple[Entry, ...]
    hashes: dict[str, str] | None
    """Hex sha256 by file name."""

    @property
    def digest(self) -> str:
        return directory_digest(self.hashes or {})

    @property
    def noarch(self) -> bool:
        return self.name is not None and self.name.kind is Kind.NOARCH

    @property
    def platform(self) -> list[str]:
        """CPU and operating system of the name; empty texts without them."""
        return ((self.name and self.name.system) or "-").split("-")

    @property
    def module(self) -> str:
        """File name of the native module, if it is known and has one (docs/format.md#tree)."""
        if not self.name or not self.metadata or self.noarch:
            return ""
        _, system = self.platform
        if self.name.kind is Kind.TVM_FFI:
            return self.metadata.id + {"darwin": ".dylib", "windows": ".dll"}.get(system, ".so")
        return self.metadata.id + (".pyd" if system == "windows" else ".abi3.so")

    def regular(self) -> list[Entry]:
        """The regular files."""
        return [item for item in self.files if item.regular and not item.link]

    def libraries(self) -> list[tuple[Entry, BinaryKind | None]]:
        """Native libraries by content or name, with their detected kind."""
        libraries = []
        for item in self.regular():
            try:
                kind = binary_kind(item.path)
            except OSError:
                kind = None  # already reported
            name = item.path.name.lower()
            if kind or name.endswith(LIBRARY_SUFFIXES) or ".so." in name:
                libraries.append((item, kind))
        return libraries


def load_variant(path: Path, shown: str) -> tuple[VariantDir, list[Diagnostic]]:
    """Read a variant directory; the findings are about unreadable parts, with paths in it."""
    findings: list[Diagnostic] = []
    try:
        name = parse_variant_name(path.name)
    except ValueError as error:
        name = None
        findings.append(finding("KCI701", str(error)))
    try:
        metadata = read_metadata(path / FILE_NAME)
    except FindingsError as error:
        metadata = None
        message = error.message.replace(str(path / FILE_NAME), FILE_NAME)
        findings.append(finding("KCI710", message, FILE_NAME))
    files: tuple[Entry, ...] = ()
    hashes = None
    try:
        files = tuple(walk(path))
        hashes = file_hashes(path)
    except FindingsError as error:
        findings.append(finding("KCI700", error.message.replace(str(path), shown)))
    return VariantDir(path, name, metadata, files, hashes), findings


def looks_like_variant(path: Path) -> bool:
    """True if a directory has a variant's name or metadata."""
    return path.is_dir() and (is_variant_name(path.name) or (path / FILE_NAME).is_file())


def holds_variants(path: Path) -> bool:
    """True if variants lie right below a directory, which is not one itself."""
    return (
        path.is_dir()
        and not looks_like_variant(path)
        and any(looks_like_variant(item) for item in path.iterdir())
    )


BINARIES = ("build", "result")
"""Build outputs of a kernel: kci's and the reference's, and nix's link."""


class PlaceKind(enum.StrEnum):
    """Kinds of places."""

    SOURCES = "sources"
    TREE = "tree"
    VARIANT = "variant"
    OTHER = "no variants"
    """Such as setuptools' `build/`."""


class VerifiedPlace(Frozen, omit_defaults=True):
    """A path to verify."""

    kind: PlaceKind
    path: str
    """As the user wrote it."""
    variants: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        return Path(self.path)


def join_shown(shown: str, name: str) -> str:
    """Append a name to a path that the user wrote."""
    return name if shown == "." else f"{shown.rstrip('/')}/{name}"


def find_places(shown: str) -> list[VerifiedPlace]:
    """List the places at or below a path. Raises UsageError without any."""
    root = Path(shown)
    _require_not_aside(root, shown)
    if not root.is_dir():
        raise UsageError(
            f"{shown} is not a directory", "name a tree, a variant directory or a kernel"
        )
    if (root / BUILD_TOML).exists() and not _is_built(root):
        return [VerifiedPlace(PlaceKind.SOURCES, shown), *_kernel_places(root, shown)]
    places = _built_places(root, shown)
    if not places:
        raise UsageError(
            f"{shown} is neither a tree nor a variant directory nor a kernel",
            "a tree has variant directories such as torch213-cxx11-cpu-x86_64-linux, a kernel has "
            "a build.toml",
        )
    return places


_UNCHECKED = {"-darwin": "macOS", "-windows": "Windows"}
"""Systems without library rules, by suffix of the variant name."""


def describe_places(shown: str, places: Sequence[VerifiedPlace]) -> str:
    """Describe places in a line: `relu: sources, build (3 variants)`."""
    parts = []
    for place in places:
        where = (
            place.path.removeprefix(f"{shown.rstrip('/')}/")
            if place.path != shown
            else str(place.kind)
        )
        if place.kind is PlaceKind.TREE:
            where += f" ({count(len(place.variants), 'variant')})"
        elif place.kind is PlaceKind.OTHER:
            where += " (no variants)"
        parts.append(where)
    names = [name for place in places for name in place.variants or [place.directory.name]]
    if unchecked := [
        shown
        for ending, shown in _UNCHECKED.items()
        if any(name.endswith(ending) for name in names)
    ]:
        parts.append(f"libraries for {' and '.join(unchecked)} not checked")
    if [place.kind for place in places] == [PlaceKind.SOURCES]:
        parts.append(f"no {' or '.join(f'{name}/' for name in BINARIES)}")
    return f"{shown}: {', '.join(parts)}"


def _kernel_places(root: Path, shown: str) -> Iterator[VerifiedPlace]:
    for name in BINARIES:
        where = join_shown(shown, name)
        _require_not_aside(root / name, where)
        if (root / name).is_dir():
            yield from _built_places(root / name, where) or [VerifiedPlace(PlaceKind.OTHER, where)]


def _is_built(root: Path) -> bool:
    # with a build.toml, the name is not enough
    below = any(is_variant_name(item.name) and item.is_dir() for item in root.iterdir())
    return below or is_variant_dir(root.resolve()) or (root / MANIFEST_NAME).exists()


def _built_places(root: Path, shown: str) -> list[VerifiedPlace]:
    if looks_like_variant(root.resolve()):
        return [VerifiedPlace(PlaceKind.VARIANT, shown)]
    if _is_tree(root):
        return [_tree(root, shown)]
    trees = [
        _tree(item, join_shown(shown, item.name))
        for item in sorted(root.iterdir())
        if _is_tree(item)
    ]
    if root.resolve().name == "build" and not any(
        (item / MANIFEST_NAME).exists() for item in root.iterdir()
    ):
        # the variants of `build/build/` are one directory too deep
        trees = [tree for tree in trees if tree.directory.name == "build"]
        return [VerifiedPlace(PlaceKind.TREE, shown), *trees] if trees else []
    return trees


def _is_tree(path: Path) -> bool:
    return (path / MANIFEST_NAME).exists() or holds_variants(path)


def _tree(root: Path, shown: str) -> VerifiedPlace:
    names = (item.name for item in sorted(root.iterdir()) if looks_like_variant(item))
    return VerifiedPlace(PlaceKind.TREE, shown, tuple(names))


def _require_not_aside(root: Path, shown: str) -> None:
    if not root.is_dir() and (aside := sibling_path(root.absolute(), "old")).is_dir():
        raise UsageError(
            f"{shown} is not there: a killed kci had moved it to {aside}",
            f"`kci merge` puts it back, and so does: mv {aside} {root.absolute()}",
        )
