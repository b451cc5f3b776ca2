"""Signing again what is published: held to what says that it was built, and nothing but signatures is published.

A signature says that whoever signs stands for the bytes. So what an old run has built is not signed by a new one
unseen: either the tree of a run of this repository has the same files, or the old signature is of a named workflow.
The dispatch names one of the two, and the new attestation says which.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from kci.ci.pull_talk import RUN_FILE, WorkflowRun
from kci.errors import FindingsError, UsageError
from kci.files.bounded_json import decode_json
from kci.files.replace import Log
from kci.hub.client import find_access
from kci.hub.fetched import PublishedVariants
from kci.hub.held import FOLDER
from kci.plurals import first_of
from kci.publish.branch_changes import WantedBranch
from kci.publish.hub import HubAnswerError, HubKernel
from kci.publish.publish_tree import HubBranch, PublishedTree, target_of
from kci.publish.release import local_file, read_release
from kci.publish.upload import Publication, Publisher
from kci.render.workflow import PUBLISH_FILE
from kci.tree.dsse import Signers, SigningContext
from kci.tree.manifest import FILE_NAME, Manifest
from kci.tree.signing import sign_tree_as_run, signed_files
from kci.verify.tree_rules import check_signatures
from kci.watch.github_api import GitHubApi
from kci.workspace.workspace import Workspace

_COMMIT = re.compile(r"[0-9a-f]{40}")
_RUN = re.compile(r"[1-9][0-9]{0,17}")
_WORKFLOW = re.compile(
    r"([\w.-]{1,100}/[\w.-]{1,100})/\.github/workflows/[\w.-]{1,100}\.ya?ml@(refs/(heads|tags)/[\w./-]{1,200})",
    re.ASCII,
)
_TRUSTED = ("push", "workflow_dispatch", "schedule")
"""What starts runs of the repository's own code."""


class SignAgain(msgspec.Struct, frozen=True):
    """What a dispatch asks for."""

    workspace: Workspace
    """The one kernel."""
    revision: str
    """The commit of the Hub that has the tree."""
    evidence: str
    """The number of the run that built it, or the workflow that signed it, as GitHub names it."""
    built: Path
    """Where the tree of that run is."""
    context: SigningContext
    """Who signs now."""
    ref: str
    """What the workflow runs on, such as `refs/heads/main`."""
    server: str = "https://github.com"


class _Compared(msgspec.Struct, frozen=True):
    status: str


def sign_again(request: SignAgain, api: GitHubApi, place: Path, log: Log, *, dry_run: bool) -> PublishedTree | None:
    """Sign a published tree again and publish the signatures; None in a dry run, which only looks.

    Args:
        request: what to sign, and what says that it is what was built.
        api: GitHub, for what it says about the run.
        place: an empty folder for the tree.
        log: takes lines about what is done.
        dry_run: whether to sign nothing.

    Raises:
        UsageError: the revision or the evidence is not one.
        FindingsError: the tree is not what the evidence says, does not meet the requirements, or is another one by now.
        UnsafeError: a name must not be written.
        MissingToolError: there is no token, no identity, or no program for them.
    """
    kernel = request.workspace.only_kernel()
    if not _COMMIT.fullmatch(request.revision):
        raise UsageError(f"{request.revision[:80]!r} is not a full commit of the Hub", hint="write its 40 digits")
    evidence = _read_evidence(request, api)
    build, settings = kernel.build, request.workspace.settings.settings.publish
    target = target_of(build.name, build.general.version, settings, build=build)
    hub = HubKernel(target.repo_id, find_access(target.repo_id))
    where = f"{target.repo_id}@{request.revision[:12]}"
    manifest, branch = _published(hub, request.revision, target, build.general.version)
    if manifest.kernel != build.name:
        raise FindingsError(f"{where} is {manifest.kernel[:100]!r}, not {build.name}")
    tree = place / "build"
    PublishedVariants(target.repo_id, request.revision).fetch_tree(tree)
    read_release(tree)
    _require_evidence(request, tree, where)
    log(f"{where} is what {request.evidence} says")
    if dry_run:
        return None
    written = _signed(request, tree, evidence)
    files = {f"{FOLDER}{path.relative_to(tree).as_posix()}": local_file(path) for path in written}
    publisher = Publisher(hub, target.repo_id, log=log)
    title = f"{manifest.kernel} version {manifest.version}: signed again (kci)"
    done = publisher.bring(WantedBranch(branch, files, at=request.revision), title)
    at = msgspec.structs.replace(target, branch=branch)
    return PublishedTree(manifest.kernel, manifest.version, at, Publication(done, None), dry_run)


