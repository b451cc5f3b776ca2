"""A history on a branch of a git repository, where runs may record at the same time.

Files of a history are named after what they hold and never conflict. The branch has nothing else in it: whoever comes
second takes what is there now and adds its own again.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kci.errors import FindingsError, UnsafeError
from kci.files.git import last_line, remote_git, run_git
from kci.watch.history import RecordedRun, append

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
