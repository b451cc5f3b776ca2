"""What to say of a native build that failed."""

from __future__ import annotations

import re
from pathlib import Path

from kci.builders.commands import KERNEL
from kci.builders.process import Finished
from kci.builders.request import Request
from kci.errors import BuildFailedError
from kci.files.full_disk import program_hint, room_hint, unwritten

_LIBRARY_HEADER = re.compile(r"fatal error: ((?:cublas|cudnn|cufft|curand|cusolver|cusparse|nccl)\w*\.h)")
_KILLED = re.compile(
    r"Killed signal terminated program|fatal error: Killed|died due to signal 9|^Killed$", re.MULTILINE
)
CACHE_OPTION = "--cache or KCI_CACHE"


def unwritable(work: Path, error: OSError) -> BuildFailedError:
    """The error for a work directory that cannot be written: a full disk, above all."""
    hint = room_hint(error, CACHE_OPTION) or f"{CACHE_OPTION} names another place"
    return BuildFailedError(f"cannot write {unwritten(error, work)}: {error.strerror or error}", hint=hint)


def failure_message(request: Request, work: Path, done: Finished) -> str:
    """The failing command and the compiler's words, from where ninja begins to report them."""
    lines = done.output.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("FAILED:")]
    told = Finished(done.code, "\n".join(lines[starts[0] :])) if starts else done
    where = f"in {work} ({KERNEL}/ there is {request.kernel_dir.resolve()})"
    return f"building {request.variant.name} failed {where}\n{told.tail()}"


def failure_hint(done: Finished, work: Path) -> str:
    """What to do about a failure that a build on a bare machine is likely to meet."""
    if missing := _LIBRARY_HEADER.search(done.output):
        return (
            f"{missing[1]} belongs to a CUDA library that comes only with a complete toolkit: build in the leg's image "
            "(--container auto), or move the kernel to the stable ABI"
        )
    if _KILLED.search(done.output):
        return "a compiler was killed, most likely for want of memory: give fewer --jobs, or more memory"
    return (
        program_hint(done.output, work, CACHE_OPTION) or "run the command again in the work directory to reproduce it"
    )
