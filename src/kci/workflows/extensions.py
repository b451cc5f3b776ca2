"""Steps and jobs that a repository adds to its rendered workflows: `<point>.yml` and `jobs.yml` in
`.github/kci/`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kci.config.settings import EXTENSIONS
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.utils.frozen import Frozen
from kci.utils.suggest import nearest
from kci.workflows.rendered_files import Pin, apply_pins, read_committed

_MOST_NODES = 500_000
_MOST_LEVELS = 100
"""Deeper nesting overflows the stack of the C parser."""


def load_workflow(text: str) -> Any:
    """Parse a workflow file as GitHub does, each scalar as text; ValueError, one line, for anything
    else.
    """
    import yaml

    nodes, begun, sizes = 0, list[tuple[str | None, int]](), dict[str | None, int]()
    try:
        for event in yaml.parse(text, Loader=_loader()):
            nodes += sizes.get(event.anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
            if isinstance(event, yaml.CollectionStartEvent):
                begun.append((event.anchor, nodes))
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = begun.pop()
                sizes[anchor] = nodes - before
            if len(begun) > _MOST_LEVELS or nodes > _MOST_NODES:
                raise ValueError("it is nested too deeply, or its aliases make it too large")
        return _loader()(text).get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None


@cache
def _loader() -> type:
    import yaml

    class Strict(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
            mapping: dict[str, Any] = super().construct_mapping(node, deep)
            keys = {"<<"}
            for key, _ in node.value:
                if key.value in keys:
                    what = f"line {key.start_mark.line + 1}: the key `{key.value}` is there twice"
                    raise yaml.YAMLError(f"{what}, or merges: GitHub takes neither")
                keys.add(key.value)
            return mapping

    return Strict


JOBS_FILE = f"{EXTENSIONS}/jobs.yml"

POINTS = {
    "before-build": "in every build job, between the checkout and the build",
    "after-build": "in every build job, after the build succeeded",
    "before-merge": "in every merge job, after what the legs built was fetched",
    "after-merge": "in every merge job, after the tree was merged and verified; "
    "`steps.merge.outputs.tree` is the tree",
    "before-publish": "in every publish job, before anything leaves the runner",
}

_HOLDS = re.compile(r"\b(?:always|cancelled|failure)\s*\(")
"""Status functions that let a job run after a skipped one; `success()` is the default."""
_OF_NEEDS = re.compile(
    r"\$\{\{|\}\}|&&|[\s()!]|\b(?:always|cancelled)\b|\bneeds\.[\w-]+\.result\s*==\s*'success'"
)
_MARK = re.compile(r"^ *@@([a-z-]+)@@\n", re.MULTILINE)
_INDENT = {**dict.fromkeys(POINTS, 6), "jobs": 2}


class WorkflowExtensions(Frozen):
    """The files in `.github/kci/`."""

    parts: dict[str, str] = {}
    """Their texts, by their names without `.yml`."""

    @property
    def jobs(self) -> dict[str, Any]:
        """The jobs of `jobs.yml`, by id."""
        jobs: dict[str, Any] = load_workflow(self.parts.get("jobs", "{}"))
        return jobs

    def results(self) -> dict[str, str]:
        """The entry of each job in the gate's input, by id, with its `needs` where nothing else
        decides whether it runs.
        """
        results = {}
        for name, job in self.jobs.items():
            needs = _needs(job)
            runs_by_needs = needs and not _OF_NEEDS.sub("", str(job.get("if", "")))
            results[name] = f"{name}/{','.join(needs)}" if runs_by_needs else name
        return results

    def mark(self, part: str) -> str:
        """The line of a template that `fill` replaces; empty without that file."""
        return f"@@{part}@@" if part in self.parts else ""

    def fill(self, text: str, pins: Mapping[str, Pin], committed: str) -> str:
        """Replace the marks of a rendered file. kci's actions get kci's pins; others keep a newer
        committed pin.
        """

        def filled(mark: re.Match[str]) -> str:
            part, indent = mark[1], " " * _INDENT[mark[1]]
            source = textwrap.indent(self.parts[part].strip("\n"), indent)
            return (
                f"{indent}# From {EXTENSIONS}/{part}.yml\n{apply_pins(source, pins, committed)}\n"
            )

        return _MARK.sub(filled, text)

    def unplaced_parts(self, files: Mapping[str, str]) -> list[Diagnostic]:
        """KCI423 for each file whose mark is in no rendered file."""
        placed = {match[1] for text in files.values() for match in _MARK.finditer(text)}
        return [
            finding(
                "KCI423",
                "there is no place for it: no rendered file has "
                f"{POINTS.get(part, 'room for jobs')!r}",
                f"{EXTENSIONS}/{part}.yml",
                hint="move its steps to another point, or remove the file",
            )
            for part in self.parts
            if part not in placed
        ]

    def misplaced_jobs(self, text: str) -> list[Diagnostic]:
        """KCI423 for each job with an id of kci's jobs or with a missing need."""
        own_ids = set(re.findall(r"^  ([\w-]+):$", text.partition("\njobs:\n")[2], re.MULTILINE))
        jobs = self.jobs
        problems = [f"kci has a job with the id `{job}`" for job in jobs if job in own_ids]
        for name, job in jobs.items():
            gone = {*_needs(job)} - own_ids - jobs.keys()
            problems += [
                f"job `{name}` needs `{need}`, which does not exist" for need in sorted(gone)
            ]
        return [finding("KCI423", message, JOBS_FILE) for message in problems]


