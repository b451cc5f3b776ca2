"""Publishing: one commit with a tree on the version branch, and the card on the main branch last.

Each attempt starts from the present state of the branch: a killed run resumes, a commit whose reply
was lost is found, and a concurrent commit is built upon or reported, never overwritten.
"""

from __future__ import annotations

import datetime
import enum
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from kci.config.discovery import settings_of_tree
from kci.config.sources.card import CARD, card_files, render_card
from kci.config.values import StaleVariants
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError, UsageError, rule_error, without_secrets
from kci.plan.workspace import Workspace
from kci.publish.branch_plan import (
    MAIN_VERSION,
    README,
    BranchChanges,
    BranchGoal,
    BranchReplacement,
    LocalFile,
    Release,
    ReplacementPolicy,
    front_page,
    gives_way,
    plain_page,
    read_release,
)
from kci.publish.hub import HubFile, publisher_access, reader_access
from kci.publish.hub_branch import MAIN, HubAnswerError, HubKernel
from kci.publish.targets import HubBranch, endpoint, target_of
from kci.utils.atomic import Log
from kci.utils.frozen import Frozen
from kci.utils.suggest import count

_NO_TERMS = ReplacementPolicy()
ATTEMPTS = 8
_MAX_WAIT_SECONDS = 300.0
"""Seconds of the longest wait; beyond it the next run tries again."""


class PublishState(enum.StrEnum):
    """The outcome for a branch."""

    PUBLISHED = "published"
    UNCHANGED = "unchanged"
    PROPOSED = "proposed"
    WOULD_PUBLISH = "would publish"


class PublishedBranch(Frozen):
    """A branch after publishing."""

    branch: str
    state: PublishState
    commit: str
    changes: BranchChanges
    proposal: str = ""
    """The ref of the pull request, `refs/pr/3`; empty without one."""


