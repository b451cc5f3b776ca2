"""What kci says to Slurm's commands, with stand-ins for these: a real Slurm is asked in `test_slurm.py`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kci.config.engine_settings import EngineKind, EngineSettings
from kci.remote.job import EngineJob, JobState, JobStatus
from kci.remote.protocol import Batch, EngineHome
from kci.remote.slurm import SlurmEngine

JOB = EngineJob(
    name="kci-job-1", run="r", attempt=1, kernel="k", leg="l", variants=("v",), command=("true",), cores=1,
    memory_gb=1, timeout=1, most_bytes=1000, let_through=("PATH",),
)  # fmt: skip


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command lines of Slurm's commands, which know nothing and call every array 7."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        (commands / name).write_text(
            f'#!/bin/sh\necho {name} "$@" >> "{tmp_path}/asked"\n[ {name} != sbatch ] || echo 7\n'
        )
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return tmp_path / "asked"


@pytest.mark.usefixtures("asked")
def test_a_folder_and_a_python_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "o'brien; exit 9"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python3"
    python.write_text('#!/bin/sh\nexec python3 "$@"\n')
    python.chmod(0o755)
    settings = EngineSettings(type=EngineKind.SLURM, python=str(python))
    engine = SlurmEngine(settings, EngineHome("r", folder))
    assert engine.submit(Batch("b", (JOB,))) == {"kci-job-1": "7_0"}
    task = {**os.environ, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0"}
    subprocess.run(["sh", folder / "batches" / "b" / "batch.sh"], env=task, check=True)
    assert (folder / "jobs" / "kci-job-1" / "result.json").is_file()


def test_the_queue_is_asked_for_the_jobs_of_this_process_s_user(
    tmp_path: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOGNAME is what some program has set; jobs belong to whom the process belongs to."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    engine = SlurmEngine(EngineSettings(type=EngineKind.SLURM), EngineHome("r", tmp_path / "run"))
    engine.poll({"kci-job-1": "7_0"})
    assert f"--user {os.getuid()}\n" in asked.read_text()


@pytest.mark.usefixtures("asked")
def test_a_job_that_spoils_its_own_folder_costs_itself_only(tmp_path: Path) -> None:
    engine = SlurmEngine(EngineSettings(type=EngineKind.SLURM), EngineHome("r", tmp_path / "run"))
    (tmp_path / "run" / "jobs" / "kci-job-1" / "claim").mkdir(parents=True)
    said = engine.poll({"kci-job-1": "7_0", "kci-job-2": "7_1"})
    assert {status.state for status in said.values()} == {JobState.LOST}


@pytest.mark.parametrize(
    ("said", "state", "message"),
    [
        ("PENDING|Priority", JobState.QUEUED, "Priority"),
        ("RUNNING|None", JobState.RUNNING, ""),
        ("CANCELLED by 0|None", JobState.STOPPED, "it was cancelled there (CANCELLED)"),
        ("OUT_OF_MEMORY|None", JobState.STOPPED, "it needs more than `memory-gb` of its engine (OUT_OF_MEMORY)"),
        ("NODE_FAIL|None", JobState.LOST, "Slurm says NODE_FAIL"),
    ],
)
@pytest.mark.usefixtures("asked")
def test_what_slurm_says_of_a_job(tmp_path: Path, said: str, state: JobState, message: str) -> None:
    """What a person or a limit has ended is not begun again; what got lost is."""
    (tmp_path / "bin" / "squeue").write_text(f"#!/bin/sh\necho '7_0|{said}'\n")
    engine = SlurmEngine(EngineSettings(type=EngineKind.SLURM), EngineHome("r", tmp_path / "run"))
    assert engine.poll({"kci-job-1": "7_0"}) == {"kci-job-1": JobStatus(state, message)}
