"""The comment of kci in a pull request, from the records that its runs uploaded: untrusted data,
read within bounds.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from kci.errors import FindingsError
from kci.matrix.variants import is_variant_name
from kci.plan.plan import Leg, TestLeg
from kci.run.gate import INDEX_FILE, NO_PLAN, GateRow, RunUploads, missing_results, read_uploads
from kci.run.records import PLAN_FILE, RECORD_FILE, TEST_FILE, KernelRecord, TestRecord
from kci.utils.bounded_json import MAX_BYTES
from kci.utils.frozen import Frozen
from kci.utils.shipped import template_environment
from kci.utils.suggest import command_line, count
from kci.watch.issue_text import plain
from kci.watch.issue_tracker import BOT, Account, GitHubApi, all_pages, run_artifacts

RUN_FILE = ".github/workflows/kci.yml"

MARK = re.compile(r"<!-- kci-pull-request: run (\d{1,20}) attempt (\d{1,6}) -->\n")

_RECORDS = 4 * 1024 * 1024
_ALL_RECORDS = 64 * 1024 * 1024
_READ = {PLAN_FILE, INDEX_FILE, RECORD_FILE, TEST_FILE}


class Repository(Frozen):
    """A repository of GitHub's API."""

    full_name: str = ""
    owner: Account = Account()


class WorkflowRun(Frozen):
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


class Head(Frozen):
    """The head commit of a pull request."""

    sha: str
    repo: Repository | None = None


class PullRequestState(Frozen):
    """A pull request of GitHub's API."""

    number: int
    state: str
    head: Head


class Comment(Frozen):
    """A comment of GitHub's API."""

    id: int
    body: str | None = None
    user: Account | None = None

    @property
    def key(self) -> tuple[int, int]:
        """The run and attempt in its first line; (0, 0) without them."""
        match = MARK.match(_unix(self.body))
        return (int(match[1]), int(match[2])) if match else (0, 0)


class PullRequestComments(GitHubApi):
    """The pull requests of a repository; each method raises FindingsError if GitHub refuses or does
    not answer.
    """

    hint = "may the job write to pull requests (pull-requests: write)?"

    def run(self, number: int) -> WorkflowRun:
        return self.get(WorkflowRun, f"actions/runs/{number}")

    def open_pull_requests(self, run: WorkflowRun) -> list[PullRequestState]:
        """The open pull requests with this head commit; GitHub names none for a run of a fork."""
        if not run.head_repository or not run.head_branch:
            return []
        head = quote(f"{run.head_repository.owner.login}:{run.head_branch}", safe="")
        pulls = self.get(list[PullRequestState], f"pulls?state=open&head={head}&per_page=100")
        return [pull for pull in pulls if pull.head.sha == run.head_sha and pull.state == "open"]

    def fetch_records(self, run: WorkflowRun, folder: Path) -> list[str]:
        """Download the records of a run for `read_uploads`; returns the artifacts that are too
        large or damaged.
        """
        unread, room = [], _ALL_RECORDS
        for artifact in run_artifacts(self, run.id):
            if artifact.expired or not artifact.name.startswith("run-"):
                continue
            if artifact.size_in_bytes > min(room, _RECORDS):
                unread.append(artifact.name)
                continue
            room -= artifact.size_in_bytes
            packed = self.request("GET", f"actions/artifacts/{artifact.id}/zip")
            if not _unpack(packed, folder / str(artifact.id)):
                unread.append(artifact.name)
        return unread

    def update_comment(self, number: int, body: str) -> str:
        """Create or update the comment, unless it is about a newer run, and return what
        was done.
        """
        path = f"issues/{number}/comments"
        every = all_pages(lambda page: self.get(list[Comment], f"{path}?{page}"))
        own = [item for item in every if item.user and item.user.login == BOT and any(item.key)]
        if not own:
            self.request("POST", path, body=body)
            return "written"
        if max(item.key for item in own) > Comment(0, body).key:
            return "the comment is about a newer run"
        first, *twins = own  # two jobs at once can leave two
        for twin in twins:
            self.request("DELETE", f"issues/comments/{twin.id}")
        if _unix(first.body).strip() == body.strip():
            return "the comment says so already"
        self.request("PATCH", f"issues/comments/{first.id}", body=body)
        return "updated"


