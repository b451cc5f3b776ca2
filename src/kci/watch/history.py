"""The history of scheduled runs: append-only JSON files in a folder or branch, named after run and
content.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError, UnsafeError
from kci.matrix.variants import parse_variant_name
from kci.utils.atomic import write_atomic
from kci.utils.bounded_json import VersionedRecord, read_record
from kci.utils.frozen import Frozen
from kci.utils.git import last_line, remote_git, run_git
from kci.watch.causes import error_line, excerpt, is_external, outage_class

MAX_BYTES = 64 * 1024 * 1024
_DIGITS = 19

HARDWARE = "+hardware"
"""The suffix of the system of a leg that was tested on the hardware of its variant."""

Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._+-]{1,200}\Z")]
_Optional = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._+-]{0,200}\Z")]
_LEG = re.compile(r"[A-Za-z0-9._+-]{1,200}(?: [A-Za-z0-9._+-]{1,200}){4}")


class LegOutcome(enum.StrEnum):
    """The outcome of a leg."""

    PASSED = "passed"
    FAILED = "failed"
    OUTAGE = "outage"
    SKIPPED = "skipped"


class LegResult(VersionedRecord, omit_defaults=True):
    """The result of one leg of a scheduled run, as a JSON file."""

    run: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """The run number. Runs are ordered by it, because clocks differ."""
    at: str
    """ISO 8601 with an offset from UTC."""
    kernel: Word
    variant: Word
    system: Word
    outcome: LegOutcome
    torch: _Optional = ""
    compute: _Optional = ""
    error: str = ""
    log: str = ""
    replay: str = ""
    catalog: str = ""
    commit: str = ""
    attempt: Annotated[int, Meta(ge=1, le=2**31)] = 1
    hardware: bool = False
    """True if it is about loading and testing on the hardware, and not about building."""
    look: Annotated[int, Meta(ge=1, le=9)] = 1
    """2 for a suspect that ran again in the same run."""
    machine: _Optional = ""
    """The name of a persistent machine; empty for an ephemeral one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if datetime.fromisoformat(self.at).tzinfo is None:
            raise ValueError("`at` has no offset from UTC")

    @property
    def leg(self) -> str:
        """The key of the leg in the history."""
        system = self.system + HARDWARE if self.hardware else self.system
        return leg_key(self.kernel, self.variant, system, self.torch, self.compute)


def leg_key(kernel: str, variant: str, system: str, torch: str = "", compute: str = "") -> str:
    """The key of a leg: kernel, variant, system, torch and compute version."""
    return f"{kernel} {variant} {system} {torch or '-'} {compute or '-'}"


class WatchedLeg(NamedTuple):
    """The words of a leg's key."""

    kernel: str
    variant: str
    system: str
    torch: str
    compute: str

    @property
    def on_hardware(self) -> bool:
        return self.system.endswith(HARDWARE)

    @property
    def backend(self) -> str:
        """The backend in the variant's name; `other` for a name that is not valid."""
        return _backend_of(self.variant)

    @property
    def group(self) -> tuple[str, str, str]:
        """The kernel, backend and system, which a new catalog does not change."""
        return self.kernel, self.backend, self.system


@lru_cache(maxsize=65536)
def leg_of(key: str) -> WatchedLeg:
    """The words of a key."""
    return WatchedLeg(*key.split(" "))


@lru_cache(maxsize=65536)
def _backend_of(variant: str) -> str:
    try:
        return parse_variant_name(variant).backend
    except ValueError:
        return "other"


class Failure(Frozen, omit_defaults=True):
    """A failed leg and its first error."""

    leg: str
    error: str
    log: str = ""
    replay: str = ""
    excerpt: str = ""
    machine: str = ""


class RunFacts(Frozen):
    """A run, with its catalog and commit."""

    run: int
    at: str
    catalog: str = ""
    commit: str = ""

    def changes(self, before: RunFacts) -> list[tuple[str, str, str]]:
        """The changes since a run: catalog or commit, the old one, and the new one."""
        return [
            (what, old, new)
            for what in ("catalog", "commit")
            if (old := getattr(before, what)) != (new := getattr(self, what))
        ]


