"""The kci.toml of a repository that moves to kci: each value that its CI has, with the place that it comes from."""

from __future__ import annotations

import datetime
import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kci.catalog.loading import editions, load_catalog
from kci.config.document import parse_document
from kci.config.reader import Kernel, read_as
from kci.config.settings import KCI_TOML, Settings
from kci.config.values import Backend
from kci.diagnostics import Diagnostic, printable
from kci.files.bounded_json import decode_json
from kci.starter.existing_ci import ExistingCi, ExistingWorkflow, matching, read_text
from kci.starter.known_ci import KnownPart, known_ci


class Value(msgspec.Struct, frozen=True):
    """A value of kci.toml, and where it comes from."""

    key: tuple[str, ...]
    value: Any
    """A table is one more of an array of tables, such as `[[limits]]`."""
    place: str

    @property
    def shown(self) -> str:
        """Table and key as a person writes them."""
        if isinstance(self.value, dict):
            return f"[[{'.'.join(self.key)}]]"
        table = ".".join(self.key[:-1])
        return f"[{table}] {self.key[-1]}" if table else self.key[-1]

    @property
    def text(self) -> str:
        """The value as TOML, on one line."""
        pairs = self.value.items() if isinstance(self.value, dict) else ()
        return ", ".join(f"{key} = {_toml(value)}" for key, value in pairs) or _toml(self.value)


class FoundValues(msgspec.Struct, frozen=True):
    """What goes into kci.toml, and what was seen and does not."""

    values: tuple[Value, ...]
    not_taken: tuple[tuple[str, str], ...]
    """What, and why not."""


_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_./: -]{0,254}[A-Za-z0-9_])?", re.ASCII)
"""What a runner's label or group can be, and any other name that goes into kci.toml."""


def find_values(root: Path, ci: ExistingCi, kernels: Sequence[Kernel]) -> FoundValues:
    """The values for kci.toml that the CI of a repository has."""
    values: list[Value] = [*_catalog(root, kernels)]
    not_taken: list[tuple[str, str]] = []
    for row in known_ci().value:
        for path, text in matching(ci.texts, row.path):
            values += [Value(tuple(key.split(".")), said, f"{path}:{line}") for key, said, line in row.found(text)]
    for workflow in ci.workflows:
        values += _of_workflow(workflow, ci.texts.get(workflow.path, ""), kernels, not_taken)
    values += _overlays(ci, kernels, root)
    values += _concurrency(root, ci, kernels, not_taken)
    return FoundValues(tuple(_once(values, not_taken)), tuple(dict.fromkeys(not_taken)))


def _catalog(root: Path, kernels: Sequence[Kernel]) -> Iterator[Value]:
    """The newest edition that is not newer than the newest kernel-builder that a flake of the kernels is locked to."""
    found = []
    for kernel in kernels:
        place = Path(kernel.directory) / "flake.lock"
        try:
            lock = decode_json(read_text(place), _Lock)
            found += [(node.locked.last_modified, place) for node in lock.nodes.values() if node.locked.is_builder]
        except ValueError:
            continue
    if found:
        newest, place = max(found)
        day = datetime.datetime.fromtimestamp(newest, datetime.UTC).date()
        fitting = [name for name in editions() if load_catalog(name).as_of <= day.isoformat()]
        if fitting and fitting[-1] != editions()[-1]:
            shown = place.resolve().relative_to(root.resolve()).as_posix()
            yield Value(("catalog",), fitting[-1], f"{shown}: the newest of the flakes, of {day}")


class _Locked(msgspec.Struct, frozen=True, rename={"last_modified": "lastModified"}):
    repo: str = ""
    last_modified: Annotated[int, msgspec.Meta(ge=0, le=4_000_000_000)] = 0

    @property
    def is_builder(self) -> bool:
        return self.repo in ("kernels", "kernel-builder")


class _Node(msgspec.Struct, frozen=True):
    locked: _Locked = _Locked()


class _Lock(msgspec.Struct, frozen=True):
    nodes: dict[str, _Node]


