"""Lints of kci.toml beyond types: one generator per rule, in `SETTINGS_LINTS`."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from kci.config.discovery import RepositorySettings
from kci.config.document import KeyPath
from kci.config.file_lints import LintFinding, Lints, findings_of
from kci.config.settings import Machine, Settings
from kci.config.values import Tier, is_branch, quoted
from kci.diagnostics import Diagnostic, rules
from kci.matrix.catalog.runners import hosted_runners
from kci.utils.frozen import Frozen
from kci.utils.shipped import Dated, shipped
from kci.utils.suggest import nearest, one_of


class _Subject(NamedTuple):
    settings: Settings
    kernels: Collection[str] | None
    data: dict[str, Any]

    def machines(self) -> Iterator[tuple[KeyPath, Machine]]:
        for name, table in (("runners", self.settings.runners), ("test", self.settings.test)):
            for backend, by_system in table.items():
                for system, machine in by_system.items() if isinstance(by_system, dict) else ():
                    yield (name, backend, system), machine


def lint_settings(
    settings: RepositorySettings, kernels: Collection[str] | None = None
) -> list[Diagnostic]:
    """The findings of `SETTINGS_LINTS` in file order; names of kernels are checked only if
    `kernels` is given.
    """
    document = settings.document
    if document is None:
        return []
    return findings_of(
        document, SETTINGS_LINTS, _Subject(settings.settings, kernels, document.data), ("KCI328",)
    )


def label_malformed(subject: _Subject) -> Iterator[LintFinding]:
    """KCI322: a label or group that no runner can have."""
    for path, machine in subject.machines():
        labels = [
            ((*path, "labels", index), label) for index, label in enumerate(machine.labels or ())
        ]
        if machine.group is not None:
            labels.append(((*path, "group"), machine.group))
        for place, label in labels:
            if not _LABEL.fullmatch(label):
                message = f"{quoted(label[:60])} is not a runner label"
                yield place, message, "letters, digits, spaces and `_ . - / :`, at most 256"


_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_./: -]{0,254}[A-Za-z0-9_])?", re.ASCII)


_OF_GITHUB = re.compile(r"(?:ubuntu|macos|windows)-\d[\d.]*(?:-arm|-intel)?")


def label_of_no_runner(subject: _Subject) -> Iterator[LintFinding]:
    """KCI323: a label that looks like one of GitHub's and is unknown, retired or of another
    system.
    """
    hosted = hosted_runners()
    for path, machine in subject.machines():
        if machine.group is not None or "self-hosted" in (machine.labels or ()):
            continue
        system = str(path[2])
        instead = one_of(
            label
            for label, its in hosted.labels.items()
            if its == system and label not in hosted.short
        )
        for index, text in enumerate(machine.labels or ()):
            label, place = text.lower(), (*path, "labels", index)
            if label in hosted.retired:
                yield (
                    place,
                    f"GitHub has retired {quoted(label)}: its jobs fail, or wait forever",
                    instead,
                )
            elif label in hosted.labels:
                if hosted.labels[label] != system:
                    yield (
                        place,
                        f"{quoted(label)} is a machine of {hosted.labels[label]}, not of {system}",
                        instead,
                    )
                elif label in hosted.short and path[0] == "runners" and path[1] != "noarch":
                    message = (
                        f"a job on {quoted(label)} ends after {hosted.short[label]} minutes, and "
                        "has no containers"
                    )
                    yield place, message, instead
            elif _OF_GITHUB.fullmatch(label):
                message = (
                    f"GitHub has no hosted runner {quoted(text[:60])}: without a self-hosted one, "
                    "jobs wait forever"
                )
                yield place, message, instead


def unknown_kernel(subject: _Subject) -> Iterator[LintFinding]:
    """KCI326: a limit, overlay or inputs for an unknown kernel."""
    if subject.kernels is None:
        return
    for key in ("limits", "overlay", "inputs"):
        for index, entry in enumerate(getattr(subject.settings, key)):
            if entry.kernel is not None and entry.kernel not in subject.kernels:
                message = f"no kernel here is named {quoted(entry.kernel[:60])}"
                yield (key, index, "kernel"), message, nearest(entry.kernel, subject.kernels)
    named = subject.settings.publish.pull_request
    for index, name in enumerate(() if isinstance(named, bool) else named):
        if name not in subject.kernels:
            yield (
                ("publish", "pull-request", index),
                f"no kernel here is named {name!r}",
                nearest(name, subject.kernels),
            )


def tier_name_taken(subject: _Subject) -> Iterator[LintFinding]:
    """KCI328: a custom tier with the name of a built-in one."""
    for name in subject.settings.tiers:
        if name in list(Tier):
            message = f"`{name}` is a built-in tier: a custom tier needs another name"
            yield (
                ("tiers", name),
                message,
                f'for example `[tiers.my-{name}]` with `base = "{name}"`',
            )
        elif not re.fullmatch(r"[a-z][a-z0-9-]{0,63}", name, re.ASCII):
            message = f"{quoted(name[:60])} cannot be a tier's name"
            yield ("tiers", name), message, "lower-case letters, digits and dashes"


def tier_unknown(subject: _Subject) -> Iterator[LintFinding]:
    """KCI329: a pull request or schedule with an unknown tier."""
    settings, names = subject.settings, [*map(str, Tier), *subject.settings.tiers]
    for key, tier in (
        ("pull-request", settings.pull_request.tier),
        ("schedule", settings.schedule.tier),
    ):
        if tier not in names:
            yield (key, "tier"), f"there is no tier {quoted(tier[:60])}", nearest(tier, names)


class _Value(Frozen, forbid_unknown_fields=True):
    at: tuple[str, ...]
    expected: str
    keys: bool = False
    pattern: str = ""
    least: float = -math.inf
    most: float = math.inf

    def fits(self, value: Any) -> bool:
        if isinstance(value, int | float):
            return self.least <= value <= self.most
        texts = [value] if isinstance(value, str) else value
        return bool(texts) and all(re.fullmatch(self.pattern, text, re.ASCII) for text in texts)


class _ValueTable(Dated):
    value: tuple[_Value, ...]


_value_table = shipped("plan/data/settings-values.toml", _ValueTable)


def value_impossible(subject: _Subject) -> Iterator[LintFinding]:
    """KCI330: an impossible value of the right type: a cron line, commit, image or number."""
    settings, wrong = subject.settings, list[tuple[KeyPath, str]]()
    for entry in _value_table().value:
        places = (found for at in entry.at for found in _places(subject.data, at.split(".")))
        for place, value in places:
            tested = place[-1] if entry.keys else value
            if not isinstance(tested, dict) and not entry.fits(tested):
                wrong.append((place, entry.expected))
    for path, machine in subject.machines():
        if machine.labels == () and machine.group is None:
            wrong.append(((*path, "labels"), "at least one label"))
    for index, ignored in enumerate(settings.lint.ignore):
        if ignored.rule not in rules():
            wrong.append((("lint", "ignore", index, "rule"), "a rule that `kci explain` lists"))
    ref, branch, cron = settings.actions.ref, settings.publish.branch, settings.schedule.cron
    if ref is not None and not is_branch(ref):
        wrong.append((("actions", "ref"), "a tag, a branch or a full commit id"))
    if branch is not None and not is_branch(branch):
        wrong.append(
            (("publish", "branch"), "the name of a branch; only {version} stands for something")
        )
    if cron is not None and (problem := cron_problem(cron)):
        wrong.append((("schedule", "cron"), problem))
    for path, expected in wrong:
        yield path, f"`{'.'.join(map(str, path))[:100]}` must be {expected}", ""


def _places(data: Any, path: Sequence[str]) -> Iterator[tuple[KeyPath, Any]]:
    if not path:
        yield (), data
        return
    for key, inner in (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    ):
        if path[0] in ("*", key):
            yield from (((key, *place), value) for place, value in _places(inner, path[1:]))


_CRON: tuple[tuple[range, list[str]], ...] = (
    (range(60), []),
    (range(24), []),
    (range(1, 32), []),
    (
        range(1, 13),
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    ),
    (range(8), ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
)
_CRON_PART = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/0*([1-9]\d{0,8}))?")
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_CLOSEST = 5
"""Minutes between two runs of a schedule on GitHub."""


def cron_problem(text: str) -> str:
    """The words for what a cron line must be, so that GitHub keeps to it; empty if it is."""
    fields = text.split()
    if len(fields) != len(_CRON) or not text.isascii():
        return "five fields, such as `17 4 * * 1`"
    values = []
    for field, (allowed, names) in zip(fields, _CRON, strict=True):
        parts = [_cron_values(part, allowed, names) for part in field.lower().split(",")]
        if not all(parts):
            return (
                f"five fields, with values from {allowed[0]} to {allowed[-1]} in "
                f"{quoted(field[:60])}"
            )
        values.append({value for part in parts for value in part})
    minutes, hours, days, months, _ = values
    if fields[4].startswith("*") and not any(
        day <= _DAYS[month - 1] for day in days for month in months
    ):
        return "a cron line with a day that comes: no month of it has one"
    starts = sorted(60 * hour + minute for hour in hours for minute in minutes)
    if any(later - start < _CLOSEST for start, later in pairwise([*starts, starts[0] + 24 * 60])):
        return (
            f"a cron line with {_CLOSEST} minutes between two runs: GitHub starts no schedule "
            "more often"
        )
    return ""


def _cron_values(part: str, allowed: range, names: list[str]) -> range:
    match = _CRON_PART.fullmatch(part)
    first, last, step = match.groups() if match else ("none", None, None)
    last = last or (first if first and not step else str(allowed[-1]))
    ends = [
        names.index(end) + allowed[0] if end in names else int(end[:9]) if end.isdigit() else -1
        for end in (first or str(allowed[0]), last)
    ]
    return (
        range(ends[0], ends[1] + 1, int(step or 1))
        if all(end in allowed for end in ends)
        else range(0)
    )


SETTINGS_LINTS: Lints[_Subject] = {
    "KCI322": label_malformed,
    "KCI323": label_of_no_runner,
    "KCI326": unknown_kernel,
    "KCI328": tier_name_taken,
    "KCI329": tier_unknown,
    "KCI330": value_impossible,
}
