"""The text of an issue: the error, its first run, what changed, and a table of kernels and
backends.
"""

from __future__ import annotations

import re

import msgspec

from kci.diagnostics import printable
from kci.matrix.archs import natural
from kci.tree.verify.abi import demangled
from kci.utils.shipped import template_environment
from kci.utils.suggest import count
from kci.watch.history import Failure, RunFacts, leg_of

SHOWN, _ROWS = 50, 150

# an address without markup
_LINK = re.compile(r"https?://[\w.~:/?#!$&*+,;=%-]{1,490}", re.ASCII)


class OpenCause(msgspec.Struct):
    """An open issue."""

    cause: str
    flaky: bool
    since: RunFacts
    before: RunFacts | None
    new_catalog: str
    """The catalog that came into force when it began; empty if none did."""
    failure: Failure
    opened: int
    pending: set[str] = set()
    all: set[str] = set()
    retired: set[tuple[str, str, str]] = set()
    """Groups (kernel and backend) of legs that the catalog has dropped; a pass of the group counts
    for them."""
    changed: bool = False

    @property
    def kernels(self) -> list[str]:
        return sorted({leg_of(leg).kernel for leg in self.all})


def mark(key: str, since: int) -> str:
    """The HTML comment that identifies an issue: the cause id and the run in which it began."""
    return f"<!-- kci-cause: {key} since run {since} -->"


def issue_body(key: str, issue: OpenCause, *, recovered: bool) -> str:
    """The Markdown of an open issue, or with `recovered` of one whose legs all pass."""
    by_group: dict[tuple[str, str], list[str]] = {}
    for name in sorted(issue.all):
        leg = leg_of(name)
        by_group.setdefault((leg.kernel, leg.backend), []).append(name)
    groups = []
    for group, legs in by_group.items():
        failing = [leg for leg in legs if leg in issue.pending]
        torches = ", ".join(sorted({leg_of(leg).torch for leg in failing or legs}, key=natural))
        groups.append((*group, len(failing), len(legs) - len(failing), torches))
    values = {
        "mark": mark(key, issue.since.run),
        "issue": issue,
        "since": issue.since,
        "recovered": recovered,
        "readable": demangled(issue.cause),
        "log": issue.failure.log if _LINK.fullmatch(issue.failure.log) else "",
        "groups": groups,
        "legs": sorted(issue.all if recovered else issue.pending),
        "shown": SHOWN,
        "shown_groups": _ROWS,
        "plain": plain,
        "code": lambda text: f"`{plain(text)[:40]}`",
        "count": count,
    }
    return template_environment().get_template("issue.md.j2").render(values)


def plain(text: str) -> str:
    """A log excerpt on one line that cannot end a comment, mention people or close a code span."""
    return (
        printable(text, " ").replace("`", "'").replace("-->", "-- >").replace("@", "@\u200b")[:2000]
    )
