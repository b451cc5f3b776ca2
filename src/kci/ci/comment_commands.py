"""Commands in the comments of pull requests: who may say which, and what follows.

What counts is the comment as it was written, which the event has; a later edit says nothing. A command begins the
first line, so that one in a quote or in code is none. It is about a full commit, the newest one, and only if that was
there when the comment was written: GitHub says when the commit's run began.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kci.ci.pull_comment import code
from kci.ci.pull_talk import PullRequestState, PullTalk, WorkflowRun
from kci.ci.tree_index import read_uploads
from kci.errors import FindingsError, UsageError
from kci.matrix.names import is_variant_name
from kci.plurals import count

_LONGEST = 1000
_LINE = re.compile(r"/kci(?: +([a-z]+)((?: +[A-Za-z0-9_.,\[\]-]+)*))? *", re.ASCII)
_KERNEL = re.compile(r"([a-z][-a-z0-9]*[a-z0-9])(?:\[([a-z]+(?:,[a-z]+)*)\])?")

HELP = """\
The first line of a comment can be one of these; whoever may write to the repository may say it.

| command | what it does |
|---|---|
| `/kci build relu[cuda,cpu]` | builds kernels at the newest commit; without names, all that the change touches |
| `/kci test` | runs again what failed in the newest run |
| `/kci stage` | brings what the newest run built to the staging repositories, once the reviewers agree |
| `/kci publish relu` | after the merge: builds what is missing, and publishes once the reviewers agree |
| `/kci release relu` | merges the pull request at its newest commit, then does what `publish` does |
| `/kci explain VARIANT` | says what the newest run made of a variant |
| `/kci help` | says this |
"""


class Said(msgspec.Struct, frozen=True):
    """A comment as it was written, from the event."""

    number: int
    """Of the pull request."""
    comment: int
    by: str
    text: str
    at: str
    """When, in UTC."""


class PullCommand(msgspec.Struct, frozen=True):
    """What a comment asks for."""

    verb: str
    kernels: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    variant: str = ""


class CommandSetup(msgspec.Struct, frozen=True):
    """What the repository has, as its workflow files were rendered."""

    repository: str
    branch: str
    several: bool
    publishes: bool
    stages: bool = False


def parse_command(text: str) -> PullCommand | None:
    """The command that a comment begins with; None for any other comment. UsageError for one that means nothing."""
    line = text.replace("\r\n", "\n").partition("\n")[0]
    if not re.match(r"/kci(?![\w/-])", line):
        return None
    found = _LINE.fullmatch(line) if len(line) <= _LONGEST else None
    if found is None:
        raise UsageError("that is no command")
    verb, words = found[1] or "help", (found[2] or "").split()
    if verb in ("help", "test", "stage") and not words:
        return PullCommand(verb)
    if verb == "explain" and len(words) == 1 and is_variant_name(words[0]):
        return PullCommand(verb, variant=words[0])
    if verb in ("build", "publish", "release") and (words or verb == "build"):
        named = [_KERNEL.fullmatch(word) for word in words]
        scopes = {tuple(sorted(set(item[2].split(",")))) if item[2] else () for item in named if item}
        if None not in named and len(scopes) <= 1 and (verb == "build" or scopes == {()}):
            kernels = tuple(dict.fromkeys(item[1] for item in named if item))
            return PullCommand(verb, kernels, next(iter(scopes), ()))
        if len(scopes) > 1:
            raise UsageError("the kernels of one command are for the same backends: say a command for each")
    raise UsageError(f"`{verb}` is not said like this")


def obey(said: Said, pulls: PullTalk, setup: CommandSetup) -> str:
    """Do what a comment says, and answer it; returns what was done, for the log.

    FindingsError where GitHub refuses or does not answer.
    """
    try:
        command = parse_command(said.text)
        problem = ""
    except UsageError as error:
        command, problem = PullCommand("help"), error.message
    if command is None:
        return "it is no command"
    if pulls.permission(said.by) not in ("admin", "write"):
        pulls.react(said.comment, "-1")
        return f"{said.by} may not write to the repository"
    if problem:
        pulls.react(said.comment, "confused")
        pulls.say(said.number, f"kci does not understand: {problem}.\n\n{HELP}")
        return problem
    pulls.react(said.comment, "eyes")
    try:
        answer = _carried_out(command, said, pulls, setup)
    except UsageError as error:
        pulls.react(said.comment, "confused")
        pulls.say(said.number, f"`/kci {command.verb}`: {error.message}.")
        return error.message
    pulls.react(said.comment, "rocket")
    pulls.say(said.number, answer)
    return answer.partition("\n")[0]


def _carried_out(command: PullCommand, said: Said, pulls: PullTalk, setup: CommandSetup) -> str:
    """The answer. UsageError for what cannot be done now."""
    if command.verb == "help":
        return HELP
    pull = pulls.pull(said.number)
    if command.kernels and not setup.several and len(command.kernels) > 1:
        raise UsageError("the repository has one kernel")
    names = {"kernel": ",".join(command.kernels)} if setup.several else {}
    if command.verb in ("publish", "release"):
        if not setup.publishes:
            raise UsageError("`[publish]` of kci.toml does not say where to")
        if pull.merged_at is None and command.verb == "publish":
            raise UsageError("it publishes the default branch: merge the pull request first, or say `/kci release`")
        if pull.merged_at is None:
            pulls.merge(pull.number, _run_of_newest(pull, said, pulls).head_sha)
        return _dispatched(pulls, setup, "kci-publish.yml", names)
    run = _run_of_newest(pull, said, pulls)
    if command.verb == "test":
        if run.conclusion in (None, "success", "action_required"):
            raise UsageError("the newest run has nothing that failed, or has not ended")
        pulls.run_failed_again(run.id)
        return f"What failed of {run.head_sha} runs again: {_link(setup, run.id)}"
    if command.verb == "stage":
        if not setup.stages:
            raise UsageError("`staging` under `[pull-request]` of kci.toml does not say where to")
        given = {"number": str(pull.number), "commit": run.head_sha}
        return f"{run.head_sha}: " + _dispatched(pulls, setup, "kci-stage.yml", given)
    if command.verb == "explain":
        return _explained(command.variant, run, pulls)
    given = names | {"commit": run.head_sha, "backends": ",".join(command.backends)}
    return f"{run.head_sha}: " + _dispatched(pulls, setup, "kci-commit.yml", given)


def _run_of_newest(pull: PullRequestState, said: Said, pulls: PullTalk) -> WorkflowRun:
    """The run of the newest commit, if that was there when the comment was written."""
    if pull.state != "open":
        raise UsageError("the pull request is closed")
    run = pulls.newest_run(pull.head.sha)
    if run is None:
        raise UsageError(f"kci.yml has no run for {pull.head.sha}: it conflicts with its base, or has only just come")
    if not run.created_at or run.created_at > said.at:
        raise UsageError(f"{pull.head.sha} was pushed after the comment was written: look at it, and say it again")
    return run


def _dispatched(pulls: PullTalk, setup: CommandSetup, workflow: str, inputs: Mapping[str, str]) -> str:
    run = pulls.dispatch(workflow, setup.branch, inputs)
    return f"started {_link(setup, run)}" if run else f"started {workflow}; the Actions tab has its run"


def _link(setup: CommandSetup, run: int) -> str:
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    return f"[run {run}]({server}/{setup.repository}/actions/runs/{run})"


def _explained(variant: str, run: WorkflowRun, pulls: PullTalk) -> str:
    with tempfile.TemporaryDirectory(prefix="kci-explain-") as place:
        pulls.fetch_records(run, Path(place))
        try:
            plan = read_uploads(Path(place)).plan
        except (FindingsError, ValueError):
            raise UsageError("the records of the newest run cannot be read") from None
    legs = [(leg.kernel, f"a job builds it on {leg.runner_text}") for leg in plan.legs if variant in leg.variants]
    others = [(item.kernel, f"skipped: {item.reason}") for item in plan.skipped if item.variant == variant]
    left = [(item.kernel, f"left out, {item.rule}: {item.reason}") for item in plan.left_out if item.variant == variant]
    found = [f"- {code(kernel)}: {code(why)}" for kernel, why in (*legs, *others, *left)]
    if not found:
        return f"`{variant}`: the newest run neither builds it nor leaves it out; `kci matrix --explain` says why."
    more = [f"- and {count(len(found) - 30, 'kernel')} more"] if len(found) > 30 else []
    return "\n".join([f"`{variant}` at {run.head_sha}:", "", *found[:30], *more])
