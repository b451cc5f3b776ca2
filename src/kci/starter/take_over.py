"""A kernel from a project with a setup.py: what running it has shown, as build.toml, sources, operators and a package.

What comes out is a draft. Whatever a person has to look at is a line of `left`, with its place, and a comment of
build.toml that `kci check` reports until it is gone (KCI165).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kci.config.file_lints import PLACEHOLDER_LICENSE
from kci.config.reader import BUILD_TOML
from kci.config.values import python_name
from kci.diagnostics import printable
from kci.errors import FindingsError, UsageError
from kci.plurals import count
from kci.starter.cmake_answer import CMAKE
from kci.starter.cpp_code import read_code
from kci.starter.cpp_text import holds, without_comments
from kci.starter.from_existing import Adopted, read_project
from kci.starter.licenses import license_of
from kci.starter.new_kernel import NewKernel, rendered
from kci.starter.operators import Operator
from kci.starter.python_package import OWN_OPS, moved, python_files
from kci.starter.recorded_components import Component, TakenOver, defined
from kci.starter.registrations import operators_of
from kci.starter.run_cmake import cmake_file, license_in_pyproject, run_cmake
from kci.starter.run_setup import SETUP_PY, RecordedExtension, SetupRuns, knows_rocm, relative, run_setup

ALL = "all"
_PYBIND = re.compile(r"#[ \t]*include[ \t]*[<\"]torch/(?:extension|python|csrc/utils/pybind)\.h[>\"]")
_GIL = re.compile(r"\b(?:py|pybind11)::gil_scoped_release\s+\w+\s*(?:\{\}|\(\))?\s*;")
"""PyTorch calls an operator without the lock of Python."""
_PYBIND_OWN = re.compile(
    r"^([ \t]*#[ \t]*include[ \t]*[<\"]pybind11/[^\n]*|[ \t]*namespace\s+py\s*=\s*pybind11\s*;"
    r"|[ \t]*using\s+namespace\s+(?:py|pybind11)(?:::literals)?\s*;"
    r"|[ \t]*void\s+\w+\(\s*(?:py|pybind11)::module_?\s*&\s*\w*\s*\)\s*;)",
    re.M,
)


def from_setup_py(
    root: Path,
    choice: NewKernel,
    extensions: Sequence[str] = (),
    require_leave: Callable[[Path], None] = lambda _: None,
) -> Adopted:
    """Take over a project by running its setup.py (`run_setup`), or CMake on its files (`run_cmake`).

    Args:
        root: the project.
        choice: names the new kernel.
        extensions: which of several to take over, by the names that the refusal without them lists; or `all`.
        require_leave: called with each file of the project before it is run; raises what ends the take-over.

    Raises:
        UsageError: there is nothing to take over, or several extensions and none of them is chosen.
        FindingsError: there is no extension of torch, or none of their sources is there.
        MissingToolError: the project is built with CMake, which is not here.
    """
    found, links = read_project(root)
    runs = _runs(root, found, require_leave)
    found = {**found, **runs.written}
    work = TakenOver(found)
    work.left += runs.left
    groups = _chosen(_groups(runs, found, root), extensions, work, runs.file)
    made = {backend for items in groups.values() for backend in items}
    work.said += [
        f"nothing for {backend}: {runs.file}:{run.line} ends there with {run.error}"
        for backend, run in runs.by_backend.items()
        if run.error and backend in _asked_for(found) and backend not in made
    ]
    components = work.components(groups, python_name(choice.name))
    if not any(item.sources for item in components):
        raise FindingsError(f"{root}: none of the sources of its extensions was found", hint="\n".join(work.left[:5]))
    compiled = list(dict.fromkeys(name for item in components for name in item.sources))
    headers = list(dict.fromkeys(name for item in components for name in item.headers))
    files, operators, namespaces = _code(found, compiled, headers, work)
    had = _had(operators, components, work)
    work.left += [f"{item.file}:{item.line}: `{item.name}` is left out: {item.left}" for item in operators if item.left]
    work.left += [f"{item.file}:{item.line}: `{item.name}`: {note}" for item in operators for note in item.notes]
    package = python_name(choice.name)
    names = {item.name for items in groups.values() for item in items.values()}
    backends = list(dict.fromkeys(item.backend for item in components))
    python, depends = _python(found, runs, names, namespaces, package, backends, work)
    files |= {path: text.encode() for path, text in python.items()}
    files |= {name: data for name, data in found.items() if re.fullmatch(r"(?i)(licen[cs]e|copying|notice)[^/]*", name)}
    licensed = choice.license or _license(runs, found, work)
    registered = sorted({item.name for item in operators if not item.left})
    if not registered:
        work.left.append(
            "torch-ext/torch_binding.cpp: no function is bound to Python in the sources: write the operators"
        )
    for name in links:
        work.left.append(f"{name} was not copied: it is a link")
    work.left.append(
        f"tests/test_{package}.py only looks whether the operators are there: write tests of their results"
    )
    left = tuple(dict.fromkeys(work.left))  # a loop of CMake says the same of each of its rounds
    shared = set.intersection(*map(set, had.values()))
    values = {
        "name": choice.name, "license": licensed, "repo_id": choice.repo_id, "placeholder": choice.placeholder,
        "package": package,
        "backends": backends, "components": components, "depends": depends,
        "left": [printable(" ".join(item.split()))[:400] for item in left], "operators": registered,
        "only": {name: sorted(ops.keys() - shared) for name, ops in had.items() if ops.keys() - shared},
        "some": set(registered) - shared,
    }  # fmt: skip
    templates = {
        BUILD_TOML: "port/build.toml.j2",
        "torch-ext/torch_binding.cpp": "port/torch_binding.cpp.j2",
        f"tests/test_{package}.py": "port/test.py.j2",
        "tests/conftest.py": "common/conftest.py.j2",
        ".gitignore": "common/gitignore.j2",
    }
    if f"torch-ext/{package}/__init__.py" not in files:
        templates[f"torch-ext/{package}/__init__.py"] = "port/package.py.j2"
    files |= {path: text.encode() for path, text in rendered(templates, values).items()}
    taken = [f"{runs.file} was {runs.where}"]
    taken += [
        f"{item.backend}: {count(len(item.sources), 'source')}, {count(len(item.headers), 'header')} ({item.label})"
        for item in components
    ]
    shown = ", ".join(registered[:12]) + (" and more" if len(registered) > 12 else "")
    taken += [f"{count(len(registered), 'operator')}: {shown}"]
    taken += [f"{count(len(python), 'Python file')}"] if python else []
    return Adopted(choice.name, files, (*taken, *work.said), left)


_BY_HAND = "begin with `kci init NAME`, copy your sources, and name them as `src` in build.toml"


def _runs(root: Path, found: Mapping[str, bytes], require_leave: Callable[[Path], None]) -> SetupRuns:
    """What the project's setup.py makes, or its CMake files where that makes no extension of torch."""
    cmake, said = cmake_file(found), None
    if SETUP_PY in found:
        require_leave(root / SETUP_PY)
        runs = run_setup(found)
        made = (item for run in runs.by_backend.values() for item in run.extensions)
        if cmake is None or any(item.kind != "plain" for item in made):
            return runs
        said = runs.by_backend["cpu"].setup
    if cmake is None:
        what = f"{root} has neither a {BUILD_TOML} nor a {SETUP_PY}, nor a {CMAKE} that finds torch"
        raise UsageError(what, hint=f"kci takes over these; {_BY_HAND}")
    require_leave(root / cmake)
    return run_cmake(found, cmake, said if said is not None and said.name else None)


