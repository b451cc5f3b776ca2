"""What compiles an object, so that another compiler has other objects: versions, and the programs byte for byte."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from kci.builders.commands import Toolchain, host_compiler
from kci.builders.files_now import FilesNow
from kci.processes.process import said
from kci.toolchains.compilers import environment_flags

_PARTS_OF_CXX = ("cc1plus", "as")
_PARTS_OF_CUDA = (
    *("bin/nvcc", "bin/nvcc.profile", "bin/cudafe++", "bin/fatbinary", "bin/nvlink", "bin/ptxas"),
    *("nvvm/bin/cicc", "nvvm/libdevice/*.bc"),
)
_PARTS_OF_ROCM = (
    *("bin/hipcc*", "llvm/bin/clang*", "lib/llvm/bin/clang*"),
    *("amdgcn/bitcode/*", "lib/llvm/lib/clang/*/*/*/bitcode/*"),
)


class ObjectCompilers:
    """The compilers of one build, as the names of objects know them."""

    def __init__(self, chain: Toolchain, files: FilesNow) -> None:
        """Nothing is asked yet."""
        self._chain = chain
        self._files = files
        self._known: dict[str, str] = {}
        self._launcher = chain.launcher.words() if chain.launcher is not None else []
        self._words = {host_compiler(chain.cxx): "c++"}
        if chain.cuda is not None:
            self._words[str(chain.cuda.nvcc)] = "nvcc"
        if chain.rocm is not None:
            self._words[str(chain.rocm.hipcc)] = "hipcc"

    def named(self, command: Sequence[str]) -> tuple[str, str]:
        """The digests of a command and of what it runs.

        Programs have the same word wherever they lie. A launcher that gives back the very bytes of the compiler makes
        no difference, nor do the threads of nvcc.
        """
        words = list(command)
        if self._chain.launcher is not None and words[0] == str(self._chain.launcher.program):
            words[0:1] = self._launcher
        if "--threads" in words:
            del words[(at := words.index("--threads")) : at + 2]
        words = [self._words.get(word, word) for word in words]
        device = next((word for word in ("nvcc", "hipcc") if word in words), "")
        native = any(word.endswith("=native") for word in words)
        key = f"{device} {native}"
        if key not in self._known:
            self._known[key] = _digest(list(self._identity(device, native=native)))
        return _digest(words), self._known[key]

    def _identity(self, device: str, *, native: bool) -> Iterator[str]:
        versions = self._chain.versions
        yield from versions[:1]  # the second is torch's, whose headers count as they are read
        yield from environment_flags()
        programs = list(self._programs())
        if device:
            yield from versions[2:]
            programs += self._device_programs()
        yield from sorted(f"{path.name} {self._files.digest(str(path))}" for path in programs)
        if native:
            yield from _this_processor()

    def _programs(self) -> Iterator[Path]:
        compiler = host_compiler(self._chain.cxx)
        for name in (compiler, *(said(compiler, f"-print-prog-name={part}").strip() for part in _PARTS_OF_CXX)):
            if found := shutil.which(name):
                yield Path(os.path.realpath(found))

    def _device_programs(self) -> Iterator[Path]:
        tools = ((self._chain.cuda, _PARTS_OF_CUDA), (self._chain.rocm, _PARTS_OF_ROCM))
        for root, parts in ((tool.root, parts) for tool, parts in tools if tool is not None):
            for part in parts:
                yield from (path for path in root.glob(part) if path.is_file())


def _this_processor() -> Iterator[str]:
    yield platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    yield from sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256(msgspec.json.encode(words)).hexdigest()
