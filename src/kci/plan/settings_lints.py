"""Lints of kci.toml beyond types: one generator per rule, in `SETTINGS_LINTS`."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import pairwise, starmap
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
            label, message = text.lower(), ""
            its, short = hosted.labels.get(label, ""), hosted.short.get(label)
            if label in hosted.retired:
                message = f"GitHub has retired {quoted(label)}: its jobs fail, or wait forever"
            elif its not in ("", system):
                message = f"{quoted(label)} is a machine of {its}, not of {system}"
            elif short and path[0] == "runners" and path[1] != "noarch":
                message = f"a job on {quoted(label)} ends after {short} minutes, and "
                message += "has no containers"
            elif not its and _OF_GITHUB.fullmatch(label):
                message = f"GitHub has no hosted runner {quoted(text[:60])}: without a self-hosted "
                message += "one, jobs wait forever"
            if message:
                yield (*path, "labels", index), message, instead


def unknown_kernel(subject: _Subject) -> Iterator[LintFinding]:
    """KCI326: a limit, overlay or inputs for an unknown kernel."""
    settings, known = subject.settings, subject.kernels
    places: list[tuple[KeyPath, str | None]] = [
        ((key, index, "kernel"), entry.kernel)
        for key in ("limits", "overlay", "inputs")
        for index, entry in enumerate(getattr(settings, key))
    ]
    chosen = settings.publish.pull_request
    for index, name in enumerate(() if isinstance(chosen, bool) else chosen):
        places.append((("publish", "pull-request", index), name))
    for place, named in places:
        if known is not None and named is not None and named not in known:
            yield place, f"no kernel here is named {quoted(named[:60])}", nearest(named, known)


def tier_name_taken(subject: _Subject) -> Iterator[LintFinding]:
    """KCI328: a custom tier with the name of a built-in one."""
    for name in subject.settings.tiers:
        if name in list(Tier):
            message = f"`{name}` is a built-in tier: a custom tier needs another name"
            hint = f'for example `[tiers.my-{name}]` with `base = "{name}"`'
            yield ("tiers", name), message, hint
    yield from malformed(subject, "KCI328")


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
    rule: str = "KCI330"
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


def malformed(subject: _Subject, rule: str) -> Iterator[LintFinding]:
    """A value that does not fit the pattern or range of its place; `rule` chooses the places."""
    for entry in _value_table().value:
        places = (found for at in entry.at for found in _places(subject.data, at.split(".")))
        for place, value in places if entry.rule == rule else ():
            tested = place[-1] if entry.keys else value
            if not isinstance(tested, dict) and not entry.fits(tested):
                yield _must_be(place, entry.expected)


def _must_be(place: KeyPath, expected: str) -> LintFinding:
    return place, f"`{'.'.join(map(str, place))[:100]}` must be {expected}", ""


def value_impossible(subject: _Subject) -> Iterator[LintFinding]:
    """KCI330: an impossible value of the right type: a cron line, commit, image or number."""
    yield from malformed(subject, "KCI330")
    settings, wrong = subject.settings, list[tuple[KeyPath, str]]()
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
    yield from starmap(_must_be, wrong)


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
    "KCI322": partial(malformed, rule="KCI322"),
    "KCI323": label_of_no_runner,
    "KCI326": unknown_kernel,
    "KCI328": tier_name_taken,
    "KCI329": tier_unknown,
    "KCI330": value_impossible,
}
