"""Running CMake on a project that finds torch, to see what it would build: among stand-ins, once for each backend.

CMake itself follows the files, and its file API (cmake-file-api(7), codemodel 2) says what came out: targets with their
sources, flags and what they link. No compiler is asked (data/cmake/toolchain.cmake), and packages are stand-ins
(data/cmake/stand_ins.cmake). The files are a program that somebody else wrote, as a setup.py is: see `sandbox`.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import tomli

from kci.errors import FindingsError, MissingToolError
from kci.files.bounded_json import read_plain
from kci.starter.cmake_answer import BUILD, CMAKE, MOST_REPLY, PLATLIB, Configured, messages
from kci.starter.run_setup import (
    TOO_LONG,
    Recorded,
    SaidInSetup,
    SetupRuns,
    facts_of_today,
    put_stand_ins,
    variables,
)
from kci.starter.sandbox import project_copy, run_in, sandbox, written

_PYPROJECT = "pyproject.toml"
_DATA = Path(__file__).with_name("data") / "cmake"
_ANOTHER = "CMake writes another one for each backend, and this is the one for CUDA: look at what differs"
_OLDEST = (3, 24)
"""The first CMake that asks somebody else for packages."""


def cmake_file(files: Mapping[str, bytes]) -> str | None:
    """The CMakeLists.txt that builds with torch: the one of the project, or the first below it that finds torch."""
    named = _table(_project(files), "tool", "scikit-build", "cmake").get("source-dir", "")
    top = posixpath.normpath(posixpath.join(str(named), CMAKE))
    found = [name for name, text in _cmake_texts(files).items() if re.search(rb"(?i)find_package\s*\(\s*Torch\b", text)]
    listed = [name for name in files if posixpath.basename(name) == CMAKE]
    above = [
        name for name in sorted(listed, key=lambda name: (name.count("/"), name))
        if any(one.startswith(name.removesuffix(CMAKE)) for one in found) and (name in found or name == CMAKE)
    ]  # fmt: skip
    return top if top in files and found else next(iter(above), None)


def run_cmake(files: Mapping[str, bytes], file: str, said: SaidInSetup | None = None) -> SetupRuns:
    """Have CMake configure a project, given as files by their path, for the CPU and for CUDA.

    Args:
        files: the project.
        file: its CMakeLists.txt, from `cmake_file`.
        said: what its setup.py says of its Python package, if it has one; else its pyproject.toml does.

    Raises:
        MissingToolError: there is no CMake, or one that is too old.
        FindingsError: what came out cannot be used, or there is no room for a copy.
    """
    cmake, seen = _cmake()
    project = _project(files)
    setup, folder = said or _said(project, files), posixpath.dirname(file)
    named = {
        item.decode()
        for text in _cmake_texts(files).values()
        for item in re.findall(rb"\b[A-Za-z]\w{0,60}::\w{1,60}\b", text)
    }
    facts = {**facts_of_today(), "name": setup.name or "project", "named": ";".join(sorted(named)[:200])}
    by_backend = {"rocm": Recorded(setup=setup)}
    made, left = dict[str, bytes](), list[str]()
    with project_copy(files) as place:
        _put_modules(place, facts)
        for backend in ("cpu", "cuda"):
            values = _options(files, backend) | {
                name: ("ON" if value else "OFF") if isinstance(value, bool) else str(value)
                for name, value in _table(project, "tool", "scikit-build", "cmake", "define").items()
                if "\0" not in f"{name}{value}"  # TOML may say it, and no command can
            }
            command = [*cmake, *(f"-D{name}={value}" for name, value in values.items())]
            run, notes = _run(place, folder, backend, command, facts, seen)
            new = written(place, files, file)
            left += [f"{name}: {_ANOTHER}" for name in new if made.get(name, new[name]) != new[name]]
            made |= {name: data for name, data in new.items() if "/CMakeFiles/" not in name}
            left += notes
            by_backend[backend] = msgspec.structs.replace(run, setup=setup)
            shutil.rmtree(place / "project" / BUILD, ignore_errors=True)
    return SetupRuns(by_backend, made, f"run {sandbox()}", file, tuple(dict.fromkeys(left)))


def _cmake() -> tuple[list[str], list[str]]:
    """The program, and the folders that it needs."""
    hint = "pip install 'kci[cmake]', or apt-get install cmake"
    found = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if found is None:
        raise MissingToolError("there is no cmake, and the project is built with it", hint=hint)
    asked = [found, "-P", str(_DATA / "itself.cmake")]
    said = subprocess.run(asked, capture_output=True, check=False, text=True, errors="replace").stderr.strip()
    command, root, version = (*said.split(";"), "", "", "")[:3]
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        least = ".".join(map(str, _OLDEST))
        raise MissingToolError(f"{found} is CMake {version or 'of no known version'}, older than {least}", hint=hint)
    return [command], [str(Path(command).parent), root]


def _options(files: Mapping[str, bytes], backend: str) -> dict[str, str]:
    """What the project's own switches are set to: those for CUDA as the backend is, and no tests and no ROCm."""
    switch = re.compile(rb"(?i)\boption\s*\(\s*(\w{1,100})|\bset\s*\(\s*(\w{1,100})\s+\S{1,100}\s+CACHE\s+BOOL")
    found = {
        (item[1] or item[2]).decode("ascii", "ignore")
        for text in _cmake_texts(files).values()
        for item in switch.finditer(text)
    }
    values = {}
    for name in sorted(found):
        if re.search(r"CUDA|GPU", name) and not re.search(r"NO_|DISABLE|WITHOUT", name):
            values[name] = "ON" if backend == "cuda" else "OFF"
        elif re.search(r"HIP|ROCM|TEST|BENCH|EXAMPLE|DOCS?$", name):
            values[name] = "OFF"
    return values


