"""The text of an issue: the error, its first run, what changed, and a table of kernels and backends."""

from __future__ import annotations

import re

import msgspec

from kci.diagnostics import printable
from kci.tree.verify.abi import demangled
from kci.utils.suggest import count
from kci.watch.history import Failure, RunFacts, leg_of, version_order

SHOWN, _ROWS = 50, 150

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
    retired: set[str] = set()
    """Groups (kernel and backend) of legs that the catalog has dropped; a pass of the group counts for them."""
    changed: bool = False

    @property
    def kernels(self) -> list[str]:
        return sorted({leg_of(leg).kernel for leg in self.all})


def mark(key: str, since: int) -> str:
    """The HTML comment that identifies an issue: the cause id and the run in which it began."""
    return f"<!-- kci-cause: {key} since run {since} -->"


def issue_body(key: str, issue: OpenCause, *, recovered: bool) -> str:
    """The Markdown of an open issue, or with `recovered` of one whose legs all pass."""
    since, failure = issue.since, issue.failure
    head = "Scheduled runs fail, every time and on more than one machine, with this error:"
    if issue.flaky:
        head = "Scheduled runs fail with this error, and pass when nothing but the machine and the hour is another:"
    if recovered:
        head = "Every leg below passes again. The error was:"
    lines = [mark(key, since.run), "", head, "", f"    {plain(failure.error)}", ""]
    if (readable := demangled(issue.cause)) != issue.cause:
        lines += [f"In C++: `{plain(readable)}`", ""]
    facts = f", catalog {_code(since.catalog)}" if since.catalog else ""
    facts += f", commit {_code(since.commit[:12])}" if since.commit else ""
    lines += [f"First seen in run {since.run} ({plain(since.at)}){facts}.", _what_changed(issue)]
    if log := web_link(failure.log):
        lines.append(f"Log: {log}")
    if failure.replay:
        lines += ["", "To see it on your own machine:", "", f"    {plain(failure.replay)}"]
    lines += ["", "| kernel | backend | fail | pass again | torch |", "|---|---|---|---|---|"]
    groups: dict[tuple[str, str], list[str]] = {}
    for name in sorted(issue.all):
        leg = leg_of(name)
        groups.setdefault((leg.kernel, leg.backend), []).append(name)
    for (kernel, backend), legs in list(groups.items())[:_ROWS]:
        failing = [leg for leg in legs if leg in issue.pending]
        torches = ", ".join(sorted({leg_of(leg).torch for leg in failing or legs}, key=version_order))
        lines.append(
            f"| {plain(kernel)} | {backend} | {len(failing) or ''} | {len(legs) - len(failing) or ''} | {torches} |"
        )
    if len(groups) > _ROWS:
        lines += ["", f"And {count(len(groups) - _ROWS, 'row')} more."]
    legs = sorted(issue.all if recovered else issue.pending)
    lines += ["", "<details><summary>" + count(len(legs), "leg") + "</summary>", ""]
    lines += [f"- `{plain(leg)}`" for leg in legs[:SHOWN]]
    if len(legs) > SHOWN:
        lines.append(f"- and {len(legs) - SHOWN} more")
    return "\n".join([*lines, "", "</details>"]) + "\n"


def _what_changed(issue: OpenCause) -> str:
    before, since = issue.before, issue.since
    if issue.flaky:
        return "What moved: nothing."
    if before is None:
        new = f"the catalog, to {_code(issue.new_catalog)}" if issue.new_catalog else "not known"
        return f"What moved: {new}. No earlier run has passed what fails."
    changes = [
        f"the {what}, from {_code(old) if old else 'none'} to {_code(new) if new else 'none'}"
        for what, old, new in since.changes(before)
    ]
    moved = "; ".join(changes) or "neither catalog nor commit: a package, an image or a machine did"
    return f"What moved: {moved}. It passed last in run {before.run}."


def _code(text: str) -> str:
    return f"`{plain(text)[:40]}`"


def plain(text: str) -> str:
    """A log excerpt on one line that cannot end a comment, mention people or close a code span."""
    return printable(text, " ").replace("`", "'").replace("-->", "-- >").replace("@", "@\u200b")[:2000]


def web_link(text: str) -> str:
    """The text if it is an http(s) URL without markup, else empty."""
    return text if _LINK.fullmatch(text) else ""
