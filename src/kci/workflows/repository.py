"""Workflow files of a workspace: rendering, the limits of its runs, and drift from the committed
files.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kci.config.discovery import RepositorySettings
from kci.config.settings import KCI_TOML, Checkout, Publish, Settings
from kci.config.values import Forks, PublishOn, Tier
from kci.diagnostics import Diagnostic, errors_in, finding
from kci.errors import FindingsError, UsageError
from kci.matrix.variants import Kind
from kci.plan.budget import check_time
from kci.plan.check import require_readable
from kci.plan.github_limits import check_limits
from kci.plan.plan import MAX_MATRIX, Plan, Role, caller_count
from kci.plan.planning import plan_everything
from kci.plan.workspace import Workspace
from kci.utils.frozen import Frozen
from kci.utils.git import run_git
from kci.version import __version__
from kci.workflows.extensions import read_extensions
from kci.workflows.gitlab import render_gitlab
from kci.workflows.render import FILES, RELEASE_FILE, Inputs, render, render_snakemake
from kci.workflows.rendered_files import (
    Comparison,
    RecordedOptions,
    choose_pins,
    compare,
    drift_diagnostics,
    is_released,
    read_committed,
    recorded_options,
    remove_files,
    unreleased,
    write_files,
)

_GROWTH = 1.25
"""The factor for kernels and torch releases that come before the files are rendered again: about a
year's."""


def with_growth(count: int) -> int:
    """A number of kernels, legs or jobs with room for growth."""
    return math.ceil(count * _GROWTH)


def plan_largest_runs(workspace: Workspace, *, short: bool = False) -> list[Plan]:
    """Everything in each tier that an event builds; FindingsError (KCI419) for what GitHub refuses
    of it.

    Short files have one job.
    """
    settings = workspace.settings.settings
    tiers = {
        Tier.RELEASE: "a push",
        settings.pull_request.tier: "a pull request",
        settings.schedule.tier: "the scheduled run",
    }
    plans: list[Plan] = []
    refused: list[Diagnostic] = []
    # Callers have room for growth, so that no kernel moves to another one then.
    callers = 1 if short else caller_count(with_growth(len(workspace.kernels)))
    for tier, when in tiers.items():
        plans.append(plan_everything(workspace, tier, split=True))
        what = f"{when} of everything (tier {tier})"
        refused += [
            finding("KCI419", f"{what}: {item.message}", hint=item.hint)
            for item in errors_in(check_limits(plans[-1], callers))
        ]
    if refused:
        raise FindingsError("GitHub would not take these runs", diagnostics=refused)
    return plans


class RenderedFiles(Frozen):
    """Rendered workflow files and their drift."""

    root: Path
    files: dict[str, str]
    comparisons: tuple[Comparison, ...]
    notes: tuple[Diagnostic, ...] = ()
    """Findings for the person who renders; the committed files are right."""

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """The drift of the committed files."""
        return drift_diagnostics(self.comparisons)

    def write(self, *, force: bool = False) -> None:
        """Write the files and remove obsolete ones, all or none; FindingsError for files of another
        origin (KCI402) or, without `force`, edited ones (KCI406).
        """
        rules = ("KCI402",) if force else ("KCI402", "KCI406")
        if refused := [item for item in self.diagnostics if item.rule in rules]:
            raise FindingsError("nothing was written", diagnostics=refused)
        write_files(self.root, self.files)
        remove_files(self.root, [item.path for item in self.comparisons if item.new is None])


def render_workflows(
    workspace: Workspace,
    root: Path,
    kernels: Sequence[str] = (),
    *,
    branch: str = "main",
    by_commit: bool | None = None,
    short: bool = False,
) -> RenderedFiles:
    """Render the workflow files and compare them with the committed ones; writes nothing.

    `kernels` are the directories that the header names. `by_commit` pins kci's own actions to the
    release's commit (True) or to their tag (False); None keeps a committed pin. UsageError for a
    kernel outside of `root` or no release, FindingsError for a bad kernel, run or pin, UnsafeError
    for an expression in a name.
    """
    chosen = workspace.settings.settings
    require_readable(workspace)
    plans = plan_largest_runs(workspace, short=short)
    builds = [kernel.build for kernel in workspace.kernels]
    names = {(build.general.hub and build.general.hub.repo_id) or build.name for build in builds}
    legs_of = [leg for plan in plans for leg in plan.legs]
    notes = list(
        check_time({(leg.kernel, leg.name): leg for leg in legs_of}.values(), workspace.runners)
    )
    inputs = Inputs(
        names=tuple(sorted(names)),
        kernels=_named(kernels, root),
        submodules=chosen.checkout.submodules and has_submodules(root),
        token=chosen.checkout.token or "",
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
        compiled=any(leg.kind is not Kind.NOARCH for leg in legs_of),
        nix=any(leg.builder for leg in legs_of),
        part_jobs=_part_jobs(plans),
        publish=publish_jobs(workspace.settings),
        short=short,
    )
    if short:
        requested = {
            "pull-request.comment": chosen.pull_request.comment,
            "pull-request.forks": chosen.pull_request.forks is Forks.DISPATCH,
            "checkout": chosen.checkout != Checkout(),
        }
        hint = "remove the setting, or run `kci render --no-short`"
        notes += _nothing_for(requested, "the short file", hint)
    committed = read_committed(root, FILES)
    parts = read_extensions(root)
    pins = choose_pins(committed, chosen.actions, by_commit=by_commit)
    files = render(inputs, pins, __version__, parts, committed)
    if reference := unreleased(pins):
        hint = f"`[actions]` of {KCI_TOML}: `repository` and `ref`"
        notes.append(_unreleased(f"these workflows use {reference}", hint))
    return _compared(root, files, committed, notes)


