"""Legs as processes of this machine that live on when kci does not; and what that has in common with another host."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from kci.remote.job import SCRIPT, JobState, JobStatus
from kci.remote.protocol import Batch, Engine, EngineAwayError, Handles, asked

_SECONDS = 600
_STATES = {
    "running": JobStatus(JobState.RUNNING),
    "ended": JobStatus(JobState.ENDED),
    "lost": JobStatus(JobState.LOST, "its process ended without a result: it was killed, or the machine was restarted"),
    "unknown": JobStatus(JobState.LOST, "its folder is gone"),
}


class ScriptEngine(Engine):
    """An engine that starts and asks `job_script.py` on some machine."""

    pause = 2.0

    def put(self, batch: Batch) -> None:
        """Have the folders and inputs of jobs lie where they run."""
        self.write(batch)

    @abstractmethod
    def script(self, verb: str, names: Sequence[str]) -> list[str]:
        """What the script says of jobs, one word for each."""

    def submit(self, batch: Batch) -> Handles:
        """The script begins a job once, however often it is asked to."""
        names = [job.name for job in batch.jobs]
        self.put(batch)
        if "unknown" in self.script("start", names):
            raise EngineAwayError("some of the jobs have not begun")
        return {name: name for name in names}

    def find(self, batch: Batch) -> Handles:
        said = self._said([job.name for job in batch.jobs])
        return {name: name for name, word in said.items() if word != "unknown"}

    def poll(self, handles: Handles) -> Mapping[str, JobStatus]:
        strange = JobStatus(JobState.LOST, "nothing is known of it")
        return {name: _STATES.get(word, strange) for name, word in self._said(list(handles)).items()}

    def cancel(self, handles: Handles) -> None:
        self.script("cancel", list(handles))

    def _said(self, names: Sequence[str]) -> dict[str, str]:
        return dict(zip(names, self.script("status", names), strict=True))


class LocalEngine(ScriptEngine):
    """This machine."""

    pause = 0.2

    def script(self, verb: str, names: Sequence[str]) -> list[str]:
        """Ask this machine's own Python."""
        command = [sys.executable, "-I", str(SCRIPT), verb, *(str(self.home.job(name)) for name in names)]
        done = asked(command, "the jobs' program", _SECONDS)
        words = done.stdout.split()
        if done.returncode != 0 or len(words) != len(names):
            raise EngineAwayError(f"cannot ask about the jobs of this machine: {done.stderr.strip()[-300:]}")
        return words
