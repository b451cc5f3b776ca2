"""A real Slurm of one node on loopback, with its own keys, ports and folders, for as long as a test
needs it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from buildkit import wait_for, write_tree
from conftest import ran

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")


def missing() -> str:
    """What there is to install for it; empty if nothing."""
    if os.getuid() != 0:
        return "a Slurm of its own can only be started by root"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    return f"no {', '.join(lacking)}: apt-get install slurm-wlm munge" if lacking else ""


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NoClusterError(Exception):
    """Slurm does not start on this machine; its text says what the controller wrote last."""


CONFIGURATION = """\
ClusterName=kci
SlurmctldHost=HOST(127.0.0.1)
SlurmctldPort=CONTROL
SlurmdPort=NODE
AuthType=auth/munge
AuthInfo=socket=FOLDER/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=FOLDER/state
SlurmdSpoolDir=FOLDER/spool
SlurmctldPidFile=FOLDER/slurmctld.pid
SlurmdPidFile=FOLDER/slurmd.pid
SlurmctldLogFile=FOLDER/slurmctld.log
SlurmdLogFile=FOLDER/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=600
MessageTimeout=60
BatchStartTimeout=10
KillWait=2
MinJobAge=300
JobRequeue=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=HOST NodeAddr=127.0.0.1 CPUs=8 RealMemory=64000 Gres=gpu:1 State=UNKNOWN
PartitionName=build Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


class Cluster:
    """The daemons, and how to reach them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        write_tree(folder, {"state/x": "", "spool/x": "", "cgroup.conf": "", "munge.key": ""})
        (folder / "munge.key").chmod(0o600)
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        # Slurm counts it and gives it away, and that is all.
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        host = socket.gethostname().partition(".")[0]
        named = {"FOLDER": str(folder), "HOST": host}
        named |= {name: str(_free_port()) for name in ("CONTROL", "NODE")}
        text = re.sub("HOST|CONTROL|NODE|FOLDER", lambda word: named[word[0]], CONFIGURATION)
        (folder / "slurm.conf").write_text(text)

    def start(self, name: str, *arguments: str) -> None:
        """Start one of the daemons."""
        with (self.folder / f"{name}.out").open("ab") as log:
            silent: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            command = [name, *arguments]
            self.processes[name] = subprocess.Popen(command, env=self.environment, **silent)

    def is_idle(self) -> bool:
        """Whether its node waits for jobs."""
        done = ran("sinfo", "-h", "-o", "%T", env=self.environment, timeout=30)
        return "idle" in done.stdout


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster whose node is idle; NoClusterError if there is no Slurm to be had here."""
    made = Cluster(folder)
    try:
        kept = {"key-file": "key", "socket": "socket", "pid-file": "pid"}
        kept |= {"log-file": "log", "seed-file": "seed"}
        files = [f"--{option}={folder}/munge.{name}" for option, name in kept.items()]
        made.start("munged", "--foreground", "--force", *files)
        made.start("slurmctld", "-D", "-i")
        made.start("slurmd", "-D", "-c")
        try:
            wait_for(made.is_idle, "the node to be idle")
        except AssertionError:
            logs = sorted(folder.glob("*.out"))
            said = [path.read_text(errors="replace")[-300:] for path in logs]
            raise NoClusterError(" ".join(said)) from None
        yield made
    finally:
        for process in reversed(made.processes.values()):
            process.terminate()
        for process in made.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
