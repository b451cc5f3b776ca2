"""Change the code at random places and see whether a fast test fails: `python bin/mutate_random.py SEED NUMBER [COMMIT]`.

Takes a commit, by default the one that is checked out, in a copy; needs Linux and `unshare`, since changed code may remove any file: it can
write to its copy, and to a home and a /tmp that go with it. The first run of a commit notes which tests execute which function. Each change is
then tried with those tests, the nearest first, and with all tests of its room where those are few: what is cached is executed once. In the end the tests that failed
are run without any change: one that fails has killed nothing. Verdicts are kept in build/mutants: the same command goes on where it stopped.

The exit code is 1 if less than nine of ten are killed. What a survivor means (a test is missing, the code is dead, the change
changes nothing) is for a person to say.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mutation_sites import Site, sites

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "mutants"
FAST = "not torch and not network and not slow"
HANGS = ["-o", "faulthandler_timeout=120", "-o", "faulthandler_exit_on_timeout=true"]
MEMORY = 8 << 30
FEW = 10
ALONE = """
set -e
mount --make-rprivate /
mount --bind "$0" "$0"
mount -o remount,bind,ro /
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mkdir /tmp/over /tmp/work
mount -t overlay -o "lowerdir=$HOME,upperdir=/tmp/over,workdir=/tmp/work" overlay "$HOME"
cd "$0"
exec "$@"
"""
"""Below a new list of mounts: everything is read-only but the copy, and what is written to /tmp and to the home is gone afterwards."""


def main(seed: str, number: str, commit: str = "HEAD") -> int:
    """Try so many changes of a commit, chosen by the seed."""
    trials = Trials(commit)
    places = [
        (str(file.relative_to(trials.kci)), site)
        for file in sorted(trials.kci.rglob("*.py"))
        for site in sites(file.read_text("utf-8"))
    ]
    chosen = random.Random(seed).sample(places, int(number))
    verdicts = trials.held([trials.verdict(file, site) for file, site in chosen])
    killed, all_of = Counter[str](), Counter[str]()
    for (file, _), verdict in zip(chosen, verdicts, strict=True):
        all_of[_room(file)] += 1
        killed[_room(file)] += verdict.kind != "SURVIVED"
    for room in sorted(all_of):
        print(f"{room:12} {killed[room]:4} of {all_of[room]:4}")
    rate = killed.total() / all_of.total()
    print(
        f"{trials.commit[:7]}, seed {seed}: {killed.total()} of {all_of.total()} killed, {rate:.1%}; there are {len(places)} changes"
    )
    return 0 if rate >= 0.9 else 1


class Verdict(NamedTuple):
    """What became of a change."""

    kind: str
    """`killed`, `hangs` or `SURVIVED`."""
    by: str = ""
    """The test that failed, if it was one."""


class Trials:
    """A copy of a commit, and what became of changes to it."""

    def __init__(self, commit: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="kci-mutant-", dir="/var/tmp")
        self.copy = Path(self.folder.name) / "checkout"
        self.kci = self.copy / "src" / "kci"
        self.commit = subprocess.run(
            ["git", "rev-parse", commit], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, self.copy], check=True)
        subprocess.run(["git", "checkout", "--quiet", "-B", "main", self.commit], cwd=self.copy, check=True)
        self.own = self.copy / ".git" / "mutants"
        self.own.mkdir()
        self.kept = KEPT / self.commit[:12]
        self.kept.mkdir(parents=True, exist_ok=True)
        self.clock = 1_000_000_000
        self.seconds, self.functions = self._executed()

    def verdict(self, file: str, site: Site) -> Verdict:
        """What becomes of a change; from an earlier run, if it is known."""
        notes = self.kept / "verdicts.jsonl"
        key = f"{file}:{site.begin}:{site.end}:{site.new}"
        for line in notes.read_text("utf-8").splitlines() if notes.exists() else ():
            if json.loads(line)["key"] == key:
                return Verdict(json.loads(line)["verdict"], json.loads(line)["by"])
        where = self.kci / file
        raw = where.read_bytes()
        old = raw[site.begin : site.end].decode()
        began = time.monotonic()
        verdict = Verdict("SURVIVED")
        self._write(where, raw[: site.begin] + site.new.encode() + raw[site.end :])
        for tests in self.tests(file, site):
            verdict = self._tried(tests)
            if verdict.kind != "SURVIVED":
                break
        self._write(where, raw)
        seconds = time.monotonic() - began
        print(
            f"{verdict.kind}: src/kci/{file}:{site.line}: {_short(old)} -> {_short(site.new)}   {verdict.by} ({seconds:.0f} s)",
            flush=True,
        )
        with notes.open("a", encoding="utf-8") as out:
            said = {
                "key": key,
                "verdict": verdict.kind,
                "line": site.line,
                "function": site.function,
                "old": old,
                "new": site.new,
                "by": verdict.by,
            }
            out.write(json.dumps(said) + "\n")
        return verdict

    def held(self, verdicts: list[Verdict]) -> list[Verdict]:
        """The verdicts, where a test that fails without any change has killed nothing."""
        own: set[str] = set()
        tests = {verdict.by for verdict in verdicts} - {""}
        while tests - own and (failed := self._tried(sorted(tests - own)).by):
            own.add(failed)
            print(f"fails without a change: {failed}")
        return [Verdict("SURVIVED") if verdict.by in own else verdict for verdict in verdicts]

    def tests(self, file: str, site: Site) -> Iterable[list[str]]:
        """First those that execute the function, or any of the module for what is outside of functions; then the room's."""
        function = f"{file}:{site.function}"
        known = [
            name for name in self.functions if name == function or (not site.function and name.startswith(function))
        ]
        found = {test for name in known for test in self.functions[name]} & self.seconds.keys()
        near, stem = f"tests/{_room(file)}/", Path(file).stem
        if found:
            yield sorted(
                found,
                key=lambda test: (stem not in test.partition("::")[0], not test.startswith(near), self.seconds[test]),
            )
        if len(found) < FEW:
            rest = self.seconds.keys() - found
            room = [test for test in rest if test.startswith(near)]
            yield sorted(room or rest, key=lambda test: (stem not in test.partition("::")[0], self.seconds[test]))

    def _executed(self) -> tuple[dict[str, float], dict[str, list[str]]]:
        """How long each test takes, and the tests that execute a function."""
        whole = self.kept / "executed.json"
        if not whole.exists():
            notes, site = self.own / "notes", self.own / "site"
            notes.mkdir()
            site.mkdir()
            shutil.copy(ROOT / "bin" / "executed_by.py", site / "sitecustomize.py")
            noting = {"KCI_EXECUTED": str(notes), "KCI_EXECUTED_SOURCES": f"{self.copy}/src/kci/"}
            done = self._pytest(
                "-p", "sitecustomize", "-m", FAST, "-n", "2", "--dist", "worksteal", extra=noting, path=str(site)
            )
            if done.returncode not in (0, 1):
                sys.exit(f"the tests do not run here:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
            print(done.stdout[-4000:], file=sys.stderr)
            seconds = {test: float(taken) for test, taken in _noted(notes, "passed")}
            functions: dict[str, set[str]] = {}
            for test, function in _noted(notes, "functions"):
                functions.setdefault(function, set()).add(test)
            whole.write_text(json.dumps([seconds, {name: sorted(tests) for name, tests in functions.items()}]), "utf-8")
        seconds, functions = json.loads(whole.read_text("utf-8"))
        return seconds, functions

    def _tried(self, tests: list[str]) -> Verdict:
        (self.own / "tests").write_text("".join(f"{test}\n" for test in tests), "utf-8")
        done = self._pytest("-x", "-p", "no:randomly", f"@{self.own}/tests")
        if failed := re.search(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE):
            return Verdict("killed", max((test for test in tests if failed[1].startswith(test)), key=len, default=""))
        if "Timeout (0:" in done.stderr:
            return Verdict("hangs")
        return Verdict("SURVIVED" if done.returncode == 0 else "killed")

    def _pytest(
        self, *arguments: str, extra: dict[str, str] | None = None, path: str = ""
    ) -> subprocess.CompletedProcess[str]:
        places = {
            "PYTHONPATH": f"{self.copy}/src:{path}".rstrip(":"),
            "TMPDIR": "/tmp",
            "PYTEST_DEBUG_TEMPROOT": "/tmp",
        }
        others = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KCI_", "GIT_", "PYTEST_", "PYTHON"))
        }
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        alone = [
            "unshare",
            *user,
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            ALONE,
            str(self.copy),
        ]
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *HANGS, *arguments]
        limited = ["prlimit", f"--data={MEMORY}", *alone, *command]
        return subprocess.run(
            limited,
            env={**others, **places, **(extra or {})},
            capture_output=True,
            text=True,
            check=False,
            errors="replace",
        )

    def _write(self, where: Path, raw: bytes) -> None:
        """With a time of its own, since Python tells compiled files apart by time and size."""
        where.write_bytes(raw)
        self.clock += 10
        os.utime(where, (self.clock, self.clock))


def _noted(folder: Path, kind: str) -> Iterable[tuple[str, str]]:
    for file in folder.glob(f"{kind}-*"):
        for line in file.read_text("utf-8").splitlines():
            test, _, what = line.partition("\t")
            yield test, what


def _room(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


def _short(text: str) -> str:
    return re.sub(r"\s+", " ", text)[:100]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
