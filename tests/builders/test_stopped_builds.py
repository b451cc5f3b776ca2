"""A native build that ends before it is done, by its time or by a signal: what is done is kept, and
said.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kci.errors import UNFINISHED, UnfinishedBuildError
from split_kernel import NAMES, VARIANT, SplitKernel, marks

OBJECTS, JOBS = len(NAMES) + 1, 2
pytestmark = [*marks, pytest.mark.usefixtures("as_users_compile")]


class Case(SplitKernel):
    """A kernel of many sources, and its builds in processes of their own."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(place, wait="sleep 0.5")
        monkeypatch.setenv("CXX", str(self.compiler))
        monkeypatch.setenv("KCI_CACHE", str(self.cache))
        words = [f"--variant={VARIANT}", f"--jobs={JOBS}", f"--output={place / 'out'}"]
        self.command = [sys.executable, "-m", "kci", "build", str(self.directory), *words]
        self.command += ["--unique-id=1a2b3c4", "--no-load"]

    def build(self, *more: str, how: int = 0, after: int = 0) -> tuple[int, str]:
        """Build, and send a signal after so many objects of this run; the exit code, and what was
        said.
        """
        said = []
        none, pipe = subprocess.DEVNULL, subprocess.PIPE
        command = [*self.command, *more]
        with subprocess.Popen(command, stdout=none, stderr=pipe, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                after -= " csrc/unit" in line and line.startswith("[")
                if how and after < 0:
                    process.send_signal(how)
                    how = 0
        return process.returncode, "".join(said)


def test_a_build_that_is_stopped_keeps_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in flight is compiled again."""
    case = Case(tmp_path, monkeypatch)
    code, said = case.build(how=signal.SIGTERM, after=1)
    assert code == UnfinishedBuildError.exit_code, said
    assert UNFINISHED.search(said), said
    assert case.build(how=signal.SIGKILL, after=1)[0] == -signal.SIGKILL
    code, said = case.build()
    assert code == 0, said
    made = case.made()
    assert len(made) == OBJECTS
    assert sum(made.values()) - len(made) <= 2 * JOBS
    assert case.build()[0] == 0
    assert case.made() == made


def test_a_build_ends_itself_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(tmp_path, monkeypatch)
    code, said = case.build("--stop-after=0.02")
    assert code == UnfinishedBuildError.exit_code
    says = rf"error: {VARIANT} is not finished: (\d+) of {OBJECTS} objects are done"
    found = re.search(says, said)
    assert found is not None, said
    done = int(found[1])
    assert ("goes on where this one ended" in said) is (done > 0)
    assert 0 <= done < OBJECTS
    assert not (tmp_path / "out" / VARIANT).exists()
    code, said = case.build()
    assert code == 0, said
    again = [output for output, times in case.made().items() if times > 1]
    assert len(again) <= JOBS
