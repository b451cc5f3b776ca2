"""The results of scheduled runs: append-only, one small file for each time that results are recorded.

A file is written whole or not at all, is never changed, and is named after its run and content. Two runs, or two jobs
of one run, that record at once therefore write different files: a branch merges them, a directory just has both, and
recording the same results again changes nothing.
"""

from __future__ import annotations

import enum
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError, UnsafeError
from kci.utils.atomic import write_atomic
from kci.utils.bounded_json import read_record, require_schema
from kci.utils.git import last_line, remote_git, run_git
from kci.watch.causes import error_line, excerpt, is_external, is_outage

SCHEMA = 1
MAX_BYTES = 64 * 1024 * 1024
_DIGITS = 19
"""Of a run in the name of its file, so that names sort as runs do."""

HARDWARE = "+hardware"
"""After the system of a leg that was tested on the machine that its variant is for: another leg than its build."""

Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._+-]{1,200}\Z")]
"""A name without spaces: leg keys are made of them."""
_Optional = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._+-]{0,200}\Z")]
_LEG = re.compile(r"[A-Za-z0-9._+-]{1,200}(?: [A-Za-z0-9._+-]{1,200}){4}")


class LegOutcome(enum.StrEnum):
    """How a leg of a scheduled run ended."""

    PASSED = "passed"
    FAILED = "failed"
    OUTAGE = "outage"
    """The machine, the network or a service failed."""
    SKIPPED = "skipped"


class LegResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one leg of a scheduled run: a small JSON file."""

    run: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """The number of the run; later runs have larger ones. Clocks differ, so the order is this and not the time."""
    at: str
    """When, as ISO 8601 with an offset."""
    kernel: Word
    variant: Word
    system: Word
    outcome: LegOutcome
    torch: _Optional = ""
    """What it was tested with."""
    compute: _Optional = ""
    error: str = ""
    """What went wrong: one line, or a part of the log."""
    log: str = ""
    replay: str = ""
    """A command that does the same again."""
    catalog: str = ""
    commit: str = ""
    attempt: Annotated[int, Meta(ge=1, le=2**31)] = 1
    hardware: bool = False
    """True if it is about loading and testing on the machine that the variant is for, and not about building it."""
    look: Annotated[int, Meta(ge=1, le=9)] = 1
    """The second is a suspect's: the leg again, later in the same run, on another machine."""
    machine: _Optional = ""
    """The name of a machine that a second look could meet again; empty for one that exists for one job only."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)
        if datetime.fromisoformat(self.at).tzinfo is None:
            raise ValueError("`at` has no offset from UTC")

    @property
    def leg(self) -> str:
        """The key of the leg: kernel, variant, system, torch and compute version."""
        system = self.system + HARDWARE if self.hardware else self.system
        return leg_key(self.kernel, self.variant, system, self.torch, self.compute)


def leg_key(kernel: str, variant: str, system: str, torch: str = "", compute: str = "") -> str:
    """The text by which a leg is known from run to run."""
    return f"{kernel} {variant} {system} {torch or '-'} {compute or '-'}"


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A leg that failed, with its first error."""

    leg: str
    error: str
    log: str = ""
    replay: str = ""
    excerpt: str = ""
    """The lines around the error, where more than one is known."""
    machine: str = ""


class RunFacts(msgspec.Struct, frozen=True):
    """Which run it is, and what the world was in it."""

    run: int
    at: str
    catalog: str = ""
    commit: str = ""


class RecordedRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """Results of one run, or of a part of one. Legs are sorted."""

    run: int
    at: str
    attempt: int = 1
    catalog: str = ""
    commit: str = ""
    passed: tuple[str, ...] = ()
    failed: tuple[Failure, ...] = ()
    unknown: tuple[str, ...] = ()
    """Legs that an outage hit or that were skipped: their state is unknown."""
    look: int = 1
    earlier: tuple[Failure, ...] = ()
    """What legs said that were looked at again in the same run, the oldest first; what they say now stands above.

    It is worked out of the parts of a run, and in no file.
    """
    schema: int = SCHEMA

    @property
    def facts(self) -> RunFacts:
        return RunFacts(self.run, self.at, self.catalog, self.commit)

    def __post_init__(self) -> None:
        require_schema(self.schema, SCHEMA)
        for leg in (*self.passed, *self.unknown, *(failure.leg for failure in self.failed)):
            if not _LEG.fullmatch(leg):
                raise ValueError(f"{leg[:80]!r} is not the key of a leg")


