"""kci's pull requests: what becomes of each, from what is wanted and what there is; and GitHub, where it is done.

Each subject has one branch, and so at most one pull request that is open. It is updated while nobody else has committed
to it, and withdrawn when it is not wanted any more. What a person has closed is not opened again.

It can be done again at any time. A branch is made of one commit on the commit that was looked at; what it is about and
what it holds stands in the text of the pull request, and in the commit, by which kci knows its own.
"""

from __future__ import annotations

import enum
import hashlib
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote

import msgspec

from kci.watch.github_api import Account, GitHubApi

PREFIX = "kci/"
"""Of the branches that kci makes."""

EDITION_BRANCH = f"{PREFIX}edition"
MIGRATE = f"{PREFIX}migrate-"

# The first line of a pull request: what it is about, what it holds, and whether kci has withdrawn it.
_MARK = re.compile(r"<!-- kci-pull: ([0-9a-f]{12}) ([0-9a-f]{12})( withdrawn)? -->")
_TRAILER = "kci-content: "
_PAGE = 100


class FileChange(msgspec.Struct, frozen=True):
    """A file as the pull request leaves it."""

    path: str
    """Relative to the repository's root, with slashes."""
    text: str
    executable: bool = False


class WantedPull(msgspec.Struct, frozen=True):
    """A pull request that should be open."""

    branch: str
    about: str
    """What it is about, as a digest: somebody who closes it has answered this, and nothing else."""
    title: str
    body: str
    files: tuple[FileChange, ...]
    content: str
    """A digest of what it says and changes, without dates: one that is open is updated when this differs."""


class PullState(enum.StrEnum):
    """What has become of a pull request."""

    OPEN = "open"
    CLOSED = "closed"
    """By a person: the answer is no."""
    MERGED = "merged"
    WITHDRAWN = "withdrawn"
    """By kci."""


class KnownPull(msgspec.Struct, frozen=True):
    """A pull request that kci has opened."""

    number: int
    branch: str
    state: PullState
    about: str
    content: str
    own: bool = True
    """Whether the newest commit on its branch is kci's; asked of open ones only."""


class PullActionKind(enum.StrEnum):
    """What to do."""

    OPEN = "open"
    UPDATE = "update"
    CLOSE = "close"
    LEAVE = "leave"
    """Nothing, for a reason that is worth saying."""


class PullAction(msgspec.Struct, frozen=True):
    """One thing to do about one branch."""

    kind: PullActionKind
    branch: str
    reason: str
    number: int = 0
    """Of the pull request; 0 where there is none."""
    wanted: WantedPull | None = None
    """What it becomes, where it is opened or updated."""


