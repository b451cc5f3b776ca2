"""A client of a run on engines is killed at random moments, and resumed: one tree, and no leg run twice.

One engine takes legs and is not reached again, so its leg moves; the merged tree is tested.

A few rounds in the suite; KCI_TEST_KILLS=50 runs as many.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from conftest import ROOT
from forked import ForkServer, fork_server
from kci.remote.run_state import JOURNAL_FILE, JournalLine, RunEvent
from kci.tree.manifest import read_manifest
from kci.verify import verify

IN_ONE_RUN = 5
KILLS = max(IN_ONE_RUN, int(os.environ.get("KCI_TEST_KILLS", "15")))
LONGEST = 0.3
"""Seconds until a client is killed; the first has read and planned all after some 0.1."""
QUEUE = """\
#!/bin/sh
case $1 in
submit) python3 "$3/kci_job.py" start "$3" > /dev/null && echo "$2" ;;
find) if [ -e "$3/claim" ]; then echo "$2"; fi ;;
poll) exit 75 ;;
cancel) python3 "$3/kci_job.py" cancel "$3" > /dev/null ;;
esac
"""
KCI = """\
#!/bin/sh
if [ $1 = test ]; then
  for word; do if [ "$before" = --record ]; then record=$word; fi; before=$word; done
  printf '{"kernel":"swiglu","leg":"test","attempt":1,"passed":true,"tested":["torch-cpu"]}' > "$record"
  exit 0
fi
exec "PYTHON" -m kci "$@"
"""


@pytest.mark.slow
@pytest.mark.programs
def test_a_killed_client_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    moments = random.Random(14)
    killed = moved = 0
    clients = fork_server()
    for number in range(KILLS):
        place = tmp_path / str(number)
        kernel = prepared(place)
        for _ in range(min(IN_ONE_RUN, KILLS - killed)):
            client = start(clients, place, kernel)
            threading.Event().wait(moments.uniform(0, LONGEST))
            os.kill(client, signal.SIGKILL)
            killed += clients.wait(client) == -signal.SIGKILL
        assert clients.wait(start(clients, place, kernel)) == 0, (place / "output").read_text()
        moved += require_each_once(place, kernel)
        if killed == KILLS:
            break
    assert killed == KILLS
    assert moved >= 1


def prepared(place: Path) -> Path:
    """A kernel whose leg for CUDA goes to an engine that takes it, and cannot be reached after that."""
    kernel = place / "swiglu"
    shutil.copytree(ROOT / "examples" / "swiglu", kernel, ignore=shutil.ignore_patterns("build", "__pycache__"))
    for name, text in (("queue.sh", QUEUE), ("kci.sh", KCI.replace("PYTHON", sys.executable))):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    commands = "".join(
        f'{verb} = ["{place}/queue.sh", "{verb}", "{{name}}", "{{folder}}"]\n'
        for verb in ("submit", "find", "poll", "cancel")
    )
    (kernel / "kci.toml").write_text(
        f'[engines.here]\ntype = "local"\nkci = ["{place}/kci.sh"]\nbackends = ["cpu", "rocm"]\ntests = ["cpu"]\n\n'
        f'[engines.queue]\ntype = "command"\nkci = ["{place}/kci.sh"]\nbackends = ["cuda"]\npoll-seconds = 0.1\n'
        f'environment = ["PYTHONPATH"]\nfallback = "others"\nfallback-minutes = 0.0\n{commands}\n'
        f'[engines.others]\ntype = "local"\nkci = ["{place}/kci.sh"]\nbuilds = false\n'
    )
    return kernel


def start(clients: ForkServer, place: Path, kernel: Path) -> int:
    """Begin the run, or go on with it."""
    begun = [path.parent.name for path in (place / "cache" / "runs").glob("*/run.json")]
    what = ["--resume", begun[0]] if begun else [str(kernel), "--engine", "auto", "--test"]
    return clients.start("run", *what, "--cache", str(place / "cache"), output=place / "output")


def require_each_once(place: Path, kernel: Path) -> int:
    """One run, one tree, of every leg one result, and no attempt begun twice; how many legs have moved."""
    (run,) = [path.parent for path in (place / "cache" / "runs").glob("*/run.json")]
    lines = [msgspec.json.decode(line, type=JournalLine) for line in (run / JOURNAL_FILE).read_bytes().splitlines()]
    assert [line.reason for line in lines if line.event is RunEvent.RESTART] == []
    results = [leg for line in lines if line.event in (RunEvent.BUILT, RunEvent.PASSED) for leg in line.legs]
    assert sorted(results) == ["swiglu/test-cpu", "swiglu/torch-cpu", "swiglu/torch-cuda", "swiglu/torch-rocm"]
    moved = [leg for line in lines if line.event is RunEvent.MOVED for leg in line.legs]
    assert moved in ([], ["swiglu/torch-cuda"])
    begun = [len(path.read_text().splitlines()) for path in run.glob("jobs/*/executions")]
    assert begun == [1] * len(begun)
    assert len(begun) in (4, 4 + len(moved))
    manifest = read_manifest(kernel / "build")
    assert manifest is not None
    assert manifest.complete
    assert verify(kernel / "build") == []
    return len(moved)