# --- results of legs --------------------------------------------------------------------------------------------------


def read_results(places: Iterable[Path]) -> tuple[list[LegResult], list[Diagnostic]]:
    """The results in JSON files and folders of them, and what is wrong with others."""
    found: list[LegResult] = []
    problems: list[Diagnostic] = []
    files = (sorted(place.rglob("*.json")) if place.is_dir() else [place] for place in places)
    for path in (path for some in files for path in some):
        if path.is_dir():
            continue
        try:
            result = read_record(path, LegResult)
        except (OSError, ValueError) as error:
            message = f"not a result, and not recorded: {error}"
            problems.append(finding("KCI801", message, path=str(path), hint="was its job cut off? run it again"))
            continue
        found.append(result)
    return found, problems


def gather(results: Iterable[LegResult]) -> list[RecordedRun]:
    """Results as runs, one for each run, attempt and look.

    A failure that is an outage becomes one, and a leg that was skipped for want of a wheel that nobody has a failure.
    Where one leg has two different results in one look, the failure counts.
    """
    groups: dict[tuple[int, int, int], dict[str, LegResult]] = {}
    for result in sorted(results, key=lambda item: (item.run, item.attempt, item.at)):
        legs = groups.setdefault((result.run, result.attempt, result.look), {})
        earlier = legs.get(result.leg)
        if earlier is None or earlier.outcome is not LegOutcome.FAILED:
            legs[result.leg] = result
    return [_recorded(list(legs.values())) for _, legs in sorted(groups.items())]


def _recorded(results: list[LegResult]) -> RecordedRun:
    first = min(results, key=lambda item: item.at)
    failed = [item for item in results if _has_failed(item)]
    passed = sorted(item.leg for item in results if item.outcome is LegOutcome.PASSED)
    known = {*passed, *(item.leg for item in failed)}
    return RecordedRun(
        run=first.run,
        at=first.at,
        attempt=first.attempt,
        look=first.look,
        catalog=first.catalog,
        commit=first.commit,
        passed=tuple(passed),
        failed=tuple(
            Failure(item.leg, error_line(item.error), item.log, item.replay, excerpt(item.error), item.machine)
            for item in sorted(failed, key=lambda item: item.leg)
        ),
        unknown=tuple(sorted(item.leg for item in results if item.leg not in known)),
    )


def _has_failed(item: LegResult) -> bool:
    if item.outcome is LegOutcome.SKIPPED:
        return is_external(item.error)
    return item.outcome is LegOutcome.FAILED and not is_outage(item.error)


# --- the history ------------------------------------------------------------------------------------------------------


def append(history: Path, runs: Iterable[RecordedRun]) -> list[Path]:
    """Write runs into a history, a directory that is made if it is missing; returns the files that are new.

    OSError if one cannot be written; those before it are there.
    """
    written = []
    history.mkdir(parents=True, exist_ok=True)
    for name, raw in map(_run_file, runs):
        if not (history / name).exists():
            write_atomic(history / name, raw)
            written.append(history / name)
    return written


def _run_file(run: RecordedRun) -> tuple[str, bytes]:
    """The name and content of the file that a run is in a history."""
    raw = msgspec.json.encode(run) + b"\n"
    return f"{run.run:0{_DIGITS}d}-{run.attempt}-{hashlib.sha256(raw).hexdigest()[:16]}.json", raw


def each_run(history: Path, report: Callable[[Diagnostic], None]) -> Iterator[RecordedRun]:
    """The runs of a history, oldest first, each once; only one is in memory at a time.

    What is wrong with a file goes to `report`.

    OSError if there is no such directory.
    """
    files = sorted(entry for entry in history.iterdir() if entry.suffix == ".json")
    for _, group in groupby(files, key=lambda path: path.name[:_DIGITS]):
        parts = []
        for path in group:
            try:
                part = read_record(path, RecordedRun, MAX_BYTES)
                if not path.name.startswith(f"{part.run:0{_DIGITS}d}-"):
                    raise ValueError(f"its name is not that of run {part.run}")
            except (OSError, ValueError) as error:
                message = f"not a recorded run, and passed over: {error}"
                report(finding("KCI801", message, path=str(path), hint="restore it from an earlier commit"))
            else:
                parts.append(part)
        if parts:
            yield merged(parts)