def _groups(runs: SetupRuns, found: Mapping[str, bytes], root: Path) -> dict[str, dict[str, RecordedExtension]]:
    """The extensions by what they are called without their backend, and by backend."""
    groups: dict[str, dict[str, RecordedExtension]] = {}
    by_backend = runs.by_backend
    for backend in _asked_for(found):
        for item in by_backend[backend].extensions:
            if item.kind == ("cpp" if backend == "cpu" else "cuda"):
                groups.setdefault(_stem(item.name), {}).setdefault(backend, item)
    for item in by_backend["cuda"].extensions if by_backend["cpu"].error else ():
        if item.kind == "cpp":
            groups.setdefault(_stem(item.name), {}).setdefault("cpu", item)
    if not groups:
        ends = [
            f"{runs.file}:{run.line}: for {name} it ends with {run.error}"
            for name, run in by_backend.items()
            if run.error
        ]
        plain = any(item.kind == "plain" for run in by_backend.values() for item in run.extensions)
        if posixpath.basename(runs.file) == CMAKE:
            what, known = "it has no module that links torch", "modules and shared libraries that link torch"
        else:
            what = "it makes " + (
                "extensions that are not torch's" if plain else "no extension of torch.utils.cpp_extension"
            )
            known = "CUDAExtension and CppExtension"
        hint = "\n".join([*ends, f"kci takes over {known}; else {_BY_HAND}"])
        raise FindingsError(f"{root / runs.file}: {what}", hint=hint)
    return groups


