"""A repository of kernels moves to kci: what its CI did, kci.toml, the workflows, and what changes for each kernel."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kci.config.discover import FaultyKernel
from kci.config.find_settings import locate
from kci.config.settings import KCI_TOML
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError, UsageError
from kci.files.cache import default_cache
from kci.files.git import run_git
from kci.inputs.source_tree import SourceTrees
from kci.matrix.variants import Variant
from kci.plan.plan import Leg, Plan
from kci.render.committed import default_branch, remove_files, write_files
from kci.render.repository import RenderedFiles, recorded, render_workflows, settings_text
from kci.starter.adopted_settings import FoundValues, Value, accepted, find_values, kci_toml_text, parse_settings
from kci.starter.existing_ci import ExistingCi, ExistingWorkflow, read_existing
from kci.starter.known_ci import Becomes, KnownPart
from kci.workspace.check import without_faulty
from kci.workspace.planning import plan_everything
from kci.workspace.workspace import Choice, Workspace, open_workspace


class Fate(msgspec.Struct, frozen=True):
    """What becomes of an existing workflow file."""

    workflow: ExistingWorkflow
    may_go: bool
    used_by: tuple[str, ...]
    """Workflows that stay and start it: it can go once they do without it."""
    starts: tuple[str, ...]
    """Workflows that stay and that it starts: without it they start by hand only."""


class KernelChange(msgspec.Struct, frozen=True):
    """What changes for one kernel."""

    name: str
    before: int
    """Variants of a release that the recognised workflows build."""
    after: int
    legs: int
    minutes: tuple[int, int]
    left_out: int


class Adoption(msgspec.Struct, frozen=True):
    """Everything about a repository that moves to kci; nothing of it is written yet."""

    root: Path
    ci: ExistingCi
    found: FoundValues
    settings: str
    """The text of kci.toml."""
    has_settings: bool
    """Whether that file is there already; then it stays as it is."""
    missing: tuple[Value, ...]
    """What was found and is not in the kci.toml that is there."""
    fates: tuple[Fate, ...]
    unused: tuple[str, ...]
    """Scripts that nothing needs once the workflows that may go have gone."""
    kernels: tuple[KernelChange, ...]
    plan: Plan
    costs: tuple[dict[str, float], dict[str, float]]
    """Of the legs that have a price, by currency: at least, and at most."""
    accepted: tuple[Value, ...]
    """Errors of `kci check` that kci.toml takes as they are."""
    by_hand: tuple[str, ...]
    """Settings on GitHub that no file can make."""
    unread: tuple[FaultyKernel, ...]
    rendered: RenderedFiles

    @property
    def files(self) -> dict[str, str]:
        """What is to be written, by path."""
        return {**({} if self.has_settings else {KCI_TOML: self.settings}), **self.rendered.files}

    @property
    def removable(self) -> list[str]:
        """The files that may go."""
        stays = [fate.workflow for fate in self.fates if not fate.may_go]
        needed = {path for workflow in stays for path in (workflow.path, *_reach(workflow, self.ci))}
        replaced = [
            path
            for path, row in self.ci.files
            if row.becomes is Becomes.KCI and not any(value.place.startswith(path) for value in self.missing)
            if not any(_names(self.ci.texts.get(file, ""), Path(path)) for file in needed)
        ]
        return [fate.workflow.path for fate in self.fates if fate.may_go] + replaced


def adopt(root: Path) -> Adoption:
    """Read a repository of kernels and its CI, and say what it becomes. Nothing is written.

    Raises:
        UsageError: it is not the root of a repository, or has no kernel.
        FindingsError: no kernel can be read, its kci.toml is not valid, or GitHub would not take the workflows.
        UnsafeError: a name or path holds an expression or control characters.
    """
    top, settings_file = locate(root)
    if top != root.resolve():
        raise UsageError(f"{root} is not the root of a repository", hint=f"name it: `kci adopt {top}`")
    remember = default_cache() / "inputs"
    workspace = open_workspace([str(root)], set_aside=True)
    ci = read_existing(root, [kernel.directory for kernel in workspace.kernels])
    found = find_values(root, ci, workspace.kernels)
    taken: list[Value] = []
    missing: tuple[Value, ...] = ()
    if settings_file is None:
        text = kci_toml_text(found.values)
        parse_settings(text)
        _, faulty = without_faulty(_with(workspace, text), Choice(), SourceTrees(remember))
        taken = accepted((_directory(item, root), error) for item in faulty for error in _errors(item))
        text = kci_toml_text([*found.values, *taken])
        workspace = _with(workspace, text)
    else:
        text = settings_file.read_text(encoding="utf-8")
        missing = tuple(value for value in found.values if not _has(workspace, value))
    sized = _with(workspace, kci_toml_text([*found.values, *taken, *_sizes(found)])) if not settings_file else workspace
    before = recorded(root)
    rendered = render_workflows(
        workspace,
        root,
        tuple(str(root / kernel) for kernel in before.kernels) or (str(root),),
        branch=before.branch or default_branch(root),
        by_commit=before.pin == "sha" if before.pin else None,
        remember=remember,
    )
    plan, fast = (plan_everything(item, "release", split=True) for item in (workspace, sized))
    fates = tuple(_fates(ci))
    return Adoption(
        root=root,
        ci=ci,
        found=found,
        settings=text,
        has_settings=settings_file is not None,
        missing=missing,
        fates=fates,
        unused=tuple(_unused(ci, fates)),
        kernels=tuple(_changes(workspace, ci, plan, fast)),
        plan=plan,
        costs=(_costs(fast.legs, 0.5), _costs(plan.legs, 2)),
        accepted=tuple(taken),
        by_hand=tuple(settings_text(workspace.settings.settings)),
        unread=workspace.unread,
        rendered=rendered,
    )


def write(adoption: Adoption, *, remove: bool) -> list[str]:
    """Write kci.toml and the workflows into the working tree; what changed, by path.

    Killed in between, it goes on where it ended: each file is whole or as it was.

    Args:
        adoption: what to write.
        remove: whether to remove what may go; only files that git has as they are.

    Raises:
        FindingsError: somebody else wrote one of the files, or git does not have what is to be removed; nothing is
            written.
    """
    adoption.rendered.require_own()
    gone = adoption.removable if remove else []
    if gone and run_git(adoption.root, "diff", "--quiet", "HEAD", "--", *gone) is None:
        raise FindingsError("nothing was written: a workflow to remove has changes", hint="commit them first")
    before = {path: (adoption.root / path).exists() for path in adoption.files}
    if not adoption.has_settings:
        write_files(adoption.root, {KCI_TOML: adoption.settings})
    adoption.rendered.write()
    remove_files(adoption.root, gone)
    changed = {path for path, there in before.items() if not there} | {*adoption.rendered.rewritten}
    return sorted(changed | set(gone))


def _with(workspace: Workspace, text: str) -> Workspace:
    """The same kernels under this kci.toml."""
    place = workspace.settings.root / KCI_TOML
    return workspace.at(lambda path: text.encode() if path == place else None)


def _directory(kernel: FaultyKernel, root: Path) -> str:
    return Path(kernel.path).resolve().relative_to(root.resolve()).as_posix()


def _errors(kernel: FaultyKernel) -> list[Diagnostic]:
    return [item for item in kernel.diagnostics if item.path]


def _has(workspace: Workspace, value: Value) -> bool:
    """Whether the kci.toml that is there says something about what was found."""
    document = workspace.settings.document
    place: Any = document.data if document else {}
    for key in value.key:
        if not isinstance(place, dict) or key not in place:
            return False
        place = place[key]
    if not isinstance(value.value, dict):
        return True
    names = {key: said for key, said in value.value.items() if isinstance(said, str)}
    return any(names.items() <= entry.items() and value.value.keys() <= entry.keys() for entry in place)


_LARGE = {"cpus": 32, "memory-gb": 256}
"""The size of a machine whose size nobody says, at most; GitHub's usual one is the other end."""


