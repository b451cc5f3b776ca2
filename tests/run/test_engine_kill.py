"""A client of a run on an engine is killed at random moments, and resumed: one tree, and no leg run twice.

A few rounds in the suite; KCI_TEST_KILLS=50 runs as many.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path

import msgspec
import pytest

from conftest import ROOT
from engines.background import Client
from kci.run.run_journal import JOURNAL_FILE, JournalLine, RunEvent
from kci.tree.manifest import read_manifest
from kci.verify import verify

IN_ONE_RUN = 5
KILLS = max(IN_ONE_RUN, int(os.environ.get("KCI_TEST_KILLS", "15")))


@pytest.mark.slow
@pytest.mark.programs
def test_a_killed_client_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    moments = random.Random(14)  # the length of a run is some two seconds
    submissions = 0
    for number in range(KILLS // IN_ONE_RUN):
        place = tmp_path / str(number)
        kernel = place / "swiglu"
        shutil.copytree(ROOT / "examples" / "swiglu", kernel, ignore=shutil.ignore_patterns("build", "__pycache__"))
        for _ in range(IN_ONE_RUN):
            client = start(place, kernel)
            threading.Event().wait(moments.uniform(0.2, 1.6))
            client.kill()
        done = start(place, kernel).end()
        assert done.code == 0, done.output
        submissions += require_each_once(place, kernel)
    assert submissions == 3 * KILLS // IN_ONE_RUN


def start(place: Path, kernel: Path) -> Client:
    """Begin the run, or go on with it."""
    begun = [path.parent.name for path in (place / "cache" / "runs").glob("*/run.json")]
    what = ["--resume", begun[0]] if begun else [str(kernel), "--engine", "local"]
    return Client("run", *what, "--cache", str(place / "cache"))


def require_each_once(place: Path, kernel: Path) -> int:
    """One run, one tree, and of every leg one job that was begun once; the number of jobs."""
    (run,) = [path.parent for path in (place / "cache" / "runs").glob("*/run.json")]
    lines = [msgspec.json.decode(line, type=JournalLine) for line in (run / JOURNAL_FILE).read_bytes().splitlines()]
    assert [line.reason for line in lines if line.event is RunEvent.RESTART] == []
    jobs = list((run / "jobs").iterdir())
    assert [len((job / "executions").read_text().splitlines()) for job in jobs] == [1, 1, 1]
    manifest = read_manifest(kernel / "build")
    assert manifest is not None
    assert manifest.complete
    assert verify(kernel / "build") == []
    return len(jobs)
