"""From a workspace to workflow files: what is rendered, how large its runs get, and what that comes to here."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from kci.config.discovery import RepositorySettings
from kci.config.settings import KCI_TOML, Publish, Settings
from kci.config.values import Forks, Tier
from kci.diagnostics import Diagnostic, Severity, finding
from kci.errors import FindingsError, UsageError
from kci.matrix.variants import Kind
from kci.plan.check import require_readable
from kci.plan.estimates import check_time
from kci.plan.github_limits import check_limits
from kci.plan.plan import MAX_MATRIX, Plan, Role, caller_count
from kci.plan.planning import plan_everything
from kci.plan.workspace import Workspace
from kci.utils.git import run_git
from kci.version import __version__
from kci.workflows.extensions import read_own_parts
from kci.workflows.gitlab import render_gitlab
from kci.workflows.render import FILES, RELEASE_FILE, Inputs, render
from kci.workflows.rendered_files import (
    OWN,
    Comparison,
    RecordedOptions,
    choose_pins,
    compare,
    drift_diagnostics,
    fixed_pins,
    own_pin,
    read_committed,
    recorded_options,
    release_pin,
    remove_files,
    shipped_pins,
    unreleased,
    write_files,
)
from kci.workflows.snakemake import SnakemakeInputs, leg_sizes, render_snakemake


class Bounds(msgspec.Struct, frozen=True):
    """What there is to say about the size of the runs."""

    refused: list[Diagnostic]
    plans: dict[str, Plan]
    """Everything that a run of each tier can build."""


_GROWTH = 1.25
"""How much a repository is assumed to grow before its files are rendered again: a quarter in a year, about one more
release of torch and CUDA beside those that the catalog has, and a few more kernels."""


def with_growth(count: int) -> int:
    """A number of kernels, legs or jobs after the growth that a workflow file must have room for."""
    return math.ceil(count * _GROWTH)


def check_bounds(workspace: Workspace, *, short: bool = False) -> Bounds:
    """Count the largest run of each kind: everything that a push, a pull request or a schedule may build at once.

    The reusable workflow, which `short` files call, has one caller job. What no run would get past is KCI419.
    """
    settings = workspace.settings.settings
    tiers = {str(Tier.RELEASE): "a push", settings.pull_request.tier: "a pull request",
             settings.schedule.tier: "the scheduled run"}  # fmt: skip
    bounds = Bounds([], {tier: plan_everything(workspace, tier, split=True) for tier in tiers})
    # With room for growth: callers are counted for the kernels of tomorrow, so that none of them moves then.
    callers = 1 if short else caller_count(with_growth(len(workspace.kernels)))
    for tier, when in tiers.items():
        what, plan = f"{when} of everything (tier {tier})", bounds.plans[tier]
        errors = [item for item in check_limits(plan, callers) if item.severity is Severity.ERROR]
        bounds.refused.extend(finding("KCI419", f"{what}: {item.message}", hint=item.hint) for item in errors)
    return bounds


class RenderedFiles(msgspec.Struct, frozen=True):
    """The workflow files of a repository, and how the committed ones relate to them."""

    root: Path
    files: dict[str, str]
    """Text by path in the repository."""
    comparisons: tuple[Comparison, ...]
    diagnostics: tuple[Diagnostic, ...]
    """What is wrong with the committed files."""
    rewritten: tuple[str, ...] = ()
    """The files that writing changes, if only in a pin."""
    told: tuple[Diagnostic, ...] = ()
    """What whoever writes the files should know; nothing is wrong with the committed ones."""

    @property
    def left(self) -> list[str]:
        """Files that kci wrote and has no use for any more."""
        return [item.path for item in self.comparisons if item.path not in self.files]

    def write(self, *, force: bool = False) -> None:
        """Write the files, and remove those that are left from before; by force also over what somebody has edited.

        FindingsError, and nothing is written, if somebody wrote one of them by hand (KCI402), or without force if
        somebody has edited one (KCI406).
        """
        self.require_own(force=force)
        write_files(self.root, self.files)
        remove_files(self.root, self.left)

    def require_own(self, *, force: bool = False) -> None:
        """Refuse as `write` does."""
        kept = ("KCI402",) if force else ("KCI402", "KCI406")
        refused = [item for item in self.diagnostics if item.rule in kept]
        if refused:
            raise FindingsError("nothing was written", diagnostics=refused)


def render_workflows(
    workspace: Workspace,
    root: Path,
    kernels: Sequence[str] = (),
    *,
    branch: str = "main",
    by_commit: bool | None = None,
    short: bool = False,
) -> RenderedFiles:
    """Render the workflow files of a repository and compare them with the committed ones. Nothing is written.

    Args:
        workspace: the kernels that the workflows build.
        root: the root of the repository.
        kernels: the directories to name in the files, as they were given; by default the root.
        branch: pushes to it build a release.
        by_commit: name kci's own actions by the commit of this release, or by their major tag; by default by the tag
            where no committed file names a commit.
        short: write a file that calls kci's reusable workflow. What kci.toml asks for and that has no job for is told
            (KCI454).

    Raises:
        UsageError: a kernel lies outside of the root, or this kci has no release to name by its commit.
        FindingsError: a kernel has an error, a run would be too large for GitHub, or kci.toml pins an action that the
            files do not use.
        UnsafeError: a name or path holds an expression or control characters.
    """
    named = tuple(kernels) or (str(root),)
    chosen = workspace.settings.settings
    require_readable(workspace)
    bounds = check_bounds(workspace, short=short)
    # What tells kernels of different repositories apart best.
    names = {
        (kernel.build.general.hub and kernel.build.general.hub.repo_id) or kernel.build.name
        for kernel in workspace.kernels
    }
    legs_of = [leg for plan in bounds.plans.values() for leg in plan.legs]
    told = list(check_time({(leg.kernel, leg.name): leg for leg in legs_of}.values(), workspace.runners))
    inputs = Inputs(
        names=tuple(sorted(names)),
        kernels=tuple(sorted({_relative(kernel, root) for kernel in named})),
        submodules=has_submodules(root),
        lfs=has_lfs(root),
        branch=branch,
        pin="sha" if by_commit else "tag",
        callers=caller_count(with_growth(len(workspace.kernels))),
        pr_tier=chosen.pull_request.tier,
        forks=str(chosen.pull_request.forks),
        comment=chosen.pull_request.comment,
        schedule_tier=chosen.schedule.tier,
        schedule=chosen.schedule.cron or "",
        tiers=tuple(sorted(chosen.tiers)),
        tested=bool(workspace.runners.test),
        compiled=any(leg.kind is not Kind.NOARCH for leg in legs_of),
        nix=any(leg.builder for leg in legs_of),
        part_jobs=_part_jobs(bounds.plans.values()),
        publish=publish_jobs(workspace.settings),
        short=short,
    )
    if short:
        told += _only_in_long_files(chosen)
    named_ref = chosen.actions.ref is not None
    own = own_pin(chosen.actions, release_pin() if by_commit and not named_ref else shipped_pins()[OWN])
    fixed = ({OWN: own} if by_commit is False or named_ref else {}) | fixed_pins(chosen.actions.pins)
    committed = read_committed(root, FILES)
    parts = read_own_parts(root)
    pins = choose_pins(committed, fixed, own)
    files = render(inputs, pins, __version__, parts, committed)
    if bounds.refused:
        raise FindingsError("GitHub would not take these runs", diagnostics=bounds.refused)
    if reference := unreleased(pins):
        message = f"these workflows use {reference}, which does not exist before the first release of kci"
        hint = f"`[actions]` of {KCI_TOML}: `repository` and `ref`"
        told.append(finding("KCI450", message, hint=hint))
    compared = _compared(root, files, committed)
    return msgspec.structs.replace(compared, told=tuple(told))


def _only_in_long_files(chosen: Settings) -> list[Diagnostic]:
    asked = {
        "pull-request.comment": chosen.pull_request.comment,
        "pull-request.forks": chosen.pull_request.forks is Forks.DISPATCH,
    }
    hint = "remove the setting, or run `kci render --no-short`"
    message = "the short file has nothing for `{}` of " + KCI_TOML
    return [finding("KCI454", message.format(key), hint=hint) for key, is_set in asked.items() if is_set]


def render_gitlab_files(workspace: Workspace, root: Path, kernels: Sequence[str] = ()) -> RenderedFiles:
    """Render the file for GitLab and compare it with the committed one. Nothing is written; see `render_workflows`.

    What kci.toml asks for and no job of GitLab does is told (KCI454).
    """
    require_readable(workspace)
    told: list[Diagnostic] = []
    chosen = workspace.settings.settings
    if chosen.pull_request.comment:
        told.append(finding("KCI454", f"GitLab's file has nothing for `pull-request.comment` of {KCI_TOML}"))
    inputs = Inputs(
        names=(),
        kernels=tuple(sorted({_relative(kernel, root) for kernel in kernels or (str(root),)})),
        pr_tier=chosen.pull_request.tier,
        schedule_tier=chosen.schedule.tier,
        submodules=has_submodules(root),
        publish=publish_jobs(workspace.settings),
    )
    files = render_gitlab(inputs)
    compared = _compared(root, files, read_committed(root, files))
    return msgspec.structs.replace(compared, told=tuple(told))


def render_snakemake_file(workspace: Workspace, root: Path, kernels: Sequence[str] = ()) -> RenderedFiles:
    """Render the Snakefile of a release and compare it with the committed one; see `render_workflows`."""
    require_readable(workspace)
    plan = plan_everything(workspace, str(Tier.RELEASE), split=True)
    settings, place = workspace.settings.settings, Path(_relative(str(workspace.settings.root), root))
    legs = tuple(msgspec.structs.replace(leg, path=_relative(leg.path, root)) for leg in plan.legs)
    tests = tuple(msgspec.structs.replace(test, path=_relative(test.path, root)) for test in plan.tests)
    inputs = SnakemakeInputs(
        kernels=tuple(sorted({_relative(kernel, root) for kernel in kernels or (str(root),)})),
        plan=msgspec.structs.replace(plan, legs=legs, tests=tests),
        sources={
            kernel.build.name: (
                _relative(kernel.directory, root),
                KCI_TOML,
                *(os.path.normpath(place / path) for path in settings.inputs_of(kernel.build.name)),
            )
            for kernel in workspace.kernels
        },
        sizes=leg_sizes(plan, workspace.runners),
    )
    files = render_snakemake(inputs)
    return _compared(root, files, read_committed(root, files))


def has_submodules(root: Path) -> bool:
    """True if a checkout of the repository lacks files without its submodules."""
    return (root / ".gitmodules").is_file()


def has_lfs(root: Path) -> bool:
    """True if a .gitattributes of the repository, at its top or below, leaves files to Git LFS."""
    listed = run_git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.gitattributes")
    names = os.fsdecode(listed or b".gitattributes").split("\0")
    texts = [(root / name).read_text(encoding="utf-8", errors="replace") for name in names if (root / name).is_file()]
    return any(re.search(r"^[^#\n]*\sfilter=lfs\b", text, re.MULTILINE) for text in texts)


def _part_jobs(plans: Iterable[Plan]) -> int:
    """How many jobs compile parts; at least one where links take objects. There is room for more parts."""
    if not any(leg.role is not Role.WHOLE for plan in plans for leg in plan.legs):
        return 0
    parts = [Counter(leg.kernel for leg in plan.legs if leg.role is Role.PART) for plan in plans]
    most = max((max(found.values(), default=0) for found in parts), default=0)
    return max(1, -(-with_growth(most) // MAX_MATRIX))


def _compared(root: Path, files: dict[str, str], committed: Mapping[str, str]) -> RenderedFiles:
    comparisons = compare(files, committed)
    found = tuple(drift_diagnostics(comparisons))
    rewritten = tuple(path for path in sorted(files) if committed.get(path, "") != files[path])
    return RenderedFiles(root, files, tuple(comparisons), found, rewritten)


def recorded(root: Path, file: str = RELEASE_FILE) -> RecordedOptions:
    """The options that the committed files were rendered with, by the header of one; raises as `read_committed`."""
    return recorded_options(read_committed(root, (file,)).get(file, ""))


def publish_jobs(found: RepositorySettings) -> Publish | None:
    """How the kernels are published, where they are."""
    if not found.publishes:
        return None
    chosen = found.settings.publish
    return Publish(environment=chosen.environment, tags=chosen.tags, attest=chosen.attest, sign=chosen.sign)


def _relative(directory: str, root: Path) -> str:
    """The directory as the workflow will see it, from the root of the repository."""
    relative = os.path.relpath(Path(directory).resolve(), root.resolve())
    if relative == ".." or relative.startswith("../"):
        raise UsageError(f"{directory}: not below {root}", hint="name the root of the repository with --output")
    return Path(relative).as_posix()


def settings_text(settings: Settings, *, short: bool = False) -> list[str]:
    """The settings on GitHub that the workflows count on and that no file can make, a sentence or two each.

    `short`: whether kci.yml is the file that calls kci's reusable workflow.
    """
    check = "kci / kci" if short else "kci"
    lines = [
        f"Settings > Branches, or Rules > Rulesets: require the status check `{check}` on the branch that releases. "
        "It is red unless all that was planned was built, merged and verified.",
        "Settings > Actions > General > Fork pull request workflows: require approval for all external contributors. "
        "Their code then runs only after somebody has read it.",
        "Settings > Actions > General > Workflow permissions: read repository contents. Each job asks for what it "
        "needs.",
    ]
    if settings.runners:
        lines.append(
            "Settings > Actions > Runners: register the self-hosted runners that [runners] of kci.toml names. In a "
            "public repository, let them run nothing of forks, and prefer ones that are made new for every job."
        )
    if settings.pull_request.forks is Forks.DISPATCH and not short:
        lines += [
            "Settings > Environments: make `kci-own-machines`, with required reviewers and limited to the default "
            "branch. It is asked before a commit of a fork reaches a self-hosted runner.",
            "Require the commit status `kci/own-machines` beside the status check `kci`. It is missing, and so the "
            "merge waits, until somebody has started kci-own-machines.yml for the very commit.",
        ]
    lines.append(
        "To use the merge queue: Settings > Branches > Require merge queue. The workflow is already triggered by it."
    )
    return lines