def _unix(text: str | None) -> str:
    return (text or "").replace("\r\n", "\n")


def _unpack(packed: bytes, folder: Path) -> bool:
    with suppress(zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError, ValueError):
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


def run_number(text: str) -> int:
    """Parse a run number of an event; FindingsError for anything else."""
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise FindingsError(f"{text[:40]!r} is not the number of a run")
    return int(text)


_ROWS, _FAILURES, _TEXT = 150, 20, 300
_PATH = re.compile(r"(?!.*\.\.)[A-Za-z0-9_.][A-Za-z0-9_./-]{0,200}", re.ASCII)

_ENDINGS = {
    "success": "succeeded",
    "failure": "failed",
    "cancelled": "was cancelled",
    "timed_out": "ran out of time",
    "action_required": "waits for somebody to approve it",
}


def comment_text(
    pull: PullRequestState, run: WorkflowRun, records: Path, unread: Sequence[str], repository: str
) -> str:
    """The Markdown of the comment; `unread` names artifacts that `fetch_records` left out."""
    try:
        uploads, wrong = read_uploads(records), ""
        rows = missing_results(uploads)
    except (FindingsError, ValueError) as error:
        uploads, wrong, rows = RunUploads(), str(error).replace(str(records), ""), []
    plan = uploads.plan
    legs: list[TestLeg | Leg] = [*plan.tests, *plan.legs]
    paths = {item.kernel: item.path for item in legs}

    values = {
        "pull": pull,
        "run": run,
        "repository": repository,
        "server": os.environ.get("GITHUB_SERVER_URL", "https://github.com"),
        "ended": _ENDINGS.get(run.conclusion or "", "ended in another way"),
        "from_fork": not pull.head.repo or pull.head.repo.full_name != repository,
        "wrong": wrong,
        "unread": unread,
        "plan": plan,
        "has_plan": plan != NO_PLAN,
        "planned": sorted({(leg.kernel, name) for leg in plan.legs for name in leg.variants}),
        "records": uploads.records,
        "lacking": {(row.kernel, row.variant) for row in rows},
        "rows": rows,
        "shown": _ROWS,
        "shown_rows": _FAILURES,
        "code": code,
        "count": count,
        "size": _size,
        "loaded": _loaded,
        "tests": uploads.tests,
        "failed_tests": uploads.failed_tests(),
        "counts": _counts,
        "replay": lambda row: _replay(row, paths.get(row.kernel, "")),
    }
    return template_environment().get_template("comment.md.j2").render(values)


def _size(record: KernelRecord | None, variant: str) -> str:
    size = record.sizes.get(variant) if record else None
    if size is None:
        return ""
    return f"{size / 1e6:,.1f} MB" if size >= 50_000 else f"{size / 1e3:,.1f} kB"


def _loaded(record: KernelRecord | None, variant: str) -> str:
    present = record.manifest.present if record and record.manifest else ()
    return next(
        (code(str(item.loaded or "not known")) for item in present if item.variant == variant), ""
    )


def _counts(record: TestRecord) -> str:
    passed, skipped = (
        sum(getattr(item, key) for item in record.variants) for key in ("passed", "skipped")
    )
    text = f"passed: {passed:,} tests" if 0 < passed < 10**9 else "passed"
    return text + (f", {skipped:,} skipped" if 0 < skipped < 10**9 else "")


def _replay(row: GateRow, path: str) -> str:
    if not _PATH.fullmatch(path):
        return ""
    if is_variant_name(row.variant):
        return command_line("build", f"--variant={row.variant}", "--container=auto", place=path)
    return command_line("test" if " / test " in row.job else "check", place=path)


def code(text: str) -> str:
    """Untrusted text as a Markdown code span."""
    return f"`{plain(text).replace('|', '¦')[:_TEXT].strip() or ' '}`"
