"""A native build that ends before it is done, by its time or by a signal: what is done is kept, and said."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kci.errors import UNFINISHED, UnfinishedBuildError
from split_kernel import VARIANT, SplitKernel, marks, sources

OBJECTS, JOBS = 24, 2
KILLS = int(os.environ.get("KCI_TEST_KILLS", "4"))
NAMES = [f"part{number:02d}" for number in range(OBJECTS)]
# a second of g++
SOURCE = "#include <regex>\nbool {name}(const std::regex &one) {{ return one.mark_count(); }}\n"

pytestmark = marks


class Case(SplitKernel):
    """A kernel of many sources, and its builds in processes of their own."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(place, sources(NAMES, SOURCE), wait=":")
        monkeypatch.setenv("CXX", str(self.compiler))
        monkeypatch.delenv("KCI_COMPILER_CACHE", raising=False)
        monkeypatch.setenv("KCI_CACHE", str(self.cache))
        self.command = [
            sys.executable, "-m", "kci", "build", str(self.directory), f"--variant={VARIANT}", f"--jobs={JOBS}",
            f"--output={place / 'out'}", "--unique-id=1a2b3c4",
        ]  # fmt: skip

    def build(self, *more: str, how: int = 0, after: int = 0) -> tuple[int, str]:
        """Build, and send a signal after so many objects of this run; the exit code, and what was said."""
        said = []
        with subprocess.Popen(
            [*self.command, *more], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                after -= " csrc/part" in line and line.startswith("[")
                if how and after < 0:
                    process.send_signal(how)
                    how = 0
        return process.returncode, "".join(said)


@pytest.mark.slow
def test_a_build_that_is_killed_again_and_again_compiles_each_object_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At moments by chance, SIGKILL, SIGTERM and SIGINT in turn; those in flight are compiled again."""
    case, chance = Case(tmp_path, monkeypatch), random.Random(KILLS)
    kills, dones = 0, [0]
    for how in itertools.islice(itertools.cycle((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)), KILLS):
        code, said = case.build(how=how, after=chance.randrange(2))
        kills += code != 0
        if how is signal.SIGKILL:
            assert code in (-how, 0)
        else:
            assert code in (UnfinishedBuildError.exit_code, 0), said
            found = UNFINISHED.search(said)
            assert code == 0 or found is not None
            dones += [int(found["done"])] if found else []
    assert kills > KILLS // 2
    # Each build takes what is kept out of ccache again: one that is killed early has taken less than the one before.
    assert max(dones) <= OBJECTS + 1
    code, said = case.build()
    assert code == 0, said
    made = case.made()
    assert len(made) == OBJECTS + 1
    again = sum(made.values()) - len(made)
    print(f"{kills} kills, {again} of {len(made)} objects compiled again; done after each: {dones}")
    assert again <= kills * JOBS
    before = case.made()
    assert case.build()[0] == 0
    assert case.made() == before


def test_a_build_ends_itself_and_the_next_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, monkeypatch)
    code, said = case.build("--stop-after=0.03")
    assert code == UnfinishedBuildError.exit_code
    found = re.search(rf"error: {VARIANT} is not finished: (\d+) of {OBJECTS + 1} objects are done", said)
    assert found is not None, said
    done = int(found[1])
    assert ("goes on where this one ended" in said) is (done > 0)
    assert 0 <= done <= OBJECTS
    assert not (tmp_path / "out" / VARIANT).exists()
    for name in NAMES[4:]:
        (case.directory / "csrc" / f"{name}.cpp").write_text(f"int {name};\n")
    code, said = case.build()
    assert code == 0, said
    again = [output for output, times in case.made().items() if times > 1]
    assert len(again) <= done + JOBS