def _asked_for(found: Mapping[str, bytes]) -> tuple[str, ...]:
    return ("cpu", "cuda", "rocm") if SETUP_PY in found and knows_rocm(found) else ("cpu", "cuda")


def _stem(name: str) -> str:
    last = name.rpartition(".")[2].strip("_")
    return re.sub(r"_?(?<![A-Za-z])(?:cuda|cpu|gpu|hip|rocm)(?![A-Za-z])", "", last).strip("_") or last


def _chosen(
    groups: dict[str, dict[str, RecordedExtension]], asked: Sequence[str], work: TakenOver, file: str
) -> dict[str, dict[str, RecordedExtension]]:
    if len(groups) > 1 and not asked:
        listed = "\n".join(
            f"  --extension {stem}   # {', '.join(items)}: {', '.join(item.name for item in items.values())}"
            for stem, items in groups.items()
        )
        hint = f"each can be a kernel of its own, or all of them one:\n{listed}\n  --extension {ALL}"
        raise UsageError(f"{file} makes {count(len(groups), 'extension')}, and a kernel is one module", hint=hint)
    if ALL in asked or not asked:
        return groups
    for name in asked:
        if name not in groups:
            raise UsageError(f"{file} makes no extension {name[:60]!r}", hint=f"one of: {', '.join(groups)}, {ALL}")
    others = [stem for stem in groups if stem not in asked]
    if others:
        work.said.append(f"not taken over: {', '.join(others)}; each can be a kernel of its own")
    return {stem: items for stem, items in groups.items() if stem in asked}


def _code(
    found: Mapping[str, bytes], compiled: list[str], headers: list[str], work: TakenOver
) -> tuple[dict[str, bytes], list[Operator], set[str]]:
    texts = {name: found[name].decode("utf-8", "surrogateescape") for name in (*compiled, *headers)}
    changed, operators, namespaces = operators_of(texts, compiled, read_code(texts))
    files = {}
    for name, text in {**texts, **changed}.items():
        new = _PYBIND.sub("#include <torch/all.h>", text)
        new = _GIL.sub("", _PYBIND_OWN.sub("", new))
        if "TORCH_LIBRARY_FRAGMENT(TORCH_EXTENSION_NAME, ops)" in new and "torch/library.h" not in new:
            new = f"#include <torch/library.h>\n{new}"
        if uses := re.search(r"\b(?:py|pybind11)::\w+", without_comments(new)):
            where = new.count("\n", 0, uses.start()) + 1
            work.left.append(f"{name}:{where}: it uses `{uses[0]}`: a kernel is built without pybind11, so rewrite it")
        files[name] = new.encode("utf-8", "surrogateescape")
    return files, operators, namespaces


