"""`kci compat`: coverage, history, issues and report of scheduled runs."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import replace

from kci.cli import FOLDER, CommandGroup, FileName, file_option, format_option, option
from kci.cli._output import Layout, answer, print_diagnostics, print_json, table
from kci.cli._workspace import TIER, load_workspace
from kci.config.discovery import find_settings
from kci.config.reader import Kernel
from kci.diagnostics import Diagnostic, errors_in
from kci.errors import UsageError
from kci.plan.planning import current_variants
from kci.plan.workspace import Choice
from kci.publish.listing import TreeListing, list_hub_tree, list_tree
from kci.tree.manifest import read_published
from kci.utils.atomic import writing
from kci.utils.suggest import count
from kci.watch.coverage import CoverageState, coverage
from kci.watch.decide import FailureTracker, IssueAction, decide
from kci.watch.history import (
    BRANCH,
    HistoryBranch,
    append,
    group_results,
    read_results,
    read_runs,
    remote_url,
)
from kci.watch.report import make_grid, markdown_report

_HISTORY = click.option(
    "--history",
    required=True,
    type=FOLDER,
    help="The directory of the history.",
)


@click.group("compat", cls=CommandGroup)
def command() -> None:
    """Compare expected and published variants, record and report scheduled runs, decide about
    issues and updates.

    Examples:
        # compare published and expected variants
        kci compat coverage --hub acme/my-kernel
    """


@command.command("coverage")
@click.argument("kernel", type=FileName(), default=".")
@option(
    "--hub",
    "REPO[@REVISION]",
    "A repository on the Hub in place of KERNEL/build; `-` for that of build.toml. Needs "
    "huggingface_hub.",
)
@TIER
@format_option("table", "json")
def show_coverage(kernel: str, hub: str | None, tier: str, output: str) -> int:
    """List the published, missing, stale, corrupt and surplus variants of KERNEL.

    Exit 1 if one must be built.

    Examples:
        # compare the tree relu/build with the expected variants
        kci compat coverage relu
        # compare the repository on the Hub that build.toml names
        kci compat coverage relu --hub -
    """
    workspace = load_workspace(kernel)
    read = workspace.only_kernel()
    listing = _on_hub(read, hub) if hub is not None else list_tree(Path(read.directory) / "build")
    choice = Choice(tier=tier)
    matrix = workspace.matrix(choice)
    # Variants of the kernel outside of the selection are no surplus.
    whole = replace(workspace, scopes={}).whole
    wide = (whole(each).kernels[0].variants for each in {Choice(), choice})
    beside = {variant.name for variants in wide for variant in variants}
    beside -= {variant.name for variant in matrix.kernels[0].variants}
    entries = tuple(entry for entry in listing.variants if entry.variant not in beside)
    listing = replace(listing, variants=entries)
    recorded = {entry.variant for entry in listing.variants if entry.fingerprint is not None}
    if recorded and listing.tree:
        published, _ = read_published([listing.tree])
        current = current_variants(workspace, matrix, published)
        recorded -= {variant for name, variant in current if name == read.build.name}
    result = coverage(matrix.kernels[0], listing, recorded)
    if output == "json":
        counts = {str(state): len(result.names(state)) for state in CoverageState}
        print_json(coverage=result, counts=counts)
    else:
        rows = [(item.variant, item.state, item.reason) for item in result.variants]
        layout = Layout(cut=("variant",), wrap="why")
        answer(table(("variant", "state", "why"), rows, layout))
        for line in dict.fromkeys(item.command for item in result.variants if item.command):
            answer(f"$ {line}")
        expected = [item for item in result.variants if item.state is not CoverageState.SURPLUS]
        present = len(result.names(CoverageState.PRESENT))
        answer(f"{result.source}: {present} of {len(expected)} expected variants are there")
    return 1 if result.has_gaps else 0


@command.command("record")
@click.argument("results", nargs=-1, required=True, type=FileName(path_type=Path, exists=True))
@file_option(
    "--history", "PATH", "A checkout of the branch, or another directory, to append to instead."
)
def record(results: tuple[Path, ...], history: Path | None) -> int:
    """Append RESULTS of scheduled legs, JSON files or folders of them, to a history.

    Exit 1 if one cannot be read.

    The history is the branch kci-history of the remote `origin`. It only grows, and each call
    writes new files: concurrent calls do not conflict.

    Examples:
        # append the results of a run
        kci compat record results
    """
    leg_results, problems = read_results(results)
    runs = group_results(leg_results)
    new = 0
    if history:
        with writing(history):
            new = len(append(history, runs))
    elif runs:
        new = HistoryBranch(remote_url(Path(), "origin")).record(runs)
    print_diagnostics(problems)
    what = f"{count(len(leg_results), 'result')} of {count(len({run.run for run in runs}), 'run')}"
    answer(f"{what}; {count(new, 'new file')} in {history or BRANCH}")
    return int(bool(errors_in(problems)))


@command.command("decide")
@_HISTORY
def show_decisions(history: Path) -> int:
    """List the issues to open, update and close after the last run of a history; kci.toml names the
    people to notify.

    It only prints them: the scheduled workflow changes issues, and has no other rights.

    Examples:
        # list the issues to open, update and close
        kci compat decide --history history
    """
    watch, actions, code = _decided(history)
    for action in actions:
        people = f" (for {' '.join(action.tell)})" if action.tell else ""
        answer(f"{action.kind} {action.id}: {action.title}{people}")
        for leg in action.legs:
            answer(f"    {leg}")
    answer(f"{count(len(watch.runs), 'run')}; {count(len(actions), 'issue')} to change")
    return code


@command.command("report")
@_HISTORY
def report(history: Path) -> int:
    """Report the state of every leg after the last run of a history in Markdown, by kernel and
    toolchain.

    Examples:
        # write the report
        kci compat report --history history > report.md
    """
    watch, _, code = _decided(history)
    answer(markdown_report(make_grid(watch), "Kernels and toolchains"), nl=False)
    return code


def _decided(history: Path) -> tuple[FailureTracker, list[IssueAction], int]:
    # what follows from a history, and the exit code: 1 if a part of it cannot be read
    problems: list[Diagnostic] = []
    watch = FailureTracker(find_settings(Path()).settings.schedule.issues)
    actions = decide(read_runs(history, problems.append), watch)
    print_diagnostics(problems)
    return watch, actions, int(bool(problems))


def _on_hub(kernel: Kernel, reference: str) -> TreeListing:
    repo_id, _, revision = reference.partition("@")
    hub = kernel.build.general.hub
    if repo_id == "-":
        if not hub or hub.repo_id is None:
            raise UsageError("build.toml names no repository", "name one, such as --hub acme/norm")
        repo_id = hub.repo_id
    branch = (hub.branch if hub else None) or f"v{kernel.build.general.version}"
    return list_hub_tree(repo_id, revision or branch)
