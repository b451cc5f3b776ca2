"""The comment of kci in a pull request, from the records that its runs uploaded: untrusted data, read within bounds."""

from __future__ import annotations

import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import msgspec

from kci.errors import FindingsError
from kci.matrix.variants import is_variant_name
from kci.run.gate import INDEX_FILE, NO_PLAN, GateRow, RunUploads, missing_results, read_uploads
from kci.run.records import PLAN_FILE, RECORD_FILE, TEST_FILE, TestRecord
from kci.utils.bounded_json import MAX_BYTES
from kci.utils.suggest import command_line, count
from kci.watch.issue_text import plain
from kci.watch.issue_tracker import Account, GitHubApi

RUN_FILE = ".github/workflows/kci.yml"

BOT = "github-actions[bot]"
MARK = re.compile(r"<!-- kci-pull-request: run (\d{1,20}) attempt (\d{1,6}) -->\n")

_PAGE, _PAGES = 100, 50
_RECORDS = 4 * 1024 * 1024
_ALL_RECORDS = 64 * 1024 * 1024
_READ = {PLAN_FILE, INDEX_FILE, RECORD_FILE, TEST_FILE}


class Repository(msgspec.Struct, frozen=True):
    """A repository of GitHub's API."""

    full_name: str = ""
    owner: Account = Account()


class WorkflowRun(msgspec.Struct, frozen=True):
    """A workflow run of GitHub's API."""

    id: int
    event: str
    path: str
    head_sha: str
    head_branch: str | None = None
    head_repository: Repository | None = None
    run_attempt: int = 1
    conclusion: str | None = None

    @property
    def is_for_pull_request(self) -> bool:
        """True for a run of kci.yml: another workflow can have the same name."""
        return self.event == "pull_request" and self.path.partition("@")[0] == RUN_FILE


class Head(msgspec.Struct, frozen=True):
    """The head commit of a pull request."""

    sha: str
    repo: Repository | None = None


class PullRequestState(msgspec.Struct, frozen=True):
    """A pull request of GitHub's API."""

    number: int
    state: str
    head: Head

    def from_fork(self, repository: str) -> bool:
        return self.head.repo is None or self.head.repo.full_name != repository


class Comment(msgspec.Struct, frozen=True):
    """A comment of GitHub's API."""

    id: int
    body: str | None = None
    user: Account | None = None

    @property
    def key(self) -> tuple[int, int]:
        """The run and attempt in its first line; (0, 0) without them."""
        match = MARK.match(_unix(self.body))
        return (int(match[1]), int(match[2])) if match else (0, 0)


class Artifact(msgspec.Struct, frozen=True):
    """An artifact of GitHub's API."""

    id: int
    name: str
    size_in_bytes: int
    expired: bool = False


class _Artifacts(msgspec.Struct, frozen=True):
    artifacts: list[Artifact]


def run_artifacts(api: GitHubApi, run: int) -> Iterator[Artifact]:
    """The artifacts of a run; FindingsError if GitHub refuses or does not answer."""
    for page in range(1, _PAGES + 1):
        path = f"actions/runs/{run}/artifacts?per_page={_PAGE}&page={page}"
        artifacts = api.request_as(_Artifacts, "GET", path).artifacts
        yield from artifacts
        if len(artifacts) < _PAGE:
            return