def _had(
    operators: Sequence[Operator], components: Sequence[Component], work: TakenOver
) -> dict[str, dict[str, Operator]]:
    """The operators that each backend has: it compiles their file, and their condition holds."""
    had: dict[str, dict[str, Operator]] = {}
    for backend in {item.backend for item in components}:
        mine = [item for item in components if item.backend == backend]
        macros = defined(backend, [word for item in mine for word in (*item.cxx_flags, *item.gpu_flags)])
        compiled = {name for item in mine for name in item.sources}
        names = had.setdefault(backend, {})
        for item in operators:
            if item.left or item.file not in compiled or not all(holds(one, macros) for one in item.within):
                continue
            if (first := names.setdefault(item.name, item)).file != item.file:
                said = (
                    f"{item.file}:{item.line}: `{item.name}` is what {first.file}:{first.line} calls its own: rename it"
                )
                work.left += [said] if said not in work.left else []
    return had


def _license(runs: SetupRuns, found: Mapping[str, bytes], work: TakenOver) -> str:
    said, classifiers = "", set()
    for run in runs.by_backend.values():
        said = said or run.setup.license_expression or run.setup.license or ""
        classifiers |= set(run.setup.classifiers) if isinstance(run.setup.classifiers, tuple) else set()
    said = said or license_in_pyproject(found)
    known, where = license_of(said, tuple(sorted(classifiers)), found)
    if known:
        work.said.append(f"license: {known}, as {where} says")
        return known
    called = f" (it says {said[:60]!r})" if said and "\n" not in said[:60] else ""
    work.left.append(
        f"{BUILD_TOML}: the project does not say in a way that kci knows which license it has{called}:"
        " write the SPDX expression"
    )
    return PLACEHOLDER_LICENSE


def _python(
    found: Mapping[str, bytes],
    runs: SetupRuns,
    names: set[str],
    namespaces: set[str],
    package: str,
    backends: list[str],
    work: TakenOver,
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The package's Python files, at their new paths, and the `python-depends` that they need, by backend."""
    setup = next((run.setup for run in runs.by_backend.values() if run.setup.packages), None)
    listed = setup.packages if setup is not None and isinstance(setup.packages, tuple) else ()
    folders = setup.package_dir if setup is not None and isinstance(setup.package_dir, dict) else {}
    if not listed:  # setuptools finds them then
        there = [re.fullmatch(r"(src/)?(\w+)/__init__\.py", name) for name in sorted(found)]
        listed = tuple(item[2] for item in there if item)
        folders = folders or {item[2]: f"{item[1] or ''}{item[2]}" for item in there if item}
    tops = [
        name
        for name in dict.fromkeys(item.partition(".")[0] for item in listed)
        if name not in ("tests", "test", "benchmarks", "benchmark", "docs", "examples")
    ]
    owners = [name.partition(".")[0] for name in sorted(names) if "." in name]
    main = next((name for name in (*owners, package, *tops) if name in tops), None)
    if main is None:
        return {}, {}
    others = [name for name in tops if name != main]
    if others:
        work.left.append(f"{runs.file}: the packages {', '.join(others[:6])} were not copied: a kernel is one package")
    base = relative(folders.get(main) or posixpath.join(folders.get("", ""), main))
    modules: dict[str, object] = dict.fromkeys(names)
    modules |= {f"{main}.{name}": None for name in names if "." not in name}
    texts = {
        name[len(base) + 1 :]: data.decode("utf-8", "replace")
        for name, data in found.items()
        if base is not None and name.startswith(f"{base}/") and name.endswith((".py", ".pyi"))
    }
    files, depends = python_files(texts, main, modules, namespaces, backends)
    made: dict[str, str] = {}
    for path, text in texts.items():
        result = moved(text, path, files)
        path = f"{OWN_OPS}.py" if path == "_ops.py" else path  # noqa: PLW2901
        made[f"torch-ext/{package}/{path}"] = result.text
        work.left += [f"torch-ext/{package}/{path}:{line}: {what}" for line, what in result.left]
    return made, depends
