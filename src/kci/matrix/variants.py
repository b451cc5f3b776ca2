"""Variants and their names: what a build output is called, and what it is built against.

The grammar is the reference builder's:

    full      torch<VV>[-cxx11]-<compute>-<cpu>-<os>       cxx11 exactly on Linux
    stable    torch-stable-abi<VV>-<compute>-<cpu>-<os>
    tvm-ffi   tvm-ffi<VV>-<compute>-<cpu>-<os>
    noarch    torch-<backend>

where VV is major and minor run together (2.9 is 29, 2.10 is 210, 2025.3.2 is 20253). Readers split VV as the
loader does: one digit of major for torch, everything but the last digit for a compute version. That is wrong for a
compute version whose minor has two digits: ROCm 7.14 is written `rocm714`, which reads back as 71.4. A reader that
knows which versions exist can say so (`known`), and then gets 7.14.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from kci.config.facts import BACKENDS
from kci.config.values import SYSTEMS


class Kind(enum.StrEnum):
    """How a variant depends on torch."""

    FULL = "full"
    STABLE_ABI = "stable-abi"
    TVM_FFI = "tvm-ffi"
    NOARCH = "noarch"


class VariantName(msgspec.Struct, frozen=True):
    """The parts of a variant name. Versions are `major.minor`; `system` is None for noarch."""

    kind: Kind
    backend: str
    system: str | None = None
    framework_version: str | None = None
    """torch (full), stable ABI or tvm-ffi version, by kind."""
    compute_version: str | None = None


def digits(version: Sequence[int]) -> str:
    """Major and minor run together, a missing minor counted as 0: (2, 9) is `29`, (13,) is `130`."""
    major, minor = (*version, 0, 0)[:2]
    return f"{major}{minor}"


def variant_name(
    kind: Kind,
    backend: str,
    system: str,
    framework_version: tuple[int, ...],
    compute: tuple[int, ...] | None,
) -> str:
    """Name a variant. The framework is torch, the stable ABI or tvm-ffi, by kind; a noarch name has no system.

    Raises:
        ValueError: a backend with versions, without one.
    """
    if kind is Kind.NOARCH:
        return f"torch-{backend}"
    part = backend
    if prefix := BACKENDS[backend].compute_prefix:
        if compute is None:
            raise ValueError(f"{backend} needs a compute version")
        part = prefix + digits(compute)
    vv = digits(framework_version)
    match kind:
        case Kind.STABLE_ABI:
            return f"torch-stable-abi{vv}-{part}-{system}"
        case Kind.TVM_FFI:
            return f"tvm-ffi{vv}-{part}-{system}"
        case _:
            cxx11 = "-cxx11" if system.endswith("-linux") else ""
            return f"torch{vv}{cxx11}-{part}-{system}"


_PARTS = (f"{facts.compute_prefix}[0-9]{{2,}}" if facts.compute_prefix else name for name, facts in BACKENDS.items())
_COMPUTE = f"(?P<compute>{'|'.join(_PARTS)})"
_SYSTEM = r"(?P<cpu>x86_64|aarch64)-(?P<os>linux|darwin|windows)"
# Patterns are text here and compiled where they are first used: most commands take no name apart.
_ARCH_NAME = (
    rf"(?:torch-stable-abi(?P<stable>[0-9]{{2,}})|tvm-ffi(?P<tvm>[0-9]{{2,}})"
    rf"|torch(?P<torch>[0-9]{{2,}})(?P<cxx>-cxx11|-cxx98)?)-{_COMPUTE}-{_SYSTEM}"
)
_OLD_NAMES = {old: str(name) for name, facts in BACKENDS.items() for old in facts.old_names}
_NOARCH_NAME = rf"torch-({'|'.join([*BACKENDS, *_OLD_NAMES, 'universal'])})"


def parse_variant_name(name: str, known: Collection[tuple[str, Sequence[int]]] = ()) -> VariantName:
    """Take a variant name apart; ValueError if it is not a variant name.

    The legacy forms that a loader still accepts (`-cxx98`, a Linux name without a tag, `torch-universal`, `torch-npu`)
    are accepted too. `known` are backends with compute versions that exist: where exactly one of them is written with
    the name's digits, the name means that one, even if a loader reads another. See the module's text.
    """
    if noarch := re.fullmatch(_NOARCH_NAME, name):
        return VariantName(Kind.NOARCH, _OLD_NAMES.get(noarch[1], noarch[1]))
    found = re.fullmatch(_ARCH_NAME, name)
    if found is None or f"{found['cpu']}-{found['os']}" not in SYSTEMS:
        raise ValueError(f"{name!r} is not a variant name")
    if found["cxx"] and found["os"] != "linux":
        raise ValueError(f"{name!r} is not a variant name: the C++ ABI tag exists on Linux only")
    part, vv = found["compute"].rstrip("0123456789"), found["compute"].lstrip("abcdefghijklmnopqrstuvwxyz")
    backend = next((backend for backend, facts in BACKENDS.items() if facts.compute_prefix == part), part)
    compute = f"{vv[:-1]}.{vv[-1]}" if vv else None  # `cu130` is CUDA 13.0, `xpu20253` is oneAPI 2025.3
    if compute is not None and known:
        compute = _resolve(backend, compute, known)
    system = f"{found['cpu']}-{found['os']}"
    if found["stable"]:
        return VariantName(Kind.STABLE_ABI, backend, system, _split_short(found["stable"]), compute)
    if found["tvm"]:
        return VariantName(Kind.TVM_FFI, backend, system, _split_short(found["tvm"]), compute)
    return VariantName(Kind.FULL, backend, system, _split_short(found["torch"]), compute)


def is_variant_name(name: str) -> bool:
    """True if a loader would take a directory of this name for a variant."""
    try:
        parse_variant_name(name)
    except ValueError:
        return False
    return True


def _split_short(vv: str) -> str:
    """`213` is 2.13: a framework's major version has one digit."""
    return f"{vv[0]}.{int(vv[1:])}"


