"""A pull request on GitHub: what its runs uploaded, and the one comment that kci keeps in it.

Who can make a pull request decides what its runs upload, and so does whoever made the commit that they build. All of
that is fetched within bounds and read as data. What GitHub itself says, such as which commit a run is of, is believed.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import msgspec

from kci.ci.run_records import PLAN_FILE, RECORD_FILE, TEST_FILE
from kci.ci.tree_index import INDEX_FILE
from kci.errors import FindingsError
from kci.files.bounded_json import MAX_BYTES
from kci.watch.github_api import Account, GitHubApi

RUN_FILE = ".github/workflows/kci.yml"
"""The workflow whose runs count."""

BOT = "github-actions[bot]"
MARK = re.compile(r"<!-- kci-pull-request: run (\d{1,20}) attempt (\d{1,6}) -->\n")
"""How the comment begins."""

_PAGE, _PAGES = 100, 50
_RECORDS = 4 * 1024 * 1024
_ALL_RECORDS = 64 * 1024 * 1024
_READ = {PLAN_FILE, INDEX_FILE, RECORD_FILE, TEST_FILE}


class Repository(msgspec.Struct, frozen=True):
    """A repository, by its full name."""

    full_name: str = ""
    owner: Account = Account()


class WorkflowRun(msgspec.Struct, frozen=True):
    """A run, as GitHub tells it."""

    id: int
    event: str
    path: str
    head_sha: str
    head_branch: str | None = None
    head_repository: Repository | None = None
    run_attempt: int = 1
    conclusion: str | None = None

    @property
    def of_pull_request(self) -> bool:
        """Whether it is one of kci.yml for a pull request: any other workflow can have the same name."""
        return self.event == "pull_request" and self.path.partition("@")[0] == RUN_FILE


class Head(msgspec.Struct, frozen=True):
    """The newest commit of a pull request."""

    sha: str
    repo: Repository | None = None
    """None once the fork is gone."""


class PullRequestState(msgspec.Struct, frozen=True):
    """A pull request, as GitHub tells it."""

    number: int
    state: str
    head: Head

    def from_fork(self, repository: str) -> bool:
        """Whether its commits are of another repository."""
        return self.head.repo is None or self.head.repo.full_name != repository


class Comment(msgspec.Struct, frozen=True):
    """A comment, as GitHub tells it."""

    id: int
    body: str | None = None
    user: Account | None = None

    @property
    def key(self) -> tuple[int, int]:
        """The run and the attempt that it is about."""
        found = MARK.match(_unix(self.body))
        return (int(found[1]), int(found[2])) if found else (0, 0)


class _Artifact(msgspec.Struct, frozen=True):
    id: int
    name: str
    size_in_bytes: int
    expired: bool = False


class _Artifacts(msgspec.Struct, frozen=True):
    artifacts: list[_Artifact]


class PullTalk:
    """The pull requests of a repository; every method raises FindingsError where GitHub refuses or does not answer."""

    def __init__(self, api: GitHubApi, author: str = BOT) -> None:
        """Name whose comments count: others may hold a mark that somebody has copied."""
        self._api = api
        self._author = author

    def run(self, number: int) -> WorkflowRun:
        return self._api.told(WorkflowRun, "GET", f"actions/runs/{number}")

    def pulls_of(self, run: WorkflowRun) -> list[PullRequestState]:
        """The open pull requests whose newest commit the run is of; GitHub names none for a run of a fork."""
        if run.head_repository is None or not run.head_branch:
            return []
        head = quote(f"{run.head_repository.owner.login}:{run.head_branch}", safe="")
        found = self._api.told(list[PullRequestState], "GET", f"pulls?state=open&head={head}&per_page={_PAGE}")
        return [pull for pull in found if pull.head.sha == run.head_sha and pull.state == "open"]

    def fetch_records(self, run: WorkflowRun, folder: Path) -> list[str]:
        """Put what a run says of itself into a folder, for `read_uploads`; returns the names of what is too large."""
        left, room = [], _ALL_RECORDS
        for artifact in self._artifacts(run.id):
            if artifact.expired or not artifact.name.startswith("run-"):
                continue
            if artifact.size_in_bytes > min(room, _RECORDS):
                left.append(artifact.name)
                continue
            room -= artifact.size_in_bytes
            packed = self._api.ask("GET", f"actions/artifacts/{artifact.id}/zip")
            if not _unpack(packed, folder / str(artifact.id)):
                left.append(artifact.name)
        return left

    def _artifacts(self, run: int) -> Iterator[_Artifact]:
        for page in range(1, _PAGES + 1):
            path = f"actions/runs/{run}/artifacts?per_page={_PAGE}&page={page}"
            found = self._api.told(_Artifacts, "GET", path).artifacts
            yield from found
            if len(found) < _PAGE:
                return

    def own_comments(self, number: int) -> list[Comment]:
        """The comments of a pull request that kci keeps, the oldest first: one, unless two jobs made one each."""
        own = []
        for page in range(1, _PAGES + 1):
            found = self._api.told(list[Comment], "GET", f"issues/{number}/comments?per_page={_PAGE}&page={page}")
            own += [item for item in found if item.user and item.user.login == self._author and item.key != (0, 0)]
            if len(found) < _PAGE:
                break
        return own

    def keep_comment(self, number: int, body: str) -> str:
        """Make the one comment say this, unless it is about a newer run; returns what was done."""
        there = self.own_comments(number)
        if there and max(item.key for item in there) > Comment(0, body).key:
            return "the comment is about a newer run"
        if not there:
            self._api.ask("POST", f"issues/{number}/comments", body=body)
            return "written"
        for twin in there[1:]:
            self._api.ask("DELETE", f"issues/comments/{twin.id}")
        if _unix(there[0].body).strip() == body.strip():
            return "the comment says so already"
        self._api.ask("PATCH", f"issues/comments/{there[0].id}", body=body)
        return "updated"


def _unix(text: str | None) -> str:
    return (text or "").replace("\r\n", "\n")


def _unpack(packed: bytes, folder: Path) -> bool:
    """Write those members of an archive that are records; False for what is no archive, or holds too much."""
    with suppress(zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError):
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            for member in archive.infolist()[: len(_READ) + 1]:
                name = PurePosixPath(member.filename).name
                if name not in _READ:
                    continue
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    return False
                with archive.open(member) as file:
                    data = file.read(MAX_BYTES + 1)
                if len(data) > MAX_BYTES:
                    return False
                folder.mkdir(exist_ok=True)
                (folder / name).write_bytes(data)
        return True
    return False


def github_api(repository: str) -> GitHubApi:
    """What asks about pull requests."""
    return GitHubApi(repository, "may the job write to pull requests (pull-requests: write)?")


def run_number(text: str) -> int:
    """The number of a run from an event; FindingsError for anything else."""
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise FindingsError(f"{text[:40]!r} is not the number of a run")
    return int(text)
