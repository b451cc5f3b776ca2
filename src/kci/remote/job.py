"""A leg as a job that any machine can run: everything that it needs to know, as JSON.

An engine invents nothing: the command, the hardware, the limits and the inputs with their digests are all in here.
"""

from __future__ import annotations

import enum
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.files.bounded_json import require_schema

SCHEMA = 1
JOB_FILE = "job.json"
RESULT_FILE = "result.json"
LOG_FILE = "log.txt"
OUT = "out"
"""The folder of a job that holds what it hands back."""

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,99}\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,250}\Z")]


class HardwareNeed(msgspec.Struct, frozen=True):
    """The hardware class that a job needs. Compiling for a GPU needs none; testing on one does."""

    backend: str = "cpu"
    minimum: str = ""
    """The lowest CUDA capability that will do, such as `8.0`."""
    archs: tuple[str, ...] = ()
    """The ROCm archs of which one will do."""


class InputFile(msgspec.Struct, frozen=True):
    """A file that has to be in the job's folder before it starts."""

    name: FileName
    sha256: Digest
    size: Annotated[int, Meta(ge=0)]


class EngineJob(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at one leg."""

    name: Name
    """Unique, wherever it runs: an engine is asked for it before anything is submitted a second time."""
    run: Name
    attempt: Annotated[int, Meta(ge=1, le=1000)]
    kernel: str
    leg: str
    variants: tuple[str, ...]
    command: tuple[str, ...]
    """What is run in the job's folder, without a shell."""
    image: str = ""
    hardware: HardwareNeed = HardwareNeed()
    cores: int
    memory_gb: int
    timeout: int
    """Minutes."""
    inputs: tuple[InputFile, ...] = ()
    environment: dict[str, str] = {}
    """Variables that are set for the command."""
    let_through: tuple[str, ...] = ()
    """Variables of the machine that the command sees; all others are taken away."""
    artifacts: tuple[FileName, ...] = ()
    """What it may hand back, by name."""
    most_bytes: int
    """How large one of these may be."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


class JobState(enum.StrEnum):
    """What an engine says of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    """It ran to its end, and its result can be fetched."""
    LOST = "lost"
    """It will not go on and left no result: killed, preempted, or its machine is gone. It can be started again."""
    STOPPED = "stopped"
    """It was ended for a reason that starting it again would not change."""


class JobStatus(msgspec.Struct, frozen=True):
    """A job's state, and why."""

    state: JobState
    reason: str = ""


class HandedBack(msgspec.Struct, frozen=True):
    """A file in `out/`, as the job says."""

    name: FileName
    sha256: Digest
    size: Annotated[int, Meta(ge=0)]


class JobResult(msgspec.Struct, frozen=True):
    """`result.json`: what the job says of itself. It comes from a machine that ran foreign code."""

    job: Name
    code: int
    seconds: Annotated[float, Meta(ge=0)]
    ended: Annotated[str, Meta(pattern=r"^(exit|timeout|cancelled|inputs)\Z")]
    """`exit`: by itself, with `code`; `inputs`: it never started, because an input was not what it had to be."""
    files: tuple[HandedBack, ...] = ()
    host: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,255}\Z")] = ""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


_UNPRINTABLE = re.compile(
    r"[^\t\n\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufff8\U00010000-\U000dffff]"
)


def printable(text: str) -> str:
    """Text from a log, in which nothing can drive a terminal: control characters are written out in ASCII."""
    return _UNPRINTABLE.sub(lambda found: ascii(found.group())[1:-1], text)
