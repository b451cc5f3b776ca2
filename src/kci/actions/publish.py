"""kci/build/publish: publishes a verified, complete tree to the Hub."""

from __future__ import annotations

from pathlib import Path

import kci
from kci.actions import common
from kci.cli._output import print_diagnostics
from kci.cli.sign import ci_context
from kci.config.discovery import find_settings
from kci.publish.publish import PublishedTree, PublishRequest, publish_tree
from kci.tree.top_level import sign_tree


def main() -> None:
    """Sign if requested, publish, and set the outputs."""
    tree = common.fetched_tree(
        Path(common.required_input("tree")), "to publish", common.text_input("digest")
    )
    kernel = common.text_input("kernel")
    dry_run = common.flag_input("dry-run", default="false")
    workspace = kci.open_workspace([kernel]) if kernel else None
    if common.flag_input("sign", default="false") and not dry_run:
        settings = workspace.settings if workspace else find_settings(Path())
        with common.group("Sign"):
            for written in sign_tree(tree, ci_context(), settings.trust_config):
                print(written)
    request = PublishRequest(
        tree,
        workspace,
        repo_id=common.text_input("repo-id"),
        branch=common.text_input("branch"),
        dry_run=dry_run,
        create_pr=common.flag_input("create-pr", default="false"),
        older=common.flag_input("older", default="false"),
    )
    warnings: list[kci.Diagnostic] = []
    with common.group("Publish"):
        published = publish_tree(request, common.show, warnings.append)
    print_diagnostics(warnings)
    tell(published)


def tell(published: PublishedTree) -> None:
    """Report the branches in log and summary."""
    for part in published.branches:
        print(
            f"{published.target.repo_id}@{part.branch}: {part.state} {part.commit} "
            f"{part.proposal}".rstrip()
        )
    common.set_outputs(commit=published.branches[0].commit, url=published.url)
    rows = [
        (
            published.target.repo_id,
            part.branch,
            part.state,
            len(part.changes.added),
            len(part.changes.changed),
            len(part.changes.deleted),
            part.commit[:12],
        )
        for part in published.branches
    ]
    headers = ("repository", "branch", "state", "added", "changed", "deleted", "commit")
    common.add_table("Would be published" if published.dry_run else "Published", headers, rows)
