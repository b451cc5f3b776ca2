"""Explains failed native builds: the first error, its place in the kernel, and a hint."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from kci.builders.kernel_files import KERNEL
from kci.builders.native.hipify import FOLDER
from kci.builders.native.ninja import KILLED, failed_commands
from kci.builders.native.recipe import Recipe
from kci.builders.process.run import Log, ProgramResult, silent
from kci.builders.request import Request
from kci.diagnostics import Span, finding
from kci.errors import BuildFailedError
from kci.plan.inputs.kernel_inputs import active
from kci.plan.inputs.source_lints import INSTEAD_OF_PYBIND
from kci.utils.atomic import full_disk_program_hint
from kci.utils.cache import CACHE_VARIABLE
from kci.utils.frozen import Frozen
from kci.utils.suggest import count
from kci.utils.walk import OUTPUT_DIRECTORIES

_PLACED = (
    # g++, clang++, icpx, hipcc: `relu.cpp:3:5: error: ...`
    re.compile(
        r"(?P<path>[^\s:][^:]*):(?P<line>\d+):(?P<column>\d+): (?:fatal )?error: (?P<text>.+)"
    ),
    # nvcc: `relu.cu(3): error: ...`
    re.compile(
        r"(?P<path>\S.*?)\((?P<line>\d+)\): (?:catastrophic |fatal )?error(?: #[\w-]+)?: "
        r"(?P<text>.+)"
    ),
)
# linker errors, and `error:` or `fatal :` without a place
_UNPLACED = re.compile(
    r"(?:.*: )?(?P<linker>(?:undefined reference to|multiple definition of) "
    r".+)|(?P<other>.*\b(?:error|fatal) *: .+)"
)
_THROUGH = (
    re.compile(r"(?P<path>[^\s:][^:]*):(?P<line>\d+):(?P<column>\d+): +required (?:from|by).*"),
    re.compile(r".* at line (?P<line>\d+) of (?P<path>\S+)"),
    re.compile(
        r"(?:In file included from| +from) (?P<path>[^:]+):(?P<line>\d+)(?::(?P<column>\d+))?[:,]"
    ),
)
"""Lines about instantiations and includes that lead to an error."""
# kernel files in the work directory
_OWN = rf"(?:{KERNEL}|{FOLDER})/"
_KERNEL_PATH = re.compile(rf'(?P<before>^|\bfrom |\bof |"){_OWN}')
# g++, nvcc, clang++
_MISSING_HEADER = re.compile(
    r"^(\S+): No such file or directory|cannot open source file \"([^\"]+)\"|^'([^']+)' file not "
    r"found"
)
_HINTS = {
    re.compile(r"fatal error: ((?:cublas|cudnn|cufft|curand|cusolver|cusparse|nccl)\w*\.h)"): (
        "{0} belongs to a CUDA library that comes only with a complete toolkit: build in the leg's "
        "image (--container auto), or move the kernel to the stable ABI"
    ),
    re.compile(r"(C\+\+\d+) or later compatible compiler is required to use (?:PyTorch|ATen)"): (
        "this torch needs {0}: remove `-std` from the flags, and kci sets the standard of each "
        "torch"
    ),
    re.compile(r"[/ ]pybind11/\S+\.h(?::\d+:\d+: (?:fatal )?error:|\(\d+\): error)"): (
        f"pybind11's headers do not compile with Python's limited API: {INSTEAD_OF_PYBIND}"
    ),
    # g++, clang++
    re.compile(
        r"unrecognized command[- ]line option ['‘](-m[\w.+=-]+)['’]"
        r"|unknown value ['‘]([^'’]+)['’] for ['‘](-m\w+)['’]"
        r"|(?:unsupported option|unknown argument) ['‘](-m[\w.+=-]+)['’]"
    ): (
        "compilers for {1} have no flag {0}, and the flags of build.toml are for all systems: "
        "remove it, and choose in the source (`__x86_64__`, `__aarch64__`, "
        "`__attribute__((target(...)))`)"
    ),
    KILLED: (
        "a compiler was killed, most likely because memory ran out: use fewer --jobs, or more "
        "memory"
    ),
}
"""By output of compilers: `{0}` is what the pattern names, and `{1}` the system."""
_BEFORE, _BEHIND, _SHOWN = 12, 20, 30
_AGAIN = "correct that, and run the same command again: kci keeps what compiled"


class ErrorSpot(Frozen):
    """A compiler error and its place."""

    text: str
    path: str = ""
    """Relative to the kernel's directory; empty outside of it."""
    line: int = 0
    column: int = 0
    line_index: int = 0
    """Index of the output line."""


def find_error(lines: Sequence[str]) -> ErrorSpot | None:
    """The first error in a compiler's output.

    For an error in a library header, the kernel's line that leads to it.
    """
    for number, line in enumerate(lines):
        for pattern in _PLACED:
            if match := pattern.fullmatch(line):
                if place := _place(match):
                    return ErrorSpot(match["text"], *place, number)
                text = f"{match['text']} ({match['path']}:{match['line']})"
                through = _instantiation_site(lines[max(0, number - _BEFORE) : number + _BEHIND])
                return ErrorSpot(text, *through, line_index=number)
    for number, line in enumerate(lines):
        if match := _UNPLACED.fullmatch(line):
            return ErrorSpot(match["linker"] or match["other"], line_index=number)
    return None


