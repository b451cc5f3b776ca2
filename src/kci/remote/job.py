"""A leg as a job that any machine can run: everything that it needs to know, as JSON in a folder of its own.

What is taken from the folder afterwards may be anything: it comes from a machine that ran foreign code.
"""

from __future__ import annotations

import enum
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.errors import FindingsError, UnsafeError
from kci.files.bounded_json import decode_json, open_plain, require_schema
from kci.files.full_disk import write_all, writing
from kci.files.replace import flush, write_atomic

SCHEMA = 1
JOB_FILE = "job.json"
RESULT_FILE = "result.json"
LOG_FILE = "log.txt"
OUT = "out"
"""The folder of a job that holds what it hands back."""

SCRIPT = Path(__file__).with_name("job_script.py")
SCRIPT_NAME = "kci_job.py"
LOG_BYTES = 8 * 1024 * 1024
"""How much of a log is kept."""

_RESULT_BYTES = 256 * 1024
_CHUNK = 1024 * 1024

Read = Callable[[str], Iterator[bytes]]
"""The content of a file of a job's folder, by its name there, in parts; or `FileNotFoundError`."""

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,99}\Z")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,250}\Z")]


class HardwareNeed(msgspec.Struct, frozen=True):
    """The hardware class that a job needs. Compiling for a GPU needs none; testing on one does."""

    backend: str = "cpu"
    minimum: str = ""
    """The lowest CUDA capability that will do, such as `8.0`."""
    archs: tuple[str, ...] = ()
    """ROCm archs, any of which will do."""


class JobFile(msgspec.Struct, frozen=True):
    """A file that has to be in the job's folder before it starts, or one in `out/`, as the job says."""

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
    inputs: tuple[JobFile, ...] = ()
    environment: dict[str, str] = {}
    """Variables that are set for the command."""
    let_through: tuple[str, ...] = ()
    """Variables of the machine that the command sees; all others are taken away."""
    artifacts: tuple[FileName, ...] = ()
    """What it may hand back, by name."""
    pack: str = ""
    """The one of them that holds objects: it comes back however the build ends, and goes out with the next attempt."""
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


class JobResult(msgspec.Struct, frozen=True):
    """`result.json`: what the job says of itself. It comes from a machine that ran foreign code."""

    job: Name
    code: int
    seconds: Annotated[float, Meta(ge=0)]
    ended: Annotated[str, Meta(pattern=r"^(exit|timeout|cancelled|inputs)\Z")]
    """`exit`: by itself, with `code`; `inputs`: it never started, because an input was not what it had to be."""
    files: tuple[JobFile, ...] = ()
    host: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,255}\Z")] = ""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)


# Everything but tabs, line ends, and characters that are shown as themselves: no controls, no marks that turn the
# direction of writing, no halves of surrogate pairs, no private use.
_UNPRINTABLE = re.compile(
    r"[^\t\n\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufff8\U00010000-\U000dffff]"
)


def printable(text: str) -> str:
    """Text from a log, in which nothing can drive a terminal: control characters are written out in ASCII."""
    return _UNPRINTABLE.sub(lambda found: ascii(found.group())[1:-1], text)


def write_job(folder: Path, job: EngineJob) -> None:
    """Make a job's folder, also where a client that was killed had begun it; nothing starts yet."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SCRIPT, folder / SCRIPT_NAME)
    write_atomic(folder / JOB_FILE, msgspec.json.format(msgspec.json.encode(job)))


def add_input(inputs: Path, source: Path, digest: str) -> None:
    """Put an input where jobs look for it, under its digest: a link if it is on the same disk."""
    place = inputs / digest
    if place.is_file():
        return
    with writing(place):
        inputs.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            place.hardlink_to(source)
            return
        beside = inputs / f".{digest}.new"
        shutil.copyfile(source, beside)
        flush(beside)
        beside.replace(place)


def read_file(folder: Path, name: str) -> Iterator[bytes]:
    """The content of a file that a job wrote, in parts.

    Raises:
        FileNotFoundError: it does not exist.
        UnsafeError: it is a link, a pipe or a device.
    """
    try:
        file = open_plain(folder / name)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise UnsafeError(f"{folder / name} is not a plain file: {error}") from error
    with file:
        while data := file.read(_CHUNK):
            yield data


class Fetched(msgspec.Struct, frozen=True):
    """The files that a job has handed back."""

    result: JobResult
    artifacts: tuple[Path, ...]
    log: Path


def fetch_into(folder: Path, job: EngineJob, read: Read) -> Fetched:
    """Copy a job's log, and the artifacts that it was asked for, into a folder.

    Raises:
        UnsafeError: a file is larger than it may be, or larger than the job said.
        FindingsError: the result is missing or of another job, or a file differs from it.
        EngineAwayError: the engine cannot be reached.
        ClientError: this machine cannot write what it brings.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        _copy(folder / LOG_FILE, _shown(read(LOG_FILE)))
    try:
        result = decode_json(b"".join(_bounded(read(RESULT_FILE), _RESULT_BYTES, RESULT_FILE)), JobResult)
    except FileNotFoundError:
        raise FindingsError(f"{job.name} ended and left no {RESULT_FILE}") from None
    except ValueError as error:
        raise FindingsError(f"the {RESULT_FILE} of {job.name} cannot be read: {error}") from error
    if result.job != job.name:
        raise FindingsError(f"{job.name} was answered with the result of {result.job}")
    found = []
    for item in result.files:
        if item.name not in job.artifacts:
            raise FindingsError(f"{job.name} hands back {item.name}, which it was not asked for")
        if item.size > job.most_bytes:
            raise _too_large(item.name, item.size, job.most_bytes)
        path = folder / item.name
        try:
            digest = _copy(path, _bounded(read(f"{OUT}/{item.name}"), item.size, item.name))
        except FileNotFoundError:
            raise FindingsError(f"{item.name} is in the result of its job, but was not handed back") from None
        if digest != item.sha256:
            path.unlink()
            raise FindingsError(f"{item.name} of {job.name} does not have the digest that its result names")
        found.append(path)
    return Fetched(result, tuple(found), folder / LOG_FILE)


def _too_large(name: str, size: int, limit: int) -> UnsafeError:
    hint = "set `max-artifact-mb` of the engine in kci.toml if that is what was built"
    return UnsafeError(f"{name} is larger than it may be: {size} bytes, at most {limit}", hint=hint)


def _bounded(parts: Iterator[bytes], limit: int, name: str) -> Iterator[bytes]:
    total = 0
    for data in parts:
        total += len(data)
        if total > limit:
            raise _too_large(name, total, limit)
        yield data


def _copy(path: Path, parts: Iterator[bytes]) -> str:
    total = hashlib.sha256()
    with writing(path):
        file = path.open("wb", buffering=0)
    with file:
        for data in parts:
            total.update(data)
            with writing(path):
                write_all(file.fileno(), data)
    return total.hexdigest()


def _shown(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The beginning of a log; what could drive a terminal is written out."""
    left = LOG_BYTES
    for data in parts:
        yield printable(data[:left].decode("utf-8", "replace")).encode()
        left -= len(data)
        if left <= 0:
            yield b"\n[the rest was not kept]\n"
            return


def log_tail(path: Path, lines: int = 20) -> str:
    """The end of a fetched log."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
