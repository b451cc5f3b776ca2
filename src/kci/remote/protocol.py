"""What kci asks of an engine: five verbs, and nothing about how it does them.

Whoever calls has already written down what it is about to do. An engine can be away; then it says so with
`EngineAwayError`, and is asked again later.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec

from kci.config.engine_settings import EngineKind, EngineSettings
from kci.errors import KciError
from kci.remote.job import EngineJob, JobStatus


class EngineAwayError(KciError):
    """An engine cannot be reached now: no network, a controller that restarts. Nothing is known of its jobs."""

    exit_code: ClassVar[int] = 4


class Batch(msgspec.Struct, frozen=True):
    """Jobs that are submitted together, under a name that no other batch has."""

    name: str
    jobs: tuple[EngineJob, ...]


class EngineHome(msgspec.Struct, frozen=True):
    """Where an engine finds a run's inputs and puts its jobs, on this machine."""

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


class Engine(Protocol):
    """Where jobs run."""

    pause: float
    """Seconds between two questions."""

    def submit(self, batch: Batch) -> Handles:
        """Have jobs run. A job that was submitted before under its name must not run twice.

        Raises:
            EngineAwayError: nobody can tell whether they were submitted; `find` will.
            KciError: the engine refuses them.
        """

    def find(self, batch: Batch) -> Handles:
        """Those jobs of a batch that were submitted, whether or not whoever did it came to note that down."""

    def poll(self, handles: Handles) -> Mapping[str, JobStatus]:
        """What became of jobs."""

    def cancel(self, handles: Handles) -> None:
        """End jobs."""

    def read(self, name: str, handle: str, file: str) -> Iterator[bytes]:
        """A file of a job's folder: `result.json`, `log.txt`, `out/<name>`.

        Raises:
            FileNotFoundError: there is none.
        """

    def close(self) -> None:
        """Let go of connections. Jobs go on."""


Opener = Callable[[EngineSettings, EngineHome], Engine]


def open_engine(settings: EngineSettings, home: EngineHome) -> Engine:
    """The engine that settings describe; its library is imported only now.

    Args:
        settings: of kci.toml, or defaults.
        home: where the run lies.

    Raises:
        MissingToolError: its library or program is not installed.
        UsageError: something that it needs is not set.
    """
    module, name = _HOMES[settings.type]
    chosen: Opener = getattr(importlib.import_module(f"kci.remote.{module}"), name)
    return chosen(settings, home)


_HOMES = {
    EngineKind.LOCAL: ("local_engine", "LocalEngine"),
    EngineKind.SLURM: ("slurm", "SlurmEngine"),
    EngineKind.SSH: ("ssh", "SshEngine"),
    EngineKind.HF_JOBS: ("hf_jobs", "HfJobsEngine"),
    EngineKind.COMMAND: ("user_commands", "CommandEngine"),
}
