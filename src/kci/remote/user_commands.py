"""The `command` engine: a user's own commands submit, find, poll, cancel and fetch. See docs/engines.md.

A command is a list of arguments, not a line for a shell. What it is told stands in braces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kci.config.engine_settings import EngineSettings
from kci.errors import BuildFailedError, ClientError, UsageError
from kci.files.full_disk import says_full
from kci.remote.job import EngineJob, JobState, JobStatus, add_input, printable, read_file
from kci.remote.protocol import Batch, Engine, EngineAwayError, EngineHome, Handles, asked

_AWAY = 75
"""The exit code with which a command says "ask again later" (EX_TEMPFAIL)."""
_SECONDS = 600


class CommandEngine(Engine):
    """What a user's own commands reach."""

    pause = 5.0

    def __init__(self, settings: EngineSettings, home: EngineHome) -> None:
        super().__init__(settings, home)
        for name in ("submit", "find", "poll", "cancel"):
            if not getattr(settings, name):
                hint = "docs/engines.md has a complete example"
                raise UsageError(f"an engine of the type `command` needs the command `{name}`", hint=hint)
        self.brought: set[str] = set()

    def submit(self, batch: Batch) -> Handles:
        self.write(batch)
        handles = {}
        for job in batch.jobs:
            for item in job.inputs:  # in its own folder, so that the folder is all that has to travel
                add_input(self.home.job(job.name) / "inputs", self.home.inputs / item.sha256, item.sha256)
            handles[job.name] = self._handle("submit", self._run("submit", job.name, job=job))
        return handles

    def find(self, batch: Batch) -> Handles:
        said = {job.name: self._run("find", job.name, job=job) for job in batch.jobs}
        return {name: self._handle("find", text) for name, text in said.items() if text}

    def poll(self, handles: Handles) -> Mapping[str, JobStatus]:
        return {name: self._status(self._run("poll", name, handle)) for name, handle in handles.items()}

    def cancel(self, handles: Handles) -> None:
        for name, handle in handles.items():
            self._run("cancel", name, handle)

    def read(self, name: str, handle: str, file: str) -> Iterator[bytes]:
        """A file of the job's folder, which all machines share if there is no `fetch` command."""
        if not self.settings.fetch:
            return super().read(name, handle, file)
        into = self.home.folder / "brought" / name
        if name not in self.brought:
            into.mkdir(parents=True, exist_ok=True)
            self._run("fetch", name, handle, into=str(into))
            self.brought.add(name)
        return read_file(into, file)

    def _run(self, verb: str, name: str, handle: str = "", into: str = "", job: EngineJob | None = None) -> str:
        told = {"name": name, "handle": handle, "folder": str(self.home.job(name)), "python": self.settings.python}
        if into:
            told["into"] = into
        if job is not None:
            told |= {key: str(getattr(job, key)) for key in ("image", "cores", "memory_gb", "timeout")}
            told["backend"] = job.hardware.backend
        command = list(getattr(self.settings, verb))
        for word, value in told.items():
            command = [part.replace("{" + word + "}", value) for part in command]
        done = asked(command, f"the command `{verb}` ({command[0]})", _SECONDS)
        said = printable(done.stderr.strip()[-500:])
        if done.returncode == _AWAY:
            raise EngineAwayError(f"the command `{verb}` says that its engine is away: {said}")
        if done.returncode:
            message = f"the command `{verb}` failed with code {done.returncode}: {said}"
            if verb == "fetch":  # what the job handed back was not seen, so nothing is known of it
                raise ClientError(message, hint="free space there" if says_full(done.stderr) else "")
            raise BuildFailedError(message)
        return done.stdout.strip()

    def _handle(self, verb: str, text: str) -> str:
        handle = text.splitlines()[-1].strip() if text else ""
        if not handle or len(handle) > 500 or not handle.isprintable():
            raise BuildFailedError(f"the command `{verb}` did not print the job's name there")
        return handle

    def _status(self, text: str) -> JobStatus:
        word, _, reason = text.partition(" ")
        if word not in list(JobState):
            raise BuildFailedError(f"the command `poll` said {text[:80]!r}; it prints one of {', '.join(JobState)}")
        return JobStatus(JobState(word), printable(reason.strip()[:200]))
