"""The program beside a job: begun once, ended when asked, and nothing of the machine but what was let through."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kci.remote.job import SCRIPT, EngineJob, JobFile, write_job
from remote.slurm_cluster import wait_for

pytestmark = pytest.mark.programs


def job(folder: Path, *command: str, **changes: Any) -> Path:
    """A job's folder."""
    made = EngineJob(
        name="kci-job-1", run="r", attempt=1, kernel="k", leg="l", variants=("v",), command=command, cores=1,
        memory_gb=1, timeout=1, most_bytes=1000, let_through=("PATH",), artifacts=("a.tar",),
    )  # fmt: skip
    write_job(folder, msgspec.structs.replace(made, **changes))
    return folder


def script(verb: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, verb, folder], env={**os.environ, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_a_job_of_a_queue_is_run_by_one_process(tmp_path: Path) -> None:
    folder = job(tmp_path / "j", "sleep", "60")
    script("start", folder)
    done = script("run", folder)
    script("cancel", folder)
    assert (done.returncode != 0, "another process has begun this job" in done.stderr) == (True, True)


def result(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "result.json").read_text()))


def test_it_says_what_came_of_the_command(tmp_path: Path) -> None:
    folder = job(tmp_path / "j", "sh", "-c", "echo said; echo a > {out}/a.tar; echo b > {out}/b.tar; exit 3")
    assert script("run", folder).returncode == 3
    told = result(folder)
    assert (told["ended"], told["code"]) == ("exit", 3)
    assert told["files"] == [{"name": "a.tar", "sha256": hashlib.sha256(b"a\n").hexdigest(), "size": 2}]
    assert (folder / "log.txt").read_text() == "said\n"
    assert not (folder / "work").exists()


def test_a_command_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # in a folder that cannot be read it might be after all
    folder = job(tmp_path / "j", "no-such-program")
    assert script("run", folder).returncode == 127
    assert (folder / "log.txt").read_text() == "cannot run no-such-program: No such file or directory\n"


def test_a_job_is_begun_once_however_often_it_is_submitted(tmp_path: Path) -> None:
    folder = job(tmp_path / "j", "sh", "-c", f"echo x >> {tmp_path}/count; exec sleep 3600")
    assert script("start", folder).stdout == "running\n"
    wait_for((tmp_path / "count").exists, "the command")
    assert script("start", folder).stdout == "running\n"
    assert script("run", folder, KCI_ENGINE_JOB="7_0").returncode == 75
    assert script("cancel", folder).returncode == 0
    wait_for((folder / "result.json").exists, "its end")
    assert script("start", folder).stdout == "ended\n"
    assert (tmp_path / "count").read_text() == "x\n"
    assert result(folder)["ended"] == "cancelled"


def test_a_queue_may_begin_its_own_job_again_and_no_other(tmp_path: Path) -> None:
    folder = job(tmp_path / "j", "true")
    (folder / "claim").write_text("7_0\n")
    assert script("status", folder).stdout == "lost\n"
    assert script("run", folder, KCI_ENGINE_JOB="8_0").returncode == 75
    assert script("run", folder).returncode == 75
    assert script("run", folder, KCI_ENGINE_JOB="7_0").returncode == 0
    assert script("status", folder).stdout == "ended\n"


def test_a_job_runs_as_long_as_its_command_does(tmp_path: Path) -> None:
    """Its own process can be killed; what it started still counts, so that nothing is started beside it."""
    folder = job(tmp_path / "j", "sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 3600")
    script("start", folder)
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the command")
    os.kill(int((folder / "executions").read_text().split()[1]), signal.SIGKILL)
    assert script("status", folder).stdout == "running\n"
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    wait_for(lambda: script("status", folder).stdout == "lost\n", "the end of the command")


def test_ended_by_its_machine_it_leaves_no_result(tmp_path: Path) -> None:
    # Of the shell itself: a `touch` that has not ended yet would hold the job's lock for a moment longer.
    folder = job(tmp_path / "j", "sh", "-c", f": > {tmp_path}/there; exec sleep 3600")
    running = subprocess.Popen([sys.executable, SCRIPT, "run", folder])
    wait_for((tmp_path / "there").exists, "the command")
    running.send_signal(signal.SIGTERM)
    assert running.wait() == 143
    assert script("status", folder).stdout == "lost\n"


