"""The folder of a job: what is put there before it runs, and what is taken from it, which may be anything."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from kci.errors import FindingsError, UnsafeError
from kci.files.bounded_json import decode_json, open_plain
from kci.files.full_disk import write_all, writing
from kci.files.replace import flush, write_atomic
from kci.remote.job import JOB_FILE, LOG_FILE, OUT, RESULT_FILE, EngineJob, JobResult, printable

SCRIPT = Path(__file__).with_name("job_script.py")
SCRIPT_NAME = "kci_job.py"
LOG_BYTES = 8 * 1024 * 1024
"""How much of a log is kept."""

_RESULT_BYTES = 256 * 1024
_CHUNK = 1024 * 1024

Read = Callable[[str], Iterator[bytes]]
"""The content of a file of a job's folder, by its name there, in parts.

Raises:
    FileNotFoundError: there is none.
"""


def write_job(folder: Path, job: EngineJob) -> None:
    """Make a job's folder; nothing starts yet. What a client that was killed had begun to write is written again."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SCRIPT, folder / SCRIPT_NAME)
    write_atomic(folder / JOB_FILE, msgspec.json.format(msgspec.json.encode(job)))


def add_input(inputs: Path, source: Path, digest: str) -> None:
    """Put an input where jobs look for it, under its digest."""
    place = inputs / digest
    if place.is_file():
        return
    with writing(place):
        inputs.mkdir(parents=True, exist_ok=True)
        beside = inputs / f".{digest}.new"
        shutil.copyfile(source, beside)
        flush(beside)
        beside.replace(place)


def read_file(folder: Path, name: str) -> Iterator[bytes]:
    """The content of a file that a job wrote, in parts; a link or a device is not one.

    Raises:
        FileNotFoundError: there is none.
        UnsafeError: it is no plain file.
    """
    try:
        file = open_plain(folder / name)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise UnsafeError(f"{folder / name} is not a plain file: {error}") from error
    with file:
        while data := file.read(_CHUNK):
            yield data


class Fetched(msgspec.Struct, frozen=True):
    """What a job has handed back, as far as it keeps to what was agreed."""

    result: JobResult
    artifacts: tuple[Path, ...]
    log: Path


def fetch_into(folder: Path, job: EngineJob, read: Read) -> Fetched:
    """Copy a job's log and artifacts; of what it hands back, only what was asked for, and no more of it than may be.

    Args:
        folder: where to put them.
        job: whose they are.
        read: reads a file of the job's folder.

    Raises:
        UnsafeError: a file is larger than it may be, or larger than the job said.
        FindingsError: there is no result, it is that of another job, or a file is not the one that it names.
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
        digest = _copy(path, _bounded(_there(read, item.name), item.size, item.name))
        if digest != item.sha256:
            path.unlink()
            raise FindingsError(f"{item.name} of {job.name} does not have the digest that its result names")
        found.append(path)
    return Fetched(result, tuple(found), folder / LOG_FILE)


def _there(read: Read, name: str) -> Iterator[bytes]:
    try:
        yield from read(f"{OUT}/{name}")
    except FileNotFoundError:
        raise FindingsError(f"{name} is in the result of its job, and not there") from None


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