class RecordedRun(VersionedRecord, omit_defaults=True):
    """The results of one run or a part of one, with sorted leg keys."""

    run: int
    at: str
    attempt: int = 1
    catalog: str = ""
    commit: str = ""
    passed: tuple[str, ...] = ()
    failed: tuple[Failure, ...] = ()
    unknown: tuple[str, ...] = ()
    look: int = 1
    earlier: tuple[Failure, ...] = ()
    """Failures of legs that ran again in the same run, oldest first; `merge_parts` computes it, and
    no file has it."""

    @property
    def facts(self) -> RunFacts:
        return RunFacts(self.run, self.at, self.catalog, self.commit)

    def __post_init__(self) -> None:
        super().__post_init__()
        for leg in (*self.passed, *self.unknown, *(failure.leg for failure in self.failed)):
            if not _LEG.fullmatch(leg):
                raise ValueError(f"{leg[:80]!r} is not the key of a leg")


def read_results(places: Iterable[Path]) -> tuple[list[LegResult], list[Diagnostic]]:
    """Read results from JSON files and folders of them; each unreadable file becomes a KCI801."""
    results: list[LegResult] = []
    problems: list[Diagnostic] = []
    files = (sorted(place.rglob("*.json")) if place.is_dir() else [place] for place in places)
    for path in (path for some in files for path in some if not path.is_dir()):
        try:
            results.append(read_record(path, LegResult))
        except (OSError, ValueError) as error:
            message = f"not a result, and not recorded: {error}"
            problems.append(
                finding("KCI801", message, path, hint="was its job cut off? run it again")
            )
    return results, problems


def group_results(results: Iterable[LegResult]) -> list[RecordedRun]:
    """Group results by run, attempt and look; outages become unknown, and a leg's failure counts
    before its pass.
    """
    groups: dict[tuple[int, int, int], dict[str, LegResult]] = {}
    for result in sorted(results, key=lambda item: (item.run, item.attempt, item.at)):
        legs = groups.setdefault((result.run, result.attempt, result.look), {})
        earlier = legs.get(result.leg)
        if not earlier or earlier.outcome is not LegOutcome.FAILED:
            legs[result.leg] = result
    return [
        _recorded([result for _, result in sorted(legs.items())])
        for _, legs in sorted(groups.items())
    ]


def _recorded(results: list[LegResult]) -> RecordedRun:
    first = min(results, key=lambda item: item.at)
    failed = [item for item in results if _has_failed(item)]
    passed = tuple(item.leg for item in results if item.outcome is LegOutcome.PASSED)
    decided = {*passed, *(item.leg for item in failed)}
    return RecordedRun(
        run=first.run,
        at=first.at,
        attempt=first.attempt,
        look=first.look,
        catalog=first.catalog,
        commit=first.commit,
        passed=passed,
        failed=tuple(
            Failure(
                item.leg,
                error_line(item.error),
                item.log,
                item.replay,
                excerpt(item.error),
                item.machine,
            )
            for item in failed
        ),
        unknown=tuple(item.leg for item in results if item.leg not in decided),
    )


def _has_failed(item: LegResult) -> bool:
    if item.outcome is LegOutcome.SKIPPED:
        return is_external(item.error)
    return item.outcome is LegOutcome.FAILED and not outage_class(item.error)


def append(history: Path, runs: Iterable[RecordedRun]) -> list[Path]:
    """Write runs into a history and return the new files; OSError leaves the earlier ones."""
    written = []
    history.mkdir(parents=True, exist_ok=True)
    for run in runs:
        raw = msgspec.json.encode(run) + b"\n"
        file = (
            history
            / f"{run.run:0{_DIGITS}d}-{run.attempt}-{hashlib.sha256(raw).hexdigest()[:16]}.json"
        )
        if not file.exists():
            write_atomic(file, raw)
            written.append(file)
    return written


