"""A draft of a kernel, from a project with a setup.py or a kernel-builder repository."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from kci.builders.process.run import Log
from kci.config.facts import needs_device
from kci.config.reader import BUILD_TOML, parse_kernel
from kci.config.sources.package_rules import OPS, check_package, make_package
from kci.config.update import plan_update
from kci.config.values import python_name
from kci.diagnostics import printable
from kci.errors import FindingsError
from kci.matrix.lints import overlay_text
from kci.plan.inputs.flake import FLAKE, torch_versions
from kci.plan.inputs.source_lints import included
from kci.scaffold.new_kernel import NewKernel, render_templates
from kci.scaffold.run_setup import Extension, SetupRun, SetupRuns, run_setup
from kci.scaffold.setup_driver import SETUP_PY
from kci.utils.bounded_json import read_bounded
from kci.utils.frozen import Frozen
from kci.utils.suggest import count
from kci.utils.walk import is_own, walk

MAX_FILES = 20_000
MAX_BYTES = 256 * 1024 * 1024


class ConvertedProject(Frozen):
    """The files of a new kernel and a report of their origin."""

    name: str
    files: dict[str, bytes]
    converted: tuple[str, ...]
    todo: tuple[str, ...]
    """A line for each manual step, with its place."""
    settings: str = ""
    """The overlay that kci.toml needs; empty for none."""


def read_project(root: Path) -> tuple[dict[str, bytes], list[str]]:
    """The source files of a project, and its links, which are not followed; FindingsError if it is
    too large.
    """
    files: dict[str, bytes] = {}
    links: list[str] = []
    room = MAX_BYTES
    hint = "name the directory of one kernel, without what was built from it"
    too_much = FindingsError(f"{root} holds more than the sources of a kernel", hint)
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
        if len(files) > MAX_FILES:
            raise too_much
    return files, links


_NOT_COPIED = {
    r"flake\.nix": "kci builds without Nix; to build with Nix, copy the file and use --builder nix",
    r"flake\.lock": "belongs to flake.nix",
    r"CMakeLists\.txt|setup\.py|pyproject\.toml": "kernel-builder generates it, and kci does not "
    "use it",
    r"torch-ext/registration\.h": "kci's build generates it",
    r"cmake/.*|metadata-[a-z]+\.json|(torch|tvm-ffi)-ext/[^/]+/_ops\.py": "it is generated",
}


def from_kernel_builder(root: Path) -> ConvertedProject:
    """Convert a kernel-builder repository."""
    project, links = read_project(root)
    shown = str(root / BUILD_TOML)
    update = plan_update(project.get(BUILD_TOML, b""), str(root), shown)
    kernel = parse_kernel(update.after, str(root), shown)
    left = {
        name: reason
        for pattern, reason in _NOT_COPIED.items()
        for name in sorted(project)
        if re.fullmatch(pattern, name)
    }
    files = {name: data for name, data in project.items() if name not in left}
    files[BUILD_TOML] = update.after
    changes = ", ".join(update.changes) or "unchanged"
    converted = f"{BUILD_TOML}: {changes}", f"{len(files) - 1} other files, unchanged"
    left |= dict.fromkeys(links, "it is a link")
    todo = [f"{name} was not copied: {reason}" for name, reason in left.items()]
    line, keys = torch_versions(project.get(FLAKE, b"")) or (0, "")
    if line and not keys:
        todo.append(
            f"{FLAKE}:{line}: say in kci.toml, as `[[overlay]]`, which versions its "
            "`torchVersions` leaves out"
        )
    settings = overlay_text(kernel.build.name, keys) + "\n" if keys else ""
    package = (
        f"{'tvm-ffi' if kernel.build.tvm_ffi else 'torch'}-ext/{python_name(kernel.build.name)}"
    )
    if f"{package}/__init__.py" not in files:
        todo.append(f"{package}/__init__.py is missing: it is what users import")
    if not any(b"kernels_ci" in files[name] for name in files if name.startswith("tests/")):
        todo.append(
            "no test has the mark `pytest.mark.kernels_ci`: `kci test` runs only marked tests"
        )
    return ConvertedProject(kernel.build.name, files, converted, tuple(todo), settings)


BY_HAND = "begin with `kci init NAME`, copy your sources, and name them as `src` in build.toml"
_TORCH_LIBRARIES = re.compile(
    r"c10|torch|cuda|cublas|cudart|cusparse|cusolver|curand|cufft|cudnn|nvrtc|nvToolsExt|gomp|stdc\+\+|m$|pthread|dl$|gcc"
)
"""Libraries that torch, CUDA or the system provides."""
_WITH_NEXT = frozenset(
    ("-gencode", "--generate-code", "-arch", "--gpu-architecture", "--threads", "-t")
)
_DROPPED = re.compile(
    r"-gencode=|--generate-code=|-arch=|--gpu-architecture|arch=compute|--threads|-std=|--std|/|-D_GLIBCXX_USE_CXX11_ABI"
    r"|-DTORCH_EXTENSION_NAME|-DTORCH_API_INCLUDE|--ptxas-options=-v|-ftime-report|-ccbin|--compiler-bindir"
    r"|-L.|-l(?!ineinfo).|-Wl,"
)
"""Flags that the build sets itself (architectures, C++ standard, jobs, libraries), and flags that
only print."""
_ARCH = re.compile(r"\b(sm|compute)_(\d+)(\d)([af]?)\b")
_PYBIND = re.compile(
    r"#[ \t]*include[ \t]*[<\"](?:torch/(?:extension|python)\.h|pybind11/)|\bPYBIND11_MODULE\b"
)
_LEGAL = re.compile(r"(?i)(licen[cs]e|copying|notice)[^/]*")
_BOUND = re.compile(r"\.\s*def\s*\(\s*\"(\w+)\"")
_DEFINED = re.compile(r"\b(?:STABLE_)?TORCH_LIBRARY(?:_EXPAND)?\s*\(")
_REGISTERED = re.compile(r"\bTORCH_LIBRARY\w*\s*\(|\bRegisterOperators\b")


class Component(Frozen):
    """One `[kernel.<label>]` of the new build.toml."""

    label: str
    backend: str
    sources: list[str]
    headers: list[str]
    include: list[str]
    cxx_flags: list[str]
    cuda_flags: list[str]
    archs: list[str]


def from_setup_py(root: Path, choice: NewKernel, cache: Path, log: Log) -> ConvertedProject:
    """Convert a project by running its setup.py; FindingsError without an extension,
    MissingToolError without torch.
    """
    project, links = read_project(root)
    runs = run_setup(project, cache, log)
    extensions = _extensions(runs, root)
    package = python_name(choice.name)
    work = _Draft(project, runs)
    components = work.components(extensions, package)
    if not any(item.sources for item in components):
        raise FindingsError(
            f"{root}: none of the sources of its extensions was found", "\n".join(work.todo[:5])
        )
    backends = tuple(dict.fromkeys(item.backend for item in components))
    names = list(dict.fromkeys(item.name for items in extensions.values() for item in items))
    files = {name: project[name] for item in components for name in (*item.sources, *item.headers)}
    bound = work.bound(files)
    registered = any(_DEFINED.search(data.decode("utf-8", "replace")) for data in files.values())
    if tests := sorted(name for name in project if re.search(r"(^|/)test_[^/]*\.py$", name)):
        work.note(
            f"{count(len(tests), 'test file')} of the project, such as {tests[0]}, stayed there: "
            "copy those that "
            "test the operators to tests/, and mark them with `pytest.mark.kernels_ci`"
        )
    if choice.placeholder:
        work.note(
            f"{BUILD_TOML}: `repo-id`: write your account in place of "
            f"{choice.repo_id.partition('/')[0]}"
        )
    files |= (python := work.python(root, package, names, backends))
    files |= {name: data for name, data in project.items() if _LEGAL.fullmatch(name)}
    licensed = work.license()
    if len(several := max(extensions.values(), key=len)) > 1:
        listed = ", ".join(item.name for item in several)
        work.note(
            f"{SETUP_PY}: it makes {count(len(several), 'extension')}, {listed}, and a kernel is "
            "one module: bind all in torch-ext/torch_binding.cpp, or make several kernels"
        )
    if not any(map(needs_device, backends)) and (
        sources := sorted(name for name in project if name.endswith(".cu"))
    ):
        work.note(
            f"{SETUP_PY}: with FORCE_CUDA=1 and CUDA_HOME it makes no CUDAExtension where there is "
            f"no GPU: write a component for CUDA, of {', '.join(sources[:6])}"
        )
    for name in links:
        work.note(f"{name} was not copied: it is a link")
    work.note(
        f"tests/test_{package}.py only looks whether the functions are there: write tests of "
        "their results"
    )
    todo = tuple(printable(" ".join(item.split()))[:400] for item in work.todo)
    values = {
        "name": choice.name,
        "license": licensed,
        "repo_id": choice.repo_id,
        "package": package,
        "backends": backends,
        "components": components,
        "left": todo,
        "functions": bound,
        "registered": registered,
    }
    templates = {
        BUILD_TOML: "port/build.toml.j2",
        "torch-ext/torch_binding.cpp": "port/torch_binding.cpp.j2",
        f"tests/test_{package}.py": "port/test.py.j2",
        "tests/conftest.py": "common/conftest.py.j2",
        ".gitignore": "common/gitignore.j2",
        f"torch-ext/{package}/__init__.py": "port/package.py.j2",
    }
    files = {
        path: text.encode() for path, text in render_templates(templates, values).items()
    } | files
    converted = [f"{SETUP_PY} was {runs.where}"]
    converted += [
        f"{one.label}: {count(len(one.sources), 'source')}, {count(len(one.headers), 'header')}"
        for one in components
    ]
    converted += [count(len(python), "Python file")] if python else []
    converted += [
        f"nothing for {name}: {run.end}"
        for name, run in runs.by_backend.items()
        if run.error and name not in backends
    ]
    return ConvertedProject(choice.name, files, tuple(converted), todo)


def _extensions(runs: SetupRuns, root: Path) -> dict[str, list[Extension]]:
    cpu, cuda = runs.by_backend.values()
    made = {"cpu": cuda if cpu.error else cpu, "cuda": cuda}
    by_backend = {
        name: [item for item in run.extensions if item.backend == name]
        for name, run in made.items()
    }
    if not any(by_backend.values()):
        ends = [f"for {name}, {run.end}" for name, run in runs.by_backend.items() if run.error]
        plain = (
            "extensions that are not torch's"
            if cpu.extensions
            else "no extension of torch.utils.cpp_extension"
        )
        hint = "\n".join([*ends, f"kci takes over CUDAExtension and CppExtension; else {BY_HAND}"])
        raise FindingsError(f"{root / SETUP_PY}: it makes {plain}", hint)
    return by_backend


class _Draft(Frozen):
    """The project, the runs of its setup.py, and the manual steps so far."""

    project: dict[str, bytes]
    runs: SetupRuns
    todo: list[str] = []

    def note(self, step: str) -> None:
        if step not in self.todo:
            self.todo.append(step)

    def components(
        self, extensions: Mapping[str, Sequence[Extension]], package: str
    ) -> list[Component]:
        components: list[Component] = []
        for backend, items in extensions.items():
            used: set[str] = set()
            for item in items:
                last = re.sub(r"[^A-Za-z0-9_]", "_", item.name.rpartition(".")[2]).strip("_")
                label = f"{package if len(items) == 1 else last}_{backend}"
                label += f"_{len(components)}" if label in {one.label for one in components} else ""
                sources = [name for name in self.sources(item) if name not in used]
                used.update(sources)
                if sources:
                    components.append(self.component(label, backend, item, sources))
        return components

    def component(self, label: str, backend: str, item: Extension, sources: list[str]) -> Component:
        macros = [
            "-D" + "=".join(str(word) for word in pair if word is not None)
            for pair in item.define_macros
        ]
        macros += [f"-U{name}" for name in item.undef_macros]
        include = list(self.include(item.include_dirs))
        cxx = self.flags([*item.flags("cxx"), *macros], include)
        device = needs_device(backend)
        nvcc = self.flags([*item.flags("nvcc"), *macros], include) if device else []
        libraries = [
            *item.libraries,
            *(word[2:] for word in item.extra_link_args if word.startswith("-l")),
        ]
        for library in dict.fromkeys(libraries):
            if not _TORCH_LIBRARIES.match(library):
                self.note(
                    f"{SETUP_PY}: it links `{library}`: build.toml has no key for libraries, so "
                    "compile it in, or remove it"
                )
        include = list(dict.fromkeys(include))
        headers = _headers(self.project, sources, include)
        archs = _archs(item.flags("nvcc")) if device else []
        return Component(label, backend, sources, headers, include, cxx, nvcc, archs)

    def sources(self, item: Extension) -> list[str]:
        names = []
        for name in item.sources:
            path = self.runs.inside(name)
            if path is None:
                self.note(f"{SETUP_PY}: the source {name[-120:]!r} lies outside of the project")
            elif path not in self.project:
                self.note(
                    f"{SETUP_PY}: the source {path[-120:]!r} was not found: fetch or generate it"
                )
            else:
                names.append(path)
        return list(dict.fromkeys(names))

    def include(self, folders: Iterable[str]) -> Iterator[str]:
        for folder in folders:
            path = self.runs.inside(folder)
            if path is None:
                if not folder.startswith((*self.runs.own_folders, "/usr/")):
                    self.note(
                        f"{SETUP_PY}: the include directory {folder[:120]!r} lies outside of the "
                        "project"
                    )
                continue
            if path != "." and not any(name.startswith(f"{path}/") for name in self.project):
                self.note(
                    f"{SETUP_PY}: the include directory {path!r} is empty: fetch it (a submodule?)"
                )
            yield path

    def flags(self, flags: Iterable[str], include: list[str]) -> list[str]:
        """Directories that the flags name are added to `include`."""
        result: list[str] = []
        words = iter(
            [
                word
                for flag in flags
                for word in (flag.split() if flag.startswith("-") else [flag])
                if word
            ]
        )
        for word in words:
            if word in _WITH_NEXT:
                next(words, None)
            elif word.startswith(("-I", "-isystem")):
                folder = word.removeprefix("-isystem").removeprefix("-I")
                include += self.include([folder or next(words, "")])
            elif not _DROPPED.match(word):
                result.append(word)
        return (
            result if any(word.startswith("-X") for word in result) else list(dict.fromkeys(result))
        )

    def bound(self, files: Mapping[str, bytes]) -> list[str]:
        names: dict[str, None] = {}
        uses: list[str] = []
        for file, data in files.items():
            text = data.decode("utf-8", "replace")
            here = {match[1]: None for match in _BOUND.finditer(text)}
            if here:
                self.note(
                    f"{_place(file, text, _BOUND)}: bind these in torch-ext/torch_binding.cpp: "
                    f"{', '.join(here)}"
                )
            elif _REGISTERED.search(text):
                self.note(
                    f"{_place(file, text, _REGISTERED)}: it registers operators: their namespace "
                    "in a kernel is TORCH_EXTENSION_NAME"
                )
            uses += [_place(file, text, _PYBIND)] if _PYBIND.search(text) else []
            names |= here
        if uses:
            self.note(
                "a kernel is built without pybind11: include torch/all.h, and remove modules: "
                f"{', '.join(uses)}"
            )
        return list(names)

    def python(
        self, root: Path, package: str, names: Sequence[str], backends: Iterable[str]
    ) -> dict[str, bytes]:
        run = next((run for run in self.runs.by_backend.values() if run.packages), SetupRun())
        tops = [
            name.split("/")[-2]
            for name in sorted(self.project)
            if re.fullmatch(r"(src/)?\w+/__init__\.py", name)
        ]
        tops = [name.partition(".")[0] for name in run.packages or tops]
        owners = [name.partition(".")[0] for name in names if "." in name]
        main = next((name for name in (*owners, package, *tops) if name in tops), package)
        folder = self.runs.inside(
            run.package_dir.get(main) or posixpath.join(run.package_dir.get("", "."), main)
        )
        base = folder if folder and f"{folder}/__init__.py" in self.project else f"src/{main}"
        entries = walk(root / base) if f"{base}/__init__.py" in self.project else ()
        files = [
            item
            for item in entries
            if item.name.endswith(".py") and f"{base}/{item.name}" in self.project
        ]
        allowed = make_package(main, (), backends)
        for finding in check_package(files, allowed, (OPS,)):
            self.note(
                f"torch-ext/{package}/{finding.path}:{finding.line}: "
                f"{finding.message}{finding.hint and f': {finding.hint}'}"
            )
        return {
            f"torch-ext/{package}/{item.name}": self.project[f"{base}/{item.name}"]
            for item in files
        }

    def license(self) -> str:
        license_text = next(
            (run.license for run in self.runs.by_backend.values() if run.license), ""
        ).strip()
        try:
            return str(canonicalize_license_expression(license_text.removesuffix(" License")[:200]))
        except InvalidLicenseExpression:
            self.note(
                f"{BUILD_TOML}: write the license: for {SETUP_PY} it is {license_text[:60]!r}, "
                "not an SPDX expression"
            )
            return "other"


def _archs(flags: Iterable[str]) -> list[str]:
    codes = [
        word.rpartition("code=")[2] if "code=" in word else word
        for word in flags
        if _ARCH.search(word)
    ]
    archs: dict[str, None] = {}
    for kind, major, minor, more in (match for code in codes for match in _ARCH.findall(code)):
        arch = f"{major}.{minor}{more}"
        if kind == "compute" and arch in archs:
            del archs[arch]
        archs[f"{arch}+PTX" if kind == "compute" else arch] = None
    return list(archs)


def _headers(
    project: Mapping[str, bytes], sources: Iterable[str], include: Sequence[str]
) -> list[str]:
    waiting, visited = list(sources), set(sources)
    while waiting:
        file = waiting.pop()
        for name in included(project[file]):
            for folder in (posixpath.dirname(file), *include):
                path = posixpath.normpath(posixpath.join(folder, name))
                if path in project:
                    waiting += [path] if path not in visited else []
                    visited.add(path)
                    break
    return sorted(visited - set(sources))


def _place(file: str, text: str, what: re.Pattern[str]) -> str:
    match = what.search(text)
    return f"{file}:{text.count(chr(10), 0, match.start() if match else 0) + 1}"
