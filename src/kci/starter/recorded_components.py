"""The components of build.toml out of the extensions that a setup.py has made, and what of them is left to a person."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kci.config.values import Depend, python_name
from kci.inputs.include_scan import scan
from kci.starter.cpp_text import conditions, holds
from kci.starter.run_setup import RecordedExtension, relative

_COMPILED = (".cpp", ".cc", ".cxx", ".c", ".cu", ".hip")
_OF_TORCH = re.compile(
    r"(?:c10|torch|at|cuda|cublas|cudart|cusparse|cusolver|curand|cufft|cudnn|nvrtc|nvToolsExt|amdhip|hip|roc|gomp|stdc\+\+|m$|pthread|dl$|gcc)"
)
"""Libraries that torch, its CUDA or every system brings."""


_NOT_THERE = re.compile(
    r"(?m)^[ \t]*#[ \t]*include[ \t]*[<\"]"
    r"((?:(THC)/(?!THCAtomics|THCDeviceUtils)|ATen/cuda/|c10/cuda/|cuda\.h|cuda_runtime|cublas|cusparse)[\w./-]*)"
)
_BROUGHT = ("/usr/local/cuda", "/opt/rocm", "/usr/lib/python3/site-packages", "/usr/include", "/numpy", "/pybind11")
"""Include directories that the build has."""
_MACROS = {"cpu": {"CPU_KERNEL"}, "cuda": {"CUDA_KERNEL"}, "rocm": {"ROCM_KERNEL", "USE_ROCM", "__HIP_PLATFORM_AMD__"}}
"""What is defined without being asked for."""


def defined(backend: str, flags: Iterable[str]) -> set[str]:
    """The macros that sources of a backend are compiled with."""
    return {word[2:].partition("=")[0] for word in flags if word.startswith("-D")} | _MACROS[backend]


class Component(msgspec.Struct, frozen=True):
    """One `[kernel.<label>]` of the new build.toml."""

    label: str
    backend: str
    sources: tuple[str, ...]
    headers: tuple[str, ...]
    include: tuple[str, ...]
    cxx_flags: tuple[str, ...]
    gpu_flags: tuple[str, ...]
    depends: tuple[str, ...]


class TakenOver:
    """The files of the project, and what is left to do so far."""

    def __init__(self, found: Mapping[str, bytes]) -> None:
        self.found = found
        self.left: list[str] = []
        self.said: list[str] = []

    def note(self, item: RecordedExtension, text: str) -> None:
        said = f"{item.file}:{item.line}: {text}"
        if said not in self.left:
            self.left.append(said)

    def components(self, groups: Mapping[str, Mapping[str, RecordedExtension]], package: str) -> list[Component]:
        made: list[Component] = []
        used: dict[str, set[str]] = {}
        for stem, items in sorted(groups.items()):
            for backend, item in items.items():
                name = package if len(groups) == 1 else python_name(re.sub(r"[^A-Za-z0-9_]", "_", stem))
                label = f"{name}_{backend}"
                before = used.setdefault(backend, set())
                sources = [name for name in self.sources(item) if name not in before]
                before.update(sources)
                if sources:
                    made.append(self.component(label, backend, item, sources))
        return sorted(made, key=lambda one: (one.backend, one.label))

    def component(self, label: str, backend: str, item: RecordedExtension, sources: list[str]) -> Component:
        include, flags = self.include(item), dict(item.flags)
        cxx, more = self.flags(item, [*flags.get("cxx", ()), *_macros(item)])
        gpu, again = self.flags(item, [*(flags.get("nvcc") or flags.get("hipcc") or ()), *_macros(item)])
        include = list(dict.fromkeys([*include, *more, *again]))
        reached, asked = _headers(self.found, sources, include)
        self.no_such_header(backend, [*sources, *reached], defined(backend, cxx))
        depends = ["torch"]
        if any(name.startswith(("cutlass/", "cute/")) for name in asked):
            known, folder = _cutlass(self.found, include)
            if known:
                depends.append(known)
                include = [path for path in include if path not in folder]
                reached = [name for name in reached if not any(name.startswith(f"{path}/") for path in folder)]
            elif not any(name.endswith("cutlass/version.h") for name in self.found):
                self.note(
                    item, "it compiles with CUTLASS, which is not here: name its version in `depends` of build.toml"
                )
        for library in dict.fromkeys(
            [*item.libraries, *(word[2:] for word in item.link_args if word.startswith("-l"))]
        ):
            if not _OF_TORCH.match(library):
                self.note(
                    item, f"it links `{library}`: build.toml has no key for libraries, so compile it in, or do without"
                )
        gpu = gpu if backend != "cpu" else []
        return Component(label, backend, *map(tuple, (sources, reached, include, cxx, gpu, depends)))

    def no_such_header(self, backend: str, names: Iterable[str], macros: set[str]) -> None:
        """Say which files include what torch, or the backend, has not."""
        for name in names:
            text = self.found[name].decode("utf-8", "replace")
            for found in _NOT_THERE.finditer(text):
                line = text.count("\n", 0, found.start()) + 1
                if (found[2] or backend == "cpu") and all(holds(one, macros) for one in conditions(text, line)):
                    why = "torch has it no more" if found[2] else "a build for the CPU has it not"
                    self.left.append(f"{name}:{line}: it includes `{found[1]}`, and {why}")
                    break

    def sources(self, item: RecordedExtension) -> list[str]:
        names = []
        for said in item.sources:
            path = relative(said)
            if path is None or path not in self.found:
                self.note(
                    item,
                    f"the source {said[-120:]!r} was not found"
                    if path is not None
                    else f"the source {said[:120]!r} lies outside of the project",
                )
            elif not path.endswith(_COMPILED):
                self.note(item, f"{path}: kci compiles no such file")
            else:
                names.append(path)
        return list(dict.fromkeys(names))

    def include(self, item: RecordedExtension) -> list[str]:
        inside = []
        for said in item.include_dirs:
            path = relative(said)
            if path is None:
                if not said.startswith(_BROUGHT):
                    self.note(item, f"the include directory {said[:120]!r} lies outside of the project")
                continue
            if not any(name.startswith(f"{path}/") for name in self.found) and path:
                self.note(item, f"the include directory {path!r} is empty: fetch it (a submodule?)")
            inside.append(path or ".")
        return list(dict.fromkeys(inside))

    def flags(self, item: RecordedExtension, flags: Iterable[str]) -> tuple[list[str], list[str]]:
        """Flags for build.toml, and directories that they named."""
        kept: list[str] = []
        include: list[str] = []
        words = iter([word for flag in flags for word in (flag.split() if flag.startswith("-") else [flag]) if word])
        for word in words:
            if word in _WITH_NEXT:
                next(words, None)
            elif word in ("-I", "-isystem") or (word.startswith("-I") and len(word) > 2):
                path = relative(next(words, "") if word in ("-I", "-isystem") else word[2:])
                include += [path] if path else []
            elif word in ("-march=native", "-mtune=native", "-mcpu=native"):
                self.note(
                    item, f"`{word}` is left out: the binary is for other machines; name what they have, such as -mavx2"
                )
            elif word.startswith(("-L", "-l", "-Wl,")) and len(word) > 2 and not word.startswith("-lineinfo"):
                continue
            elif not _DROPPED.match(word):
                kept.append(word)
        return list(dict.fromkeys(kept)) if not any(word.startswith("-X") for word in kept) else kept, include


_WITH_NEXT = frozenset(("-gencode", "--generate-code", "-arch", "--gpu-architecture", "--threads", "-t"))
_DROPPED = re.compile(
    r"(?:-gencode=|--generate-code=|-arch=|--gpu-architecture|arch=compute|--offload-arch|--threads|-std=|--std|/|-D_GLIBCXX_USE_CXX11_ABI"
    r"|-DTORCH_EXTENSION_NAME|-DTORCH_API_INCLUDE|--ptxas-options=-v|-ftime-report|-ccbin|--compiler-bindir)"
)
"""Flags that the build sets itself: architectures, the standard of C++, jobs; and those that only talk."""


def _macros(item: RecordedExtension) -> list[str]:
    made = [
        f"-D{pair[0]}" + (f"={pair[1]}" if len(pair) > 1 and pair[1] is not None else "")
        for pair in item.define_macros
        if pair
    ]
    return [*made, *(f"-U{name}" for name in item.undef_macros)]


def _headers(found: Mapping[str, bytes], sources: Iterable[str], include: Sequence[str]) -> tuple[list[str], set[str]]:
    """The project's files that sources include, and every name that is asked for."""
    waiting, seen, asked = list(sources), set(sources), set()
    while waiting:
        file = waiting.pop()
        for name in scan(found[file]).names:
            asked.add(name)
            for folder in (posixpath.dirname(file), *include):
                path = posixpath.normpath(posixpath.join(folder, name))
                if path in found and path not in seen:
                    seen.add(path)
                    waiting.append(path)
                    break
    return sorted(seen - set(sources)), asked


def _cutlass(found: Mapping[str, bytes], include: Sequence[str]) -> tuple[str, list[str]]:
    """The dependency that a copy of CUTLASS in the project is, and the include directories that it takes."""
    for folder in include:
        text = found.get(posixpath.normpath(f"{folder}/cutlass/version.h"), b"").decode("utf-8", "replace")
        numbers = [re.search(rf"#define\s+CUTLASS_{word}\s+(\d+)", text) for word in ("MAJOR", "MINOR")]
        if numbers[0] and numbers[1]:
            name = f"cutlass_{numbers[0][1]}_{numbers[1][1]}"
            top = posixpath.dirname(posixpath.normpath(folder))
            if name in {str(item) for item in Depend}:
                return name, [path for path in include if path == folder or path.startswith(f"{top}/")]
    return "", []