def _of_workflow(
    workflow: ExistingWorkflow, text: str, kernels: Sequence[Kernel], not_taken: list[tuple[str, str]]
) -> Iterator[Value]:
    from kci.render.workflow_yaml import line_numbers

    if not workflow.steps:
        return
    lines = line_numbers(text)

    def at(place: str) -> str:
        return f"{workflow.path}:{lines[place]}" if place in lines else workflow.path

    for step, parts in workflow.steps:
        for part in parts:
            for key, said in part.sets.items():
                if kept := _needed(key, said, kernels):
                    yield Value(tuple(key.split(".")), kept, f"{at(f'jobs.{step.job}')}, {step.place}")
            taken = {key: step.given[name] for name, key in part.takes.items() if name in step.given}
            taken |= {key: match[1] for option, key in part.option.items() if (match := _option(option, step.text))}
            for key, said in taken.items():
                if _NAME.fullmatch(said):
                    yield Value(tuple(key.split(".")), said, f"{at(f'jobs.{step.job}')}, {step.place}")
                else:
                    not_taken.append((f"{key} of {workflow.path}", "it is an expression, or no name"))
            job = workflow.jobs[step.job]
            if part.machine:
                yield from _machine(part, job, at(f"jobs.{step.job}.runs-on"), not_taken)
            if part.limits and "timeout-minutes" in job:
                yield from _timeouts(part, job, at(f"jobs.{step.job}.timeout-minutes"), kernels, not_taken)


def _option(name: str, text: str) -> re.Match[str] | None:
    return re.search(rf"{re.escape(name)}[ =]+([A-Za-z0-9][A-Za-z0-9_.-]{{0,95}})(?=\s|$)", text)


def _needed(key: str, said: Any, kernels: Sequence[Kernel]) -> Any:
    """Without the backends and systems for which no kernel is."""
    backends = {str(backend) for kernel in kernels for backend in kernel.build.general.backends}
    if key == "nix.backends":
        return [item for item in said if item in backends]
    return said if key != "nix.systems" or {"metal", "cpu"} & backends else None


def _machine(part: KnownPart, job: Mapping[str, Any], place: str, not_taken: list[tuple[str, str]]) -> Iterator[Value]:
    said = job.get("runs-on")
    group = said.get("group") if isinstance(said, dict) else None
    labels = said.get("labels") if isinstance(said, dict) else said
    listed = [labels] if isinstance(labels, str) else labels if isinstance(labels, list) else []
    names = [*([group] if group else []), *listed]
    if not names or not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        not_taken.append((place, "its runner is an expression, or no label: name it in kci.toml"))
        return
    table = tuple(part.machine.split("."))
    if group:
        yield Value((*table, "group"), group, place)
    if listed:
        yield Value((*table, "labels"), listed, place)


def _timeouts(
    part: KnownPart, job: Mapping[str, Any], place: str, kernels: Sequence[Kernel], not_taken: list[tuple[str, str]]
) -> Iterator[Value]:
    numbers = [int(number) for number in re.findall(r"(?<![\w.-])\d{1,5}(?![\w.-])", str(job["timeout-minutes"]))]
    if not numbers:
        not_taken.append((place, "its time is not a number"))
        return
    note = "" if len(numbers) == 1 else f", the longer of {' and '.join(map(str, numbers))}"
    declared = {str(backend) for kernel in kernels for backend in kernel.build.general.backends}
    for backend in part.limits:
        if backend in declared:
            yield Value(("limits",), {"backend": backend, "timeout-minutes": max(numbers)}, f"{place}{note}")


def _overlays(ci: ExistingCi, kernels: Sequence[Kernel], root: Path) -> Iterator[Value]:
    """What flakes narrow."""
    names = {Path(kernel.directory).resolve(): kernel.build.name for kernel in kernels}
    for path, argument in ci.flakes:
        if argument.known and argument.known.drop:
            kernel = names[(root / path).resolve().parent]
            yield Value(("overlay",), {"kernel": kernel, "drop": list(argument.known.drop)}, path)


_Count = Annotated[int, msgspec.Meta(ge=1, le=1024)]


