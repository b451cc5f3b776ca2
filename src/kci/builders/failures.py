"""What to say of a native build that failed."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from kci.builders.compiler_words import ErrorSpot, as_written, excerpt, first_failed, named_error
from kci.builders.recipe import Recipe
from kci.builders.request import Request
from kci.diagnostics import Span, finding
from kci.errors import BuildFailedError
from kci.files.cache import CACHE_OPTION
from kci.files.full_disk import program_hint, room_hint, unwritten
from kci.files.walk import OUTPUT_DIRECTORIES
from kci.plurals import count
from kci.processes.process import Finished

_LIBRARY_HEADER = re.compile(r"fatal error: ((?:cublas|cudnn|cufft|curand|cusolver|cusparse|nccl)\w*\.h)")
_KILLED = re.compile(
    r"Killed signal terminated program|fatal error: Killed|died due to signal 9|^Killed$", re.MULTILINE
)
_OLD_STANDARD = re.compile(r"(C\+\+\d+) or later compatible compiler is required to use (?:PyTorch|ATen)")
_MISSING_HEADER = re.compile(
    r"^(\S+): No such file or directory|cannot open source file \"([^\"]+)\"|^'([^']+)' file not found"
)


def unwritable(work: Path, error: OSError) -> BuildFailedError:
    """The error for a work directory that cannot be written: a full disk, above all."""
    hint = room_hint(error, CACHE_OPTION) or f"{CACHE_OPTION} names another place"
    return BuildFailedError(f"cannot write {unwritten(error, work)}: {error.strerror or error}", hint=hint)


def failed_build(recipe: Recipe, request: Request, done: Finished) -> BuildFailedError:
    """The error for a command of ninja's that failed.

    Its message has what the compiler said around the first error, and the command; its finding the place (KCI513).

    Args:
        recipe: what was run.
        request: what was built.
        done: how ninja ended.
    """
    name, work = request.variant.name, recipe.work
    failed = first_failed(done.output)
    if failed is None:
        return BuildFailedError(f"building {name} failed in {work}\n{done.tail()}", hint=failure_hint(done, work))
    translated = {made: source for source, made in recipe.translation.sources.items()} if recipe.translation else {}
    what = next((step.what for step in recipe.steps if step.output == failed.made), failed.made)
    spot = named_error(failed.said, translated) or ErrorSpot(f"{what} failed")
    hint = _header_hint(spot.text, request.kernel_dir) or failure_hint(done, work)
    others = f" (and {count(failed.others, 'other command')})" if failed.others else ""
    message = [f"building {name} failed at {what}{others}"]
    message += [as_written(line, request.kernel_dir) for line in excerpt(failed.said, spot.at)]
    message += ["the command:", f"  cd {shlex.quote(str(work))} && {failed.command}"]
    path = (request.kernel_dir / spot.path).as_posix() if spot.path else ""
    span = Span(spot.line, spot.column or 1, spot.line, 0) if spot.line else None
    found = finding("KCI513", spot.text, path=path, span=span)
    return BuildFailedError("\n".join(message), hint=hint, diagnostics=[found])


def _header_hint(text: str, kernel_dir: Path) -> str:
    """What to do about a header that is not found, and that lies elsewhere in the kernel."""
    if (missing := _MISSING_HEADER.search(text)) is None:
        return ""
    wanted = next(name for name in missing.groups() if name)
    for folder, folders, files in os.walk(kernel_dir):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in OUTPUT_DIRECTORIES)
        place = os.path.relpath(folder, kernel_dir)
        if Path(wanted).name in files and f"{place}/{Path(wanted).name}".endswith(f"/{wanted}"):
            include = (Path(place) / Path(wanted).name).as_posix().removesuffix(wanted).rstrip("/") or "."
            return f'{wanted} is in {include}: add `include = ["{include}"]` to the component in build.toml'
    return ""


def failure_hint(done: Finished, work: Path) -> str:
    """What to do about a failure that a build on a bare machine is likely to meet."""
    if missing := _LIBRARY_HEADER.search(done.output):
        return (
            f"{missing[1]} belongs to a CUDA library that comes only with a complete toolkit: build in the leg's image "
            "(--container auto), or move the kernel to the stable ABI"
        )
    if standard := _OLD_STANDARD.search(done.output):
        return f"this torch needs {standard[1]}: leave `-std` out of the flags, and kci gives what each torch needs"
    if _KILLED.search(done.output):
        return "a compiler was killed, most likely for want of memory: give fewer --jobs, or more memory"
    return program_hint(done.output, work, CACHE_OPTION)