def _published(hub: HubKernel, revision: str, target: HubBranch, version: int) -> tuple[Manifest, str]:
    """What a commit says it has, and the branch that is at it."""
    try:
        manifest = decode_json(hub.read(revision, f"{FOLDER}{FILE_NAME}"), Manifest)
        heads = hub.heads()
    except HubAnswerError as answer:
        raise FindingsError(f"{hub.repo_id}@{revision} has no manifest to read: {answer.message}") from answer
    except ValueError as error:
        raise FindingsError(f"the manifest of {hub.repo_id}@{revision} cannot be read: {error}") from error
    names = [f"v{manifest.version}", *([target.branch] if manifest.version == version else [])]
    for name in names:
        if heads.get(name) == revision:
            return manifest, name
    hint = "look at what is there now, and name that commit; only the newest of a branch can be signed again"
    raise FindingsError(f"{names[-1]} of {hub.repo_id} is at {heads.get(names[-1])}, not at {revision}", hint=hint)


def _read_evidence(request: SignAgain, api: GitHubApi) -> dict[str, str]:
    """What the attestation says of the evidence; it is not compared with the tree yet."""
    evidence, own, revision = request.evidence, request.context.repository, {"revision": request.revision}
    if _RUN.fullmatch(evidence):
        run = api.told(WorkflowRun, "GET", f"actions/runs/{evidence}")
        if run.event not in _TRUSTED or run.path.partition("@")[0] not in (RUN_FILE, PUBLISH_FILE):
            raise FindingsError(f"run {evidence} is one of {run.path[:100]} for {run.event[:40]}", hint=_RUNS)
        # Files come on the first page only.
        path = f"compare/{run.head_sha}...{request.context.commit}?per_page=1&page=2"
        if api.told(_Compared, "GET", path).status not in ("ahead", "identical"):
            message = f"run {evidence} is of {run.head_sha[:12]}, which is not in the history of {request.ref}"
            raise FindingsError(message, hint=_RUNS)
        return {"run": f"{request.server}/{own}/actions/runs/{evidence}", "commit": run.head_sha, **revision}
    if not (found := _WORKFLOW.fullmatch(evidence)):
        hint = "a run's number, or the workflow that signed it: owner/name/.github/workflows/FILE.yml@refs/tags/TAG"
        raise UsageError(f"{evidence[:200]!r} is no evidence", hint=hint)
    signing = request.workspace.settings.settings.signing
    if found[1] not in (own, signing.repository):
        raise FindingsError(f"{evidence[:200]} is of another repository than {own}", hint="see [signing] of kci.toml")
    if found[3] != "tags" and found[2] != request.ref and evidence != signing.workflow:
        hint = f"any pusher can make a branch; a tag, {request.ref}, or `workflow` in [signing] of kci.toml counts"
        raise FindingsError(f"a workflow of {found[2][:100]} is no evidence", hint=hint)
    return {"signature": evidence, **revision}


def _require_evidence(request: SignAgain, tree: Path, where: str) -> None:
    if not _RUN.fullmatch(request.evidence):
        named = SigningContext(request.evidence.partition("/.github/")[0], "", request.evidence)
        signers = Signers((), request.workspace.settings.trust_config)
        if wrong := list(check_signatures(tree, where, signers, named)):
            message = f"{where} is not what {request.evidence} signed: {wrong[0].message}"
            raise FindingsError(message, diagnostics=wrong)
        return
    if not (request.built / FILE_NAME).is_file():
        hint = "GitHub keeps artifacts for 90 days or less; name the run that merged it, or the workflow that signed it"
        raise FindingsError(f"run {request.evidence} has no tree of this kernel", hint=hint)
    there, built = signed_files(tree), signed_files(request.built)
    if others := sorted(name for name in there.keys() | built.keys() if there.get(name) != built.get(name)):
        raise FindingsError(f"{where} is not what run {request.evidence} built: {first_of(others, 3)}", hint=_RUNS)


def _signed(request: SignAgain, tree: Path, evidence: dict[str, str]) -> list[Path]:
    """The signatures, which [signing] of kci.toml takes."""
    settings = request.workspace.settings
    signing, trust = settings.settings.signing, settings.trust_config
    written = sign_tree_as_run(tree, request.context, trust, evidence)
    wanted = SigningContext(signing.repository or "", "", signing.workflow or "")
    if wrong := list(check_signatures(tree, str(tree), Signers((), trust), wanted)):
        hint = "start it from the workflow, the branch or the tag that `workflow` in [signing] names"
        message = f"[signing] of kci.toml would not take the signature: {wrong[0].message}"
        raise FindingsError(message, hint=hint, diagnostics=wrong)
    return written


_RUNS = "name the run of kci.yml or kci-publish.yml, of a push or a dispatch, that merged the tree"
