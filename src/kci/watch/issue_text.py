"""The text of an issue: the error, its first run, what changed, and a table of kernels and backends."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from kci.diagnostics import printable
from kci.matrix.variants import parse_variant_name
from kci.tree.verify.abi import demangled
from kci.utils.suggest import count
from kci.watch.history import Failure, RunFacts

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
    pending: set[str]
    all: set[str]
    retired: set[str]
    """Groups (kernel and backend) of legs that the catalog has dropped; a pass of the group counts for them."""
    changed: bool = False

    @property
    def kernels(self) -> list[str]:
        return sorted({leg.partition(" ")[0] for leg in self.all})


@lru_cache(maxsize=65536)
def backend_of(variant: str) -> str:
    """The backend in a variant's name; `other` for a name that is not valid."""
    try:
        return parse_variant_name(variant).backend
    except ValueError:
        return "other"


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
    lines.append(f"First seen in run {since.run} ({plain(since.at)}){_run_facts(since)}.")
    lines.append(_what_changed(issue))
    if log := web_link(failure.log):
        lines.append(f"Log: {log}")
    if failure.replay:
        lines += ["", "To see it on your own machine:", "", f"    {plain(failure.replay)}"]
    lines += ["", "| kernel | backend | fail | pass again | torch |", "|---|---|---|---|---|"]
    groups: dict[tuple[str, str], list[str]] = {}
    for leg in sorted(issue.all):
        kernel, variant = leg.split(" ", 2)[:2]
        groups.setdefault((kernel, backend_of(variant)), []).append(leg)
    for (kernel, backend), legs in list(groups.items())[:_ROWS]:
        failing = [leg for leg in legs if leg in issue.pending]
        torches = ", ".join(sorted({leg.split(" ")[3] for leg in failing or legs}, key=_version))
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


def _run_facts(facts: RunFacts) -> str:
    text = f", catalog {_code(facts.catalog)}" if facts.catalog else ""
    return text + (f", commit {_code(facts.commit[:12])}" if facts.commit else "")


def _what_changed(issue: OpenCause) -> str:
    before, since = issue.before, issue.since
    if issue.flaky:
        return "What moved: nothing."
    if before is None:
        new = f"the catalog, to {_code(issue.new_catalog)}" if issue.new_catalog else "not known"
        return f"What moved: {new}. No earlier run has passed what fails."
    pairs = [(what, getattr(before, what), getattr(since, what)) for what in ("catalog", "commit")]
    changes = [
        f"the {what}, from {_code(old) if old else 'none'} to {_code(new) if new else 'none'}"
        for what, old, new in pairs
        if old != new
    ]
    changes_text = "; ".join(changes) or "neither catalog nor commit: a package, an image or a machine did"
    return f"What moved: {changes_text}. It passed last in run {before.run}."


def _code(text: str) -> str:
    return f"`{plain(text)[:40]}`"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() and len(part) < 10 else -1 for part in text.split("."))


def plain(text: str) -> str:
    """A log excerpt on one line that cannot end a comment, mention people or close a code span."""
    return printable(text, " ").replace("`", "'").replace("-->", "-- >").replace("@", "@\u200b")[:2000]


def web_link(text: str) -> str:
    """The text if it is an http(s) URL without markup, else empty."""
    return text if _LINK.fullmatch(text) else ""
