"""Compiler flags that choose the processors a kernel runs on: those of the machine that builds, or newer ones than all.

The name of a variant has no processor in it: its code runs on every one of its system (docs/format.md#requirements).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from kci.config.document import KeyPath
from kci.config.model import CudaComponent, RocmComponent, XpuComponent
from kci.config.reader import Kernel
from kci.files.dated_data import Dated, shipped

_NATIVE = re.compile(
    r"(?<![\w-])(?:-m(?:arch|cpu)=native|-xHost|/QxHost|--?(?:arch|gpu-architecture|gpu-code|offload-arch)[= ]native)\b"
)


class Flag(NamedTuple):
    """One flag of a build.toml."""

    backend: str
    """Empty for the bindings, which every backend has."""
    place: KeyPath
    text: str
    src: tuple[str, ...]
    """The sources of its table, headers included."""


class ProcessorFlags(Dated, frozen=True):
    """`processor-flags.toml`."""

    baseline: tuple[str, ...]
    features: tuple[str, ...]
    asks: tuple[str, ...]


processor_flags = shipped("config/data/processor-flags.toml", ProcessorFlags)
"""Which flags go beyond the oldest processors, and how sources ask for newer ones."""


def flags_of(kernel: Kernel) -> Iterator[Flag]:
    """Every flag of a build.toml, with its place."""
    build = kernel.build
    lists: list[tuple[str, KeyPath, tuple[str, ...] | None, tuple[str, ...]]] = []
    for name, table in (("torch", build.torch), ("tvm-ffi", build.tvm_ffi)):
        if table is not None:
            lists.append(("", (name, "cxx-flags"), table.cxx_flags, table.src))
    for label, component in build.kernel.items():
        mine = {"cxx-flags": component.cxx_flags}
        match component:
            case CudaComponent(cuda_flags=flags):
                mine["cuda-flags"] = flags
            case RocmComponent(hip_flags=flags):
                mine["hip-flags"] = flags
            case XpuComponent(sycl_flags=flags):
                mine["sycl-flags"] = flags
        lists += [(component.backend, ("kernel", label, key), flags, component.src) for key, flags in mine.items()]
    for backend, key, flags, src in lists:
        for index, text in enumerate(flags or ()):
            yield Flag(backend, (*key, index), text, src)


def native_flags(kernel: Kernel) -> Iterator[tuple[Flag, str]]:
    """The flags that take the processor, or the GPU, of the machine that builds, each with the part that does."""
    before = ""
    for flag in flags_of(kernel):
        if found := _NATIVE.search(flag.text) or (flag.text == "native" and _NATIVE.search(f"{before} native")):
            yield flag, found[0]
        before = flag.text


def newer_processor_flags(kernel: Kernel) -> list[tuple[Flag, str]]:
    """The flags that ask for newer processors than every machine of their system has, each with the part that does."""
    pattern = _newer()
    return [(flag, found[0]) for flag in flags_of(kernel) if (found := pattern.search(flag.text))]


def asks_the_processor(source: bytes) -> bool:
    """Whether a source has a word with which code asks what the processor can."""
    return any(word.encode() in source for word in processor_flags().asks)


@cache
def _newer() -> re.Pattern[str]:
    table = processor_flags()
    baseline = "|".join(map(re.escape, ("native", *table.baseline)))
    features = "|".join(map(re.escape, table.features))
    intel = r"-x(?:AVX|COMMON-AVX|CORE-AVX|MIC-AVX|[A-Z]+LAKE|[A-Z]+RAPIDS|HASWELL|BROADWELL)[\w-]*"
    return re.compile(
        rf"(?<![\w-])(?:-m(?:arch|cpu)=(?!(?:{baseline})(?![\w.+-]))[\w.+-]+|-m(?:{features})[\w.-]*|{intel}|/arch:AVX\w*)"
    )