class _Concurrency(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    max_jobs: _Count = 1
    cores: _Count = 1


def _concurrency(
    root: Path, ci: ExistingCi, kernels: Sequence[Kernel], not_taken: list[tuple[str, str]]
) -> Iterator[Value]:
    """What ran at once: so many builds, each with so many cores. A leg of kci has its machine to itself."""
    names = {Path(kernel.directory).resolve().name: kernel.build.name for kernel in kernels}
    for path, _ in ci.files:
        if not path.endswith("build-concurrency.json"):
            continue
        try:
            said = decode_json(read_text(root / path), dict[str, dict[str, _Concurrency]])
        except ValueError as error:
            not_taken.append((path, f"it has another form: {error}"))
            continue
        for kernel, backends in sorted(said.items()):
            for backend, limit in sorted(backends.items()):
                if kernel not in names or backend not in list(Backend):
                    not_taken.append((f"{path}: {kernel}, {backend}", "there is no such kernel or backend"))
                    continue
                at_once = {"max-jobs": limit.max_jobs * limit.cores}
                place = f"{path}: {limit.max_jobs} at once with {limit.cores} cores each"
                yield Value(("limits",), {"kernel": names[kernel], "backend": backend, **at_once}, place)


def _once(values: Iterable[Value], not_taken: list[tuple[str, str]]) -> Iterator[Value]:
    """Each key once: the first place that says it, and every other value among what is not taken."""
    seen: dict[object, Value] = {}
    for value in values:
        table = value.value if isinstance(value.value, dict) else None
        key = (value.key, *sorted(item for item in table.items() if isinstance(item[1], str))) if table else value.key
        first = seen.setdefault(key, value)
        if first is value:
            yield value
        elif first.value != value.value:
            not_taken.append((f"{value.shown} {value.text} ({value.place})", f"{first.place} says {first.text}"))


_HEAD = """\
# Written by `kci adopt` from what the CI of this repository says; behind each value is its place. It is yours now:
# change what you like. docs/kci-toml.md of kci has every key.
"""
_ORDER = ("overlay", "runners", "test", "limits", "nix", "engines", "schedule", "publish", "signing", "lint")


def kci_toml_text(values: Iterable[Value]) -> str:
    """The text of a kci.toml with these values."""
    tables: dict[tuple[str, ...], list[Value]] = {}
    for value in values:
        tables.setdefault(value.key if isinstance(value.value, dict) else value.key[:-1], []).append(value)
    blocks = [_HEAD]
    for table, inside in sorted(tables.items(), key=lambda item: _rank(item[0])):
        if not table:
            blocks.append("".join(_line(value.key[-1], value) for value in inside))
        elif isinstance(inside[0].value, dict):
            blocks += [f"[[{'.'.join(table)}]]  # {_comment(value)}\n{_pairs(value.value)}" for value in inside]
        else:
            blocks.append(f"[{'.'.join(table)}]\n" + "".join(_line(value.key[-1], value) for value in inside))
    return "\n".join(blocks)


def _rank(table: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
    return (_ORDER.index(table[0]) if table and table[0] in _ORDER else -1 if not table else len(_ORDER)), table


def _line(key: str, value: Value) -> str:
    return f"{key} = {_toml(value.value)}  # {_comment(value)}\n"


def _pairs(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())


def _comment(value: Value) -> str:
    return printable(value.place)[:300]


def _toml(value: Any) -> str:
    import tomlkit

    return str(tomlkit.item(value).as_string())


def parse_settings(text: str) -> Settings:
    """The settings of a text that kci wrote; FindingsError if a value is none that kci.toml can have."""
    return read_as(parse_document(text.encode(), KCI_TOML), Settings)


def accepted(found: Iterable[tuple[str, Diagnostic]]) -> list[Value]:
    """What `kci check` finds in kernels that are built and published as they are, as entries of `[[lint.ignore]]`.

    Args:
        found: errors, each with the directory of its kernel, relative to the root.
    """
    rows = {(item.rule, directory): item for directory, item in found}
    return [
        Value(
            ("lint", "ignore"),
            {"rule": rule, "path": f"{glob.escape(directory)}/*" if directory != "." else "*", "reason": _REASON},
            f"{item.message[:200]}; fix it, then remove this",
        )
        for (rule, directory), item in sorted(rows.items())
    ]


_REASON = "it was so, and published, before kci"
