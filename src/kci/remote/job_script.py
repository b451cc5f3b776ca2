"""A program of its own that runs a job in its folder, on whatever machine an engine has for it.

It is copied beside the job and needs Python 3.8 and nothing else. Arguments: what to do, then folders.

    start FOLDER...    begin each in the background, once
    run FOLDER         run it here, once; a queue that starts the same job again (a requeue) may
    status FOLDER...   one word for each: unknown, running, ended, lost
    cancel FOLDER...   ask each to end

The process that makes a job's `claim` first begins it, so that a job which was submitted twice runs once. While it
runs, it and its command hold a lock on `alive`: a process number could be another's by now.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from types import FrameType
from typing import Any, BinaryIO

assert sys.platform != "win32", "jobs run where there is POSIX"  # noqa: S101  - for the type checker

import fcntl  # noqa: E402  - not everywhere

_LOG_BYTES = 64 * 1024 * 1024
_CHUNK = 1024 * 1024
_GRACE_SECONDS = 10
_LOOK_SECONDS = 0.2
"""How often it is looked whether a command that says nothing has ended; usually the end of its output tells."""
_SECOND_CLAIM = 75
"""The exit code of a job that somebody else has begun (EX_TEMPFAIL)."""


def main(arguments: list[str]) -> None:
    """What the arguments ask for."""
    what, folders = arguments[0], [pathlib.Path(folder).resolve() for folder in arguments[1:]]
    if what == "run":
        sys.exit(_run(folders[0]))
    for folder in folders:
        try:
            if what != "status" and (folder / "job.json").exists():
                {"start": _start, "cancel": _cancel}[what](folder)
            said = _status(folder)
        except (IsADirectoryError, NotADirectoryError, ValueError):  # its command has put something else there
            said = "lost"
        print(said, flush=True)


def _lock(folder: pathlib.Path) -> int | None:
    """The open `alive` file, locked; None if the process that runs the job has it."""
    handle = os.open(folder / "alive", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _claim(folder: pathlib.Path, whose: str) -> bool:
    """Whether this process may run the job: it has not begun, or the same job of the same queue has begun it."""
    try:
        handle = os.open(folder / "claim", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        before = (folder / "claim").read_text().partition("\n")[0]
        return bool(whose) and before == whose
    try:
        with os.fdopen(handle, "wb") as file:
            file.write((whose + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # half a name would claim it for no process
        (folder / "claim").unlink()
        raise
    return True


def _status(folder: pathlib.Path) -> str:
    if not (folder / "job.json").exists():
        return "unknown"
    if (folder / "result.json").exists():
        return "ended"
    if not (folder / "claim").exists():
        return "unknown"
    handle = _lock(folder)
    if handle is None:
        return "running"
    os.close(handle)
    return "ended" if (folder / "result.json").exists() else "lost"


def _start(folder: pathlib.Path) -> None:
    """Begin a job in the background; nothing if it was begun before."""
    handle = _lock(folder)
    if handle is None:
        return
    if _claim(folder, ""):
        child = os.fork()
        if child == 0:
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            code = 1
            try:
                code = _work(folder, handle)
            finally:
                os._exit(code)
    os.close(handle)


def _run(folder: pathlib.Path) -> int:
    """Run a job of a queue here. A queue may start a job again after its machine failed; then it begins anew."""
    handle = _lock(folder)
    whose = os.environ.get("KCI_ENGINE_JOB", "")
    if (folder / "result.json").exists():
        return 0
    if handle is None or not _claim(folder, whose):
        print("another process has begun this job", file=sys.stderr)
        return _SECOND_CLAIM
    return _work(folder, handle)


def _cancel(folder: pathlib.Path) -> None:
    (folder / "cancel").touch()
    handle = _lock(folder)
    if handle is not None:  # nothing runs, and with a claim nothing will
        _claim(folder, "")
        os.close(handle)
        return
    with contextlib.suppress(OSError, ValueError):
        os.killpg(int((folder / "group").read_text()), signal.SIGTERM)


def _work(folder: pathlib.Path, handle: int) -> int:
    """Check the inputs, run the command, and say what came of it. The exit code is the command's."""
    job = json.loads((folder / "job.json").read_text())  # noqa: TID251  - kci's own, where there is no kci
    (folder / "group").write_text(str(os.getpgrp()))
    with (folder / "executions").open("a") as file:
        file.write(f"{socket.gethostname()} {os.getpid()} {os.environ.get('KCI_ENGINE_JOB', '')}\n")
    started = time.monotonic()
    # A flag and no exception: one that is raised while a command is being started would leave the command behind.
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stops.append(number))
    ended, code = "cancelled", 128 + signal.SIGTERM
    if not (folder / "cancel").exists():
        ended, code = _command(folder, job, handle, stops)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if ended == "cancelled" and not (folder / "cancel").exists():
        return code  # the machine or its queue ended it: no result, so that it can be started again
    files = _handed_back(folder, job) if ended == "exit" else []
    shutil.rmtree(folder / "work", ignore_errors=True)
    result = {
        "schema": 1, "job": job["name"], "code": code, "ended": ended, "files": files,
        "seconds": round(time.monotonic() - started, 1), "host": socket.gethostname(),
    }  # fmt: skip
    _write(folder / "result.json", json.dumps(result).encode())
    return code