NO_EXTENSIONS = WorkflowExtensions()


def read_extensions(root: Path) -> WorkflowExtensions:
    """Read `.github/kci/`; UnsafeError for a symbolic link, FindingsError for a bad file (KCI422)
    or place (KCI423).
    """
    files = [path.relative_to(root).as_posix() for path in (root / EXTENSIONS).glob("*")]
    names = {f"{part}.yml": part for part in _INDENT}
    parts: dict[str, str] = {}
    problems: list[Diagnostic] = []
    for path, text in read_committed(root, files).items():
        name = Path(path).name
        if name in names:
            parts[names[name]] = text
            problems += _yaml_problems(path, text)
        elif name != "README.md":
            hint = nearest(name, names)
            problems.append(finding("KCI423", f"{name} is not a part", path, hint=hint))
    if problems:
        raise FindingsError(
            f"{EXTENSIONS}: these parts cannot be put into the workflow files", diagnostics=problems
        )
    return WorkflowExtensions(parts)


def _needs(job: Mapping[str, Any]) -> list[str]:
    needs = job.get("needs") or []
    return [needs] if isinstance(needs, str) else list(map(str, needs))


def _skipped_jobs(path: str, jobs: Mapping[str, Any]) -> Iterator[Diagnostic]:
    for name, job in jobs.items():
        needs = _needs(job)
        if set(needs) <= {"plan"} or _HOLDS.search(str(job.get("if", ""))):
            continue
        results = "".join(f" && needs.{need}.result == 'success'" for need in needs)
        yield finding(
            "KCI424",
            f"GitHub skips `{name}` whenever a job before it is skipped, and kci's jobs without "
            "work are",
            path,
            hint=f"write `if: ${{{{ !cancelled(){results} }}}}`",
        )


def _yaml_problems(path: str, text: str) -> Iterator[Diagnostic]:
    try:
        value = load_workflow(text)
    except ValueError as error:
        yield finding("KCI422", f"not valid YAML: {error}", path)
        return
    if re.search(r"^(---|\.\.\.|%|@@)", text, re.MULTILINE) or "\t" in text:
        yield finding(
            "KCI422", "it holds a document marker, a directive or a tab", path, hint="remove it"
        )
    jobs, items = path == JOBS_FILE, value
    if jobs:
        items = isinstance(value, dict) and [*value.values()]
    if not items or not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        what = "a table of jobs by id" if jobs else "a list of steps, each beginning with `- `"
        yield finding("KCI422", f"it must be {what}", path)
    elif jobs:
        yield from _skipped_jobs(path, value)
    elif wrong := next((step for step in items if ("run" in step) == ("uses" in step)), None):
        yield finding("KCI422", f"a step has either `run` or `uses`: {str(wrong)[:80]}", path)