def _resolve(backend: str, compute: str, known: Collection[tuple[str, Sequence[int]]]) -> str:
    """The one known version that is written like `compute`; `compute` itself where no version is, or several are."""
    versions = [(*version, 0, 0)[:2] for other, version in known if other == backend]
    short = tuple(int(part) for part in compute.split("."))
    candidates = {version for version in versions if digits(version) == digits(short)}
    if len(candidates) != 1:
        return compute
    return ".".join(str(part) for part in candidates.pop())


def this_system() -> str:
    """The system of this machine, as variants name it."""
    import platform

    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    os_name = {"win32": "windows"}.get(sys.platform, sys.platform)
    return f"{machine}-{os_name}"


def cpu_of(system: str) -> str:
    """The first part of a system's name, `x86_64`; so of a triplet of GCC's."""
    return system.partition("-")[0]


_UNSAFE = r"[^A-Za-z0-9._+-]"


def artifact_stem(kernel: str, name: str) -> str:
    """What an artifact is called, without an ending: `kci-<kernel>-<name>`, different for different legs.

    The name is that of the variant, or of a group of variants that share a leg.

    GitHub refuses quotes, colons, angle brackets, bars, stars, question marks, line ends and slashes in it, and file
    systems that ignore case would mix up names that differ in nothing else. Names of kernels and variants have no such
    characters and are taken as they are; each other character becomes `%` and the hexadecimal digits of its bytes,
    which no name can hold otherwise, so that no two names become one.
    """
    return f"kci-{_escaped(kernel)}-{_escaped(name)}"


def upload_name(kernel: str, leg: str) -> str:
    """Under which name a leg uploads what it made: `kci-<kernel>.<leg>`.

    No kernel's name has a dot, so that `kci-relu.*` are the legs of relu and not those of relu-fast.
    """
    return f"kci-{_escaped(kernel)}.{_escaped(leg)}"


