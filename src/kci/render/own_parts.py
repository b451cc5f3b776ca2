"""What a repository adds to its rendered workflows: steps at named points, jobs, and templates in place of kci's.

All of it lies in `.github/kci/`, where rendering never writes:

- `<point>.yml`: a list of steps, put where `POINTS` says;
- `jobs.yml`: jobs for kci.yml, by id;
- `templates/<name>`: a template in place of the one that kci ships, made from the very one that this kci ships.

A part that has no place any more is an error, never left out.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.render.committed import read_committed
from kci.render.pins import Pin, repinned
from kci.render.workflow_yaml import load_workflow
from kci.suggest import nearest

if TYPE_CHECKING:
    import jinja2

TEMPLATES = "github"
"""The folder of the templates among kci's."""

FOLDER = ".github/kci"
JOBS_FILE = f"{FOLDER}/jobs.yml"

POINTS = {
    "before-build": "in every build job, between the checkout and the build",
    "after-build": "in every build job, after the build succeeded",
    "before-merge": "in every merge job, after what the legs built was fetched",
    "after-merge": "in every merge job, after the tree was merged and verified; `steps.merge.outputs.tree` is the tree",
    "before-publish": "in every publish job, before anything leaves the runner",
}
"""The named points for steps, and where each of them is."""

_FIRST_LINE = re.compile(r"\A\[# kci-template: ([0-9a-f]{16}) #\]\n")
_HOLDS = re.compile(r"\b(?:always|cancelled|failure)\s*\(")
"""Status functions that let a job run behind a skipped one; `success()` is what holds for every job without any."""
_OF_NEEDS = re.compile(r"\$\{\{|\}\}|&&|[\s()!]|\b(?:always|cancelled)\b|\bneeds\.[\w-]+\.result\s*==\s*'success'")
_MARK = re.compile(r"^ *@@([a-z-]+)@@\n", re.MULTILINE)
_INDENT = {**dict.fromkeys(POINTS, 6), "jobs": 2}


class OwnParts(msgspec.Struct, frozen=True):
    """What was found, each part as the text of its file."""

    steps: dict[str, str] = {}
    """By point."""
    jobs: str = ""
    job_ids: tuple[str, ...] = ()
    results: dict[str, str] = {}
    """What the gate is told of a job, by its id: also the jobs that it needs, where nothing else decides of it."""
    templates: dict[str, str] = {}
    """By name; without the line that says what they were made from."""

    def parts(self) -> dict[str, str]:
        """The text of each point that has one, and of `jobs`."""
        return self.steps | ({"jobs": self.jobs} if self.jobs else {})

    def mark(self, part: str) -> str:
        """What a template puts where a part goes: a line that `fill` replaces; nothing without that part."""
        return f"@@{part}@@" if part in self.parts() else ""

    def fill(self, text: str, pins: Mapping[str, Pin], committed: str) -> str:
        """Put the parts into a rendered file with marks.

        Steps that use an action of kci's are pinned as kci pins it; newer committed pins of others are kept.
        """

        def filled(mark: re.Match[str]) -> str:
            part, indent = mark[1], " " * _INDENT[mark[1]]
            source = textwrap.indent(self.parts()[part].strip("\n"), indent)
            return f"{indent}# From {FOLDER}/{part}.yml\n{repinned(source, pins, committed)}\n"

        return _MARK.sub(filled, text)

    def without_place(self, files: Mapping[str, str]) -> list[Diagnostic]:
        """KCI423 for each part that no template has a mark for, by the rendered files before they are filled."""
        placed = {found[1] for text in files.values() for found in _MARK.finditer(text)}
        return [
            finding(
                "KCI423",
                f"there is no place for it: no rendered file has {POINTS.get(part, 'room for jobs')!r}",
                path=f"{FOLDER}/{part}.yml",
                hint="move its steps to another point, or remove the file",
            )
            for part in self.parts()
            if part not in placed
        ]


NO_PARTS = OwnParts()


@contextmanager
def overriding(environment: jinja2.Environment, own: OwnParts) -> Iterator[jinja2.Environment]:
    """The environment with the repository's templates in front of kci's.

    KCI422 is an error in one of the repository's templates; an error in kci's own is a bug and stays one.
    """
    import jinja2

    if not own.templates:
        yield environment
        return
    named = {f"{TEMPLATES}/{name}": text for name, text in own.templates.items()}
    shipped = [environment.loader] if environment.loader else []
    try:
        yield environment.overlay(loader=jinja2.ChoiceLoader([jinja2.DictLoader(named), *shipped]))
    except jinja2.TemplateError as error:
        where = f"{FOLDER}/templates/{sorted(own.templates)[0]}"
        problem = finding("KCI422", f"the templates do not render: {error}", path=where)
        raise FindingsError(f"{FOLDER}/templates: {error}", diagnostics=[problem]) from None


