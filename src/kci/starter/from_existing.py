"""A kernel from an existing project: a repository of kernel-builder, or a setup.py of `torch.utils.cpp_extension`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import msgspec

from kci.config.reader import BUILD_TOML, parse_kernel
from kci.config.update import plan_update
from kci.config.values import python_name
from kci.errors import FindingsError, UsageError
from kci.files.bounded_json import read_bounded
from kci.files.walk import is_own, walk
from kci.plurals import count
from kci.starter.new_kernel import USUAL_LICENSE, NewKernel, rendered
from kci.starter.setup_py import Extension, Glob, read_setup

MOST_FILES = 20_000
MOST_BYTES = 256 * 1024 * 1024


class Adopted(msgspec.Struct, frozen=True):
    """The files of a new kernel, and where they come from."""

    name: str
    files: dict[str, bytes]
    taken: tuple[str, ...]
    """What was taken over, a line each."""
    left: tuple[str, ...]
    """What is left to do, a line each."""


def read_project(root: Path) -> tuple[dict[str, bytes], list[str]]:
    """The files of a project, without hidden and built ones; and its links, which kci does not follow."""
    if not root.is_dir():
        raise UsageError(f"{root}: there is no such directory", hint="name the directory of the project with --from")
    files: dict[str, bytes] = {}
    links: list[str] = []
    room = MOST_BYTES
    hint = "name the directory of one kernel, without what was built from it"
    too_much = FindingsError(f"{root} holds more than the sources of a kernel", hint=hint)
    for entry in walk(root):
        if not is_own(entry.name):
            continue
        if entry.link:
            links.append(entry.name)
        elif entry.regular:
            try:
                files[entry.name] = read_bounded(entry.path, room)
            except OSError as error:
                raise FindingsError(f"cannot read {entry.path}: {error.strerror}") from None
            except ValueError:
                raise too_much from None
            room -= len(files[entry.name])
        if len(files) > MOST_FILES:
            raise too_much
    return files, links


_NOT_NEEDED = {
    "flake.nix": "kci builds without Nix; to build with Nix, copy the file and use --builder nix",
    "flake.lock": "belongs to flake.nix",
    "CMakeLists.txt": "kernel-builder generates it, and kci does not use it",
    "setup.py": "kernel-builder generates it, and kci does not use it",
    "pyproject.toml": "kernel-builder generates it, and kci does not use it",
    "torch-ext/registration.h": "kci's build generates it",
}
"""Files that stay behind, and why."""

_GENERATED = re.compile(r"(cmake/.*|metadata-[a-z]+\.json|(torch|tvm-ffi)-ext/[^/]+/_ops\.py)")


def from_kernel_builder(root: Path) -> Adopted:
    """Take over a kernel-builder repository."""
    found, links = read_project(root)
    shown = str(root / BUILD_TOML)
    update = plan_update(found.get(BUILD_TOML, b""), str(root), shown)
    kernel = parse_kernel(update.after, str(root), shown)
    stays = {name: reason for name, reason in _NOT_NEEDED.items() if name in found}
    generated = sorted(name for name in found if _GENERATED.fullmatch(name))
    files = {name: data for name, data in found.items() if name not in stays and name not in generated}
    files[BUILD_TOML] = update.after
    taken = [f"{BUILD_TOML}: {', '.join(update.changes)}" if update.changes else f"{BUILD_TOML}: unchanged"]
    taken.append(f"{len(files) - 1} other files, unchanged")
    left = [f"{name} was not copied: {reason}" for name, reason in stays.items()]
    left += [f"{name} was not copied: it is generated" for name in generated]
    left += [f"{name} was not copied: it is a link" for name in links]
    package = f"{'tvm-ffi' if kernel.build.tvm_ffi else 'torch'}-ext/{python_name(kernel.build.name)}"
    if f"{package}/__init__.py" not in files:
        left.append(f"{package}/__init__.py is missing: it is what users import")
    if not any(re.search(rb"kernels_ci", data) for name, data in files.items() if name.startswith("tests/")):
        left.append("no test has the mark `pytest.mark.kernels_ci`: `kci test` runs only marked tests")
    return Adopted(kernel.build.name, files, tuple(taken), tuple(left))


SETUP_PY = "setup.py"
_HEADERS = (".h", ".hpp", ".hh", ".cuh", ".inc", ".inl")
_MODULE = re.compile(r"PYBIND11_MODULE\s*\(\s*\w+\s*,\s*(\w+)\s*\)\s*\{")
_PYBIND = re.compile(r"#[ \t]*include[ \t]*[<\"]torch/(?:extension|python)\.h[>\"]")
"""The headers that bring pybind11, which the limited API of Python excludes."""
_NATIVE = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(?:_FRAGMENT)?\s*\(")
_NOT_OF_TORCH = re.compile(r"(?<![\w:])(?:unsigned|int|float|long|short|size_t|uint\d+_t|int32_t)\b(?!\s*\*)")
"""Types of arguments that PyTorch cannot pass: it has int64_t, double and bool."""


class Function(msgspec.Struct, frozen=True):
    """A function of the old module."""

    name: str
    cpp: str
    declaration: str
    """With its return type, or empty where it was not found."""


def from_setup_py(root: Path, choice: NewKernel) -> Adopted:
    """Take over a project with a setup.py, which kci reads and does not run; `choice` names the new kernel."""
    found, links = read_project(root)
    if SETUP_PY not in found:
        raise UsageError(f"{root} has neither a {BUILD_TOML} nor a {SETUP_PY}", hint="name the directory of a project")
    setup = read_setup(found[SETUP_PY], str(root / SETUP_PY))
    first = setup.extensions[0]
    mine = [item for item in setup.extensions if item.name == first.name]
    by_backend = {item.backend: item for item in reversed(mine)}
    left = [f"{SETUP_PY}:{line}: {what}" for line, what in setup.not_understood]
    left += [
        f"{SETUP_PY}:{item.line}: the extension `{item.name}` was not taken over: one kernel is one extension"
        for item in setup.extensions
        if item.name != first.name
    ]
    left += [f"{name} was not copied: it is a link" for name in links]
    sources = {backend: _sources(item, found, left) for backend, item in sorted(by_backend.items())}
    include = _include(mine, found, left)
    headers = sorted(name for name in found if name.endswith(_HEADERS))
    compiled = list(dict.fromkeys(name for names in sources.values() for name in names))
    if not compiled:
        raise FindingsError(f"{root}: it has none of the sources of its extension", hint="\n".join(left[:5]))
    texts = {name: found[name].decode("utf-8", "surrogateescape") for name in dict.fromkeys([*compiled, *headers])}
    functions: list[Function] = []
    native = [name for name in compiled if _NATIVE.search(texts[name])]
    for name in compiled:
        if block := _module(texts[name]):
            for exported, cpp in re.findall(
                r"\.def\s*\(\s*\"(\w+)\"\s*,\s*&?\s*([\w:]+)", block[1]
            ):  # m.def("name", &cpp
                functions.append(Function(exported, cpp, _declaration(cpp, texts.values())))
            start, end = block[0]
            texts[name] = f"{texts[name][:start].rstrip()}\n{texts[name][end:].lstrip()}"
    files = {
        name: _PYBIND.sub("#include <torch/all.h>", text).encode("utf-8", "surrogateescape")
        for name, text in texts.items()
    }
    left += [
        f"{name} registers operators itself: move that into torch-ext/torch_binding.cpp by hand" for name in native
    ]
    if not functions and not native:
        left.append("no pybind11 module was found: write the operators into torch-ext/torch_binding.cpp")
    left += _functions_left(functions)
    declared = [item for item in functions if item.declaration]
    licensed = choice.license or (setup.license if setup.license.isprintable() else "")[:100]
    if not licensed:
        left.append(f'{BUILD_TOML} says license = "{USUAL_LICENSE}", because {SETUP_PY} names no license: correct it')
    package = python_name(choice.name)
    values = {
        "name": choice.name,
        "license": licensed or USUAL_LICENSE,
        "repo_id": choice.repo_id,
        "placeholder": choice.placeholder,
        "package": package,
        "backends": list(by_backend),
        "headers": headers,
        "include": include,
        "components": [(backend, sources[backend], by_backend[backend]) for backend in sorted(by_backend)],
        "functions": declared,
    }
    templates = {
        BUILD_TOML: "port/build.toml.j2",
        "torch-ext/torch_binding.cpp": "port/torch_binding.cpp.j2",
        f"torch-ext/{package}/__init__.py": "port/package.py.j2",
        f"tests/test_{package}.py": "port/test.py.j2",
        "tests/conftest.py": "common/conftest.py.j2",
        ".gitignore": "common/gitignore.j2",
    }
    files |= {path: text.encode() for path, text in rendered(templates, values).items()}
    taken = [
        f"{SETUP_PY}:{item.line}: {count(len(sources[backend]), 'source')} for {backend}, with their flags"
        for backend, item in sorted(by_backend.items())
    ]
    taken += [count(len(headers), "header")] if headers else []
    if functions:
        names = ", ".join(item.name for item in declared) or "none"
        taken.append(f"{count(len(declared), 'function')} of the pybind11 module as operators: {names}")
    python = sorted(name for name in found if name.endswith(".py") and name != SETUP_PY)
    if python:
        left.append(f"Python files were not copied: {', '.join(python[:8])}{' and more' if len(python) > 8 else ''}")
    left.append(f"tests/test_{package}.py only checks that the kernel loads: write tests of its results")
    return Adopted(choice.name, files, tuple(taken), tuple(left))


def _sources(extension: Extension, found: dict[str, bytes], left: list[str]) -> list[str]:
    names: list[str] = []
    for item in extension.sources:
        if isinstance(item, Glob):
            matching = sorted(name for name in found if fnmatchcase(name, item.pattern.removeprefix("./")))
            if not matching:
                left.append(f"{SETUP_PY}:{extension.line}: no file matches {item.pattern!r}")
            names += matching
        elif (name := str(PurePosixPath(item))) in found:
            names.append(name)
        else:
            left.append(f"{SETUP_PY}:{extension.line}: {item!r} was not found")
    return list(dict.fromkeys(names))


def _include(extensions: Iterable[Extension], found: Iterable[str], left: list[str]) -> list[str]:
    """The include directories inside of the project."""
    inside = set()
    for item in extensions:
        for path in map(PurePosixPath, filter(None, item.include)):
            if path.is_absolute() or ".." in path.parts:
                left.append(f"{SETUP_PY}:{item.line}: the include directory '{path}' lies outside of the project")
                continue
            inside.add(str(path))
            if not any(PurePosixPath(name).is_relative_to(path) for name in found):
                left.append(f"{SETUP_PY}:{item.line}: the include directory '{path}' is empty: fetch it (a submodule?)")
    return sorted(inside)


def _module(text: str) -> tuple[tuple[int, int], str] | None:
    """Where a pybind11 module stands in a file, and its body."""
    found = _MODULE.search(text)
    if found is None:
        return None
    depth = 1
    for place in range(found.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return (found.start(), place + 1), text[found.end() : place]
    return None


def _declaration(name: str, texts: Iterable[str]) -> str:
    """How a function is declared, without default values; empty if no file declares it."""
    pattern = re.compile(
        rf"^[ \t]*(\w[\w:<>,&* \t]*?[\w>&*])[ \t\n]+{re.escape(name)}[ \t\n]*\(([^()]*)\)[ \t\n]*[{{;]", re.M
    )
    for text in texts:
        for result, arguments in pattern.findall(text):
            if result.strip() in ("return", "else", "new") or result.startswith(("static ", "template")):
                continue
            plain = re.sub(r"\s*=\s*[^,]+", "", " ".join(re.sub(r"//[^\n]*", "", arguments).split()))
            return f"{' '.join(result.removeprefix('inline ').split())} {name}({plain});"
    return ""


def _functions_left(functions: Sequence[Function]) -> list[str]:
    left = []
    for item in functions:
        arguments = item.declaration.partition("(")[2]
        if not item.declaration:
            left.append(f"`{item.name}`: no declaration of {item.cpp} was found: add it to torch-ext/torch_binding.cpp")
        elif found := _NOT_OF_TORCH.search(arguments):
            left.append(f"`{item.name}`: PyTorch has no `{found[0]}`: make it int64_t, double or bool in C++")
        if re.search(r"Tensor\s*&", re.sub(r"const\s+[\w:]*Tensor\s*&", "", arguments)):
            left.append(
                f"`{item.name}` may write to its arguments: give it a schema with `Tensor(a!)` in torch_binding.cpp"
            )
    return left
