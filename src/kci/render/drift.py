"""Are the committed workflow files what kci would write now?"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Mapping

import msgspec
from packaging.version import InvalidVersion, Version

from kci.diagnostics import Diagnostic, finding
from kci.render.header import HEADER, comparable, edited, plain_newlines

_GENERATED = re.compile(rf"^{HEADER}(\S+) from ", re.MULTILINE)
_MAX_DIFF_LINES = 20_000


class Drift(enum.StrEnum):
    """How a committed file relates to the rendered one."""

    SAME = "same"
    MISSING = "missing"
    CHANGED = "changed"
    EDITED = "edited"
    """kci wrote it, and somebody has changed it since."""
    LEFT = "left"
    """kci wrote it and does not any more, as the one for several kernels where there is one now."""
    FOREIGN = "foreign"
    """It does not carry kci's header: somebody wrote it by hand."""


class Comparison(msgspec.Struct, frozen=True):
    """One file, compared; `diff` turns the committed file into the rendered one."""

    path: str
    state: Drift
    diff: str = ""


def compare(rendered: Mapping[str, str], committed: Mapping[str, str]) -> list[Comparison]:
    """Compare what kci renders with what is committed, by path and in its order.

    Line ends, action pins, and the lines of the header that name the version and the inputs do not count: none of them
    changes what the workflow does.
    """
    found = []
    for path in sorted(rendered):
        if path not in committed:
            found.append(Comparison(path, Drift.MISSING, _diff(path, "", rendered[path], fresh=True)))
            continue
        old, new = plain_newlines(committed[path]), plain_newlines(rendered[path])
        if comparable(old) == comparable(new):
            found.append(Comparison(path, Drift.SAME))
        else:
            state = Drift.FOREIGN
            if written_by(old):
                state = Drift.EDITED if edited(old) else Drift.CHANGED
            found.append(Comparison(path, state, _diff(path, old, new)))
    for path in sorted(set(committed) - set(rendered)):
        old = plain_newlines(committed[path])
        if written_by(old):
            found.append(Comparison(path, Drift.EDITED if edited(old) else Drift.LEFT, _diff(path, old, "", gone=True)))
    return sorted(found, key=lambda item: item.path)


def drift_diagnostics(comparisons: list[Comparison], committed: Mapping[str, str], version: str) -> list[Diagnostic]:
    """What is wrong with the committed files: KCI401, KCI402, and KCI405 for one that a newer kci wrote.

    Args:
        comparisons: from `compare`.
        committed: the committed files, text by path.
        version: the kci that is running.
    """
    found = []
    for item in comparisons:
        match item.state:
            case Drift.MISSING:
                found.append(finding("KCI401", "there is no such file", path=item.path, hint="run `kci render`"))
            case Drift.CHANGED:
                message = "the file is not what kci would write now"
                found.append(finding("KCI401", message, path=item.path, hint="run `kci render` and commit the result"))
            case Drift.LEFT:
                message = "kci wrote this file and has no use for it any more"
                found.append(finding("KCI401", message, path=item.path, hint="run `kci render`, which removes it"))
            case Drift.EDITED:
                message = "somebody has edited this file since kci wrote it, and kci does not overwrite that"
                hint = "make the change in build.toml or kci.toml; `kci render --force` replaces the file"
                found.append(finding("KCI406", message, path=item.path, hint=hint))
            case Drift.FOREIGN:
                message = "kci did not write this file and does not overwrite it"
                found.append(
                    finding("KCI402", message, path=item.path, hint="move or remove it, then run `kci render`")
                )
        writer = written_by(plain_newlines(committed.get(item.path, "")))
        if writer and _newer(writer, version):
            message = f"kci {writer} wrote this file, and kci {version} is running"
            found.append(finding("KCI405", message, path=item.path, hint="upgrade kci"))
    return found


def written_by(text: str) -> str:
    """The version of kci in the header of a file; empty when kci did not write it."""
    match = _GENERATED.search(text[:4096])
    return match[1] if match else ""


def _newer(writer: str, version: str) -> bool:
    try:
        return Version(writer) > Version(version)
    except InvalidVersion:
        return False


def _diff(path: str, old: str, new: str, *, fresh: bool = False, gone: bool = False) -> str:
    before, after = old.split("\n") if old else [], new.split("\n") if new else []
    if len(before) + len(after) > _MAX_DIFF_LINES:  # difflib takes the square of the length at worst
        return f"--- {path}\n+++ {path}\n(too long to compare: {len(before)} and {len(after)} lines)\n"
    names = "/dev/null" if fresh else f"a/{path}", "/dev/null" if gone else f"b/{path}"
    lines = difflib.unified_diff(before, after, *names, lineterm="")
    return "\n".join(lines) + "\n"
