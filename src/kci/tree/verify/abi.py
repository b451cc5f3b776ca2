"""ABI limits: system libraries and the recorded exports of Python, torch, CUDA and tvm-ffi per
version.

Exports are 32-bit hashes with a bit per version, with fewer false hits than one in 10,000. Torch's
include the `std::` names that its wheels link statically.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import struct
import subprocess
import zlib
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path

from kci.config.values import Version
from kci.utils.frozen import Frozen
from kci.utils.shipped import Dated, shipped

DATA = Path(__file__).parent / "data"


class NativeTable(Dated):
    """`native.toml`."""

    caps: dict[str, str]
    named: dict[str, tuple[str, ...]]
    static_tls: dict[str, int]
    libraries: dict[str, dict[str, tuple[str, ...]]]
    brings: dict[str, tuple[str, ...]]


class AddedTable(Dated):
    """Names by the version that added them."""

    added: dict[str, tuple[str, ...]]

    def by_name(self) -> dict[str, Version]:
        return {
            name: Version.parse(version) for version, names in self.added.items() for name in names
        }


native_table = shipped("tree/verify/data/native.toml", NativeTable)


class TvmFfiTable(AddedTable):
    """`tvm-ffi-exports.toml`."""

    oldest: str
    """The oldest supported release."""


tvm_ffi_table = shipped("tree/verify/data/tvm-ffi-exports.toml", TvmFfiTable)
tvm_ffi_exports = cache(lambda: tvm_ffi_table().by_name())
"""Exports by the release that added them."""


@cache
def python_symbols() -> dict[str, Version]:
    """CPython's stable ABI, by the version that added a symbol."""
    import abi3info

    tables = (abi3info.FUNCTIONS, abi3info.DATAS)
    found = ((symbol.name, entry.added) for table in tables for symbol, entry in table.items())
    return {name: Version.parse(f"{added.major}.{added.minor}") for name, added in found}


_torch_shims_table = shipped("tree/verify/data/torch-shims.toml", AddedTable)
torch_shims = cache(lambda: _torch_shims_table().by_name())
"""C shim functions since torch's first stable ABI, by version."""


# `GLIBCXX_3.4.24`
_VERSION = re.compile(r"([A-Z][A-Z0-9]*)_(\S+)")


def exceeded_cap(version: str, cpu: str) -> str | None:
    """The cap that a required version exceeds, such as `GLIBC_2.28`."""
    table = native_table()
    match = _VERSION.fullmatch(version)
    if not match or match[1] not in table.caps or version in table.named.get(cpu, ()):
        return None
    with suppress(ValueError):
        if Version.parse(match[2]) <= Version.parse(table.caps[match[1]]):
            return None
    return f"{match[1]}_{table.caps[match[1]]}"


def allowed_libraries(name: str, groups: tuple[str, ...], major: str) -> list[str]:
    """The table's libraries of the groups that DT_NEEDED may name so; `major` is the toolkit's, or
    empty.
    """
    return [
        library
        for group in groups
        for library in native_table().libraries.get(group, ())
        if fnmatch.fnmatchcase(name, library.replace("{major}", major))
    ]


def loaded_libraries(needed: Iterable[str], groups: tuple[str, ...], torch: str) -> frozenset[str]:
    """The table's libraries in which symbols are found: the needed ones, what those need, and the
    process's own.
    """
    table = native_table()
    known = {library for group in (*groups, "other") for library in table.libraries.get(group, ())}
    every = tuple(table.libraries)
    found = {library for name in needed for library in allowed_libraries(name, every, "*")}
    pending = [*found, *groups]
    while pending:
        item = pending.pop()
        brought = {*table.brings.get(item, ()), *table.brings.get(f"{item} {torch}", ())}
        new = known & brought - found
        found |= new
        pending += new
    return frozenset(found)


@cache
def _patterns() -> list[tuple[str, str, str]]:
    # with the letters before the first wildcard, and the library
    libraries = (item for group in native_table().libraries.values() for item in group.items())
    return [
        (re.split(r"[*\[]", item)[0], item, library)
        for library, patterns in libraries
        for item in patterns
    ]


def owners(name: str) -> frozenset[str]:
    """The table's libraries to which a symbol of this name belongs, if there is one."""
    scope = cpp_scope(name)
    text = "".join(f"{part}::" for part in scope or ()) or name
    fitting = [
        (len(start), library)
        for start, pattern, library in _patterns()
        if text.startswith(start) and fnmatch.fnmatchcase(text, pattern)
    ]
    return frozenset(library for length, library in fitting if length == max(fitting)[0])


# tables, type information, guards, thunks with offsets, local names
_SPECIAL = re.compile(r"T[VTIS]|GV|GR|Th?n?[0-9]+_|Tv[n0-9_]+_|TC|Z")
# a nested name with qualifiers (restrict, volatile, const) and references
_NESTED = re.compile(r"N[rVK]*[RO]?")


def cpp_scope(name: str) -> tuple[str, ...] | None:
    """Scope of a mangled name: `_ZN2at6Tensor4dataEv` is (`at`, `Tensor`, `data`); () without one,
    None for C names.
    """
    if not name.startswith("_Z"):
        return None
    rest = name[2:]
    while prefix := _SPECIAL.match(rest):
        rest = rest[prefix.end() :]
    nested = _NESTED.match(rest)
    if not nested:
        return ()
    rest = rest[nested.end() :]
    parts = []
    while length := re.match("[1-9][0-9]{0,3}", rest):
        end = length.end() + int(length[0])
        parts.append(rest[length.end() : end])
        rest = rest[end:]
    return tuple(parts)


