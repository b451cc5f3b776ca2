"""Slurm, through its own commands: a batch is one job array, named after the batch.

States come from `squeue`, and from `sacct` for what `squeue` has forgotten; a cluster without an accounting database
has no `sacct`. Neither is believed about success: that takes the job's own `result.json`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from kci.config.engine_settings import EngineSettings
from kci.config.values import Backend
from kci.errors import FindingsError, MissingToolError, UnsafeError
from kci.files.replace import write_atomic
from kci.remote.engine_choice import let_through
from kci.remote.job import OUT, RESULT_FILE, SCRIPT_NAME, JobState, JobStatus, add_input, printable, read_file
from kci.remote.protocol import Batch, Engine, EngineAwayError, EngineHome, Handles, asked

_SECONDS = 120
_SPARE_MINUTES = 5
"""The job ends itself when its time is over; Slurm's own limit is behind that."""
_ID = re.compile(r"[0-9]{1,12}_[0-9]{1,7}")
_WAITS = {
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
    "SUSPENDED",
}
_GPUS = (Backend.CUDA, Backend.ROCM, Backend.XPU)
_RUNS = {"RUNNING", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_FOR_GOOD = {"CANCELLED": "it was cancelled there", "OUT_OF_MEMORY": "it needs more than `memory-gb` of its engine"}
_AWAY = ("Unable to contact", "Socket timed out", "Connection refused", "Transport endpoint", "temporarily")
_BATCH_SCRIPT = """\
#!/bin/sh
folder=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {list})
export KCI_ENGINE_JOB="${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
exec {python} "$folder/{script}" run "$folder"
"""


class SlurmEngine(Engine):
    """A cluster whose commands run on this machine, and with which it shares a folder."""

    pause = 5.0
    chains = True

    def __init__(self, settings: EngineSettings, home: EngineHome) -> None:
        if shutil.which("sbatch") is None:
            hint = "run kci where Slurm's commands are: on a login node"
            raise MissingToolError("there is no sbatch on this machine", hint=hint)
        shared = Path(settings.folder).expanduser() / home.run if settings.folder else home.folder
        super().__init__(settings, EngineHome(home.run, shared.resolve()))
        self.inputs = home.inputs
        names = {*let_through(), *settings.environment, "SLURM_CONF"}
        self.environment = {name: os.environ[name] for name in names if name in os.environ}

    def submit(self, batch: Batch) -> Handles:
        self.write(batch)
        for digest in {item.sha256 for job in batch.jobs for item in job.inputs}:
            add_input(self.home.inputs, self.inputs / digest, digest)
        for job in batch.jobs:  # a job that waits for it looks there, whatever becomes of it
            (self.home.job(job.name) / OUT).mkdir(exist_ok=True)
        folder = self.home.folder / "batches" / batch.name
        folder.mkdir(parents=True, exist_ok=True)
        folders = "".join(f"{self.home.job(job.name)}\n" for job in batch.jobs)
        write_atomic(folder / "jobs.txt", folders.encode())
        listed, python = shlex.quote(str(folder / "jobs.txt")), shlex.quote(self.settings.python)
        script = _BATCH_SCRIPT.format(list=listed, python=python, script=SCRIPT_NAME)
        write_atomic(folder / "batch.sh", script.encode())
        said = self._slurm("sbatch", *self._options(batch, folder), str(folder / "batch.sh"))
        number = said.strip().partition(";")[0]
        if not number.isdecimal():
            raise EngineAwayError(f"sbatch did not say what it calls the batch: {printable(said[:200])}")
        return {job.name: f"{number}_{index}" for index, job in enumerate(batch.jobs)}

    def find(self, batch: Batch) -> Handles:
        """By the name of the array, and by what its jobs left in their folders."""
        known = self._queue("--name", batch.name) | self._accounted(f"--name={batch.name}")
        by_index = {int(handle.partition("_")[2]): handle for handle in known if _ID.fullmatch(handle)}
        found = {job.name: by_index[index] for index, job in enumerate(batch.jobs) if index in by_index}
        return found | {job.name: claimed for job in batch.jobs if (claimed := self._claimed(job.name))}

    def poll(self, handles: Handles) -> Mapping[str, JobStatus]:
        real = {name: self._claimed(name) or handle for name, handle in handles.items()}
        own: tuple[str, ...] = ()
        if sys.platform != "win32":
            own = ("--user", str(os.getuid()))  # the name in the environment may be anybody's
        queue = self._queue(*own)
        forgotten = {handle for handle in real.values() if handle not in queue}
        if forgotten:
            queue |= self._accounted(f"--jobs={','.join(sorted(forgotten))}")
        return {name: self._status(name, *queue.get(handle, ("", ""))) for name, handle in real.items()}

    def cancel(self, handles: Handles) -> None:
        self._slurm("scancel", *sorted({handle for handle in handles.values() if _ID.fullmatch(handle)}))

    def _options(self, batch: Batch, folder: Path) -> list[str]:
        first = batch.jobs[0]
        options = {
            "job-name": batch.name,
            "array": f"0-{len(batch.jobs) - 1}",
            "time": str(max(job.timeout for job in batch.jobs) + _SPARE_MINUTES),
            "cpus-per-task": str(first.cores),
            "mem": f"{first.memory_gb}G",
            "output": str(folder / "%a.txt"),
            "chdir": str(folder),
        }
        options |= {"dependency": ":".join(("afterany", *batch.after))} if batch.after else {}
        options |= {"partition": self.settings.partition} if self.settings.partition else {}
        options |= {"gres": self.settings.gres} if first.hardware.backend in _GPUS else {}
        options |= {name: text.replace("{image}", first.image) for name, text in self.settings.options.items()}
        return ["--parsable", "--requeue", *(f"--{name}={text}" for name, text in options.items())]

    def _claimed(self, name: str) -> str:
        """What Slurm calls the job that has begun; of two submissions only one ever does."""
        try:
            text = b"".join(read_file(self.home.job(name), "claim"))[:100].decode("ascii", "replace").strip()
        except (FileNotFoundError, UnsafeError):  # a job may do to its folder what it likes
            return ""
        return text if _ID.fullmatch(text) else ""

    def _status(self, name: str, state: str, reason: str) -> JobStatus:
        if state in _WAITS:
            return JobStatus(JobState.QUEUED, reason)
        if state in _RUNS:
            return JobStatus(JobState.RUNNING)
        if (self.home.job(name) / RESULT_FILE).is_file():
            return JobStatus(JobState.ENDED)
        if state in _FOR_GOOD:
            return JobStatus(JobState.STOPPED, f"{_FOR_GOOD[state]} ({state})")
        return JobStatus(JobState.LOST, f"Slurm says {state}" if state else "Slurm no longer knows it")

    def _queue(self, *which: str) -> dict[str, tuple[str, str]]:
        """State and reason of each task that `squeue` knows."""
        return _tasks(self._slurm("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r", *which))

    def _accounted(self, which: str) -> dict[str, tuple[str, str]]:
        """The same from `sacct`; nothing where there is no accounting."""
        try:
            said = self._slurm(
                "sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,Reason",
                "--starttime=now-30days", which,
            )  # fmt: skip
        except (EngineAwayError, FindingsError, MissingToolError):
            return {}
        return _tasks(said)

    def _slurm(self, *command: str) -> str:
        done = asked(command, command[0], _SECONDS, self.environment)
        if done.returncode:
            said = printable(done.stderr.strip()[-500:])
            if any(words in done.stderr for words in _AWAY):
                raise EngineAwayError(f"{command[0]}: {said}")
            raise FindingsError(f"{command[0]} refuses: {said}", hint="see `partition` and `options` of the engine")
        return done.stdout


def _tasks(text: str) -> dict[str, tuple[str, str]]:
    found = {}
    for line in text.splitlines():
        identity, _, rest = line.strip().partition("|")
        state, _, reason = rest.partition("|")
        if _ID.fullmatch(identity):
            found[identity] = (state.partition(" ")[0].rstrip("+"), "" if reason == "None" else printable(reason))
    return found
