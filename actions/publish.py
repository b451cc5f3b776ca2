"""kci/build/publish: a verified, complete tree to the Hub."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import kci
from common import (
    add_table,
    fail,
    flag_input,
    group,
    lines_input,
    required_input,
    run_action,
    runner_temp,
    set_output,
    show,
    text_input,
    unpacked,
)
from kci.ci.signed_again import SignAgain, sign_again
from kci.cli._output import print_diagnostics
from kci.cli._signing import ci_context
from kci.cli.compat import command as compat
from kci.config.find_settings import find_settings
from kci.publish.publish_tree import PublishedTree, PublishRequest, publish_tree, remove_staged
from kci.tree.signing import sign_tree_as_run
from kci.watch.github_api import GitHubApi


def main() -> None:
    """Sign if that is asked for, publish, and say what was done; or look at what is published."""
    if flag_input("remove", default="false"):
        show(remove_staged(required_input("repo-id"), required_input("branch")))
        return
    if flag_input("signatures", default="false"):
        words = ["signatures", "--", *lines_input("kernel")]
        raise SystemExit(compat.main(words, prog_name="kci compat", standalone_mode=False))
    tree, kernel = unpacked(Path(required_input("tree"))), text_input("kernel")
    dry_run = flag_input("dry-run", default="false")
    if revision := text_input("again"):
        again(tree, revision, dry_run=dry_run)
        return
    workspace = kci.open_workspace([kernel]) if kernel else None
    if flag_input("sign", default="false") and not dry_run:
        settings = workspace.settings if workspace else find_settings(Path())
        with group("Sign"):
            for written in sign_tree_as_run(tree, ci_context("", ""), settings.trust_config):
                print(written)
    request = PublishRequest(
        tree,
        workspace,
        repo_id=text_input("repo-id"),
        branch=text_input("branch"),
        dry_run=dry_run,
        create_pr=flag_input("create-pr", default="false"),
        older=flag_input("older", default="false"),
        staged=text_input("staged"),
    )
    warnings: list[kci.Diagnostic] = []
    with group("Publish"):
        done = publish_tree(request, lambda line: print(line, flush=True), warnings.append)
    print_diagnostics(warnings)
    tell(done)


def again(built: Path, revision: str, *, dry_run: bool) -> None:
    """Sign what is published again, held to its evidence, and publish the signatures."""
    asked = text_input("name")
    found = [
        item.directory for item in kci.open_workspace(lines_input("kernel")).kernels if asked in ("", item.build.name)
    ]
    if len(found) != 1:
        fail(f"{len(found)} kernels are called {asked[:80]!r}; one is signed again at a time", 2)
    context, workspace, evidence = ci_context("", ""), kci.open_workspace(found), required_input("evidence")
    server, ref = os.environ["GITHUB_SERVER_URL"], os.environ["GITHUB_REF"]
    request = SignAgain(workspace, revision, evidence, built, context, ref, server)
    api = GitHubApi(context.repository, "may the job read runs and contents (actions: read, contents: read)?")
    with tempfile.TemporaryDirectory(dir=runner_temp()) as place, group("Sign again"):
        done = sign_again(request, api, Path(place), show, dry_run=dry_run)
    if done is not None:
        tell(done)


def tell(done: PublishedTree) -> None:
    """Say what was done, or would be."""
    builds = done.publication.builds
    for part in done.branches:
        print(f"{done.target.repo_id}@{part.branch}: {part.state} {part.commit} {part.proposal}".rstrip())
    set_output("commit", builds.commit)
    set_output("url", done.url)
    rows = [
        (done.target.repo_id, part.branch, part.state, len(part.changes.added), len(part.changes.changed),
         len(part.changes.deleted), part.commit[:12])
        for part in done.branches
    ]  # fmt: skip
    headers = ("repository", "branch", "state", "added", "changed", "deleted", "commit")
    add_table("Would be published" if done.dry_run else "Published", headers, rows)


if __name__ == "__main__":
    run_action(main)