def uses_old_string(name: str) -> bool:
    """True if a mangled name uses the `std::string` from before C++11."""
    kept = []
    rest = name
    while length := re.search("[1-9][0-9]{0,3}", rest):
        kept.append(rest[: length.start()])
        rest = rest[length.end() + int(length[0]) :]
    return name.startswith("_Z") and any("Ss" in part for part in [*kept, rest])


def cpp_namespace(name: str) -> str | None:
    """The outermost namespace of a mangled name; None for C names."""
    scope = cpp_scope(name)
    return None if scope is None else next(iter(scope), "")


TORCH_NAMESPACES = frozenset(("at", "c10", "caffe2", "torch"))
# a mangled name in `std::`, or an abbreviation of one
_STD = re.compile(r"_Z(?:T[VTIS])?(?:N[rVK]*[RO]?)?S[tabsiod]")
# torch's C interfaces
_C_NAME = re.compile(r"THP\w+|aoti_torch_\w+|torch_\w+")
_DEPENDS_ON_BUILD = re.compile(
    r"hip|xpu|mps|sycl|miopen|metal|mkldnn|onednn|cublas|cusparse|cudnn|cusolver|THRUST_|CUB_|magma|DECLARE_DISPATCH_type",
    re.IGNORECASE,
)
"""Parts of names that only some builds of a torch version have."""


class ExportsTable(Dated):
    """`torch-exports.toml` and `cuda-exports.toml`."""

    versions: tuple[str, ...]
    sha256: str


class Exports(Frozen):
    """The names that versions of a library export."""

    versions: tuple[str, ...]
    masks: dict[int, int]
    """A bit per version, by the hash of the name."""

    def versions_with(self, names: Iterable[str]) -> list[str]:
        """Recorded versions that export all names."""
        mask = (1 << len(self.versions)) - 1
        for name in names:
            mask &= self.masks.get(name_hash(name), 0)
        return [version for bit, version in enumerate(self.versions) if mask >> bit & 1]

    def missing(self, names: Iterable[str], version: str) -> list[str]:
        """Names that a version does not export; empty for an unrecorded version."""
        if version not in self.versions:
            return []
        return sorted(name for name in set(names) if version not in self.versions_with([name]))

    def provides(self, name: str, versions: Iterable[str]) -> bool:
        """True if all versions export a `std::` name; unrecorded versions do not count."""
        found = self.versions_with([name]) if is_std_name(name) else []
        return bool(found) and set(versions).intersection(self.versions) <= set(found)


def name_hash(name: str) -> int:
    """The hash in the export files."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def is_torch_name(name: str) -> bool:
    """True for symbols of torch for CPU or CUDA."""
    if _DEPENDS_ON_BUILD.search(name):
        return False
    return cpp_namespace(name) in TORCH_NAMESPACES or _C_NAME.fullmatch(name) is not None


_MANGLED = re.compile(r"\b_Z[A-Za-z0-9_$.]{2,900}")


def demangled(text: str) -> str:
    """A text with C++ names as authors write them, if this machine has `c++filt`."""
    return _MANGLED.sub(lambda match: _demangle(match[0]), text)


@lru_cache(maxsize=1024)
def _demangle(symbol: str) -> str:
    # A separate process: logs and libraries are untrusted, and demanglers crash on hostile input.
    try:
        done = subprocess.run(
            ["c++filt", symbol], capture_output=True, check=False, timeout=5, text=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return symbol
    name = done.stdout.strip()
    return name if done.returncode == 0 and name and len(name.splitlines()) == 1 else symbol


def is_std_name(name: str) -> bool:
    """True for symbols of the C++ standard library."""
    return _STD.match(name) is not None


def is_toolkit_name(name: str, backend: str) -> bool:
    """True for symbols of a backend's driver, runtime or libraries."""
    return cpp_scope(name) is None and not owners(name).isdisjoint(
        native_table().libraries.get(backend, ())
    )


def is_tvm_ffi_name(name: str) -> bool:
    """True for symbols that only tvm-ffi provides."""
    return name.startswith("TVMFFI") or cpp_namespace(name) == "tvm"


def torch_exports() -> Exports:
    """Recorded exports of torch's libraries."""
    return _exports("torch-exports")


def toolkit_exports(backend: str) -> Exports | None:
    """Recorded exports of a backend's libraries and driver, if they are recorded."""
    return _exports(f"{backend}-exports") if (DATA / f"{backend}-exports.toml").is_file() else None


@cache
def _exports(name: str) -> Exports:
    # ValueError: the two files do not belong together
    about = shipped(f"tree/verify/data/{name}.toml", ExportsTable)()
    packed = (DATA / f"{name}.bin").read_bytes()
    if hashlib.sha256(packed).hexdigest() != about.sha256:
        raise ValueError(f"{name}.bin is not the one that {name}.toml describes")
    data = zlib.decompress(packed)
    (count,) = struct.unpack_from("<I", data)
    planes = [data[4 + count * plane : 4 + count * (plane + 1)] for plane in range(5)]
    steps = map(int.from_bytes, zip(*planes[:4], strict=True))
    return Exports(about.versions, dict(zip(accumulate(steps), planes[4], strict=True)))
