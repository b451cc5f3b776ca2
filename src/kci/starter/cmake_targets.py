"""Following CMake files to their targets: variables, conditions, lists, globs, functions and subdirectories.

What takes a list of sources and flags no further is passed over; what would, and is not followed, is said.
"""

from __future__ import annotations

import fnmatch
import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence

from kci.starter.cmake_text import Argument, CMakeCommand, Condition, by_language, is_expression, read_commands

CMAKE = "CMakeLists.txt"
_ROOT = "/kci-setup-cmake/project"
_MOST_STEPS = 20_000
_DEEPEST = 20
_MOST_VALUE = 200_000
_EXTENSIONS = (
    "add_library", "cuda_add_library", "pybind11_add_module", "python_add_library", "python3_add_library",
    "nanobind_add_module",
)  # fmt: skip
_WORDS = frozenset(("PUBLIC", "PRIVATE", "INTERFACE", "SYSTEM", "BEFORE", "AFTER", "STATIC", "SHARED", "MODULE",
                    "OBJECT", "EXCLUDE_FROM_ALL", "WITH_SOABI", "USE_SABI", "NO_EXTRAS", "THIN_LTO"))  # fmt: skip


class EndsError(Exception):
    """The files of a backend end here."""


class CMakeTarget:
    """A library or a module that the files add."""

    def __init__(self, name: str, kind: str, line: int) -> None:
        self.name, self.kind, self.line = name, kind, line
        self.where = self.place = ""
        self.sources: list[str] = []
        self.include: list[str] = []
        self.links: list[str] = []
        self.options: list[tuple[str, str]] = []


