"""What stands in a repository before kci: its workflows and what their steps do, the files beside them, and its docs.

All of it is somebody else's: files are bounded, links are not followed, and what is not recognised is said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from kci.files.bounded_json import read_plain
from kci.files.walk import walk
from kci.render.committed import written_by
from kci.render.workflow_yaml import load_workflow
from kci.starter.known_ci import (
    Becomes,
    FlakeArgument,
    KnownFile,
    KnownPart,
    WorkflowStep,
    flake_arguments,
    known_ci,
    parts_of,
    parts_of_workflow,
)

WORKFLOWS = ".github/workflows"
MOST_BYTES = 512_000
"""GitHub takes no larger workflow (docs, "Actions limits"); what is read of other files."""
MOST_STEPS = 5_000
"""Of one workflow."""


class Unrecognised(msgspec.Struct, frozen=True):
    """A step of which kci does not know what it does."""

    job: str
    place: str


class ExistingWorkflow(msgspec.Struct, frozen=True):
    """A workflow file, and what it does."""

    path: str
    triggers: tuple[str, ...] = ()
    crons: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    """Of a dispatch."""
    parts: tuple[KnownPart, ...] = ()
    steps: tuple[tuple[WorkflowStep, tuple[KnownPart, ...]], ...] = ()
    unrecognised: tuple[Unrecognised, ...] = ()
    jobs: Mapping[str, Mapping[str, Any]] = {}
    problem: str = ""
    """Why it could not be read."""
    by_kci: bool = False

    @property
    def does(self) -> tuple[KnownPart, ...]:
        """What it does, without what goes along."""
        return tuple(part for part in self.parts if part.becomes is not Becomes.GOES_ALONG)

    @property
    def may_go(self) -> bool:
        """Whether kci does all that it does; never where something was not recognised."""
        return bool(self.does) and not self.unrecognised and all(part.becomes is Becomes.KCI for part in self.does)


class Mention(msgspec.Struct, frozen=True):
    """A line of documentation about CI."""

    path: str
    line: int
    text: str
    now: str


class ExistingCi(msgspec.Struct, frozen=True):
    """The CI of a repository as it was found."""

    workflows: tuple[ExistingWorkflow, ...]
    files: tuple[tuple[str, KnownFile], ...]
    """Files beside the workflows that kci knows, by path."""
    scripts: tuple[str, ...]
    """The other files below `.github`."""
    flakes: tuple[tuple[str, FlakeArgument], ...]
    """What flakes say beside their place, by path."""
    mentions: tuple[Mention, ...]
    texts: Mapping[str, str]
    """What the files of CI say, by path; without those that could not be read."""
    problems: tuple[tuple[str, str], ...]
    """Files beside the workflows that were not read, and why."""


def read_existing(root: Path, kernels: Sequence[str] = ()) -> ExistingCi:
    """Read the CI of a repository; FindingsError if a directory cannot be read or a name is not UTF-8.

    Args:
        root: the root of the repository.
        kernels: the directories of its kernels.
    """
    workflows: list[ExistingWorkflow] = []
    texts: dict[str, str] = {}
    problems: list[tuple[str, str]] = []
    scripts: list[str] = []
    for entry in walk(root / ".github") if (root / ".github").is_dir() and not (root / ".github").is_symlink() else ():
        path = f".github/{entry.name}"
        a_workflow = re.fullmatch(rf"{re.escape(WORKFLOWS)}/[^/]+\.ya?ml", path, re.DOTALL)
        try:
            texts[path] = read_text(entry.path)
        except ValueError as error:
            if a_workflow:
                workflows.append(ExistingWorkflow(path, problem=str(error)))
            else:
                problems.append((path, str(error)))
            continue
        if a_workflow:
            workflows.append(read_workflow(path, texts[path]))
        else:
            scripts.append(path)
    files = list(_files(root))
    known = {path for path, _ in files}
    return ExistingCi(
        workflows=tuple(workflows),
        files=tuple(files),
        scripts=tuple(path for path in scripts if path not in known),
        flakes=tuple(_flakes(root, kernels, problems)),
        mentions=tuple(_mentions(root)),
        texts=texts,
        problems=tuple(problems),
    )


def read_text(path: Path) -> str:
    """The text of a file of the repository; ValueError with the reason if it cannot be read as one."""
    try:
        return read_plain(path, MOST_BYTES).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from None


def read_workflow(path: str, text: str) -> ExistingWorkflow:
    """What a workflow does, by its text."""
    if written_by(text):
        return ExistingWorkflow(path, by_kci=True)
    try:
        document = load_workflow(text)
    except ValueError as error:
        return ExistingWorkflow(path, problem=f"it is not YAML that GitHub takes: {error}")
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, dict) or not all(isinstance(job, dict) for job in jobs.values()):
        return ExistingWorkflow(path, problem="it is not a workflow: it has no jobs")
    said = document.get("on")
    triggers = said if isinstance(said, dict) else dict.fromkeys(said if isinstance(said, list) else [said])
    names = tuple(sorted(str(name) for name in triggers if name is not None))
    steps = list(_steps(jobs))
    if len(steps) > MOST_STEPS:
        return ExistingWorkflow(path, problem=f"it has {len(steps)} steps")
    matched = [(step, tuple(parts_of(step, names))) for step in steps]
    parts = [*parts_of_workflow(names), *(part for _, found in matched for part in found)]
    lines = triggers.get("schedule")
    dispatch = triggers.get("workflow_dispatch")
    inputs = dispatch.get("inputs") if isinstance(dispatch, dict) else None
    return ExistingWorkflow(
        path,
        triggers=names,
        crons=tuple(str(line.get("cron")) for line in lines if isinstance(line, dict))
        if isinstance(lines, list)
        else (),
        inputs=tuple(map(str, inputs)) if isinstance(inputs, dict) else (),
        parts=tuple({id(part): part for part in parts}.values()),
        steps=tuple(matched),
        unrecognised=tuple(Unrecognised(step.job, step.place) for step, found in matched if not found),
        jobs={str(name): job for name, job in jobs.items()},
    )


def _steps(jobs: Mapping[Any, Mapping[str, Any]]) -> Iterator[WorkflowStep]:
    for name, job in jobs.items():
        runs_on = _labels(job.get("runs-on"))
        listed = job.get("steps")
        if isinstance(job.get("uses"), str):
            listed = [{"uses": job["uses"], "with": job.get("with"), "name": "the whole job"}]
        for number, step in enumerate(listed if isinstance(listed, list) else (), 1):
            if not isinstance(step, dict):
                continue
            given = step.get("with")
            inputs = {str(key): str(value) for key, value in given.items()} if isinstance(given, dict) else {}
            uses = str(step.get("uses") or "").partition("@")[0]
            # An action's own script is what it is given; that of an unknown action says nothing about what it does.
            text = "\n".join([str(step.get("run") or ""), *(inputs.values() if uses else ())])
            place = str(step.get("name") or step.get("id") or uses or f"step {number}")
            yield WorkflowStep(str(name), place, uses, text, inputs, runs_on)


def _labels(said: Any) -> tuple[str, ...]:
    """The labels and the group that `runs-on` names."""
    if isinstance(said, dict):
        return tuple(map(str, [said["group"]] if said.get("group") else [])) + _labels(said.get("labels"))
    return tuple(map(str, said)) if isinstance(said, list) else (str(said),) if said else ()


def _files(root: Path) -> Iterator[tuple[str, KnownFile]]:
    """The files that rows of `[[file]]` name: below `.github`, at the top, and one folder down."""
    for row in known_ci().file:
        for pattern in row.path:
            for path in sorted(root.glob(pattern)):
                if path.is_file() and not path.is_symlink() and not path.parent.is_symlink():
                    yield path.relative_to(root).as_posix(), row


def _flakes(root: Path, kernels: Sequence[str], problems: list[tuple[str, str]]) -> Iterator[tuple[str, FlakeArgument]]:
    for place in (Path(kernel) / "flake.nix" for kernel in kernels):
        if not os.path.lexists(place):
            continue
        path = place.parent.resolve().relative_to(root.resolve()).joinpath(place.name).as_posix()
        try:
            yield from ((path, argument) for argument in flake_arguments(read_text(place)))
        except ValueError as error:
            problems.append((path, str(error)))


def _mentions(root: Path) -> Iterator[Mention]:
    places = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob(".github/*.md")]
    for path in sorted(places):
        try:
            lines = read_text(path).splitlines()
        except ValueError:
            continue
        for number, line in enumerate(lines, 1):
            said = [now for text, now in known_ci().mentions.items() if text in line]
            if said:
                yield Mention(path.relative_to(root).as_posix(), number, line.strip()[:200], said[0])


def matching(texts: Mapping[str, str], patterns: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The files whose path one of the patterns fits."""
    yield from ((path, text) for path, text in texts.items() if any(fnmatchcase(path, item) for item in patterns))
