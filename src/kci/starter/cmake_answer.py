"""What CMake has said of a project: its file API (cmake-file-api(7), codemodel 2), and what it printed.

All of it is hostile, since the project's own files could have written it: it is bounded and typed.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from kci.files.bounded_json import read_record
from kci.starter.run_setup import RecordedExtension, relative

CMAKE = "CMakeLists.txt"
BUILD = "configured"
"""The folder below the project in which CMake works: what it generates there comes along."""
PLATLIB = "/kci-platlib"
"""Where Python's packages are installed, as far as CMake knows."""
MOST_REPLY = 16 * 1024 * 1024
_MOST_TARGETS = 2000
_BROUGHT = re.compile(r"(?i)(?:torch|c10|pybind11|python\d?|gomp|rt$|pthread$|dl$|m$)")
"""Libraries that the build of a kernel links without being told."""
_OF_CMAKE = re.compile(
    r"-fPIC|-Xcompiler=-fPIC|--generate-code=.*|-std=.*|-D\w+_EXPORTS|-x|cu|-rdc=false"
    r"|-DTORCH_(?:API_INCLUDE|EXTENSION_NAME).*"
)
"""What CMake adds to a command by itself, and what the build of a kernel defines."""

_Text = Annotated[str, msgspec.Meta(max_length=65_536)]


class _CMakeFragment(msgspec.Struct, frozen=True):
    fragment: _Text
    role: _Text = ""


class _CMakeDefine(msgspec.Struct, frozen=True):
    define: _Text


class _CMakeInclude(msgspec.Struct, frozen=True):
    path: _Text


class _CMakeGroup(msgspec.Struct, frozen=True):
    language: _Text
    flags: list[_CMakeFragment] = msgspec.field(name="compileCommandFragments", default=[])
    defines: list[_CMakeDefine] = []
    includes: list[_CMakeInclude] = []


class _CMakeSource(msgspec.Struct, frozen=True):
    path: _Text
    group: int | None = msgspec.field(name="compileGroupIndex", default=None)
    generated: bool = msgspec.field(name="isGenerated", default=False)


class _CMakeNode(msgspec.Struct, frozen=True):
    file: int
    line: int = 0
    parent: int | None = None


class _CMakeGraph(msgspec.Struct, frozen=True):
    files: list[_Text] = []
    nodes: list[_CMakeNode] = []


class _CMakeLink(msgspec.Struct, frozen=True):
    fragments: list[_CMakeFragment] = msgspec.field(name="commandFragments", default=[])


class _CMakeId(msgspec.Struct, frozen=True):
    id: _Text


class _CMakeTarget(msgspec.Struct, frozen=True):
    """A target of codemodel 2."""

    id: _Text
    name: _Text
    type: _Text
    disk: _Text = msgspec.field(name="nameOnDisk", default="")
    sources: list[_CMakeSource] = []
    groups: list[_CMakeGroup] = msgspec.field(name="compileGroups", default=[])
    link: _CMakeLink = _CMakeLink()
    dependencies: list[_CMakeId] = []
    backtrace: int | None = None
    graph: _CMakeGraph = msgspec.field(name="backtraceGraph", default=_CMakeGraph())


class _CMakeFile(msgspec.Struct, frozen=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.+@-]{1,250}\.json$")] = msgspec.field(name="jsonFile")


class _CMakeConfiguration(msgspec.Struct, frozen=True):
    targets: Annotated[list[_CMakeFile], msgspec.Meta(max_length=_MOST_TARGETS)]
    directories: Annotated[list[_CMakeFile], msgspec.Meta(max_length=_MOST_TARGETS)] = []


class _CMakeModel(msgspec.Struct, frozen=True):
    configurations: list[_CMakeConfiguration]


class _CMakeInstaller(msgspec.Struct, frozen=True):
    type: _Text
    destination: _Text = ""
    target: _Text = msgspec.field(name="targetId", default="")


class _CMakeDirectory(msgspec.Struct, frozen=True):
    installers: list[_CMakeInstaller] = []


