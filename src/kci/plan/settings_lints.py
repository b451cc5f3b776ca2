"""Lints of kci.toml beyond types: one generator per rule, in `SETTINGS_LINTS`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from kci.config.discovery import RepositorySettings
from kci.config.document import KeyPath
from kci.config.facts import BACKENDS
from kci.config.file_lints import LintFinding, Lints, findings_of
from kci.config.settings import Machine, Settings
from kci.config.values import Tier, is_branch, quoted
from kci.diagnostics import Diagnostic, rules
from kci.matrix.catalog.runners import hosted_runners
from kci.utils.suggest import nearest, one_of


class _Subject(NamedTuple):
    settings: Settings
    kernels: Collection[str] | None

    def machines(self) -> Iterator[tuple[KeyPath, Machine]]:
        for name, table in (("runners", self.settings.runners), ("test", self.settings.test)):
            for backend, by_system in table.items():
                for system, machine in by_system.items() if isinstance(by_system, dict) else ():
                    yield (name, backend, system), machine


def lint_settings(settings: RepositorySettings, kernels: Collection[str] | None = None) -> list[Diagnostic]:
    """The findings of `SETTINGS_LINTS` in file order; names of kernels are checked only if `kernels` is given."""
    document = settings.document
    if document is None:
        return []
    return findings_of(document, SETTINGS_LINTS, _Subject(settings.settings, kernels), ("KCI328",))


def label_malformed(subject: _Subject) -> Iterator[LintFinding]:
    """KCI322: a label or group that no runner can have."""
    for path, machine in subject.machines():
        labels = [((*path, "labels", index), label) for index, label in enumerate(machine.labels or ())]
        if machine.group is not None:
            labels.append(((*path, "group"), machine.group))
        for place, label in labels:
            if not _LABEL.fullmatch(label):
                message = f"{quoted(label[:60])} is not a runner label"
                yield place, message, "letters, digits, spaces and `_ . - / :`, at most 256"


_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_./: -]{0,254}[A-Za-z0-9_])?", re.ASCII)


_OF_GITHUB = re.compile(r"(?:ubuntu|macos|windows)-\d[\d.]*(?:-arm|-intel)?")


def label_of_no_runner(subject: _Subject) -> Iterator[LintFinding]:
    """KCI323: a label that looks like one of GitHub's and is unknown, retired or of another system."""
    hosted = hosted_runners()
    for path, machine in subject.machines():
        if machine.group is not None or "self-hosted" in (machine.labels or ()):
            continue
        system = str(path[2])
        instead = one_of(label for label, its in hosted.labels.items() if its == system and label not in hosted.short)
        for index, text in enumerate(machine.labels or ()):
            label, place = text.lower(), (*path, "labels", index)
            if label in hosted.retired:
                yield place, f"GitHub has retired {quoted(label)}: its jobs fail, or wait forever", instead
            elif label in hosted.labels:
                if hosted.labels[label] != system:
                    yield place, f"{quoted(label)} is a machine of {hosted.labels[label]}, not of {system}", instead
                elif label in hosted.short and path[0] == "runners" and path[1] != "noarch":
                    message = (
                        f"a job on {quoted(label)} ends after {hosted.short[label]} minutes, and has no containers"
                    )
                    yield place, message, instead
            elif _OF_GITHUB.fullmatch(label):
                message = (
                    f"GitHub has no hosted runner {quoted(text[:60])}: without a self-hosted one, jobs wait forever"
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
            yield ("tiers", name), message, f'for example `[tiers.my-{name}]` with `base = "{name}"`'
        elif not re.fullmatch(r"[a-z][a-z0-9-]{0,63}", name, re.ASCII):
            message = f"{quoted(name[:60])} cannot be a tier's name"
            yield ("tiers", name), message, "lower-case letters, digits and dashes"


def tier_unknown(subject: _Subject) -> Iterator[LintFinding]:
    """KCI329: a pull request or schedule with an unknown tier."""
    names = [*(str(tier) for tier in Tier), *subject.settings.tiers]
    for key, tier in (
        ("pull-request", subject.settings.pull_request.tier),
        ("schedule", subject.settings.schedule.tier),
    ):
        if tier not in names:
            yield (key, "tier"), f"there is no tier {quoted(tier[:60])}", nearest(tier, names)


def value_impossible(subject: _Subject) -> Iterator[LintFinding]:
    """KCI330: an impossible value of the right type: a cron line, commit, image or number."""
    for path, value, fits, expected in _values(subject):
        if value is not None and not fits(value):
            yield path, f"`{'.'.join(map(str, path))[:100]}` must be {expected}", ""


def _values(subject: _Subject) -> Iterator[tuple[KeyPath, Any, Callable[[Any], object], str]]:
    # place, value or None, predicate, expectation in words
    settings = subject.settings
    for path, machine in subject.machines():
        for key in ("cpus", "memory-gb", "pool-size"):
            yield (*path, key), getattr(machine, key.replace("-", "_")), lambda number: number >= 1, "at least 1"
        price = f"a number from 0 to {_MOST_EXPENSIVE}"
        yield (*path, "price"), machine.price, lambda price: 0 <= price <= _MOST_EXPENSIVE, price
        yield (*path, "labels"), machine.labels if machine.group is None else None, bool, "at least one label"
    for index, limit in enumerate(settings.limits):
        for key in ("max-jobs", "cores", "timeout-minutes", "parts"):
            number = getattr(limit, key.replace("-", "_"))
            yield ("limits", index, key), number, range(1, _MOST + 1).__contains__, f"from 1 to {_MOST}"
    for backend in settings.images:
        why = f"left out: {BACKENDS[backend].title} is built on macOS"
        yield ("images", backend), backend, lambda name: not BACKENDS[name].macos, why
    for path, image in _images(settings):
        yield path, image, _IMAGE.fullmatch, "a container image, such as `docker.io/owner/name:tag`"
        compute = str(path[3]) if len(path) == 4 else None
        yield path, compute, re.compile(r"\d{1,3}\.\d{1,3}").fullmatch, "for a version such as `13.0`"
    for index, ignored in enumerate(settings.lint.ignore):
        yield ("lint", "ignore", index, "rule"), ignored.rule, rules().__contains__, "a rule that `kci explain` lists"
        yield ("lint", "ignore", index, "reason"), ignored.reason, str.strip, "why the rule does not hold there"
    schedule, publish = settings.schedule, settings.publish
    cron = cron_problem(schedule.cron) if schedule.cron is not None else ""
    yield ("schedule", "cron"), cron or None, lambda _problem: False, cron
    yield ("checkout", "token"), settings.checkout.token, _SECRET.fullmatch, "a secret's name, such as `READ_TOKEN`"
    for index, system in enumerate(settings.nix.systems):
        runs = "a system on which Nix runs, which is none of Windows"
        yield ("nix", "systems", index), system, lambda name: not name.endswith("-windows"), runs
    actions = settings.actions
    yield ("actions", "repository"), actions.repository, _REPOSITORY.fullmatch, "a repository as `owner/name`"
    yield ("actions", "ref"), actions.ref, is_branch, "a tag, a branch or a full commit id"
    for action, pin in actions.pins.items():
        place = ("actions", "pins", action)
        yield place, action, _ACTION.fullmatch, "an action as `owner/name`"
        yield (*place, "sha"), pin.sha, _SHA.fullmatch, "a full commit id of 40 hex digits"
        yield (*place, "version"), pin.version or None, _VERSION.fullmatch, "a version such as `v4.2.1`"
    branch = "the name of a branch; only {version} stands for something"
    yield ("publish", "repo-prefix"), publish.repo_prefix, _OWNER.fullmatch, "an owner on the Hub"
    yield ("publish", "branch"), publish.branch, is_branch, branch
    yield ("publish", "environment"), publish.environment, _LABEL.fullmatch, "the name of an environment"
    yield ("publish", "tags"), publish.tags, _are_tags, "patterns for tags, such as `v*`"


def _are_tags(patterns: Collection[str]) -> bool:
    return bool(patterns) and all(_TAG.fullmatch(pattern) for pattern in patterns)


_MOST_EXPENSIVE = 1_000_000

_MOST = 9999

_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:-]*(?::[A-Za-z0-9_.{}-]{1,128})?(?:@sha256:[0-9a-f]{64})?", re.ASCII)
_ACTION = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+){1,4}", re.ASCII)
_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_SHA = re.compile(r"[0-9a-f]{40}", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9._+-]{1,64}", re.ASCII)
_OWNER = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_*][A-Za-z0-9_.*?+/-]{0,99}", re.ASCII)
_SECRET = re.compile(r"(?!GITHUB_)[A-Z_][A-Z0-9_]{0,99}", re.ASCII | re.IGNORECASE)
_CRON: tuple[tuple[range, list[str]], ...] = (
    (range(60), []),
    (range(24), []),
    (range(1, 32), []),
    (range(1, 13), ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
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
            return f"five fields, with values from {allowed[0]} to {allowed[-1]} in {quoted(field[:60])}"
        values.append({value for part in parts for value in part})
    minutes, hours, days, months, _ = values
    if fields[4].startswith("*") and not any(day <= _DAYS[month - 1] for day in days for month in months):
        return "a cron line with a day that comes: no month of it has one"
    starts = sorted(60 * hour + minute for hour in hours for minute in minutes)
    if any(later - start < _CLOSEST for start, later in pairwise([*starts, starts[0] + 24 * 60])):
        return f"a cron line with {_CLOSEST} minutes between two runs: GitHub starts no schedule more often"
    return ""


def _cron_values(part: str, allowed: range, names: list[str]) -> range:
    match = _CRON_PART.fullmatch(part)
    first, last, step = match.groups() if match else ("none", None, None)
    last = last or (first if first and not step else str(allowed[-1]))
    ends = [names.index(end) + allowed[0] if end in names else int(end[:9]) if end.isdigit() else -1
            for end in (first or str(allowed[0]), last)]  # fmt: skip
    return range(ends[0], ends[1] + 1, int(step or 1)) if all(end in allowed for end in ends) else range(0)


def _images(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    for backend, table in settings.images.items():
        for keys, image in table.images():
            yield ("images", backend, *keys), image


SETTINGS_LINTS: Lints[_Subject] = {
    "KCI322": label_malformed,
    "KCI323": label_of_no_runner,
    "KCI326": unknown_kernel,
    "KCI328": tier_name_taken,
    "KCI329": tier_unknown,
    "KCI330": value_impossible,
}