def _sizes(found: FoundValues) -> list[Value]:
    """The machines that build, each as large as `_LARGE`."""
    tables = dict.fromkeys(value.key[:-1] for value in found.values if value.key[0] == "runners")
    return [Value((*table, key), size, "") for table in tables for key, size in _LARGE.items()]


def _builds(ci: ExistingCi) -> Iterator[KnownPart]:
    for workflow in ci.workflows:
        yield from (part for part in workflow.parts if part.systems)


def _changes(workspace: Workspace, ci: ExistingCi, plan: Plan, fast: Plan) -> Iterator[KernelChange]:
    builds = list(_builds(ci))
    own = {kernel.build.name: {str(item) for item in kernel.build.general.backends} for kernel in workspace.kernels}

    def built(name: str, variant: Variant) -> bool:
        return any(
            variant.system in part.systems and (not part.with_backend or part.with_backend in own[name])
            for part in builds
        )

    left = Counter(item.kernel for item in plan.left_out)
    after = Counter(leg.kernel for leg in plan.legs for _ in leg.variants)
    for kernel in workspace.matrix(Choice()).kernels:
        legs = [leg for leg in plan.legs if leg.kernel == kernel.name]
        low = _minutes([leg for leg in fast.legs if leg.kernel == kernel.name], 0.5, fast is not plan)
        high = _minutes(legs, 2, fast is not plan)
        before = sum(built(kernel.name, variant) for variant in kernel.each_once())
        yield KernelChange(kernel.name, before, after[kernel.name], len(legs), (low, high), left[kernel.name])


