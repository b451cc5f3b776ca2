"""Steps and jobs that a repository adds to its rendered workflows: `<point>.yml` and `jobs.yml` in
`.github/kci/`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Hashable, Iterator, Mapping
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
    """Parse a workflow file as GitHub does; ValueError, one line, for anything else."""
    import yaml

    try:
        level = 0
        for event in yaml.parse(text, Loader=_loader()):
            level += isinstance(event, yaml.CollectionStartEvent)
            level -= isinstance(event, yaml.CollectionEndEvent)
            if level > _MOST_LEVELS:
                raise ValueError("it is nested too deeply")
        loader = _loader()(text)
        try:
            node = loader.get_single_node()
            if _size(node, {}) > _MOST_NODES:
                raise ValueError("its aliases make it too large")
            return loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None


def _size(node: Any, sizes: dict[int, int]) -> int:
    import yaml

    if id(node) not in sizes:
        sizes[id(node)] = _MOST_NODES + 1
        below = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            below = [part for pair in node.value for part in pair]
        sizes[id(node)] = 1 + sum(_size(item, sizes) for item in below)
    return sizes[id(node)]


@cache
def _loader() -> type:
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Strict(base):  # type: ignore[misc, valid-type]
        def construct_mapping(
            self, node: yaml.MappingNode, deep: bool = False
        ) -> dict[Hashable, Any]:
            keys: set[str] = set()
            for key, _ in node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    raise yaml.YAMLError(
                        f"line {key.start_mark.line + 1}: GitHub knows no merge key `<<`"
                    )
                if isinstance(key, yaml.ScalarNode):
                    if key.value in keys:
                        raise yaml.YAMLError(
                            f"line {key.start_mark.line + 1}: the key `{key.value}` is there twice"
                        )
                    keys.add(key.value)
            mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
            return mapping

    other = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "timestamp")}
    resolvers = {
        start: [rule for rule in rules if rule[0] not in other]
        for start, rules in base.yaml_implicit_resolvers.items()
    }
    Strict.yaml_implicit_resolvers = resolvers
    Strict.add_implicit_resolver(
        "tag:yaml.org,2002:bool", re.compile("(?:true|True|TRUE|false|False|FALSE)$"), [*"tTfF"]
    )
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
    """The files in `.github/kci/`, as text."""

    steps: dict[str, str] = {}
    jobs: str = ""
    job_ids: tuple[str, ...] = ()
    results: dict[str, str] = {}
    """The entry of a job in the gate's input, by id, with its `needs` where nothing else decides
    whether it runs."""

    def parts(self) -> dict[str, str]:
        return self.steps | ({"jobs": self.jobs} if self.jobs else {})

    def mark(self, part: str) -> str:
        """The line of a template that `fill` replaces; empty without that file."""
        return f"@@{part}@@" if part in self.parts() else ""

    def fill(self, text: str, pins: Mapping[str, Pin], committed: str) -> str:
        """Replace the marks of a rendered file. kci's actions get kci's pins; others keep a newer
        committed pin.
        """

        def filled(mark: re.Match[str]) -> str:
            part, indent = mark[1], " " * _INDENT[mark[1]]
            source = textwrap.indent(self.parts()[part].strip("\n"), indent)
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
            for part in self.parts()
            if part not in placed
        ]

    def misplaced_jobs(self, text: str) -> list[Diagnostic]:
        """KCI423 for each job with an id of kci's jobs or with a missing need."""
        own_ids = set(re.findall(r"^  ([\w-]+):$", text.partition("\njobs:\n")[2], re.MULTILINE))
        problems = [f"kci has a job with the id `{job}`" for job in self.job_ids if job in own_ids]
        for name, job in load_workflow(self.jobs).items() if self.jobs else ():
            gone = {*_needs(job)} - own_ids - {*self.job_ids}
            problems += [
                f"job `{name}` needs `{need}`, which does not exist" for need in sorted(gone)
            ]
        return [finding("KCI423", message, JOBS_FILE) for message in problems]


NO_EXTENSIONS = WorkflowExtensions()


def read_extensions(root: Path) -> WorkflowExtensions:
    """Read `.github/kci/`; UnsafeError for a symbolic link, FindingsError for a bad file (KCI422)
    or place (KCI423).
    """
    texts = read_committed(
        root, [path.relative_to(root).as_posix() for path in (root / EXTENSIONS).glob("*")]
    )
    problems: list[Diagnostic] = []
    steps: dict[str, str] = {}
    parts = {f"{part}.yml": part for part in _INDENT}
    for path, text in texts.items():
        name = path.removeprefix(f"{EXTENSIONS}/")
        if part := parts.get(name):
            steps[part] = text
            problems += _yaml_problems(path, text, jobs=part == "jobs")
        elif name != "README.md":
            problems.append(
                finding("KCI423", f"{name} is not a part", path, hint=nearest(name, parts))
            )
    if problems:
        raise FindingsError(
            f"{EXTENSIONS}: these parts cannot be put into the workflow files", diagnostics=problems
        )
    jobs = steps.pop("jobs", "")
    ids = {str(job): value for job, value in load_workflow(jobs).items()} if jobs else {}
    results = {
        job: f"{job}/{','.join(_needs(value))}"
        for job, value in ids.items()
        if _runs_by_needs(value)
    }
    return WorkflowExtensions(steps, jobs, tuple(ids), results)


def _needs(job: Mapping[str, Any]) -> list[str]:
    needs = job.get("needs") or []
    return [needs] if isinstance(needs, str) else list(map(str, needs))


def _runs_by_needs(job: Mapping[str, Any]) -> bool:
    return bool(_needs(job)) and _OF_NEEDS.sub("", str(job.get("if", ""))) == ""


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


def _yaml_problems(path: str, text: str, *, jobs: bool) -> Iterator[Diagnostic]:
    try:
        value = load_workflow(text)
    except ValueError as error:
        yield finding("KCI422", f"not valid YAML: {error}", path)
        return
    if re.search(r"^(---|\.\.\.|%|@@)", text, re.MULTILINE) or "\t" in text:
        yield finding(
            "KCI422", "it holds a document marker, a directive or a tab", path, hint="remove it"
        )
    items = value
    if jobs:
        items = list(value.values()) if isinstance(value, dict) else None
    if (
        not isinstance(items, list)
        or not items
        or not all(isinstance(item, dict) for item in items)
    ):
        what = "a table of jobs by id" if jobs else "a list of steps, each beginning with `- `"
        yield finding("KCI422", f"it must be {what}", path)
    elif jobs:
        yield from _skipped_jobs(path, value)
    elif wrong := next((step for step in items if ("run" in step) == ("uses" in step)), None):
        yield finding("KCI422", f"a step has either `run` or `uses`: {str(wrong)[:80]}", path)
