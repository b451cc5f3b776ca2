"""What is known of the CI of repositories of kernels, and what does it in kci: `data/known_ci.toml`."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from kci.files.dated_data import Dated, shipped


class Becomes(enum.StrEnum):
    """What becomes of something that an existing CI does."""

    KCI = "kci"
    """kci does it."""
    GOES_ALONG = "goes-along"
    """Other steps need it; by itself nobody would miss it."""
    STAYS = "stays"
    """It has nothing to do with what kci does, and goes on as it is."""
    NOTHING = "nothing"
    """kci has no counterpart."""


class _Row(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    does: str
    becomes: Becomes
    now: str
    """What does it in kci, or why nothing does."""


class KnownPart(_Row, frozen=True, kw_only=True):
    """Something that workflows do, and how it is recognised; the file says what each key means."""

    uses: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    runs_on: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    with_backend: str = ""
    machine: str = ""
    limits: tuple[str, ...] = ()
    sets: dict[str, Any] = {}
    takes: dict[str, str] = msgspec.field(name="with", default={})
    option: dict[str, str] = {}


class KnownFile(_Row, frozen=True, kw_only=True):
    """A file beside the workflows, by patterns of its path."""

    path: tuple[str, ...]


class KnownFlake(_Row, frozen=True, kw_only=True):
    """An argument that a flake gives kernel-builder."""

    argument: str
    find: str
    drop: tuple[str, ...] = ()


class KnownValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value for kci.toml that stands in a file of CI."""

    path: tuple[str, ...]
    find: str
    key: str

    def found(self, text: str) -> Iterable[tuple[str, str, int]]:
        """The keys and values in a text, each with its line."""
        for match in re.finditer(self.find, text):
            line = text.count("\n", 0, match.start("value")) + 1
            yield self.key.format(**match.groupdict()), match["value"], line


class KnownCi(Dated, frozen=True):
    """The whole file."""

    part: tuple[KnownPart, ...]
    file: tuple[KnownFile, ...]
    flake: tuple[KnownFlake, ...]
    value: tuple[KnownValue, ...]
    inputs: dict[str, str]
    """Inputs of a dispatch, and what they are in kci."""
    mentions: dict[str, str]


known_ci = shipped("starter/data/known_ci.toml", KnownCi)


class FlakeArgument(msgspec.Struct, frozen=True):
    """What a flake gives kernel-builder, and what is known of it."""

    argument: str
    known: KnownFlake | None


def flake_arguments(text: str) -> list[FlakeArgument]:
    """What the flake of a kernel says beside its place; by its text, for kci does not evaluate Nix."""
    plain = " ".join(re.sub(r"#[^\n]*", "", text).split())
    start = plain.find("genKernelFlakeOutputs {")
    if start < 0:
        return [FlakeArgument("the whole file", None)]
    found = []
    for name, value in _assignments(plain[start:].partition("{")[2]):
        if (name, value) != ("path", "./."):
            rows = (row for row in known_ci().flake if row.argument == name and re.fullmatch(row.find, value))
            found.append(FlakeArgument(name, next(rows, None)))
    return found


def _assignments(text: str) -> Iterable[tuple[str, str]]:
    """The `name = value;` of an attribute set, up to its end; brackets, and `let` to `in`, hold values together."""
    level, start = 0, 0
    for match in re.finditer(r"[(){}\[\];]|\blet\b|\bin\b", text):
        level += {"let": 1, "in": -1}.get(match[0], (match[0] in "([{") - (match[0] in ")]}"))
        if level < 0:
            return
        if match[0] == ";" and level == 0:
            name, sign, value = text[start : match.start()].partition("=")
            start = match.end()
            if sign:
                yield name.strip(), value.strip()


class WorkflowStep(msgspec.Struct, frozen=True):
    """A step of a job, or a job that is another workflow."""

    job: str
    place: str
    """For people: the step's name, or its number."""
    uses: str
    """The action, without its version."""
    text: str
    """The script, and what the action is given."""
    given: Mapping[str, str]
    """What the action is given."""
    runs_on: tuple[str, ...]
    """The labels and the group of its job; an expression stands there as it is."""


def parts_of(step: WorkflowStep, triggers: Iterable[str]) -> list[KnownPart]:
    """What a step does. What other steps only need counts where it does nothing else."""
    found = [part for part in known_ci().part if (part.uses or part.run) and _fits(part, step, triggers)]
    said = [part for part in found if part.becomes is not Becomes.GOES_ALONG]
    return said or found


def parts_of_workflow(triggers: Iterable[str]) -> list[KnownPart]:
    """What a workflow does by being triggered so."""
    return [part for part in known_ci().part if not (part.uses or part.run) and set(part.on) & set(triggers)]


def _fits(part: KnownPart, step: WorkflowStep, triggers: Iterable[str]) -> bool:
    what = any(fnmatchcase(step.uses, pattern) for pattern in part.uses) or any(text in step.text for text in part.run)
    where = not part.runs_on or any(fnmatchcase(label, pattern) for label in step.runs_on for pattern in part.runs_on)
    return what and where and (not part.on or bool(set(part.on) & set(triggers)))
