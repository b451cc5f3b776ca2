"""What becomes of kci's pull requests: a pure function of what is wanted and what there is.

Each subject has one branch, and so at most one pull request that is open. It is updated while nobody else has committed
to it, and withdrawn when it is not wanted any more. What a person has closed is not opened again.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Sequence

import msgspec

PREFIX = "kci/"
"""Of the branches that kci makes."""

EDITION_BRANCH = f"{PREFIX}edition"
MIGRATE = f"{PREFIX}migrate-"


class FileChange(msgspec.Struct, frozen=True):
    """A file as it is to be."""

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
    wanted: WantedPull | None = None


def digest_of(text: str) -> str:
    """A short digest, as it stands in the text of a pull request."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def decide_pulls(wanted: Sequence[WantedPull], known: Iterable[KnownPull], most: int) -> list[PullAction]:
    """What to do, by branch.

    Args:
        wanted: what should be open, each branch once.
        known: every pull request of kci on these branches, and all others of kci that are open.
        most: how many pull requests for kernels may be open at once.
    """
    by_branch: dict[str, list[KnownPull]] = {}
    for pull in sorted(known, key=lambda item: -item.number):
        by_branch.setdefault(pull.branch, []).append(pull)
    still = {item.branch for item in wanted}
    actions = [
        _unwanted(pull)
        for branch, pulls in by_branch.items()
        if branch not in still
        for pull in pulls
        if pull.state is PullState.OPEN
    ]
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


def _unwanted(pull: KnownPull) -> PullAction:
    if not pull.own:
        reason = "it is not needed any more, but somebody has committed to it"
        return PullAction(PullActionKind.LEAVE, pull.branch, reason, pull.number)
    return PullAction(PullActionKind.CLOSE, pull.branch, "it is not needed any more", pull.number)


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
    return PullAction(PullActionKind.OPEN, wanted.branch, "there is none", wanted=wanted)