def objects_name(kernel: str, leg: str) -> str:
    """Under which name a leg uploads the objects that it used or made: `objects.<kernel>.<leg>`."""
    return f"objects.{_escaped(kernel)}.{_escaped(leg)}"


def artifact_name(kernel: str, variant: str, *, zstd: bool = False) -> str:
    """The file name of an artifact: `kci-<kernel>-<variant>.tar`, or `.tar.zst`."""
    return f"{artifact_stem(kernel, variant)}.tar{'.zst' if zstd else ''}"


def _escaped(text: str) -> str:
    return re.sub(_UNSAFE, lambda found: "".join(f"%{byte:02x}" for byte in found[0].encode()), text)


class Variant(msgspec.Struct, frozen=True):
    """One named build output, and what it is built against."""

    name: str
    kind: Kind
    backend: str
    system: str
    torch: str | None
    compute: str | None
    stable_abi: str | None
    tvm_ffi: str | None
    archs: tuple[str, ...] | None
    """In the order of metadata.json; None for backends without archs."""
    bundled: bool
    archs_since: str | None = None
    """The day of the arch list that `archs` was made with, for a compiled CUDA variant; None for the oldest list."""
    loads: tuple[str, ...] = ()
    """In the compat tier, the torch versions with which the built variant is loaded and tested; for the CPU only."""


class Dropped(msgspec.Struct, frozen=True):
    """A candidate that is not built, and the rule and place that decided it."""

    system: str
    backend: str
    torch: str | None
    compute: str | None
    rule: str
    reason: str
    path: str
    line: int


class Kept(msgspec.Struct, frozen=True):
    """Why a variant is in the matrix, for `--explain`."""

    variant: str
    system: str
    reason: str
    path: str
    line: int


class KernelMatrix(msgspec.Struct, frozen=True):
    """All candidates of one kernel in one tier: the variants kept, and those dropped."""

    name: str
    path: str
    version: int
    variants: tuple[Variant, ...]
    dropped: tuple[Dropped, ...] = ()
    kept: tuple[Kept, ...] = ()

    def each_once(self, system: str = "x86_64-linux") -> list[Variant]:
        """The variants by name, each once; of a noarch variant the row of a system where there is one."""
        by_name: dict[str, Variant] = {}
        for variant in sorted(self.variants, key=lambda item: (item.system != system, item.system)):
            by_name.setdefault(variant.name, variant)
        return [by_name[name] for name in sorted(by_name)]


class Matrix(msgspec.Struct, frozen=True):
    """The matrices of several kernels."""

    tier: str
    catalog_name: str
    catalog_as_of: str
    kernels: tuple[KernelMatrix, ...]


def matrix_json(matrix: Matrix, *, explain: bool = False) -> dict[str, Any]:
    """The documented JSON form (schema 1), for `msgspec.json.encode`.

    Explained, it has every candidate that was kept or dropped, with rule, reason and place.
    """
    kernels = []
    for kernel in matrix.kernels:
        entry: dict[str, Any] = {
            "name": kernel.name,
            "path": kernel.path,
            "version": kernel.version,
            "variants": [_variant(variant) for variant in kernel.variants],
        }
        if explain:
            entry |= {"kept": kernel.kept, "dropped": kernel.dropped}
        kernels.append(entry)
    catalog = {"name": matrix.catalog_name, "as_of": matrix.catalog_as_of}
    return {"schema": 1, "tier": matrix.tier, "catalog": catalog, "kernels": kernels}


def _variant(variant: Variant) -> dict[str, Any]:
    """What the form has of a variant; the archs say all that their list's day could."""
    left_out = {"archs_since"} if variant.loads else {"archs_since", "loads"}
    return {key: value for key, value in msgspec.structs.asdict(variant).items() if key not in left_out}