class Publisher(Frozen):
    """Publishes to a repository, with retries."""

    target: HubKernel
    name: str
    dry_run: bool = False
    propose: bool = False
    log: Log = lambda _line: None
    wait: Callable[[float], None] = time.sleep

    def publish(
        self,
        release: Release,
        branch: str,
        terms: ReplacementPolicy = _NO_TERMS,
        *,
        mirror: bool = False,
    ) -> list[PublishedBranch]:
        """Publish a release and its front page; with `mirror` the main branch gets the builds too.
        Returns the branch of the builds, and the main one if it is another.

        FindingsError if the target refuses, another one interferes (KCI812), or `BranchReplacement`
        does.
        """
        front = release.card
        if not front and not self.propose:
            self.log(
                f"{release.manifest.kernel} has no {CARD}: {self.name} gets a plain front page, "
                "unless it has one"
            )
            front = plain_page(release, self.name, branch)
        card = {README: front} if front else {}
        self._require_page(release.card)
        manifest = release.manifest
        version = f"{manifest.kernel} version {manifest.version}"
        title = f"{version}: {count(len(manifest.present), 'variant')} (kci)"
        goal = BranchGoal(branch, release.files, release, terms)
        main = replace(goal, branch=MAIN, files={**release.files, **card})
        if branch == MAIN:
            return [self.commit_goal(main, title)]
        if mirror:  # what would be refused there is refused before anything is written
            replace(self, dry_run=True, log=lambda _line: None).commit_goal(main, "")
        branches = [self.commit_goal(goal, title)]
        if mirror:
            branches.append(self.commit_goal(main, title))
        elif card:
            branches.append(self.commit_goal(BranchGoal(MAIN, card), f"Card of {version} (kci)"))
        return branches

    def _require_page(self, card: LocalFile | None) -> None:
        if not card or self.dry_run:
            return
        try:
            self.target.check_page(card.content().decode())
        except HubAnswerError as answer:
            if answer.refused:
                message = f"{self.name} would refuse the front page: {answer.message}"
                raise FindingsError(
                    message, f"correct {card.path}; nothing was published"
                ) from answer
            self.log(
                f"{self.name} does not say whether it accepts the front page: {answer.message}"
            )

    def commit_goal(self, goal: BranchGoal, message: str) -> PublishedBranch:
        """Commit a goal to its branch and keep other files; FindingsError if the target refuses or
        does not answer.
        """
        before: dict[str, HubFile] = {}
        sent: BranchChanges | None = None
        problem = HubAnswerError("no answer")
        for attempt in range(1 if self.dry_run else ATTEMPTS):
            if attempt:
                seconds = min(2.0**attempt, 60.0) if problem.wait is None else problem.wait
                if seconds > _MAX_WAIT_SECONDS:
                    break
                self.log(f"{self.name}: {problem.message}; trying again in {seconds:.0f} seconds")
                self.wait(seconds)
            try:
                head, remote_files, final_goal, changes = self._compare(goal)
                if not head and not self.dry_run:
                    self._create_branch(goal.branch)
                    head, remote_files, final_goal, changes = self._compare(goal)
                if changes.empty:
                    state = PublishState.PUBLISHED if sent else PublishState.UNCHANGED
                    return PublishedBranch(goal.branch, state, head, sent or changes)
                if self.dry_run:
                    return PublishedBranch(goal.branch, PublishState.WOULD_PUBLISH, head, changes)
                if self.propose and (proposal := self._proposal(final_goal, changes)):
                    return proposal
                part = final_goal.part(remote_files)
                if sent and part != before:
                    other = min(
                        path
                        for path in before.keys() | part.keys()
                        if before.get(path) != part.get(path)
                    )
                    message = f"another publisher has changed {other} on {self.name}@{goal.branch}"
                    hint = "find out which of the two is right, then publish that one again"
                    raise rule_error("KCI812", f"{message} meanwhile", hint=hint)
                before, sent = part, changes
                add = {path: final_goal.files[path] for path in (*changes.added, *changes.changed)}
                commit = self.target.commit(
                    goal.branch, head, add, changes.deleted, message, propose=self.propose
                )
                return self._confirm(final_goal, commit, changes)
            except HubAnswerError as answer:
                if answer.refused:
                    raise FindingsError(f"{self.name} refuses: {answer.message}", _HINT) from answer
                problem = answer
        what = (
            "cannot be read"
            if self.dry_run
            else f"did not accept the commit in {ATTEMPTS} attempts"
        )
        message, when = f"{self.name} {what}: {problem.message}", "later"
        if (seconds := problem.wait or 0.0) > _MAX_WAIT_SECONDS:
            at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
            message = f"{self.name} asks for a pause of {seconds:.0f} seconds: {problem.message}"
            when = f"after {at:%Y-%m-%d %H:%M} UTC"
        hint = f"run the same command again {when}: what was uploaded is not uploaded twice"
        raise FindingsError(message, hint) from problem

    def _proposal(self, goal: BranchGoal, changes: BranchChanges) -> PublishedBranch | None:
        for ref, commit in self.target.proposals().items():
            if goal.changes(self.target.files(commit)).empty:
                return PublishedBranch(goal.branch, PublishState.PROPOSED, commit, changes, ref)
        return None

    def _create_branch(self, branch: str) -> None:
        try:
            self.target.create_branch(branch)
        except HubAnswerError as answer:
            if not self.propose or not answer.refused:
                raise
            hint = (
                f"make it first, as an account that may write to {self.name}; a pull request is "
                "against a branch"
            )
            raise FindingsError(
                f"{self.name} has no branch {branch}: {answer.message}", hint
            ) from answer
        self.log(f"{self.name}: made the branch {branch}")

    def _compare(
        self, goal: BranchGoal
    ) -> tuple[str, dict[str, HubFile], BranchGoal, BranchChanges]:
        # A branch without a commit of its own has what the main one has: a killed kci leaves such a
        # branch too
        heads = self.target.heads()
        head = heads.get(goal.branch, "")
        at = head or heads.get(MAIN, "")
        remote_files = self.target.files(at) if at else {}
        page, there = goal.files.get(README), remote_files.get(README)
        read = partial(self.target.read, at)
        if page and there and gives_way(page, there, read):
            goal = replace(
                goal, files={path: file for path, file in goal.files.items() if file is not page}
            )
        if not (release := goal.release):
            return head, remote_files, goal, goal.changes(remote_files)
        check = BranchReplacement(
            goal, release, f"{self.name}@{goal.branch}", remote_files, read, self.log
        )
        # The main branch may be at the commit of a version: what is of this version is the branch's
        # own.
        at_main = goal.branch != MAIN and at == heads.get(MAIN)
        inherited = at_main and check.version_there(MAIN_VERSION) != check.version
        changes = goal.changes(remote_files, inherited=inherited)
        if not inherited and (not changes.empty or goal.terms.leave_out is StaleVariants.REMOVE):
            goal = check.resolve_variants(changes.kept_variants)
            changes = goal.changes(remote_files)
        return head, remote_files, goal, changes

    def _confirm(self, goal: BranchGoal, commit: str, changes: BranchChanges) -> PublishedBranch:
        difference = goal.changes(self.target.files(commit))
        if not difference.empty:
            first = (*difference.added, *difference.changed, *difference.deleted)[0]
            message = f"{self.name}@{commit[:12]} is not what was published: {first} differs"
            raise FindingsError(message, "look at .gitignore and .gitattributes of that repository")
        if not self.propose:
            return PublishedBranch(goal.branch, PublishState.PUBLISHED, commit, changes)
        ref = next((ref for ref, at in self.target.proposals().items() if at == commit), "")
        return PublishedBranch(goal.branch, PublishState.PROPOSED, commit, changes, ref)