def _command(folder: pathlib.Path, job: dict[str, Any], handle: int, stops: list[int]) -> tuple[str, int]:
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(folder / "out", ignore_errors=True)
    work.mkdir()
    (folder / "out").mkdir()
    with (folder / "log.txt").open("wb") as log:
        wrong = _unpack_inputs(folder, job, work)
        if wrong:
            log.write((wrong + "\n").encode())
            return "inputs", 1
        environment = {name: os.environ[name] for name in job["let_through"] if name in os.environ}
        environment.update(job["environment"])
        here = {"{folder}": str(folder), "{work}": str(work), "{out}": str(folder / "out")}
        command = [_filled(part, here) for part in job["command"]]
        environment = {name: _filled(text, here) for name, text in environment.items()}
        try:
            # The lock goes with the command: should this process be killed, the job counts as running until its
            # command has ended too.
            process = subprocess.Popen(
                command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, pass_fds=(handle,), bufsize=0,
            )  # fmt: skip
        except OSError as error:
            log.write(f"cannot run {command[0]}: {error.strerror}\n".encode())
            return "exit", 127
        return _watched(process, log, job["timeout"] * 60, stops)


def _filled(text: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        text = text.replace(name, place)
    return text


def _watched(process: subprocess.Popen[bytes], log: BinaryIO, seconds: float, stops: list[int]) -> tuple[str, int]:
    """Keep what the command says, up to a limit, until it ends, its time is over, or the job is stopped.

    What it leaves behind may hold the pipe open: only what is in there when the command itself ends still counts.
    """
    assert process.stdout is not None  # noqa: S101  - PIPE was asked for

    def end(number: int, _frame: FrameType | None) -> None:
        stops.append(number)
        process.terminate()
        if len(stops) == 1:
            signal.signal(signal.SIGALRM, lambda *_: process.kill())
            signal.alarm(_GRACE_SECONDS)

    signal.signal(signal.SIGALRM, end)
    signal.alarm(max(1, int(seconds)))
    signal.signal(signal.SIGTERM, end)
    if stops:  # it was stopped before there was a command
        end(stops.pop(), None)
    left = _LOG_BYTES
    while True:
        ended = process.poll() is not None
        there = select.select([process.stdout], [], [], 0 if ended else _LOOK_SECONDS)[0]
        data = process.stdout.read(_CHUNK) if there else b""
        log.write(data[:left])
        log.flush()
        left -= min(left, len(data))
        if ended:
            break
        if there and not data:
            process.wait()
    signal.alarm(0)
    if stops and stops[0] == signal.SIGTERM:
        return "cancelled", 128 + signal.SIGTERM
    if stops:
        log.write(b"stopped: the time limit of the job is over\n")
        return "timeout", 124
    code = process.returncode
    return "exit", 128 - code if code < 0 else code


def _unpack_inputs(folder: pathlib.Path, job: dict[str, Any], work: pathlib.Path) -> str:
    """Why the inputs are not what they have to be; empty if they are, and then they lie in the work folder."""
    for item in job["inputs"]:
        path = folder / "inputs" / item["sha256"]
        if not path.exists():
            path = folder.parent.parent / "inputs" / item["sha256"]
        try:
            if _digest(path)[0] != item["sha256"]:
                return f"the input {item['name']} does not have the digest that the job names"
        except OSError as error:
            return f"the input {item['name']} cannot be read: {error.strerror}"
        if item["name"].endswith(".tar"):
            with tarfile.open(path) as archive:
                if hasattr(tarfile, "data_filter"):
                    archive.extractall(work, filter="data")
                else:
                    archive.extractall(work)  # noqa: S202  - its digest is the one that kci named
        else:
            shutil.copyfile(path, work / item["name"])
    return ""


def _handed_back(folder: pathlib.Path, job: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name in job["artifacts"]:
        path = folder / "out" / name
        if path.is_file() and not path.is_symlink():
            digest, size = _digest(path)
            found.append({"name": name, "sha256": digest, "size": size})
    return found


def _digest(path: pathlib.Path) -> tuple[str, int]:
    total, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while True:
            data = file.read(_CHUNK)
            if not data:
                return total.hexdigest(), size
            total.update(data)
            size += len(data)


def _write(path: pathlib.Path, data: bytes) -> None:
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


if __name__ == "__main__":
    main(sys.argv[1:])