STOPPED_WHILE_IT_STARTS = """\
import os, runpy, signal, subprocess, sys
real = subprocess.Popen
def start(*arguments, **options):
    process = real(*arguments, **options)
    os.kill(os.getpid(), signal.SIGTERM)
    return process
subprocess.Popen = start
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_stopped_while_its_command_is_being_started_it_leaves_no_command(tmp_path: Path) -> None:
    folder = job(tmp_path / "j", "sleep", "3600")
    done = subprocess.run([sys.executable, "-c", STOPPED_WHILE_IT_STARTS, SCRIPT, "run", folder], check=False)
    assert done.returncode == 143
    assert script("status", folder).stdout == "lost\n"


def test_its_time_is_over(tmp_path: Path) -> None:
    folder = job(tmp_path / "j", "sleep", "3600", timeout=0)  # that is a second
    assert script("run", folder).returncode == 124
    assert result(folder)["ended"] == "timeout"


def test_cancelled_before_it_began_it_never_begins(tmp_path: Path) -> None:
    folder = job(tmp_path / "j", "true")
    script("cancel", folder)
    assert script("run", folder, KCI_ENGINE_JOB="7_0").returncode == 75


def test_the_environment_is_what_was_let_through_and_set(tmp_path: Path) -> None:
    folder = job(tmp_path / "j", "env", environment={"KCI_RUN": "r"})
    script("run", folder, HF_TOKEN="secret")
    names = {line.partition("=")[0] for line in (folder / "log.txt").read_text().splitlines()}
    assert names == {"PATH", "KCI_RUN"}


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 1
            file.addfile(entry, io.BytesIO(b"x"))
    return made.getvalue()


@pytest.mark.parametrize(("content", "ended", "said"), [
    (archive("source/x"), "exit", "source/x\n"),
    (archive("other"), "inputs", "the input source.tar does not have the digest that the job names\n"),
    (None, "inputs", "the input source.tar cannot be read: No such file or directory\n"),
])  # fmt: skip
def test_the_inputs_have_to_be_the_ones_that_were_named(
    tmp_path: Path, content: bytes | None, ended: str, said: str
) -> None:
    named = archive("source/x")
    item = JobFile("source.tar", hashlib.sha256(named).hexdigest(), len(named))
    folder = job(tmp_path / "run" / "jobs" / "j", "find", "source", "-type", "f", inputs=(item,))
    if content is not None:
        (tmp_path / "run" / "inputs").mkdir()
        (tmp_path / "run" / "inputs" / item.sha256).write_bytes(content)
    script("run", folder)
    assert (result(folder)["ended"], (folder / "log.txt").read_text()) == (ended, said)


@pytest.mark.parametrize("left", ["exec sleep 3600", "while :; do echo noise; done"])
def test_what_a_command_leaves_behind_does_not_keep_its_job_from_ending(tmp_path: Path, left: str) -> None:
    line = f"({left}) & echo $! > {{out}}/pid; head -c 50000 /dev/zero | tr '\\0' x; exit 3"
    folder = job(tmp_path / "j", "sh", "-c", line, artifacts=("pid",))
    try:
        assert script("run", folder).returncode == 3
    finally:
        with contextlib.suppress(ProcessLookupError):  # one that writes ends when nobody reads any more
            os.kill(int((folder / "out" / "pid").read_text()), signal.SIGKILL)
    assert result(folder)["ended"] == "exit"
    assert (folder / "log.txt").read_text().count("x") == 50000


@pytest.mark.parametrize("spoil", ["mkdir ../alive", "mkdir ../claim", "printf '\\377' > ../claim"])
def test_a_job_that_spoils_its_own_folder_costs_itself_only(tmp_path: Path, spoil: str) -> None:
    bad = job(tmp_path / "bad", "sh", "-c", f"rm ../alive ../claim; {spoil}; kill -9 $PPID")
    good = job(tmp_path / "good", "true")
    script("run", bad, KCI_ENGINE_JOB="7_0")
    script("run", good)
    for verb in ("status", "start", "cancel"):
        done = subprocess.run([sys.executable, SCRIPT, verb, bad, good], capture_output=True, text=True, check=True)
        assert done.stdout.split()[1:] == ["ended"]
