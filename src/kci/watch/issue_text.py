"""What an issue says: which cause, since when, which legs, and how to see it oneself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kci.diagnostics import printable
from kci.watch.history import Failure, RecordedRun

SHOWN = 50
"""Legs that an issue lists one by one."""

_LINK = re.compile(r"https?://[\w.~:/?#!$&*+,;=%-]{1,490}", re.ASCII)
_MARK = "<!-- kci-cause: {} since run {} -->"


def mark(key: str, since: int) -> str:
    """The invisible line by which an issue is found again: the cause, and the run in which it began."""
    return _MARK.format(key, since)


def issue_title(cause: str, legs: Iterable[str]) -> str:
    """Kernels and cause in one line."""
    kernels = sorted({leg.partition(" ")[0] for leg in legs})
    which = ", ".join(kernels[:3]) + (f" and {len(kernels) - 3} more" if len(kernels) > 3 else "")
    return f"{which}: {plain(cause)}"[:200].rstrip()  # as GitHub keeps it


def issue_body(key: str, since: RecordedRun, failure: Failure, legs: Sequence[str], recovered: bool) -> str:
    """The whole text, in Markdown.

    Args:
        key: the cause's id.
        since: the run in which the issue was opened.
        failure: the first failure.
        legs: those that still fail, or all that did.
        recovered: whether all of them pass again.
    """
    lines = [
        mark(key, since.run),
        "",
        "Every leg below passes again." if recovered else "Scheduled runs fail with this error:",
    ]
    lines += ["", *(f"    {line}" for line in [plain(failure.error)]), ""]
    lines.append(f"First seen in run {since.run} ({plain(since.at)})" + _with(since) + ".")
    if log := web_link(failure.log):
        lines.append(f"Log: {log}")
    if failure.replay:
        lines += ["", "To see it on your own machine:", "", f"    {plain(failure.replay)}"]
    lines += ["", f"{len(legs)} {'leg' if len(legs) == 1 else 'legs'}:", ""]
    lines += [f"- `{plain(leg)}`" for leg in legs[:SHOWN]]
    if len(legs) > SHOWN:
        lines.append(f"- and {len(legs) - SHOWN} more")
    return "\n".join(lines) + "\n"


def _with(run: RecordedRun) -> str:
    parts = [f"catalog {plain(run.catalog)}"] if run.catalog else []
    parts += [f"commit {plain(run.commit)[:12]}"] if run.commit else []
    return f", {', '.join(parts)}" if parts else ""


def plain(text: str) -> str:
    """Text from a log on one line, which cannot end the comment, mention people or close a code span."""
    return printable(text, " ").replace("`", "'").replace("-->", "-- >").replace("@", "@\u200b")[:2000]


def web_link(text: str) -> str:
    """An address that a browser may follow, and that is no other markup; empty for anything else."""
    return text if _LINK.fullmatch(text) else ""