def read_runs(history: Path, report: Callable[[Diagnostic], None]) -> Iterator[RecordedRun]:
    """Yield the runs of a history, oldest first; problems go to `report`.

    OSError without the directory.
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
                message = f"not a recorded run, and ignored: {error}"
                report(finding("KCI801", message, path, hint="restore it from an earlier commit"))
            else:
                parts.append(part)
        if parts:
            yield merge_parts(parts)


def merge_parts(parts: Iterable[RecordedRun]) -> RecordedRun:
    """Merge the parts of one run: the latest look at a leg counts, and within a look the
    failure.
    """
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
    attempts = {leg: [*seen.values()] for leg, seen in sorted(looks.items())}
    return replace(
        parts[-1],
        passed=tuple(leg for leg, seen in attempts.items() if seen[-1] is None),
        failed=tuple(last for seen in attempts.values() if (last := seen[-1]) is not None),
        unknown=tuple(sorted(unknown - looks.keys())),
        earlier=tuple(failure for seen in attempts.values() for failure in seen[:-1] if failure),
    )


BRANCH, FOLDER = "kci-history", "history"

_TRIES = 8
_NO_SUCH_BRANCH = 2


class HistoryBranch(Frozen):
    """A branch of a remote that holds a history; fetching tolerates a branch that does not exist
    yet.
    """

    remote: str
    branch: str = BRANCH
    environment: dict[str, str] = {}

    def fetch(self, into: Path) -> Path:
        """Clone the branch and return its history folder; FindingsError if that fails, UnsafeError
        for a link.
        """
        self._git(into.parent, "init", "--quiet", str(into))
        self._git(into, "remote", "add", "--", "origin", self.remote)
        ref = f"refs/heads/{self.branch}"
        query = ("ls-remote", "--exit-code", "--heads", "origin", ref)
        listed = remote_git(into, *query, environment=self.environment)
        if listed.returncode == 0:
            self._git(into, "fetch", "--quiet", "--depth=1", "origin", ref)
            self._git(into, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        elif listed.returncode != _NO_SUCH_BRANCH:
            raise FindingsError(f"cannot read {self.remote}: {last_line(listed.stderr)}")
        if (into / FOLDER).is_symlink():
            raise UnsafeError(
                f"{FOLDER} on the branch {self.branch} is a link", "make it a folder there"
            )
        (into / FOLDER).mkdir(exist_ok=True)
        return into / FOLDER

    def record(self, runs: Sequence[RecordedRun]) -> int:
        """Append runs and push; returns the number of new files.

        FindingsError if the remote refuses.
        """
        who = ["-c", "user.name=kci", "-c", "user.email=kci@users.noreply.github.com"]
        names = ", ".join(sorted({f"run {run.run}" for run in runs}))
        refused = ""
        with tempfile.TemporaryDirectory(prefix="kci-history-") as folder:
            for number in range(_TRIES):
                clone = Path(folder) / str(number)
                written = append(self.fetch(clone), runs)
                if not written:
                    return 0
                self._git(clone, "add", "--", FOLDER)
                self._git(clone, *who, "commit", "--quiet", f"--message=Results of {names}")
                try:
                    self._git(clone, "push", "--quiet", "origin", f"HEAD:refs/heads/{self.branch}")
                except FindingsError as error:
                    refused = error.message
                else:
                    return len(written)
        hint = "may it write to the repository (contents: write), and is the branch protected?"
        raise FindingsError(f"the branch {self.branch} takes no commit: {refused}", hint)

    def _git(self, place: Path, *arguments: str) -> None:
        done = remote_git(place, *arguments, environment=self.environment)
        if done.returncode:
            reason = last_line(done.stderr) or f"exit code {done.returncode}"
            raise FindingsError(f"git {arguments[0]} failed: {reason}")


def remote_url(directory: Path, remote: str) -> str:
    """The URL of a named remote of the repository around `directory`; `remote` itself if there is
    none.
    """
    url = run_git(directory, "remote", "get-url", "--end-of-options", remote)
    return url.decode().strip() if url else remote


def github_history() -> HistoryBranch:
    """The history of the repository of a job; GH_TOKEN is passed in the environment, not on a
    command line.
    """
    server, repository, token = (
        os.environ[name] for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GH_TOKEN")
    )
    login = base64.b64encode(f"x-access-token:{token}".encode()).decode()
    environment = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{server}/.extraheader",
        "GIT_CONFIG_VALUE_0": f"AUTHORIZATION: basic {login}",
    }
    return HistoryBranch(f"{server}/{repository}", environment=environment)