def merged(parts: Iterable[RecordedRun]) -> RecordedRun:
    """One run from its parts: the latest look at a leg says how it is, and within a look the failure counts."""
    parts = sorted(parts, key=lambda part: (part.attempt, part.look))
    looks: dict[str, dict[tuple[int, int], Failure | None]] = {}
    unknown: set[str] = set()
    for part in parts:
        at = part.attempt, part.look
        unknown.update(part.unknown)
        for leg in part.passed:
            looks.setdefault(leg, {}).setdefault(at, None)
        for failure in part.failed:
            looks.setdefault(failure.leg, {})[at] = failure
    earlier: list[Failure] = []
    passed: list[str] = []
    failed: list[Failure] = []
    for leg, seen in sorted(looks.items()):
        *before, last = seen.values()
        earlier += [failure for failure in before if failure is not None]
        if last is None:
            passed.append(leg)
        else:
            failed.append(last)
    return msgspec.structs.replace(
        parts[-1],
        passed=tuple(passed),
        failed=tuple(failed),
        unknown=tuple(sorted(unknown - looks.keys())),
        earlier=tuple(earlier),
    )


FOLDER = "history"
"""Where the history is there."""

_TRIES = 8
_NO_SUCH_BRANCH = 2


class HistoryBranch:
    """A branch that has a history, or will have one."""

    def __init__(self, remote: str, branch: str, environment: Mapping[str, str] | None = None) -> None:
        """Name the address of a repository, and a branch; `environment` has more variables for git, such as a login."""
        self.remote = remote
        self.branch = branch
        self._environment = environment

    def fetch(self, into: Path) -> Path:
        """The history as a directory in a new clone; empty where the branch does not exist yet.

        Raises:
            FindingsError: the repository cannot be read.
            UnsafeError: what is there is a link.
        """
        self._git(into.parent, "init", "--quiet", str(into))
        self._git(into, "remote", "add", "--", "origin", self.remote)
        listed = self._run(into, "ls-remote", "--exit-code", "--heads", "origin", f"refs/heads/{self.branch}")
        if listed.returncode == 0:
            self._git(into, "fetch", "--quiet", "--depth=1", "origin", f"refs/heads/{self.branch}")
            self._git(into, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        elif listed.returncode != _NO_SUCH_BRANCH:
            raise FindingsError(f"cannot read {self.remote}: {last_line(listed.stderr)}")
        if (into / FOLDER).is_symlink():
            raise UnsafeError(f"{FOLDER} on the branch {self.branch} is a link", hint="make it a folder there")
        (into / FOLDER).mkdir(exist_ok=True)
        return into / FOLDER

    def record(self, runs: Sequence[RecordedRun]) -> int:
        """Append runs; returns the number of new files.

        FindingsError if the repository cannot be read or written.
        """
        who = ["-c", "user.name=kci", "-c", "user.email=kci@users.noreply.github.com"]
        refused = ""
        with tempfile.TemporaryDirectory(prefix="kci-history-") as folder:
            for number in range(_TRIES):
                clone = Path(folder) / str(number)
                written = append(self.fetch(clone), runs)
                if not written:
                    return 0
                self._git(clone, "add", "--", FOLDER)
                self._git(clone, *who, "commit", "--quiet", f"--message={_message(runs)}")
                try:
                    self._git(clone, "push", "--quiet", "origin", f"HEAD:refs/heads/{self.branch}")
                except FindingsError as error:
                    refused = error.message
                else:
                    return len(written)
        hint = "may it write to the repository (contents: write), and is the branch protected?"
        raise FindingsError(f"the branch {self.branch} takes no commit: {refused}", hint=hint)

    def _git(self, place: Path, *arguments: str) -> None:
        done = self._run(place, *arguments)
        if done.returncode != 0:
            said = last_line(done.stderr) or f"exit code {done.returncode}"
            raise FindingsError(f"git {arguments[0]} failed: {said}")

    def _run(self, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return remote_git(place, *arguments, environment=self._environment)


def _message(runs: Sequence[RecordedRun]) -> str:
    return f"Results of {', '.join(f'run {run}' for run in sorted({str(run.run) for run in runs}))}"


def address_of(directory: Path, remote: str) -> str:
    """The address of a remote that the repository around `directory` knows by name; else what was named."""
    known = run_git(directory, "remote", "get-url", "--end-of-options", remote)
    return known.decode().strip() if known else remote