class CMakeReader:
    """The files for one backend."""

    def __init__(self, files: Mapping[str, bytes], backend: str, forced: Mapping[str, str]) -> None:
        self.files, self.backend = files, backend
        self.left: list[str] = []
        self.targets: dict[str, CMakeTarget] = {}
        self.functions: dict[str, CMakeCommand] = {}
        self.steps, self.line, self.deep = 0, 0, 0
        self.file = self.place = ""
        gpu = {
            "CUDA_FOUND": "TRUE", "CUDAToolkit_FOUND": "TRUE", "CUDA_VERSION": "13.0", "CUDAToolkit_VERSION": "13.0.0",
            "CMAKE_CUDA_COMPILER": "/usr/local/cuda/bin/nvcc", "CMAKE_CUDA_COMPILER_VERSION": "13.0.0",
            "CMAKE_CUDA_COMPILER_LOADED": "1", "CUDA_INCLUDE_DIRS": "/usr/local/cuda/include",
        }  # fmt: skip
        self.values = {
            "CMAKE_SOURCE_DIR": _ROOT, "CMAKE_BUILD_TYPE": "Release", "UNIX": "1", "LINUX": "1",
            "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": "x86_64", "CMAKE_CXX_COMPILER_ID": "GNU",
            "CMAKE_CXX_COMPILER_VERSION": "13.2.0", "CMAKE_VERSION": "3.31.0", "SKBUILD": "2",
            "SKBUILD_PROJECT_NAME": "", "Torch_FOUND": "TRUE", "TORCH_FOUND": "TRUE",
            "TORCH_LIBRARIES": "torch", "TORCH_INCLUDE_DIRS": "/usr/lib/python3/site-packages/torch/include",
            **(gpu if backend == "cuda" else {}),
        }  # fmt: skip
        self.forced = forced

    def folder(self, place: str, deep: int) -> None:
        """The CMakeLists.txt of a folder; its variables end with it, unless it is the first."""
        before, where = dict(self.values), (self.file, self.place)
        here = posixpath.join(_ROOT, place) if place else _ROOT
        self.values["CMAKE_CURRENT_SOURCE_DIR"] = self.values["CMAKE_CURRENT_LIST_DIR"] = here
        self.values.setdefault("PROJECT_SOURCE_DIR", here)
        self.place = place
        self.include(posixpath.join(place, CMAKE), deep)
        for target in {id(item): item for item in self.targets.values() if item.place == place}.values():
            target.options += [("CXX", word) for word in self.values.get("CMAKE_CXX_FLAGS", "").split()]
            target.options += [("CUDA", word) for word in self.values.get("CMAKE_CUDA_FLAGS", "").split()]
            target.options += by_language(self.values.get(":options", ""))
            target.include += self.paths(self.values.get(":include", "").split(";"))
        self.values, (self.file, self.place) = before, where

    def include(self, path: str, deep: int) -> None:
        """A file of the project."""
        if deep > _DEEPEST:
            raise ValueError("its files include each other too deeply")
        if (text := self.files.get(posixpath.normpath(path))) is None:
            self.note(f"{path} is not here: what it adds is not either")
            return
        before, self.file = self.file, posixpath.normpath(path)
        self.deep = deep
        self.run(read_commands(text.decode("utf-8", "replace")))
        self.file, self.deep = before, deep - 1

    def note(self, text: str) -> None:
        self.left.append(f"{self.file or CMAKE}:{self.line}: {text}")

    def run(self, commands: Sequence[CMakeCommand]) -> bool:
        """Follow commands; False if one of them is `return`."""
        for command in commands:
            self.steps += 1
            if self.steps > _MOST_STEPS:
                raise ValueError("it has more commands than kci follows")
            self.line = command.line
            if command.name == "return":
                return False
            if command.branches:
                if not self.branches(command):
                    return False
                continue
            given = self.expanded(command.arguments)
            if (function := self.functions.get(command.name)) is not None:
                self.call(function, given)
            elif (known := getattr(self, f"do_{command.name}", None)) is not None:
                known(given)
            elif command.name.startswith("target_"):
                self.more(command.name.removeprefix("target_"), given)
            elif command.name in _EXTENSIONS:
                self.added(command.name, given)
            elif command.name.startswith(("fetchcontent_make", "externalproject_add", "add_custom_command")):
                self.note(f"{command.name}: kci fetches and generates nothing: put what it makes into the project")
        return True

    def branches(self, command: CMakeCommand) -> bool:
        if command.name in ("function", "macro"):
            self.functions[command.arguments[0].text.lower() if command.arguments else ""] = command
        elif command.name == "foreach":
            name, *values = self.expanded(command.arguments)
            for value in self.looped(values):
                self.steps += 1
                self.values[name] = value
                if not self.run(command.branches[0][1]):
                    return False
        elif command.name == "if":
            for opens, body in command.branches:
                self.line = opens.line
                words = [Argument(self.text(item.text), item.quoted) for item in opens.arguments]
                for how, what in itertools.pairwise(words):
                    if how.text == "MATCHES" and is_expression(what.text):
                        self.note(f"MATCHES {what.text[:60]}: kci compares texts only: look at what depends on it")
                if opens.name == "else" or Condition(words, self.values.get, self.test).holds():
                    return self.run(body)
        return True

    def looped(self, values: list[str]) -> list[str]:
        """The values of a `foreach`."""
        match values:
            case ["IN", "LISTS", *names]:
                return [item for name in names for item in self.values.get(name, "").split(";") if item]
            case ["IN", "ITEMS", *items]:
                return items
            case ["RANGE", *numbers] if re.fullmatch(r"(?: -?\d{1,9}){1,3}", "".join(f" {item}" for item in numbers)):
                first, last, step = (*([0] if len(numbers) == 1 else []), *map(int, numbers), 1)[:3]
                return [str(one) for one in range(first, last + (1 if step > 0 else -1), step or 1)[:_MOST_STEPS]]
            case ["RANGE", *_] | ["IN", "ZIP_LISTS", *_]:
                self.note(f"foreach({' '.join(values)[:60]}): kci does not follow it: look at what it adds")
                return []
        return values

    def call(self, function: CMakeCommand, given: list[str]) -> None:
        names = [item.text for item in function.arguments[1:]]
        before, keeps = dict(self.values), function.name == "macro"
        self.values.update(zip(names, given, strict=False))
        self.values |= {"ARGC": str(len(given)), "ARGV": ";".join(given), "ARGN": ";".join(given[len(names) :])}
        self.deep += 1
        if self.deep > _DEEPEST:
            raise ValueError("its functions call each other too deeply")
        self.run(function.branches[0][1])
        self.deep -= 1
        if not keeps:
            kept = {name: value for name, value in self.values.items() if name.startswith("^")}
            self.values = before | {name[1:]: value for name, value in kept.items()}

    def test(self, how: str, name: str) -> bool:
        if how == "DEFINED":
            return name in self.values
        if how == "TARGET":
            return name in self.targets
        path = self.paths([name])
        return bool(path) and any(item == path[0] or item.startswith(f"{path[0]}/") for item in self.files)

    def text(self, text: str) -> str:
        """A text with the values of its variables."""
        for _ in range(8):
            new = re.sub(r"\$ENV\{\w*\}", "", text)
            new = re.sub(r"\$\{([\w.+/:-]*)\}", lambda found: self.values.get(found[1], ""), new)
            if len(new) > _MOST_VALUE:
                raise ValueError("a value is too long")
            if new == text:
                break
            text = new
        return text

    def expanded(self, arguments: Sequence[Argument]) -> list[str]:
        made: list[str] = []
        for item in arguments:
            text = self.text(item.text)
            made += [text] if item.quoted or "$<" in text else [part for part in text.split(";") if part]
        return made

    def paths(self, given: Sequence[str]) -> list[str]:
        """Paths as in the project; what lies outside of it stays as it is."""
        made = []
        for text in given:
            path = posixpath.normpath(posixpath.join(_ROOT, self.place, text)) if text else ""
            inside = path == _ROOT or path.startswith(f"{_ROOT}/")
            made += [(path[len(_ROOT) + 1 :] or "." if inside else path)] if path else []
        return made

    def do_set(self, given: list[str]) -> None:
        if not given:
            return
        name, *values = given
        if "CACHE" in values:
            if name in self.values or name in self.forced:
                return
            values = values[: values.index("CACHE")]
        above = values[-1:] == ["PARENT_SCOPE"]
        self.values["^" + name if above else name] = ";".join(values[:-1] if above else values)

    def do_unset(self, given: list[str]) -> None:
        self.values.pop(given[0] if given else "", None)

    def do_option(self, given: list[str]) -> None:
        name, default = given[0] if given else "", given[2] if len(given) > 2 else "OFF"
        if name in self.values:
            return
        if re.search(r"CUDA|GPU", name) and not re.search(r"NO_|DISABLE|WITHOUT", name):
            default = "ON" if self.backend == "cuda" else "OFF"
        elif re.search(r"HIP|ROCM|TEST|BENCH|EXAMPLE|DOCS?$", name):
            default = "OFF"
        self.values[name] = self.forced.get(name, default)

    def do_list(self, given: list[str]) -> None:
        if len(given) < 2:
            return
        how, name, *values = given
        now = [item for item in self.values.get(name, "").split(";") if item]
        if how == "APPEND":
            now += values
        elif how == "PREPEND":
            now = values + now
        elif how == "REMOVE_ITEM":
            now = [item for item in now if item not in values]
        elif how == "REMOVE_DUPLICATES":
            now = list(dict.fromkeys(now))
        elif how in ("FILTER", "TRANSFORM", "SUBLIST"):
            self.note(f"list({how} {name[:40]}): kci does not follow it: look at the sources")
        self.values[name] = ";".join(now)

    def do_string(self, given: list[str]) -> None:
        if len(given) >= 2 and given[0] == "APPEND":
            self.values[given[1]] = self.values.get(given[1], "") + "".join(given[2:])
        elif len(given) >= 3 and given[0] in ("TOUPPER", "TOLOWER"):
            self.values[given[2]] = given[1].upper() if given[0] == "TOUPPER" else given[1].lower()

    def do_file(self, given: list[str]) -> None:
        if len(given) < 3 or not given[0].startswith("GLOB"):
            return
        patterns = [
            item for item in given[2:] if item not in ("CONFIGURE_DEPENDS", "LIST_DIRECTORIES", "false", "true")
        ]
        base = ""
        if patterns[:1] == ["RELATIVE"]:
            base, patterns = "".join(self.paths(patterns[1:2])), patterns[2:]
        found: dict[str, None] = {}
        self.steps += len(self.files) * len(patterns) // 100
        for pattern in self.paths(patterns[:50]):
            for name in sorted(self.files):
                folder, last = posixpath.split(name)
                in_folder, wanted = posixpath.split(pattern)
                at = fnmatch.fnmatchcase(folder, in_folder) and folder.count("/") == in_folder.count("/")
                below = given[0] == "GLOB_RECURSE" and (not in_folder or f"{folder}/".startswith(f"{in_folder}/"))
                if fnmatch.fnmatchcase(last, wanted) and (at or below):
                    found[posixpath.relpath(name, base) if base else f"{_ROOT}/{name}"] = None
        self.values[given[1]] = ";".join(found)

    def do_aux_source_directory(self, given: list[str]) -> None:
        if len(given) == 2:
            self.do_file(["GLOB", given[1], *(f"{given[0]}/*.{end}" for end in ("c", "cc", "cpp", "cxx"))])

    def do_project(self, given: list[str]) -> None:
        here = self.values["CMAKE_CURRENT_SOURCE_DIR"]
        self.values |= {"PROJECT_SOURCE_DIR": here, "PROJECT_NAME": given[0] if given else ""}
        self.values[f"{self.values['PROJECT_NAME']}_SOURCE_DIR"] = here
        self.do_enable_language(given[1:])

    def do_enable_language(self, given: list[str]) -> None:
        if "CUDA" in given and self.backend == "cpu":
            raise EndsError("the language CUDA, which it always asks for")
        if "HIP" in given:
            raise EndsError("the language HIP, which it always asks for")

    def do_find_package(self, given: list[str]) -> None:
        name = given[0] if given else ""
        if name.startswith("CUDA"):
            if self.backend == "cpu" and "REQUIRED" in given:
                raise EndsError("CUDA, which it always asks for")
        elif name in ("pybind11", "OpenMP", "Threads", "Python", "Python3", "nanobind"):
            self.values[f"{name}_FOUND"] = "TRUE"
        elif name not in ("Torch", "") and "REQUIRED" in given:
            self.note(f"it needs {name[:60]}: a kernel has only torch, so bring its sources along, or do without")
            self.values[f"{name}_FOUND"] = "TRUE"

    def do_message(self, given: list[str]) -> None:
        if given[:1] == ["FATAL_ERROR"]:
            raise EndsError(f"its own error: {' '.join(given[1:])[:200]}")

    def do_add_subdirectory(self, given: list[str]) -> None:
        for path in self.paths(given[:1]):
            self.folder(path, self.deep + 1)

    def do_include(self, given: list[str]) -> None:
        if given and (given[0].endswith(".cmake") or "/" in given[0]):
            for path in self.paths(given[:1]):
                self.include(path, self.deep + 1)

    def added(self, how: str, given: list[str]) -> None:
        if not given or "ALIAS" in given or "IMPORTED" in given:
            if len(given) > 2 and given[2] in self.targets:
                self.targets[given[0]] = self.targets[given[2]]
            return
        kind = (
            "module"
            if how != "add_library"
            else next(iter(word.lower() for word in given[1:2] if word in _WORDS), "static")
        )
        target = self.targets[given[0]] = CMakeTarget(given[0], kind, self.line)
        target.where, target.place = self.file, self.place
        target.sources += self.paths([word for word in given[1:] if word not in _WORDS and not word.startswith("$<")])
        target.links += [found[1] for word in given if (found := re.fullmatch(r"\$<TARGET_OBJECTS:([\w:]+)>", word))]
        if "pybind11" in how or "nanobind" in how:
            target.links.append(how.partition("_")[0])

    def more(self, what: str, given: list[str]) -> None:
        if given and (target := self.targets.get(given[0])) is not None:
            known = by_language(";".join(word for word in given[1:] if word not in _WORDS))
            values = [value for language, value in known if language != "?"]
            match what:
                case "sources":
                    target.sources += self.paths([value for _, value in known])
                case "include_directories":
                    target.include += self.paths(values)
                case "link_libraries":
                    target.links += values
                case "compile_options":
                    target.options += known
                case "compile_definitions":
                    target.options += [(language, f"-D{value.removeprefix('-D')}") for language, value in known]

    def do_set_target_properties(self, given: list[str]) -> None:
        if "PROPERTIES" in given:
            at = given.index("PROPERTIES")
            pairs = dict(zip(given[at + 1 :: 2], given[at + 2 :: 2], strict=False))
            for name in given[:at]:
                if name in self.targets and re.fullmatch(r"\w+", pairs.get("OUTPUT_NAME", "")):
                    self.targets[name].name = pairs["OUTPUT_NAME"]

    def do_install(self, given: list[str]) -> None:
        if given[:1] == ["TARGETS"] and "DESTINATION" in given:
            where = "".join(given[given.index("DESTINATION") + 1 :][:1]).strip("./")
            for name in given[1:]:
                if (
                    name in self.targets
                    and re.fullmatch(r"\w+(?:/\w+)*", where)
                    and where not in ("lib", "lib64", "bin")
                ):
                    self.targets[name].kind = "module"
                    self.targets[name].name = f"{where.replace('/', '.')}.{self.targets[name].name}"

    def do_include_directories(self, given: list[str]) -> None:
        paths = [f"{_ROOT}/{path}" if not path.startswith("/") else path for path in self.paths(given)]
        self.do_list(["APPEND", ":include", *(path for path in paths if path.rpartition("/")[2] not in _WORDS)])

    def do_add_compile_options(self, given: list[str]) -> None:
        self.do_list(["APPEND", ":options", *given])

    do_add_definitions = do_add_compile_options

    def do_add_compile_definitions(self, given: list[str]) -> None:
        self.do_list(["APPEND", ":options", *(f"-D{word}" for word in given)])