class Configured:
    """What CMake has said of a project for one backend."""

    def __init__(self, reply: Path, folder: str) -> None:
        if reply.resolve() != reply.parents[4].resolve().joinpath(*reply.parts[-5:]):
            raise ValueError("it is a link")  # to wherever the project's files like
        names = sorted(reply.glob("codemodel-v2-*.json"))
        if not names:
            raise ValueError("CMake has answered nothing")
        if sum(file.lstat().st_size for file in reply.iterdir()) > 4 * MOST_REPLY:
            raise ValueError("it is too large")
        (configuration,) = read_record(names[0], _CMakeModel, MOST_REPLY).configurations[:1]
        read = [read_record(reply / item.name, _CMakeTarget, MOST_REPLY) for item in configuration.targets]
        self.folder = folder
        self.targets = {item.id: item for item in read}
        self.installed: dict[str, str] = {}
        for item in configuration.directories:
            for installer in read_record(reply / item.name, _CMakeDirectory, MOST_REPLY).installers:
                where = installer.destination.removeprefix(PLATLIB).strip("./")
                if installer.target and re.fullmatch(r"\w+(?:/\w+)*", where) and where not in ("lib", "lib64", "bin"):
                    self.installed[installer.target] = where.replace("/", ".")
        self.left: list[str] = []

    def place(self, target: _CMakeTarget) -> tuple[str, int]:
        """The file and the line of the project that add a target."""
        at = target.backtrace
        for _ in range(100):
            if at is None or not 0 <= at < len(target.graph.nodes):
                break
            node = target.graph.nodes[at]
            file = target.graph.files[node.file] if 0 <= node.file < len(target.graph.files) else ""
            if (inside := _inside(file, self.folder)) is not None:
                return inside, node.line
            at = node.parent
        return posixpath.join(self.folder, CMAKE), 0

    def extensions(self, backend: str) -> Iterator[RecordedExtension]:
        """The modules that are built with torch, with the libraries of the project that they link."""
        modules = [item for item in self.targets.values() if item.type in ("MODULE_LIBRARY", "SHARED_LIBRARY")]
        linked = {item.id for target in modules for item in target.dependencies}
        for target in modules:
            links = [
                word for part in target.link.fragments if part.role == "libraries" for word in part.fragment.split()
            ]
            torch = any(re.match(r"(?:lib|-l)?(?:torch|c10)", posixpath.basename(word)) for word in links)
            if torch and target.id not in linked:
                yield self.extension(target, links, backend)

    def extension(self, target: _CMakeTarget, links: list[str], backend: str) -> RecordedExtension:
        parts, waiting = [target], list(target.dependencies)
        while waiting:
            other = self.targets.get(waiting.pop(0).id)
            if other is not None and other not in parts and other.type.endswith("_LIBRARY"):
                parts.append(other)
                waiting += other.dependencies
        file, line = self.place(target)
        sources, include = list[str](), list[str]()
        flags: dict[str, dict[tuple[str, ...], str]] = {"CXX": {}, "CUDA": {}, "C": {}}
        for part in parts:
            for source in part.sources:
                if source.generated and not source.path.endswith((".rule", ".o")):
                    path = relative(posixpath.join(self.folder, source.path)) or source.path
                    text = f"{path[-100:]!r} is generated when it is built: put what comes out into the project"
                    self.left.append(f"{file}:{line}: {text}")
                elif source.group is not None and 0 <= source.group < len(part.groups):
                    group = part.groups[source.group]
                    sources.append(posixpath.join(self.folder, source.path))
                    include += [item.path for item in group.includes]
                    flags.setdefault(group.language, {}).setdefault(_words(group), source.path)
        for language, sets in flags.items():
            common = set.intersection(*map(set, sets)) if sets else set()
            for words, path in sets.items():
                if own := [word for word in words if word not in common and not word.startswith("-W")]:
                    text = f"`{' '.join(own)[:100]}` is for some sources only, such as {path[-100:]!r}"
                    self.left.append(f"{file}:{line}: {text}: a component has one set of flags for {language}")
        own_files = {item.disk for item in self.targets.values()}
        libraries = [
            re.sub(r"^(?:-l|lib)|\.(?:so|a)[.\d]*$", "", posixpath.basename(word)) for word in links
            if posixpath.basename(word) not in own_files and not word.startswith(("-Wl,", "-L", "-f", "-p"))
        ]  # fmt: skip
        disk = target.disk.partition(".")[0] or target.name
        name = disk.removeprefix("lib") if not target.name.startswith("lib") else disk
        where = self.installed.get(target.id)
        return RecordedExtension(
            kind="cuda" if backend == "cuda" else "cpp", name=f"{where}.{name}" if where else name,
            line=line, file=file, sources=tuple(dict.fromkeys(sources)), include_dirs=tuple(dict.fromkeys(include)),
            libraries=tuple(dict.fromkeys(item for item in libraries if not _BROUGHT.match(item))),
            flags={key: tuple(dict.fromkeys(word for words in flags[language] for word in words))
                   for key, language in (("cxx", "CXX"), ("nvcc", "CUDA"))},
        )  # fmt: skip


def _words(group: _CMakeGroup) -> tuple[str, ...]:
    said = [word for item in group.flags for word in shlex.split(item.fragment)]
    words = [*(f"-D{item.define}" for item in group.defines), *said]
    return tuple(word for word in words if not _OF_CMAKE.fullmatch(word))


def _inside(name: str, folder: str) -> str | None:
    """A file that CMake names, in the project: relative to the folder in which it began."""
    path = relative(name if name.startswith("/") else posixpath.join(folder, name))
    return path if path is not None and not path.startswith(f"{BUILD}/") else None


def messages(told: str, folder: str, project: str) -> tuple[list[str], str, int]:
    """The notes of the stand-ins among what CMake prints, each with its place; and its first error, with its line."""
    notes, first, line = list[str](), "", 0
    for found in _MESSAGE.finditer(told):
        text = " ".join(f"{found['begins']} {found['text']}".split())
        named = [(found["file"] or "", found["line"]), *_PLACE.findall(found["calls"] or text)]
        inside = [(path, number) for name, number in named if name and (path := _inside(name, folder)) is not None]
        where, number = inside[0] if inside else (posixpath.join(folder, CMAKE), "0")
        text = text.replace(f"{project}/", "")[:400]
        if found["kind"] == "Error" and not first:
            first, line = text, int(number)
        elif text.startswith("kci: "):
            notes.append(f"{where}:{number}: {text.removeprefix('kci: ')}")
    return notes, first, line


_MESSAGE = re.compile(
    r"^CMake (?P<kind>Error|Warning)(?: \(dev\))?(?: at (?P<file>[^\n]{1,500}?):(?P<line>\d{1,7})(?: \([^\n]*\))?)?:"
    r"(?P<begins>[^\n]*)\n(?P<text>(?:(?!CMake |Call Stack)[^\n]+\n|\n(?=[ \t]))*)"
    r"\n*(?:Call Stack[^\n]*\n(?P<calls>(?:  [^\n]*\n)*))?", re.M,
)  # fmt: skip
_PLACE = re.compile(r"(?:^|\s)([^\s:]{1,500}):(\d{1,7})\b")