def _minutes(legs: Sequence[Leg], factor: float, sized: bool) -> int:
    """What legs take: where the size of machines is a guess, its plan has it; elsewhere half to twice the estimate."""
    return sum(leg.minutes if sized and leg.rate is None else math.ceil(leg.minutes * factor) for leg in legs)


def _costs(legs: Sequence[Leg], factor: float) -> dict[str, float]:
    found: Counter[str] = Counter()
    for leg in legs:
        if leg.rate is not None:
            found[leg.currency] += leg.rate * leg.minutes * factor  # type: ignore[assignment]
    return {currency: round(cost, 2) for currency, cost in sorted(found.items())}


def _fates(ci: ExistingCi) -> Iterator[Fate]:
    """What becomes of each workflow, with who starts whom: by the names of files in scripts and steps."""
    reach = {workflow.path: _reach(workflow, ci) for workflow in ci.workflows}
    stays = {workflow.path for workflow in ci.workflows if not workflow.may_go and not workflow.by_kci}
    for workflow in ci.workflows:
        used_by = tuple(path for path in sorted(stays - {workflow.path}) if workflow.path in reach[path])
        starts = tuple(path for path in sorted(reach[workflow.path] & stays - {workflow.path}))
        yield Fate(workflow, workflow.may_go and not used_by, used_by, starts)


def _reach(workflow: ExistingWorkflow, ci: ExistingCi) -> set[str]:
    """The files of CI that the steps of a workflow name, and that those name."""
    names = [*ci.scripts, *(item.path for item in ci.workflows)]
    found: set[str] = set()
    pending = ["\n".join(step.text for step, _ in workflow.steps)]
    while pending:
        text = pending.pop()
        for path in names:
            if path not in found and _names(text, Path(path)):
                found.add(path)
                pending += [ci.texts.get(path, "")] if path in ci.scripts else []
    return found


def _names(text: str, path: Path) -> bool:
    imported = rf"|^\s*(?:import|from)\s+{re.escape(path.stem)}\b" if path.suffix == ".py" else ""
    return bool(re.search(rf"(?<![\w.-]){re.escape(path.name)}(?![\w.-]){imported}", text, re.MULTILINE))


def _unused(ci: ExistingCi, fates: Sequence[Fate]) -> Iterator[str]:
    needed: set[str] = set()
    for fate in fates:
        needed |= set() if fate.may_go else _reach(fate.workflow, ci)
    gone = {path for fate in fates if fate.may_go for path in _reach(fate.workflow, ci)}
    yield from (path for path in ci.scripts if path in gone - needed)