def digest_of(text: str) -> str:
    """A short digest, as it stands in the text of a pull request."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def decide_pulls(wanted: Sequence[WantedPull], known: Iterable[KnownPull], most: int) -> list[PullAction]:
    """What to do, by branch. Each branch is wanted once; `most` pull requests for kernels may be open at once.

    `known` are all of kci's on these branches, and the open ones on other branches.
    """
    by_branch: dict[str, list[KnownPull]] = {}
    for pull in sorted(known, key=lambda item: -item.number):
        by_branch.setdefault(pull.branch, []).append(pull)
    still = {item.branch for item in wanted}
    actions = []
    for pull in (pull for branch, pulls in by_branch.items() if branch not in still for pull in pulls):
        if pull.state is PullState.OPEN:
            kind, reason = PullActionKind.CLOSE, "it is not needed any more"
            if not pull.own:
                kind, reason = PullActionKind.LEAVE, f"{reason}, but somebody has committed to it"
            actions.append(PullAction(kind, pull.branch, reason, pull.number))
    kept = sum(
        any(pull.state is PullState.OPEN for pull in by_branch.get(item.branch, ()))
        for item in wanted
        if item.branch != EDITION_BRANCH
    )
    room = most - kept - sum(item.kind is PullActionKind.LEAVE and item.branch != EDITION_BRANCH for item in actions)
    for item in sorted(wanted, key=lambda pull: pull.branch):
        action = _about(item, by_branch.get(item.branch, []))
        if action is not None and action.kind is PullActionKind.OPEN and item.branch != EDITION_BRANCH:
            room -= 1
            if room < 0:
                action = PullAction(PullActionKind.LEAVE, item.branch, f"{most} pull requests for kernels are open")
        if action is not None:
            actions.append(action)
    return sorted(actions, key=lambda action: action.branch)


def _about(wanted: WantedPull, pulls: Sequence[KnownPull]) -> PullAction | None:
    """What to do about one that is wanted, None for nothing; `pulls` are those of its branch, the newest first."""
    opened = next((pull for pull in pulls if pull.state is PullState.OPEN), None)
    if opened is not None:
        if opened.content == wanted.content:
            return None
        if not opened.own:
            reason = "it would be another one by now, but somebody has committed to it"
            return PullAction(PullActionKind.LEAVE, wanted.branch, reason, opened.number)
        return PullAction(PullActionKind.UPDATE, wanted.branch, "what it proposes has changed", opened.number, wanted)
    for pull in pulls:
        if pull.about == wanted.about and pull.state is not PullState.WITHDRAWN:
            reason = f"#{pull.number} was about the same, and was {pull.state}"
            return PullAction(PullActionKind.LEAVE, wanted.branch, reason, pull.number)
    return PullAction(PullActionKind.OPEN, wanted.branch, "there is no pull request", wanted=wanted)


# --- GitHub -----------------------------------------------------------------------------------------------------------


class _Object(msgspec.Struct, frozen=True):
    """A commit or a tree, with the branch that it is the head of where GitHub names one."""

    sha: str = ""
    ref: str = ""


class _Pull(msgspec.Struct, frozen=True):
    number: int
    state: str
    head: _Object
    body: str | None = None
    user: Account | None = None
    merged_at: str | None = None


class _Commit(msgspec.Struct, frozen=True):
    message: str
    tree: _Object


class GitHubPulls:
    """The pull requests of a repository on GitHub."""

    def __init__(
        self, repository: str, author: str, base: str, commit: str, run: Callable[..., Any] = subprocess.run
    ) -> None:
        """Name the repository, whose pull requests count, their base branch, and the commit of it that was read."""
        hint = (
            "the job needs contents: write and pull-requests: write, and Settings > Actions > General has to allow "
            "GitHub Actions to create pull requests"
        )
        self._api = GitHubApi(repository, hint, run)
        self._author, self._base, self._commit = author, base, commit

    def pulls(self, branches: Sequence[str]) -> Iterator[KnownPull]:
        """Those of kci on some branches, and all others of kci that are open."""
        for branch in sorted({*branches, *self._branches}):
            query = f"state=all&head={self._api.owner}:{quote(branch)}&base={quote(self._base)}"
            found = self._api.told(list[_Pull], "GET", f"pulls?{query}&sort=created&direction=desc&per_page={_PAGE}")
            for pull in found:
                mark = _MARK.match(pull.body or "")
                if mark is None or pull.user is None or pull.user.login != self._author or pull.head.ref != branch:
                    continue
                state, own = PullState.WITHDRAWN if mark[3] else PullState.CLOSED, True
                if pull.state == "open":
                    newest = self._api.told(_Commit, "GET", f"git/commits/{pull.head.sha}")
                    state, own = PullState.OPEN, f"\n{_TRAILER}" in newest.message
                elif pull.merged_at:
                    state = PullState.MERGED
                yield KnownPull(pull.number, branch, state, mark[1], mark[2], own)

    def propose(self, wanted: WantedPull, number: int) -> None:
        """Open one, or give the one of a number other files, and another title and text."""
        self._push(wanted)
        body = f"<!-- kci-pull: {wanted.about} {wanted.content} -->\n{wanted.body}"
        if number:
            self._api.ask("PATCH", f"pulls/{number}", title=wanted.title, body=body)
        else:
            self._api.ask("POST", "pulls", title=wanted.title, body=body, head=wanted.branch, base=self._base)

    def withdraw(self, number: int, branch: str, reason: str) -> None:
        """Close one, and remove its branch."""
        body = self._api.told(_Pull, "GET", f"pulls/{number}").body or ""
        mark = _MARK.match(body)
        told = f"<!-- kci-pull: {mark[1]} {mark[2]} withdrawn -->" if mark else ""
        text = f"{told}\nWithdrawn by kci: {reason}.\n\n{body[mark.end() if mark else 0 :].strip()}\n"
        self._api.ask("PATCH", f"pulls/{number}", body=text, state="closed")
        self._api.ask("DELETE", f"git/refs/heads/{branch}")

    def _push(self, wanted: WantedPull) -> None:
        # The branch becomes one commit on the commit that was looked at.
        base = self._api.told(_Commit, "GET", f"git/commits/{self._commit}")
        entries = [
            {"path": file.path, "mode": "100755" if file.executable else "100644", "type": "blob", "content": file.text}
            for file in wanted.files
        ]
        tree = self._api.told(_Object, "POST", "git/trees", base_tree=base.tree.sha, tree=entries)
        message = f"{wanted.title}\n\n{_TRAILER}{wanted.content}\n"
        commit = self._api.told(_Object, "POST", "git/commits", message=message, tree=tree.sha, parents=[self._commit])
        if wanted.branch in self._branches:
            self._api.ask("PATCH", f"git/refs/heads/{wanted.branch}", sha=commit.sha, force=True)
        else:
            self._api.ask("POST", "git/refs", ref=f"refs/heads/{wanted.branch}", sha=commit.sha)
            self._branches.add(wanted.branch)

    @cached_property
    def _branches(self) -> set[str]:
        found = self._api.told(list[_Object], "GET", f"git/matching-refs/heads/{PREFIX}")
        return {item.ref.removeprefix("refs/heads/") for item in found}


def carry_out_pulls(actions: Iterable[PullAction], tracker: GitHubPulls) -> list[str]:
    """Make the pull requests what they should be; returns a line for each action."""
    done = []
    for action in actions:
        if action.wanted is not None:
            tracker.propose(action.wanted, action.number)
        elif action.kind is PullActionKind.CLOSE:
            tracker.withdraw(action.number, action.branch, action.reason)
        done.append(pull_line(action))
    return done


def pull_line(action: PullAction) -> str:
    """An action in one line."""
    number = f" #{action.number}" if action.number else ""
    return f"{action.kind} {action.branch}{number}: {action.wanted.title if action.wanted else action.reason}"
