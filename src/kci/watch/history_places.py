"""A history on a branch of a git repository or in a dataset on the Hub, where runs may record at the same time.

Files of a history are named after what they hold and never conflict. The branch has nothing else in it: whoever comes
second takes what is there now and adds its own again. The Hub takes one commit after the other.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kci.errors import FindingsError, UnsafeError
from kci.files.git import last_line, remote_git, run_git
from kci.hub.client import ask_hub, hub_client
from kci.watch.bench_history import FOLDER as BENCHMARKS
from kci.watch.bench_history import BenchRecord, bench_file
from kci.watch.history import RecordedRun, add_files, run_file

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
        for folder in (FOLDER, f"{FOLDER}/{BENCHMARKS}"):
            if (into / folder).is_symlink():
                raise UnsafeError(f"{folder} on the branch {self.branch} is a link", hint="make it a folder there")
        (into / FOLDER).mkdir(exist_ok=True)
        return into / FOLDER

    def record(self, runs: Sequence[RecordedRun], benches: Sequence[BenchRecord] = ()) -> int:
        """Append runs and records of benchmarks; returns the number of new files.

        FindingsError if the repository cannot be read or written.
        """
        files = [*map(run_file, runs), *map(bench_file, benches)]
        who = ["-c", "user.name=kci", "-c", "user.email=kci@users.noreply.github.com"]
        refused = ""
        with tempfile.TemporaryDirectory(prefix="kci-history-") as folder:
            for number in range(_TRIES):
                clone = Path(folder) / str(number)
                written = add_files(self.fetch(clone), files)
                if not written:
                    return 0
                self._git(clone, "add", "--", FOLDER)
                self._git(clone, *who, "commit", "--quiet", f"--message={_message(runs, benches)}")
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


class HistoryDataset:
    """A dataset that has a history, or will have one; `huggingface_hub` talks to it."""

    def __init__(self, repo_id: str, client: Any = None) -> None:
        """Name the dataset, `owner/name`; by default the client takes its token from the environment."""
        self.repo_id = repo_id
        self._client = client or hub_client()

    def record(self, runs: Sequence[RecordedRun], benches: Sequence[BenchRecord] = ()) -> int:
        """Append runs and records of benchmarks, in one commit; returns the number of new files.

        FindingsError if the dataset cannot be read or written.
        """
        there = set(self._ask(lambda: self._client.list_repo_files(self.repo_id, repo_type="dataset")))
        files = {f"{FOLDER}/{name}": raw for name, raw in [*map(run_file, runs), *map(bench_file, benches)]}
        new = {path: raw for path, raw in sorted(files.items()) if path not in there}
        if new:
            from huggingface_hub import CommitOperationAdd

            added = [CommitOperationAdd(path, raw) for path, raw in new.items()]
            self._ask(
                lambda: self._client.create_commit(
                    self.repo_id, operations=added, commit_message=_message(runs, benches), repo_type="dataset"
                )
            )
        return len(new)

    def _ask(self, question: Callable[[], Any]) -> Any:
        hint = "does the dataset exist, and does HF_TOKEN allow to write to it?"
        return ask_hub(question, f"the dataset {self.repo_id} takes no commit", hint)


def _message(runs: Sequence[RecordedRun], benches: Sequence[BenchRecord]) -> str:
    of = [f"run {run}" for run in sorted({str(run.run) for run in runs})]
    return f"Results of {', '.join([*of, *sorted({f'benchmarks of {one.kci.kernel}' for one in benches})])}"


def address_of(directory: Path, remote: str) -> str:
    """The address of a remote that the repository around `directory` knows by name; else what was named."""
    known = run_git(directory, "remote", "get-url", "--end-of-options", remote)
    return known.decode().strip() if known else remote
