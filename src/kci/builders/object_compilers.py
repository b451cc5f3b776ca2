"""What compiles an object, so that another compiler has other objects: versions, and the programs byte for byte.

What a driver would run says what wrappers, its own configuration and files of arguments make of a command; it is asked
for each set of flags, with nothing to compile. It also says where includes are looked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from kci.builders.commands import CUDA, Toolchain, host_compiler
from kci.builders.files_now import FilesNow
from kci.matrix.names import this_system
from kci.processes.process import run, said
from kci.toolchains.compilers import environment_flags
from kci.toolchains.launcher import is_launcher

_PARTS_OF_CXX = ("cc1plus", "as")
_PARTS_OF_CUDA = (
    *("bin/nvcc", "bin/nvcc.profile", "bin/cudafe++", "bin/fatbinary", "bin/nvlink", "bin/ptxas"),
    *("nvvm/bin/cicc", "nvvm/libdevice/*.bc"),
    *("include/crt/host_runtime.h", "include/fatbinary_section.h"),  # read by what nvcc generates, and not listed
)
_PARTS_OF_ROCM = (
    *("bin/hipcc*", "llvm/bin/clang*", "lib/llvm/bin/clang*"),
    *("amdgcn/bitcode/*", "lib/llvm/lib/clang/*/*/*/bitcode/*"),
)


_RUNS = re.compile(r' .*(?:/cc1plus |"?-cc1"? )|COLLECT_GCC_OPTIONS=')
_GIVEN_ASIDE = re.compile(r"@\S+")
"""A file of arguments that a driver writes for the program that it runs."""
_NAMES_FOLDER = re.compile(
    r"(?:.*,)?(?:-g(?!en|0)|--coverage|-f(?:profile-arcs|test-coverage|profile-generate|coverage-mapping))"
)
"""Flags with which the object names the directory that it was compiled in."""
_OF_ONE_OBJECT = ("-c", "-o", "-MF", "-x")
"""What stands before a word that is another one for each object."""
_NVCC_DIRECTORIES = {
    **dict.fromkeys(("-I", "--include-path"), "-I"), **dict.fromkeys(("-isystem", "--system-include"), "-isystem")
}  # fmt: skip


class ObjectCompilers:
    """The compilers of one build, as the names of objects know them."""

    def __init__(self, chain: Toolchain, files: FilesNow) -> None:
        """Nothing is asked yet."""
        self._chain = chain
        self._files = files
        self._drivers: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {}
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
        if any(_NAMES_FOLDER.match(word) for word in words):
            words.append(os.path.realpath(self._files.work))
        device = next((word for word in ("nvcc", "hipcc") if word in words), "")
        native = any(word.endswith("=native") for word in words)
        key = f"{device} {native}"
        if key not in self._known:
            self._known[key] = _digest(list(self._identity(device, native=native)))
        return _digest(words), _digest([self._known[key], self._driver(command)[0]])

    def directories(self, command: Sequence[str]) -> tuple[str, ...]:
        """Where includes of a command are looked for, in order, seen from the work directory."""
        return self._driver(command)[1]

    def _driver(self, command: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        asked = tuple(self._question(command))
        if asked not in self._drivers:
            done = run(asked, cwd=self._files.work, env={**os.environ, "LC_ALL": "C"})
            lines = done.output.splitlines()
            runs = [_GIVEN_ASIDE.sub("", line.partition(" ")[2]) for line in map(str.strip, filter(_RUNS.match, lines))]
            text = "\n".join(runs).replace(os.path.realpath(self._files.work), ".")
            listed: dict[str, None] = dict.fromkeys(_named_directories(asked))
            inside = False
            for line in lines:
                inside = line.endswith("search starts here:") or (inside and line[:1] == " ")
                if inside and line[:1] == " ":
                    listed[line.strip().removesuffix(" (framework directory)")] = None
            self._drivers[asked] = (text, tuple(listed))
        return self._drivers[asked]

    def _question(self, command: Sequence[str]) -> Iterator[str]:
        words = iter(self._host_words(command))
        for word in words:
            if word in _OF_ONE_OBJECT:
                next(words)
            elif word != "-MD" and not word.startswith(("-D", "-frandom-seed=", "-cuid=")):
                yield word
        yield from ("-E", "-v", "-x", "c++", os.devnull)

    def _host_words(self, command: Sequence[str]) -> Iterator[str]:
        # what nvcc hands on to the compiler that reads the headers
        launcher, cuda = self._chain.launcher, self._chain.cuda
        words = list(command[launcher is not None and command[0] == str(launcher.program) :])
        if cuda is None or words[0] != str(cuda.nvcc):
            yield from words
            return
        yield host_compiler(self._chain.cxx)
        ends = (os.environ.get(name, "") for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"))
        first, last = map(shlex.split, ends)
        left = iter([*first, *words, *last])
        for word in left:
            if word in ("-Xcompiler", "--compiler-options"):
                yield from next(left, "").split(",")
            elif word in _NVCC_DIRECTORIES:
                yield from (_NVCC_DIRECTORIES[word], next(left, ""))
            elif word.startswith(("-I", "-isystem=", "--include-path=", "--system-include=")):
                option, _, value = word.partition("=") if "=" in word[:17] else ("-I", "", word[2:])
                yield from (_NVCC_DIRECTORIES[option], value)
        yield from ("-isystem", f"{CUDA}/include", "-isystem", f"{CUDA}/include/cccl")

    def _identity(self, device: str, *, native: bool) -> Iterator[str]:
        versions = self._chain.versions
        yield said(*self._chain.cxx, "-dumpmachine").strip()
        yield from versions[:1]  # the second is torch's, whose headers count as they are read
        yield from environment_flags()
        programs = list(self._programs())
        if device:
            yield from versions[2:]
            programs += self._device_programs()
        yield from sorted({f"{path.name} {self._files.digest(str(path))}" for path in programs})
        if native:
            yield from _this_processor()

    def _programs(self) -> Iterator[Path]:
        cxx = self._chain.cxx
        asked = (said(*cxx, f"-print-prog-name={part}").strip() for part in _PARTS_OF_CXX)
        for name in (*(word for word in cxx if not is_launcher(word)), *asked):
            if found := shutil.which(name):
                yield Path(os.path.realpath(found))

    def _device_programs(self) -> Iterator[Path]:
        tools = ((self._chain.cuda, _PARTS_OF_CUDA), (self._chain.rocm, _PARTS_OF_ROCM))
        for root, parts in ((tool.root, parts) for tool, parts in tools if tool is not None):
            for part in parts:
                yield from (path for path in root.glob(part) if path.is_file())


def _named_directories(words: Sequence[str]) -> Iterator[str]:
    # also those that are not there yet
    for number, word in enumerate(words):
        if word in ("-I", "-isystem"):
            yield words[number + 1]
        elif word.startswith("-I"):
            yield word[2:]


def _this_processor() -> Iterator[str]:
    yield this_system()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    yield from sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256(msgspec.json.encode(words)).hexdigest()
