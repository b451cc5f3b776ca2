"""`kci run`, stopped at random moments: no half of a variant, no process that goes on, and the next run is right.

A few rounds in the suite; KCI_TEST_KILLS=100 pytest -k random_kills makes as many, with the two signals in turn.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from buildkit import warm_cache, write_tree
from kci.tree.identity import file_hashes
from kci.utils.atomic import locked

KILLS = int(os.environ.get("KCI_TEST_KILLS", "4"))
VARIANT = "torch213-cxx11-cpu-x86_64-linux"
SOURCES = 4
BUILD_TOML = """
    [general]
    name = "{name}"
    version = 1
    edition = 5
    license = "MIT"
    backends = ["cpu"]

    [torch]
    src = ["torch-ext/binding.cpp"]

    [kernel.parts]
    backend = "cpu"
    depends = ["torch"]
    src = [{sources}]
"""


def tiny_kernel(root: Path, name: str) -> Path:
    """Sources that include next to nothing, so that a whole build takes a second."""
    names = [f"csrc/part{number}.cpp" for number in range(SOURCES)]
    files = {path: f"#include <vector>\nint part_{name}_{at}(std::vector<int> &v) {{ return v.at({at}); }}\n"
             for at, path in enumerate(names)}  # fmt: skip
    files["torch-ext/binding.cpp"] = f'extern "C" int binding_{name}() {{ return 0; }}\n'
    files[f"torch-ext/{name}/__init__.py"] = "from ._ops import ops\n"
    toml = BUILD_TOML.format(name=name, sources=", ".join(f'"{path}"' for path in names))
    return write_tree(root / name, {"build.toml": toml, **files})


class Case:
    """Two kernels that are built at once, and what a run that nobody stops makes of them."""

    def __init__(self, place: Path) -> None:
        self.kernels = [tiny_kernel(place, name) for name in ("one", "other")]
        self.cache = warm_cache(place)
        self.command = [sys.executable, "-m", "kci", "run", *map(str, self.kernels), "--into", str(place / "trees")]
        self.command += ["--only", VARIANT, "--catalog", "2026-08-20"]
        self.trees = place / "trees"
        self.place = place
        self.whole()
        begun = time.monotonic()
        self.forget()
        self.code = self.whole()
        self.seconds = time.monotonic() - begun
        self.expected = self.made()
        assert len(self.expected) >= 4  # two kernels, in the cache and in their trees

    def whole(self) -> int:
        watched = {**os.environ, "PYTHONFAULTHANDLER": "1", "KCI_CACHE": str(self.cache)}
        done = subprocess.run(self.command, capture_output=True, text=True, check=False, env=watched)
        assert done.stdout.count(" built ") + done.stdout.count(" reused ") == 2, done.stderr
        return done.returncode

    def forget(self) -> None:
        """Make the next run compile again."""
        for number, kernel in enumerate(self.kernels):
            for part in range(SOURCES):
                path = kernel / f"csrc/part{part}.cpp"
                path.write_text(path.read_text())
                os.utime(path, (10**9, time.time() + number))
        for path in (*self.cache.glob("run/*"), *self.cache.glob("work/*"), self.trees):
            subprocess.run(["rm", "-rf", str(path)], check=True)

    def made(self) -> dict[str, dict[str, str]]:
        """The variants that stand anywhere under their names, and their files."""
        places = [*self.cache.glob(f"run/*/*/{VARIANT}"), *self.trees.glob(f"*/{VARIANT}")]
        named = [path for path in places if not any(part.startswith(".kci-") for part in path.parts)]
        return {str(path.relative_to(self.place)): file_hashes(path) for path in named}

    def survivors(self) -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.place) in words and int(process.name) != os.getpid():
                found.append(words)
        return found

    def wait_for_the_guards(self) -> None:
        """Whoever has the lock of a work directory knows that nothing of an older run is left."""
        for work in self.cache.glob("work/*/*"):
            if not work.name.startswith("."):
                with locked(work):
                    pass


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
def test_random_kills(tmp_path: Path) -> None:
    case = Case(tmp_path)
    chance = random.Random(KILLS)
    ended, in_time = [], 0
    for number, how in zip(range(KILLS), itertools.cycle((signal.SIGKILL, signal.SIGTERM)), strict=False):
        case.forget()
        with subprocess.Popen(case.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                process.wait(chance.uniform(0, case.seconds * 1.1))
            except subprocess.TimeoutExpired:
                process.send_signal(how)
            ended.append(process.wait())
        in_time += ended[-1] == case.code
        assert ended[-1] in (case.code, -how, 130 if how == signal.SIGTERM else -how), ended
        case.wait_for_the_guards()
        assert case.survivors() == []
        for path, files in case.made().items():
            assert files == case.expected[path], (number, path)
        assert case.whole() == case.code
        assert case.made() == case.expected, number
        leftovers = [path for path in tmp_path.rglob(".kci-*") if not path.is_relative_to(case.cache / "envs")]
        assert leftovers == [], number
    print(f"{KILLS} times: {KILLS - in_time} within a run of {case.seconds:.1f} s, {in_time} after it")