def _unreleased(what: str, hint: str) -> Diagnostic:
    return finding(
        "KCI450", f"{what}, which does not exist before the first release of kci", hint=hint
    )


def _nothing_for(requested: Mapping[str, bool], file: str, hint: str) -> list[Diagnostic]:
    return [
        finding("KCI454", f"{file} has nothing for `{key}` of {KCI_TOML}", hint=hint)
        for key, is_set in requested.items()
        if is_set
    ]


def render_gitlab_files(
    workspace: Workspace, root: Path, kernels: Sequence[str] = ()
) -> RenderedFiles:
    """Render the GitLab file and compare it with the committed one; KCI454 for a setting that it
    cannot express.
    """
    require_readable(workspace)
    chosen = workspace.settings.settings
    requested = {
        "pull-request.comment": chosen.pull_request.comment,
        "publish.on": chosen.publish.on is PublishOn.PUSH,
    }
    notes = _nothing_for(requested, "GitLab's file", "")
    inputs = Inputs(
        names=(),
        kernels=_named(kernels, root),
        pr_tier=chosen.pull_request.tier,
        schedule_tier=chosen.schedule.tier,
        submodules=chosen.checkout.submodules and has_submodules(root),
        publish=publish_jobs(workspace.settings),
    )
    if not is_released():
        hint = "set the variable KCI_INSTALL of the project to what pip installs in its place"
        notes.append(_unreleased("this file installs `kci` from the package index", hint))
    files = render_gitlab(inputs)
    return _compared(root, files, read_committed(root, files), notes)


def render_snakemake_file(
    workspace: Workspace, root: Path, kernels: Sequence[str] = ()
) -> RenderedFiles:
    """Render the Snakefile and compare it with the committed one; see `render_workflows`."""
    require_readable(workspace)
    files = render_snakemake(_named(kernels, root))
    return _compared(root, files, read_committed(root, files), [])


def has_submodules(root: Path) -> bool:
    """True if the repository has submodules."""
    return (root / ".gitmodules").is_file()


def has_lfs(root: Path) -> bool:
    """True if a .gitattributes of the repository uses Git LFS."""
    lfs = ("-qE", "^[^#]*[[:space:]]filter=lfs([[:space:]]|$)", "--")
    return any(
        run_git(root, "grep", where, *lfs, f"{name}.gitattributes") is not None
        for where, name in (("--untracked", "*"), ("--no-index", ""))  # perhaps no repository yet
    )


def _part_jobs(plans: Iterable[Plan]) -> int:
    parts = Counter(
        (plan.tier, leg.kernel) for plan in plans for leg in plan.legs if leg.role is Role.PART
    )
    return -(-with_growth(max(parts.values(), default=0)) // MAX_MATRIX)


_UNHIDE = "remove the line of .gitignore that `git check-ignore -v` names"


def _compared(
    root: Path, files: dict[str, str], committed: Mapping[str, str], notes: Sequence[Diagnostic]
) -> RenderedFiles:
    ignored = run_git(
        root, "check-ignore", "-z", "--stdin", stdin="\0".join(sorted(files)).encode()
    )
    hidden = [
        finding(
            "KCI455", "git ignores this file, so it never reaches the server", path, hint=_UNHIDE
        )
        for path in os.fsdecode(ignored or b"").split("\0")
        if path
    ]
    return RenderedFiles(root, files, tuple(compare(files, committed)), (*notes, *hidden))


def read_recorded_options(root: Path, file: str = RELEASE_FILE) -> RecordedOptions:
    """The options in the header of a committed file; raises as `read_committed`."""
    return recorded_options(read_committed(root, (file,)).get(file, ""))


def publish_jobs(repository: RepositorySettings) -> Publish | None:
    """The publish settings; None if no kernel is published."""
    return repository.settings.publish if repository.publishes else None


def _named(kernels: Sequence[str], root: Path) -> tuple[str, ...]:
    # the directories that the header names, relative to the root
    named = set()
    for directory in kernels or (str(root),):
        try:
            named.add(Path(directory).resolve().relative_to(root.resolve()).as_posix())
        except ValueError:
            raise UsageError(
                f"{directory}: not below {root}", "name the root of the repository with --output"
            ) from None
    return tuple(sorted(named))


def settings_text(settings: Settings, *, short: bool = False) -> list[str]:
    """Instructions for the settings on GitHub that the workflows rely on; the check's name depends
    on `short`.
    """
    check = "kci / kci" if short else "kci"
    lines = [
        f"Settings > Branches, or Rules > Rulesets: require the status check `{check}` on the "
        "branch that releases. "
        "It is red unless all that was planned was built, merged and verified.",
        "Settings > Actions > General > Fork pull request workflows: require approval for all "
        "external contributors. Their code then runs only after somebody has read it.",
        "Settings > Actions > General > Workflow permissions: read repository contents. Each job "
        "asks for what it needs.",
    ]
    if settings.runners:
        lines.append(
            "Settings > Actions > Runners: register the self-hosted runners that [runners] of "
            "kci.toml names. In a public repository, let them run nothing of forks, and prefer "
            "ones that are made new for every job."
        )
    if settings.pull_request.forks is Forks.DISPATCH and not short:
        lines += [
            "Settings > Environments: make `kci-own-machines`, with required reviewers and "
            "limited to the default "
            "branch. It is asked before a commit of a fork reaches a self-hosted runner.",
            "Require the commit status `kci/own-machines` beside the status check `kci`. It is "
            "missing, and so the "
            "merge waits, until somebody has started kci-own-machines.yml for the very commit.",
        ]
    lines.append(
        "To use the merge queue: Settings > Branches > Require merge queue. The workflow is "
        "already triggered by it."
    )
    return lines
