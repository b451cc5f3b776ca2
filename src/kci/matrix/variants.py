"""Variants and their names, in the reference builder's grammar.

    full      torch<VV>[-cxx11]-<compute>-<cpu>-<os>       cxx11 exactly on Linux
    stable    torch-stable-abi<VV>-<compute>-<cpu>-<os>
    tvm-ffi   tvm-ffi<VV>-<compute>-<cpu>-<os>
    noarch    torch-<backend>

VV is major and minor without a dot (2.9 is 29, 2.10 is 210, 2025.3.2 is 20253). The loader reads
one digit of major for torch and one digit of minor for compute versions, so it takes `rocm714`
for 71.4.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Collection, Sequence
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import asdict, replace

from kci.config.facts import BACKENDS, HOST
from kci.config.values import SYSTEMS, Backend, Version
from kci.utils.frozen import Frozen
from kci.utils.suggest import count


class Kind(enum.StrEnum):
    """The dependency of a variant on torch."""

    FULL = "full"
    STABLE_ABI = "stable-abi"
    TVM_FFI = "tvm-ffi"
    NOARCH = "noarch"


class VariantName(Frozen):
    """The parts of a variant name. Versions are `major.minor`; `system` is None for noarch."""

    kind: Kind
    backend: str
    system: str | None = None
    framework_version: str | None = None
    """Of torch, the stable ABI or tvm-ffi, by kind."""
    compute_version: str | None = None


def digits(version: Sequence[int]) -> str:
    """Major and minor without a dot: (2, 9) is `29`, (13,) is `130`."""
    major, minor = (*version, 0, 0)[:2]
    return f"{major}{minor}"


def variant_name(
    kind: Kind,
    backend: str,
    system: str,
    framework_version: tuple[int, ...],
    compute: tuple[int, ...] | None,
) -> str:
    """The name of a variant; the framework is torch, stable ABI or tvm-ffi.

    ValueError without a compute version.
    """
    if kind is Kind.NOARCH:
        return f"torch-{backend}"
    part = backend
    if prefix := BACKENDS[backend].compute_prefix:
        if compute is None:
            raise ValueError(f"{backend} needs a compute version")
        part = prefix + digits(compute)
    cxx11 = "-cxx11" if kind is Kind.FULL and system.endswith("-linux") else ""
    return f"{_FRAMEWORKS[kind]}{digits(framework_version)}{cxx11}-{part}-{system}"


_FRAMEWORKS = {Kind.STABLE_ABI: "torch-stable-abi", Kind.TVM_FFI: "tvm-ffi", Kind.FULL: "torch"}
_BACKENDS = {facts.compute_prefix or str(name): name for name, facts in BACKENDS.items()}
_COMPUTE = f"(?P<part>{'|'.join(_BACKENDS)})(?P<compute>[0-9]{{2,}})?"
_SYSTEM = r"(?P<system>(?:x86_64|aarch64)-(?:linux|darwin|windows))"
_FRAMEWORK = rf"(?P<framework>{'|'.join(_FRAMEWORKS.values())})(?P<vv>[0-9]{{2,}})"
_ARCH_NAME = rf"{_FRAMEWORK}(?P<cxx>-cxx11|-cxx98)?-{_COMPUTE}-{_SYSTEM}"
_OLD_NAMES = {old: str(name) for name, facts in BACKENDS.items() for old in facts.old_names}
_NOARCH_NAME = rf"torch-({'|'.join([*BACKENDS, *_OLD_NAMES, 'universal'])})"


def parse_variant_name(name: str) -> VariantName:
    """Parse a variant name or legacy form; ValueError for others."""
    if noarch := re.fullmatch(_NOARCH_NAME, name):
        return VariantName(Kind.NOARCH, _OLD_NAMES.get(noarch[1], noarch[1]))
    match = re.fullmatch(_ARCH_NAME, name)
    if (
        match is None
        or match["system"] not in SYSTEMS
        or (match["cxx"] and match["framework"] != "torch")
        or bool(match["compute"]) != bool(BACKENDS[_BACKENDS[match["part"]]].compute_prefix)
    ):
        raise ValueError(f"{name!r} is not a variant name")
    if match["cxx"] and not match["system"].endswith("-linux"):
        raise ValueError(f"{name!r} is not a variant name: the C++ ABI tag exists on Linux only")
    kind = next(kind for kind, framework in _FRAMEWORKS.items() if framework == match["framework"])
    return VariantName(
        kind,
        _BACKENDS[match["part"]],
        match["system"],
        f"{match['vv'][0]}.{int(match['vv'][1:])}",
        # `cu130` is CUDA 13.0, `xpu20253` is oneAPI 2025.3
        f"{compute[:-1]}.{compute[-1]}" if (compute := match["compute"]) else None,
    )


def is_variant_name(name: str) -> bool:
    """True if a loader accepts a directory of this name as a variant."""
    try:
        parse_variant_name(name)
    except ValueError:
        return False
    return True


def this_system() -> str:
    """This machine's system, as in variant names."""
    import platform

    machine = platform.machine().lower()
    cpu = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    return f"{cpu}-{'windows' if sys.platform == 'win32' else sys.platform}"


