"""`kci publish`: publishes a verified, complete tree to the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kci.cli import choice_option, file_option, flag, kci_command, option, refuse_idle
from kci.cli._output import answer, options, print_diagnostics, progress_log
from kci.cli._workspace import PLACE, load_workspace, locate_tree
from kci.config.values import StaleVariants
from kci.diagnostics import Diagnostic
from kci.publish.branch_plan import README
from kci.publish.publish import PublishedBranch, PublishRequest, publish_tree
from kci.utils.suggest import count


@kci_command
@PLACE
@file_option("--kernel", "PATH", "The kernel that a TREE was built from.")
@option(
    "--repo-id", "OWNER/NAME", "The repository (default: from build.toml or kci.toml).", default=""
)
@option("--branch", "NAME", "The branch (default: v and the kernel's version).", default="")
@choice_option(
    "--leave-out",
    "Keep or remove older variants on the branch that the tree leaves out (default: from "
    "kci.toml).",
    of=[str(item) for item in StaleVariants if item is not StaleVariants.ASK],
)
@flag("--older", "Replace variants even by older ones.")
@flag("--create-repo", "Create the repository if it does not exist.")
@flag("--create-pr", "Open pull requests instead of a commit, for an account that may not write.")
@flag("--dry-run", "Print what would change, and change nothing.")
def command(place: Path, kernel: Path | None, leave_out: str | None, **target_options: Any) -> None:
    """Publish the merged tree of a kernel to its repository on the Hub: one commit on the branch of
    its version.

    The tree must be complete, meet the requirements, and not be older than the variants that it
    replaces. Other files on the branch stay, except in the directories of the tree's variants, and
    with `prune` in kci.toml. If the tree lacks a variant of the matrix that the branch has from
    other sources, --leave-out decides. Authenticates with HF_TOKEN, the identity of the CI job, or
    the token that `hf auth login` stored.

    Examples:
        # print what would change on the Hub
        kci publish --dry-run
        # publish build/ in one commit
        kci publish --repo-id acme/my-kernel
    """
    if target_options["dry_run"]:
        refuse_idle("with --dry-run", create_repo=target_options["create_repo"])
    tree, kernel = locate_tree(place, kernel)
    workspace = load_workspace(str(kernel)) if kernel else None
    request = PublishRequest(
        tree, workspace, leave_out=StaleVariants(leave_out) if leave_out else None, **target_options
    )
    warnings: list[Diagnostic] = []
    try:
        published = publish_tree(request, progress_log(), warnings.append)
    finally:
        print_diagnostics(warnings)
    if not options().quiet:
        for part in published.branches:
            answer("\n".join(_text(published.target.repo_id, part)))


def _text(repo_id: str, part: PublishedBranch) -> list[str]:
    changes = part.changes
    at = f" at {part.commit[:12]}" if part.commit else ""
    at += f" in {part.proposal}" if part.proposal else ""
    counts = f"{count(len(changes.added), 'file')} added, {len(changes.changed)} changed"
    counts += f", {len(changes.deleted)} deleted, {changes.unchanged} unchanged"
    lines = [f"{repo_id}@{part.branch}: {part.state}{at}; {counts}"]
    if README in changes.changed:
        lines.append(f"  replaced: {README}, the front page")
    lines += [f"  removed: {name}" for name in changes.removed_variants]
    lines += [f"  kept, not in the tree: {name}" for name in changes.kept_variants]
    whole = tuple(f"build/{name}/" for name in changes.removed_variants)
    lines += [f"  deleted: {path}" for path in changes.deleted if not path.startswith(whole)]
    if options().verbose:
        lines += [f"  added: {path}" for path in changes.added]
        lines += [f"  changed: {path}" for path in changes.changed]
    return lines