_HINT = "docs/publishing.md says what a repository and its token need"


class PublishRequest(Frozen):
    """The options of `kci publish`."""

    tree: Path
    workspace: Workspace | None = None
    """The one kernel of the tree; without it, the tree alone says what it is."""
    repo_id: str = ""
    branch: str = ""
    create_repo: bool = False
    dry_run: bool = False
    create_pr: bool = False
    leave_out: StaleVariants | None = None
    """The policy for variants that the tree lacks; None for that of `[publish]`."""
    older: bool = False


class PublishedTree(Frozen):
    """The result of `kci publish`."""

    kernel: str
    version: int
    target: HubBranch
    branches: list[PublishedBranch]
    """That of the builds first."""
    dry_run: bool

    @property
    def url(self) -> str:
        return without_secrets(
            f"{endpoint()}/kernels/{self.target.repo_id}/tree/{self.target.branch}"
        )


def publish_tree(
    request: PublishRequest,
    log: Log = lambda _line: None,
    report: Callable[[Diagnostic], None] = lambda _finding: None,
) -> PublishedTree:
    """Publish a tree; `report` takes the findings that do not prevent it.

    UsageError without a target or for another kernel's tree, FindingsError if the tree or the Hub
    refuses, UnsafeError for a link, MissingToolError without a token or huggingface_hub.
    """
    workspace = request.workspace
    kernel = workspace.only_kernel() if workspace else None
    sources = Path(kernel.directory) if kernel else None
    release = read_release(request.tree, sources, report)
    name, version = release.manifest.kernel, release.manifest.version
    build = kernel.build if kernel else None
    if build and (build.name, build.general.version) != (name, version):
        message = (
            f"{request.tree} is {name} version {version}, not {build.name} version "
            f"{build.general.version}"
        )
        raise UsageError(message, "name the kernel that the tree was made of")
    if (
        kernel
        and (release.card is None or release.manifest.card is not None)
        and (text := render_card(kernel).text)
    ):
        # a tree outlives changes of CARD.md, for which no variant is built again
        release = replace(release, card=front_page(text, card_files(kernel)[0]))
    settings = (
        workspace.settings if workspace else settings_of_tree(request.tree)
    ).settings.publish
    target = target_of(
        name, version, settings, build=build, repo_id=request.repo_id, branch=request.branch
    )
    leave_out, expected = request.leave_out or settings.leave_out, None
    if workspace:
        expected = frozenset(variant.name for variant in workspace.matrix().kernels[0].variants)
    elif settings.prune or leave_out is StaleVariants.REMOVE:
        hint = f"name the directory of {name} with --kernel"
        raise UsageError("removing variants needs to know which ones the kernel should have", hint)
    terms = ReplacementPolicy(expected, settings.prune, leave_out, request.older, sources)
    access = reader_access() if request.dry_run else publisher_access(target.repo_id)
    hub = HubKernel(target.repo_id, access)
    if request.create_repo and not request.dry_run:
        hub.create_repository()
    propose = request.create_pr or settings.proposes(name)
    publisher = Publisher(hub, target.repo_id, request.dry_run, propose, log)
    branches = publisher.publish(release, target.branch, terms, mirror=target.mirror)
    return PublishedTree(name, version, target, branches, request.dry_run)