class PullRequestComments:
    """The pull requests of a repository; each method raises FindingsError if GitHub refuses or does not answer."""

    def __init__(self, api: GitHubApi, author: str = BOT) -> None:
        self._api = api
        self._author = author

    def run(self, number: int) -> WorkflowRun:
        return self._api.request_as(WorkflowRun, "GET", f"actions/runs/{number}")

    def open_pull_requests(self, run: WorkflowRun) -> list[PullRequestState]:
        """The open pull requests with this head commit; GitHub names none for a run of a fork."""
        if run.head_repository is None or not run.head_branch:
            return []
        head = quote(f"{run.head_repository.owner.login}:{run.head_branch}", safe="")
        pulls = self._api.request_as(list[PullRequestState], "GET", f"pulls?state=open&head={head}&per_page={_PAGE}")
        return [pull for pull in pulls if pull.head.sha == run.head_sha and pull.state == "open"]

    def fetch_records(self, run: WorkflowRun, folder: Path) -> list[str]:
        """Download the records of a run for `read_uploads`; returns the artifacts that are too large or damaged."""
        unread, room = [], _ALL_RECORDS
        for artifact in run_artifacts(self._api, run.id):
            if artifact.expired or not artifact.name.startswith("run-"):
                continue
            if artifact.size_in_bytes > min(room, _RECORDS):
                unread.append(artifact.name)
                continue
            room -= artifact.size_in_bytes
            packed = self._api.request("GET", f"actions/artifacts/{artifact.id}/zip")
            if not _unpack(packed, folder / str(artifact.id)):
                unread.append(artifact.name)
        return unread

    def own_comments(self, number: int) -> list[Comment]:
        """The comments of kci, oldest first; two jobs at once can leave two."""
        own = []
        for page in range(1, _PAGES + 1):
            comments = self._api.request_as(
                list[Comment], "GET", f"issues/{number}/comments?per_page={_PAGE}&page={page}"
            )
            own += [item for item in comments if item.user and item.user.login == self._author and item.key != (0, 0)]
            if len(comments) < _PAGE:
                break
        return own

    def update_comment(self, number: int, body: str) -> str:
        """Create or update the comment, unless it is about a newer run, and return what was done."""
        comments = self.own_comments(number)
        if comments and max(item.key for item in comments) > Comment(0, body).key:
            return "the comment is about a newer run"
        if not comments:
            self._api.request("POST", f"issues/{number}/comments", body=body)
            return "written"
        for twin in comments[1:]:
            self._api.request("DELETE", f"issues/comments/{twin.id}")
        if _unix(comments[0].body).strip() == body.strip():
            return "the comment says so already"
        self._api.request("PATCH", f"issues/comments/{comments[0].id}", body=body)
        return "updated"


def _unix(text: str | None) -> str:
    return (text or "").replace("\r\n", "\n")


def _unpack(packed: bytes, folder: Path) -> bool:
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
    """The API client for pull requests."""
    return GitHubApi(repository, "may the job write to pull requests (pull-requests: write)?")


def run_number(text: str) -> int:
    """Parse a run number of an event; FindingsError for anything else."""
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise FindingsError(f"{text[:40]!r} is not the number of a run")
    return int(text)


_ROWS, _FAILURES, _TEXT = 150, 20, 300
_PATH = re.compile(r"(?!.*\.\.)[A-Za-z0-9_.][A-Za-z0-9_./-]{0,200}", re.ASCII)

_ENDINGS = {
    "success": "ended well",
    "failure": "failed",
    "cancelled": "was cancelled",
    "timed_out": "ran out of time",
    "action_required": "waits for somebody to approve it",
}


def comment_text(
    pull: PullRequestState, run: WorkflowRun, records: Path, unread: Sequence[str], repository: str
) -> str:
    """The Markdown of the comment; `unread` names artifacts that `fetch_records` left out."""
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    link = f"[Run {run.id}]({server}/{repository}/actions/runs/{run.id}/attempts/{run.run_attempt})"
    ended = _ENDINGS.get(run.conclusion or "", "ended in another way")
    lines = [f"<!-- kci-pull-request: run {run.id} attempt {run.run_attempt} -->"]
    try:
        uploads, wrong = read_uploads(records), ""
        rows = missing_results(uploads)
    except (FindingsError, ValueError) as error:
        uploads, wrong, rows = RunUploads(), str(error).replace(str(records), ""), []
    lines += [f"### kci: {_headline(run, uploads, rows, bool(wrong or unread))}", ""]
    lines += [f"{link} of {run.head_sha} {ended}."]
    if pull.from_fork(repository):
        lines += ["The commit is from a fork, and what follows comes from jobs that the fork's commit can change."]
    if wrong:
        lines += ["", f"Its records cannot be read: {code(wrong)}"]
    if unread:
        lines += [
            "",
            f"{count(len(unread), 'record')} left unread, being too large or damaged: {code(', '.join(unread))}",
        ]
    plan = uploads.plan
    for number, what in ((len(plan.skipped), "need not be built"), (len(plan.left_out), "left out")):
        if number:
            lines += ["", f"{count(number, 'variant')} {what}; the run's summary says why."]
    lines += [*_variants(uploads, rows), *_tests(uploads), *_failures(pull, uploads, rows)]
    return "\n".join(lines) + "\n"


