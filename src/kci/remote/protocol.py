"""What kci asks of an engine: five verbs, and nothing about how it does them.

Whoever calls has already written down what it is about to do. An engine can be away; then it says so with
`EngineAwayError`, and is asked again later.
"""

from __future__ import annotations

import importlib
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from kci.config.engine_settings import EngineKind, EngineSettings
from kci.errors import KciError, MissingToolError
from kci.remote.job import EngineJob, JobStatus, read_file, write_job


class EngineAwayError(KciError):
    """An engine cannot be reached now: no network, a controller that restarts. Nothing is known of its jobs."""

    exit_code: ClassVar[int] = 4


class Batch(msgspec.Struct, frozen=True):
    """Jobs that are submitted together, under a name that no other batch has."""

    name: str
    jobs: tuple[EngineJob, ...]
    after: tuple[str, ...] = ()
    """What the engine calls the jobs that have to end first, however they do; only for one that knows how to wait."""


class EngineHome(msgspec.Struct, frozen=True):
    """Where a run's inputs and jobs are on this machine."""

    run: str
    folder: Path
    """The run's own; `inputs/<digest>` and `jobs/<name>/` are below it."""

    def job(self, name: str) -> Path:
        return self.folder / "jobs" / name

    @property
    def inputs(self) -> Path:
        return self.folder / "inputs"


Handles = Mapping[str, str]
"""What an engine calls a job, by the job's own name."""


class Engine(ABC):
    """Where jobs run. By itself it has their folders on this machine."""

    pause: float
    """Seconds between two questions."""
    chains = False
    """Whether jobs can wait there for others, and find what those have handed back in their folders."""

    def __init__(self, settings: EngineSettings, home: EngineHome) -> None:
        self.settings, self.home = settings, home

    def write(self, batch: Batch) -> None:
        for job in batch.jobs:
            write_job(self.home.job(job.name), job)

    @abstractmethod
    def submit(self, batch: Batch) -> Handles:
        """Have jobs run. A job that was submitted before under its name must not run twice.

        Raises:
            EngineAwayError: they may have been submitted; `find` will tell.
            KciError: the engine refuses them.
        """

    @abstractmethod
    def find(self, batch: Batch) -> Handles:
        """The jobs of a batch that were submitted, also by a client that was killed before it noted that."""

    @abstractmethod
    def poll(self, handles: Handles) -> Mapping[str, JobStatus]:
        """The state of each job."""

    @abstractmethod
    def cancel(self, handles: Handles) -> None:
        """End jobs."""

    def read(self, name: str, handle: str, file: str) -> Iterator[bytes]:  # noqa: ARG002
        """A file of a job's folder: `result.json`, `log.txt`, `out/<name>`.

        Raises:
            FileNotFoundError: it does not exist.
        """
        return read_file(self.home.job(name), file)

    def close(self) -> None:  # noqa: B027
        """Let go of connections. Jobs go on."""


def asked(
    command: Sequence[str], what: str, seconds: int, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command of an engine that has ended; `what` is its name in messages.

    Raises:
        EngineAwayError: it does not end in time.
        MissingToolError: there is no such command.
    """
    try:
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            check=False, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise EngineAwayError(f"{what} did not answer within {seconds} s") from None
    except OSError as error:
        raise MissingToolError(f"cannot run {what}: {error.strerror}") from error


def open_engine(settings: EngineSettings, home: EngineHome) -> Engine:
    """The engine that settings describe; its library is imported only now.

    Raises:
        MissingToolError: its library or program is not installed.
        UsageError: a setting that it needs is missing.
    """
    module, name = _HOMES[settings.type]
    chosen: type[Engine] = getattr(importlib.import_module(f"kci.remote.{module}"), name)
    return chosen(settings, home)


_HOMES = {
    EngineKind.LOCAL: ("local_engine", "LocalEngine"),
    EngineKind.SLURM: ("slurm", "SlurmEngine"),
    EngineKind.SSH: ("ssh", "SshEngine"),
    EngineKind.HF_JOBS: ("hf_jobs", "HfJobsEngine"),
    EngineKind.COMMAND: ("user_commands", "CommandEngine"),
}
