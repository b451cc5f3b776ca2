"""What CMake would build of a project that finds torch: its files are read, once for each backend, and not run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

import tomli

from kci.starter.cmake_targets import CMAKE, CMakeReader, CMakeTarget, EndsError
from kci.starter.run_setup import Recorded, RecordedExtension, SaidInSetup, SetupRuns

_PYPROJECT = "pyproject.toml"
_BROUGHT = re.compile(r"(?i)(?:torch|c10|pybind11|python\d?|cudatoolkit|cuda|cudart|openmp|threads)(?:$|::|_)")
"""Links that the build of a kernel has without being told."""


def cmake_file(files: Mapping[str, bytes]) -> str | None:
    """The CMakeLists.txt that builds with torch: the one of the project, or the first below it that finds torch."""
    named = _table(_project(files), "tool", "scikit-build", "cmake").get("source-dir", "")
    top = posixpath.normpath(posixpath.join(str(named), CMAKE))
    listed = sorted(
        (name for name in files if posixpath.basename(name) == CMAKE), key=lambda name: (name.count("/"), name)
    )
    found = [name for name in listed if re.search(rb"(?i)find_package\s*\(\s*Torch\b", files[name])]
    return top if top in files and found else next(iter(found), None)


def read_cmake(files: Mapping[str, bytes], file: str) -> SetupRuns:
    """What the CMake files of a project build for the CPU and for CUDA, as if a setup.py had made it."""
    project = _project(files)
    setup = _said(project, files)
    forced = {name: _shown(value) for name, value in _table(project, "tool", "scikit-build", "cmake", "define").items()}
    by_backend, left = {}, list[str]()
    for backend in ("cpu", "cuda"):
        reader = CMakeReader(files, backend, forced)
        error, line = "", 0
        try:
            reader.folder(posixpath.dirname(file), 0)
        except EndsError as end:
            error, line = str(end), reader.line
        except (ValueError, RecursionError) as wrong:
            error, line = f"what kci cannot read: {str(wrong)[:200]}", reader.line
        by_backend[backend] = Recorded(() if error else tuple(_extensions(reader)), setup, error=error, line=line)
        left += [item for item in reader.left if item not in left]
    by_backend["rocm"] = Recorded(setup=setup)
    return SetupRuns(by_backend, {}, "read, and not run", file, tuple(left))


def _project(files: Mapping[str, bytes]) -> dict[str, object]:
    try:
        return tomli.loads(files.get(_PYPROJECT, b"").decode("utf-8"))
    except (tomli.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _table(project: object, *keys: str) -> dict[str, object]:
    for key in keys:
        project = project.get(key) if isinstance(project, dict) else None
    return project if isinstance(project, dict) else {}


def license_in_pyproject(files: Mapping[str, bytes]) -> str:
    """What pyproject.toml calls the license, as a text or a table with one."""
    project = _table(_project(files), "project")
    said = project.get("license", "")
    said = said if isinstance(said, str) else _table(project, "license").get("text", "")
    return said if isinstance(said, str) else ""


def _said(project: dict[str, object], files: Mapping[str, bytes]) -> SaidInSetup:
    told = _table(project, "project")
    listed = _table(project, "tool", "scikit-build", "wheel").get("packages")
    paths = [str(item).strip("/") for item in listed] if isinstance(listed, list) else []
    name = re.sub(r"\W", "_", str(told.get("name", "")))
    paths = paths or [path for path in (f"src/{name}", f"python/{name}", name) if f"{path}/__init__.py" in files][:1]
    folders = {posixpath.basename(path): path for path in paths}
    stated = told.get("classifiers")
    classifiers = tuple(str(item) for item in stated) if isinstance(stated, list) else ()
    return SaidInSetup(name=name, classifiers=classifiers, packages=tuple(folders), package_dir=folders)


def _extensions(reader: CMakeReader) -> Iterator[RecordedExtension]:
    """The modules that are built with torch, with the libraries of the project that they link."""
    linked = {name for target in reader.targets.values() for name in target.links}
    for name, target in reader.targets.items():
        parts = _parts(target, reader.targets)
        links = [link for part in parts for link in part.links]
        torch = any(re.match(r"(?i)torch|libtorch|c10", link) for link in links)
        if torch and target.kind in ("module", "shared") and name not in linked:
            yield _extension(target, parts, links, reader)


def _parts(target: CMakeTarget, targets: Mapping[str, CMakeTarget]) -> list[CMakeTarget]:
    found, waiting = [target], list(target.links)
    while waiting:
        other = targets.get(waiting.pop(0))
        if other is not None and other not in found:
            found.append(other)
            waiting += other.links
    return found


def _extension(
    target: CMakeTarget, parts: list[CMakeTarget], links: list[str], reader: CMakeReader
) -> RecordedExtension:
    options = [item for part in parts for item in part.options]
    for language, value in options:
        if language == "?":
            left = f"{target.where}:{target.line}: `{value[:100]}` is left out: write what it means into the flags"
            reader.left.append(left)
    flags = {
        key: tuple(word for known, value in options if known in ("", language) for word in value.split())
        for key, language in (("cxx", "CXX"), ("nvcc", "CUDA"))
    }
    if any(link.startswith("OpenMP") for link in links):
        flags["cxx"] += ("-fopenmp",)
    libraries = [link for link in links if link not in reader.targets and not _BROUGHT.match(link) and "$<" not in link]
    return RecordedExtension(
        kind="cuda" if reader.backend == "cuda" else "cpp", name=target.name, line=target.line, file=target.where,
        sources=tuple(item for part in parts for item in part.sources),
        include_dirs=tuple(dict.fromkeys(item for part in parts for item in part.include)),
        libraries=tuple(dict.fromkeys(posixpath.basename(link).removeprefix("-l") for link in libraries)),
        flags=flags,
    )  # fmt: skip


def _shown(value: object) -> str:
    return ("ON" if value else "OFF") if isinstance(value, bool) else str(value)