def _headline(run: WorkflowRun, uploads: RunUploads, rows: Sequence[GateRow], unread: bool) -> str:
    kernels = {leg.kernel for leg in uploads.plan.legs}
    if rows:
        where = count(len({row.kernel for row in rows}), "kernel")
        return f"{len(rows)} of what was planned did not happen, in {where}"
    if uploads.plan == NO_PLAN or unread:
        return "what the run came to is not known"
    if run.conclusion != "success":
        return "the run did not end well"
    return (
        f"all that was planned is there, in {count(len(kernels), 'kernel')}" if kernels else "nothing had to be built"
    )


def _variants(uploads: RunUploads, rows: Sequence[GateRow]) -> Iterator[str]:
    failed = {(row.kernel, row.variant) for row in rows}
    planned = sorted({(leg.kernel, name) for leg in uploads.plan.legs for name in leg.variants})
    if planned:
        yield from ("", "| kernel | variant | size | state | loaded |", "|---|---|---|---|---|")
    for kernel, name in planned[:_ROWS]:
        record = uploads.records.get(kernel)
        size = record.sizes.get(name) if record else None
        state = "**missing**" if (kernel, name) in failed or record is None else "built"
        present = record.manifest.present if record and record.manifest else ()
        loaded = next((code(str(item.loaded or "not known")) for item in present if item.variant == name), "")
        yield f"| {code(kernel)} | {code(name)} | {'' if size is None else _size(size)} | {state} | {loaded} |"
    if len(planned) > _ROWS:
        yield from ("", f"And {count(len(planned) - _ROWS, 'variant')} more.")


def _tests(uploads: RunUploads) -> Iterator[str]:
    tests, lacking = uploads.plan.tests, uploads.failed_tests()
    if tests:
        yield from ("", "| tested kernel | on | result |", "|---|---|---|")
    for test in tests[:_ROWS]:
        key = (test.kernel, test.name)
        record = uploads.tests.get(key)
        state = "**failed**" if key in lacking else _counts(record) if record else "**did not run**"
        yield f"| {code(test.kernel)} | {code(test.name)} | {state} |"
    if uploads.plan.untested:
        yield from ("", code(uploads.plan.untested_sentence))


def _counts(record: TestRecord) -> str:
    passed, skipped = (sum(getattr(item, key) for item in record.variants) for key in ("passed", "skipped"))
    text = f"passed: {passed:,} tests" if 0 < passed < 10**9 else "passed"
    return text + (f", {skipped:,} skipped" if 0 < skipped < 10**9 else "")


def _failures(pull: PullRequestState, uploads: RunUploads, rows: Sequence[GateRow]) -> Iterator[str]:
    if not rows:
        return
    yield from ("", "<details><summary>What did not happen, and how to see it on your own machine</summary>", "")
    paths = {test.kernel: test.path for test in uploads.plan.tests}
    paths |= {leg.kernel: leg.path for leg in uploads.plan.legs}
    for row in rows[:_FAILURES]:
        yield f"- {code(row.kernel)} {code(row.variant) if row.variant else ''} {code(row.error)}"
        if replay := _replay(row, paths.get(row.kernel, "")):
            yield from ("", f"      gh pr checkout {pull.number} && {replay}", "")
    if len(rows) > _FAILURES:
        yield f"- and {len(rows) - _FAILURES} more"
    yield from ("", "</details>")


def _replay(row: GateRow, path: str) -> str:
    if not _PATH.fullmatch(path):
        return ""
    if is_variant_name(row.variant):
        return command_line("build", f"--variant={row.variant}", "--container=auto", place=path)
    return command_line("test" if " / test " in row.job else "check", place=path)


def code(text: str) -> str:
    """Untrusted text as a Markdown code span."""
    return f"`{plain(text).replace('|', '¦')[:_TEXT].strip() or ' '}`"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 50_000 else f"{size / 1e3:,.1f} kB"