def read_own_parts(root: Path, templates: Mapping[str, str]) -> OwnParts:
    """Read `.github/kci/`; `templates` are those that kci ships, text by name.

    Raises:
        UnsafeError: a file, or a directory on the way, is a symbolic link.
        FindingsError: a file is not what its name says (KCI422), or has no place (KCI423).
    """
    folder = root / FOLDER
    found = [path for path in folder.glob("*") if path.name != "templates" or not path.is_dir()]
    found += folder.glob("templates/*")
    texts = read_committed(root, [path.relative_to(root).as_posix() for path in found])
    problems: list[Diagnostic] = []
    steps: dict[str, str] = {}
    own: dict[str, str] = {}
    jobs = ""
    for path, text in texts.items():
        name = path.removeprefix(f"{FOLDER}/")
        point = name.removesuffix(".yml")
        if name.startswith("templates/"):
            own[name.removeprefix("templates/")] = _FIRST_LINE.sub("", text)
            problems += _template_problems(path, text, templates)
        elif path == JOBS_FILE:
            jobs = text
            problems += _yaml_problems(path, text, jobs=True)
        elif point in POINTS and name.endswith(".yml"):
            steps[point] = text
            problems += _yaml_problems(path, text, jobs=False)
        elif name != "README.md":
            known = [*(f"{known}.yml" for known in POINTS), "jobs.yml", *(f"templates/{known}" for known in templates)]
            problems.append(finding("KCI423", f"{name} is not a part", path=path, hint=nearest(name, known)))
    if problems:
        raise FindingsError(f"{FOLDER}: these parts cannot be put into the workflow files", diagnostics=problems)
    ids = {str(job): value for job, value in load_workflow(jobs).items()} if jobs else {}
    results = {job: f"{job}/{','.join(_needs(value))}" for job, value in ids.items() if _runs_by_needs(value)}
    return OwnParts(steps, jobs, tuple(ids), results, own)


def _needs(job: Mapping[str, Any]) -> list[str]:
    needs = job.get("needs") or []
    return [needs] if isinstance(needs, str) else list(map(str, needs))


def _runs_by_needs(job: Mapping[str, Any]) -> bool:
    """Whether a job runs as soon as the jobs that it needs have succeeded, by its `if`."""
    return bool(_needs(job)) and _OF_NEEDS.sub("", str(job.get("if", ""))) == ""


def _skipped_jobs(path: str, jobs: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """KCI424: jobs that GitHub skips when any job before them, however far, is skipped, as many are by design."""
    for name, job in jobs.items():
        needs = _needs(job)
        if set(needs) <= {"plan"} or _HOLDS.search(str(job.get("if", ""))):
            continue
        results = "".join(f" && needs.{need}.result == 'success'" for need in needs)
        yield finding(
            "KCI424",
            f"GitHub skips `{name}` whenever a job before it is skipped, and kci's jobs without work are",
            path=path,
            hint=f"write `if: ${{{{ !cancelled(){results} }}}}`",
        )


def template_start(text: str) -> str:
    """The line that an override of a template begins with: it says what it was made from."""
    return f"[# kci-template: {hashlib.sha256(text.encode()).hexdigest()[:16]} #]\n"


def _template_problems(path: str, text: str, templates: Mapping[str, str]) -> Iterator[Diagnostic]:
    name = path.rpartition("/")[2]
    if name not in templates:
        yield finding("KCI423", f"kci has no template {name!r}", path=path, hint=nearest(name, templates))
    elif not text.startswith(template_start(templates[name])):
        message = "it was not made from the template that this kci ships, so what kci changed there would be lost"
        hint = f"compare it with `kci render --template {name}`, and take over its first line"
        yield finding("KCI423", message, path=path, hint=hint)


def _yaml_problems(path: str, text: str, *, jobs: bool) -> Iterator[Diagnostic]:
    try:
        value = load_workflow(text)
    except ValueError as error:
        yield finding("KCI422", f"not valid YAML: {error}", path=path)
        return
    if re.search(r"^(---|\.\.\.|%|@@)", text, re.MULTILINE) or "\t" in text:
        yield finding("KCI422", "it holds a document marker, a directive or a tab", path=path, hint="remove it")
    items = value
    if jobs:
        items = list(value.values()) if isinstance(value, dict) else None
    if jobs and isinstance(items, list) and all(isinstance(item, dict) for item in items):
        yield from _skipped_jobs(path, value)
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        what = "a table of jobs by id" if jobs else "a list of steps, each beginning with `- `"
        yield finding("KCI422", f"it must be {what}", path=path)
    elif not jobs and (wrong := next((step for step in items if ("run" in step) == ("uses" in step)), None)):
        yield finding("KCI422", f"a step has either `run` or `uses`: {str(wrong)[:80]}", path=path)