def error_excerpt(lines: Sequence[str], line_index: int) -> list[str]:
    """Output around the first error, with counts of omitted lines."""
    start = max(0, line_index - _BEFORE)
    shown = list(lines[start : start + _SHOWN])
    omitted = len(lines) - start - len(shown)
    before = [f"... ({start} lines before it)"] if start else []
    return [*before, *shown, *([f"... ({omitted} lines after it)"] if omitted else [])]


def show_kernel_paths(line: str, kernel_dir: Path) -> str:
    """Show kernel files by their real paths, so that they can be clicked."""
    folder = kernel_dir.as_posix()
    prefix = "" if folder == "." else f"{folder.rstrip('/')}/"
    return _KERNEL_PATH.sub(lambda match: f"{match['before']}{prefix}", line)


def _instantiation_site(lines: Sequence[str]) -> tuple[str, int, int]:
    # an instantiation says more than an include
    for pattern in _THROUGH:
        for line in lines:
            match = pattern.fullmatch(line)
            if match and (place := _place(match)):
                return place
    return "", 0, 0


def _place(match: re.Match[str]) -> tuple[str, int, int] | None:
    # relative to the kernel's directory; None for other files
    if not re.match(_OWN, match["path"]):
        return None
    path = posixpath.normpath(match["path"].partition("/")[2])
    return path, int(match["line"]), int(match.groupdict().get("column") or 0)


def build_error(recipe: Recipe, done: ProgramResult, log: Log = silent) -> BuildFailedError:
    """Make the error (KCI513) for a failed ninja command; `log` gets output that its
    message omits.
    """
    request, work = recipe.request, recipe.work
    name, hint = request.variant.name, failure_hint(done.output, work, request.variant.system)
    commands = failed_commands(done.output)
    if not commands:
        return BuildFailedError(f"building {name} failed in {work}\n{done.tail()}", hint)
    failed, more = commands[0], len(commands) - 1
    labels = {step.output: step.label for step in recipe.steps}
    what = labels.get(failed.output, failed.output)
    spot = find_error(failed.lines) or ErrorSpot(f"{what} failed")
    hint = _header_hint(spot, request) or hint or _AGAIN
    for other in commands if len(failed.lines) > _SHOWN else commands[1:]:
        for line in (f"FAILED: {other.output}", other.command, *other.lines):
            log(show_kernel_paths(line, request.kernel_dir))
    others = f" (and {count(more, 'other command')})" if more else ""
    excerpt = error_excerpt(failed.lines, spot.line_index)
    message = [
        f"building {name} failed at {what}{others}",
        *(show_kernel_paths(line, request.kernel_dir) for line in excerpt),
        "the command:",
        f"  cd {shlex.quote(str(work))} && {failed.command}",
    ]
    path = (request.kernel_dir / spot.path).as_posix() if spot.path else ""
    span = Span(spot.line, spot.column or 1, spot.line, 0) if spot.line else None
    problem = finding("KCI513", spot.text, path, span=span)
    return BuildFailedError("\n".join(message), hint, diagnostics=[problem])


def _header_hint(spot: ErrorSpot, request: Request) -> str:
    if (missing := _MISSING_HEADER.search(spot.text)) is None:
        return ""
    header = next(name for name in missing.groups() if name)
    kernel_dir, inputs = request.kernel_dir, request.files()
    seen = {inputs.shown(path) for path, _ in inputs.of(request.variant)}
    beside = posixpath.normpath(posixpath.join(posixpath.dirname(spot.path), header))
    for folder, folders, files in os.walk(kernel_dir):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in OUTPUT_DIRECTORIES
        )
        for name in files:
            path = (Path(os.path.relpath(folder, kernel_dir)) / name).as_posix()
            if path != beside and not f"/{path}".endswith(f"/{header}"):
                continue
            table, searched = _source_table(spot.path, request)
            include = path.removesuffix(header).rstrip("/") or "."
            add = [] if path in seen else [f'"{path}" to `src`']
            add += [] if path == beside or include in searched else [f'"{include}" to `include`']
            if add:
                return f"{header} is {path}: add {' and '.join(add)} of {table} in build.toml"
    return ""


def _source_table(source: str, request: Request) -> tuple[str, tuple[str, ...]]:
    for label, part in active(request.build, request.variant).items():
        if source in part.src:
            return f"[kernel.{label}]", (*(part.include or ()), "csrc")
    framework = request.build.torch or request.build.tvm_ffi
    include = (framework and framework.include) or ()
    return f"[{request.build.framework_name}]", tuple(include)


def failure_hint(output: str, work: Path, system: str) -> str:
    """A hint for failures that are typical of a bare machine."""
    for pattern, hint in _HINTS.items():
        if match := pattern.search(output):
            return hint.format("=".join(filter(None, match.groups()[::-1])), system)
    return full_disk_program_hint(output, work, CACHE_VARIABLE)
