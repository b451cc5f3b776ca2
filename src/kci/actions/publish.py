"""kci/build/publish: publishes a verified, complete tree to the Hub."""

from __future__ import annotations

from pathlib import Path

import kci
from kci.actions import common
from kci.cli._output import print_diagnostics
from kci.cli.sign import ci_context
from kci.config.discovery import find_settings
from kci.publish.publish import PublishRequest, publish_tree
from kci.tree.top_level import sign_tree


def main() -> None:
    """Sign if requested, publish, and set the outputs."""
    place, digest = Path(common.required_input("tree")), common.text_input("digest")
    tree = common.fetched_tree(place, "to publish", digest)
    kernel, dry_run = common.text_input("kernel"), common.flag_input("dry-run")
    workspace = kci.open_workspace([kernel]) if kernel else None
    if common.flag_input("sign") and not dry_run:
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
        create_pr=common.flag_input("create-pr"),
        older=common.flag_input("older"),
    )
    warnings: list[kci.Diagnostic] = []
    with common.group("Publish"):
        published = publish_tree(request, common.show, warnings.append)
    print_diagnostics(warnings)
    rows, repo_id = [], published.target.repo_id
    for part in published.branches:
        print(f"{repo_id}@{part.branch}: {part.state} {part.commit} {part.proposal}".rstrip())
        changes = (part.changes.added, part.changes.changed, part.changes.deleted)
        rows.append((repo_id, part.branch, part.state, *map(len, changes), part.commit[:12]))
    common.set_outputs(commit=published.publication.builds.commit, url=published.url)
    headers = ("repository", "branch", "state", "added", "changed", "deleted", "commit")
    common.add_table("Would be published" if published.dry_run else "Published", headers, rows)