def _cmake_texts(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: files[name] for name in sorted(files) if posixpath.basename(name) == CMAKE or name.endswith(".cmake")}


def _put_modules(place: Path, facts: Mapping[str, str]) -> None:
    """What stands in for packages and programs: CMake's, and a Python with those of a setup.py."""
    modules = put_stand_ins(place)
    for name in ("toolchain.cmake", "stand_ins.cmake"):
        shutil.copy(_DATA / name, modules)
    for folder in ("bin", "cuda", "cmake", "torch/lib"):
        (modules / folder).mkdir(parents=True)
    shutil.copy(_DATA / "FetchContent.cmake", modules / "cmake")
    for name in ("torch", "torch_cpu", "torch_cuda", "torch_python", "c10", "c10_cuda"):
        (modules / "torch" / "lib" / f"lib{name}.so").touch()
    for name in ("bin/cc", "bin/c++", "bin/make", "cuda/nvcc"):
        _program(modules / name, "exit 0")
    python = shlex.quote(str(Path(sys.executable).resolve()))
    for name in ("python", "python3"):
        _program(modules / "bin" / name, f'PYTHONPATH={shlex.quote(str(modules))} exec {python} -s -B "$@"')
    (modules / "sitecustomize.py").write_text(
        "import json, os, sys\n"
        "from kci.starter.module_stand_ins import Finder, roots_of\n"
        f"roots = roots_of(os.environ['KCI_BACKEND'], json.loads({json.dumps(dict(facts))!r}))\n"
        "sys.meta_path[:] = [Finder(roots, last=False), *sys.meta_path, Finder(roots, last=True)]\n",
        encoding="utf-8",
    )


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


_LIMITED = (
    "import json, os, sys; sys.path.append(sys.argv[1]); from kci.starter.setup_stand_ins import limit;"
    " limit(json.loads(sys.argv[2]));"
    " os.dup2(os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2);"
    " os.execv(sys.argv[4], sys.argv[4:])"
)


def _run(
    place: Path, folder: str, backend: str, cmake: list[str], facts: dict[str, str], seen: list[str]
) -> tuple[Recorded, list[str]]:
    """Configure a project for a backend: what it would build, and what of it was not followed."""
    modules, build, text = place / "modules", place / "project" / BUILD, place / "answers" / f"{backend}.txt"
    query = build / ".cmake" / "api" / "v1" / "query"
    query.mkdir(parents=True)
    (query / "codemodel-v2").touch()
    program, *given = cmake
    values = {
        "CMAKE_TOOLCHAIN_FILE": f"{modules}/toolchain.cmake", "CMAKE_MAKE_PROGRAM": f"{modules}/bin/make",
        "CMAKE_PROJECT_TOP_LEVEL_INCLUDES": f"{modules}/stand_ins.cmake", "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5", "CMAKE_IGNORE_PATH": "/usr/local/bin;/usr/local/cuda/bin",
        "KCI_NAMED": facts["named"], "SKBUILD": "2", "SKBUILD_PLATLIB_DIR": PLATLIB,
        "SKBUILD_PROJECT_NAME": facts["name"],
    }  # fmt: skip
    command = [
        str(Path(sys.executable).resolve()), "-I", "-S", "-B", "-c", _LIMITED, str(modules), json.dumps(facts),
        str(text), program, "-S", str(place / "project" / folder), "-B", str(build), "-G", "Unix Makefiles", "-Wno-dev",
        *given, *(f"-D{name}={value}" for name, value in values.items()),
    ]  # fmt: skip
    environment = {
        **variables(backend), "PATH": f"{modules}/{backend}:{modules}/bin:/usr/bin:/bin", "KCI_BACKEND": backend,
        "KCI_CUDA": facts["cuda"], "KCI_TORCH": facts["torch"], "KCI_PYTHON": ".".join(map(str, sys.version_info[:2])),
    }  # fmt: skip
    code = run_in(place, command, environment, seen=seen)
    if code is None:
        return Recorded(error=TOO_LONG), []
    try:
        told = read_plain(text, MOST_REPLY).decode("utf-8", "replace")
        configured = Configured(build / ".cmake" / "api" / "v1" / "reply", folder) if code == 0 else None
        extensions = tuple(configured.extensions(backend)) if configured else ()
    except (OSError, ValueError) as error:
        raise FindingsError(f"{CMAKE}: what CMake answered for {backend} cannot be used: {str(error)[:200]}") from None
    notes, said, line = messages(told, folder, str(place / "project"))
    if f"{modules}/none" in said:  # data/cmake/toolchain.cmake
        said = "the language CUDA, which it always asks for"
    if configured is None:
        return Recorded(error=said or f"its process ended early, with {code}", line=line), notes
    return Recorded(extensions), [*notes, *configured.left]


def license_in_pyproject(files: Mapping[str, bytes]) -> str:
    """What pyproject.toml calls the license, as a text or a table with one."""
    project = _table(_project(files), "project")
    said = project.get("license", "")
    said = said if isinstance(said, str) else _table(project, "license").get("text", "")
    return said if isinstance(said, str) else ""


def _project(files: Mapping[str, bytes]) -> dict[str, object]:
    try:
        return tomli.loads(files.get(_PYPROJECT, b"").decode("utf-8"))
    except (tomli.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _table(project: object, *keys: str) -> dict[str, object]:
    for key in keys:
        project = project.get(key) if isinstance(project, dict) else None
    return project if isinstance(project, dict) else {}


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