def cpu_of(system: str) -> str:
    """The CPU of a system or GCC triplet, `x86_64`."""
    return system.partition("-")[0]


def upload_name(kernel: str, leg: str) -> str:
    """The name of a leg's artifact, `kci-<kernel>.<leg>`; the dot separates relu from relu-fast."""
    return f"kci-{_escaped(kernel)}.{_escaped(leg)}"


Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._+-]{0,64}\Z")]
"""Text that is safe to print and to render."""


class ObjectUse(Frozen):
    """Number of objects that a build of a variant reused and compiled."""

    found: Annotated[int, Meta(ge=0)]
    made: Annotated[int, Meta(ge=0)]
    runs: tuple[Word, ...] = ()
    """CI runs of the packs with reused objects."""

    def __str__(self) -> str:
        runs = f", of run {' and '.join(self.runs)}" if self.runs else ""
        return f"{self.found} of {count(self.found + self.made, 'object')} are as they were{runs}"

    def __add__(self, other: ObjectUse) -> ObjectUse:
        runs = tuple(sorted({*self.runs, *other.runs}))
        return ObjectUse(self.found + other.found, self.made + other.made, runs)


def objects_name(kernel: str, leg: str) -> str:
    """The name of a leg's artifact with objects, `objects.<kernel>.<leg>`."""
    return f"objects.{_escaped(kernel)}.{_escaped(leg)}"


def artifact_name(kernel: str, variant: str, *, zstd: bool = False) -> str:
    """The file name of an artifact: `kci-<kernel>-<variant>.tar`, or `.tar.zst`; characters that
    names do not have are escaped for GitHub.
    """
    return f"kci-{_escaped(kernel)}-{_escaped(variant)}.tar{'.zst' if zstd else ''}"


def _escaped(text: str) -> str:
    return re.sub(
        rb"[^A-Za-z0-9._+-]", lambda match: b"%%%02x" % match[0][0], text.encode()
    ).decode()


class Variant(Frozen):
    """A named build output and its toolchain."""

    name: str
    kind: Kind
    backend: Backend
    system: str
    torch: Version | None
    compute: Version | None
    stable_abi: Version | None
    tvm_ffi: Version | None
    archs: tuple[str, ...] | None
    """In the order of metadata.json; None for backends without archs."""
    bundled: bool
    wheel: str | None = None
    """The exact torch of an overlay, such as `2.16.0rc1@nightly/cu132`; None for the one that kci
    takes."""
    archs_since: str | None = None
    """The day of the arch list for `archs`, of a compiled CUDA variant; None for the oldest."""
    loads: tuple[str, ...] = ()
    """The torch versions to load it with, oldest first; none if kci has no torch for it, or
    kci.toml says so."""

    @property
    def must_load(self) -> bool:
        """True if it is not fit for publishing before it is loaded; else it is loaded where torch
        installs.
        """
        return bool(self.loads) and must_load(self.name)


def must_load(name: str) -> bool:
    """True for variants whose torch is to be had wherever they are built: of the CPU, and compiled
    ones of CUDA.
    """
    parts = parse_variant_name(name)
    linux = parts.system is None or parts.system.endswith("-linux")
    return linux and (
        parts.backend == HOST or (parts.backend == Backend.CUDA and parts.kind is not Kind.NOARCH)
    )


class DroppedCandidate(Frozen):
    """A candidate that is not built, with the deciding rule and place."""

    system: str
    backend: str
    torch: str | None
    compute: str | None
    rule: str
    reason: str
    path: str
    line: int


class KeptCandidate(Frozen):
    """The reason why a variant is kept, for `--explain`."""

    variant: str
    system: str
    reason: str
    path: str
    line: int


class KernelMatrix(Frozen):
    """The kept and dropped candidates of one kernel in one tier."""

    name: str
    path: str
    version: int
    variants: tuple[Variant, ...]
    dropped: tuple[DroppedCandidate, ...] = ()
    kept: tuple[KeptCandidate, ...] = ()

    def loading(self, backends: Collection[str]) -> KernelMatrix:
        """The same, of which only variants of these backends are loaded."""
        variants = (
            item if item.backend in backends else replace(item, loads=()) for item in self.variants
        )
        return replace(self, variants=tuple(variants))

    def each_once(self, system: str = "x86_64-linux") -> list[Variant]:
        """The variants by name, each once; of a noarch variant that of `system`, if there
        is one.
        """
        by_name: dict[str, Variant] = {}
        for variant in sorted(self.variants, key=lambda item: (item.system != system, item.system)):
            by_name.setdefault(variant.name, variant)
        return [by_name[name] for name in sorted(by_name)]


class Matrix(Frozen):
    """The matrices of several kernels."""

    tier: str
    catalog_name: str
    catalog_as_of: str
    kernels: tuple[KernelMatrix, ...]


def matrix_json(matrix: Matrix, *, explain: bool = False) -> dict[str, Any]:
    """The documented JSON form (schema 1) for `msgspec.json.encode`; `explain` adds all
    decisions.
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
    left_out = {"archs_since", *(key for key in ("loads", "wheel") if not getattr(variant, key))}
    facts = asdict(variant).items()
    return {
        key: value.text if isinstance(value, Version) else value
        for key, value in facts
        if key not in left_out
    }
