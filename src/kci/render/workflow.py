"""Rendering the workflow files: a pure function of its inputs, byte for byte."""

from __future__ import annotations

import enum
import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from kci.catalog.runners import hosted_runners, is_hosted
from kci.config.values import Forks, Tier
from kci.errors import FindingsError, UnsafeError
from kci.files.templates import template_environment, template_folder, tidy
from kci.plan.github import LIMIT_KEYS
from kci.render.committed import with_content
from kci.render.own_parts import NO_PARTS, TEMPLATES, OwnParts, overriding
from kci.render.pins import Pin, action_of, unreleased
from kci.render.without_actions import KciWheel, without_actions

RELEASE_FILE = ".github/workflows/kci.yml"
COMPAT_FILE = ".github/workflows/kci-compat.yml"
KERNEL_FILE = ".github/workflows/kci-kernel.yml"
OWN_MACHINES_FILE = ".github/workflows/kci-own-machines.yml"
PUBLISH_FILE = ".github/workflows/kci-publish.yml"
COMMENT_FILE = ".github/workflows/kci-comment.yml"
COMMANDS_FILE = ".github/workflows/kci-commands.yml"
COMMIT_FILE = ".github/workflows/kci-commit.yml"
STAGE_FILE = ".github/workflows/kci-stage.yml"
FILES = (
    RELEASE_FILE, COMPAT_FILE, KERNEL_FILE, OWN_MACHINES_FILE, PUBLISH_FILE, COMMENT_FILE, COMMANDS_FILE, COMMIT_FILE,
    STAGE_FILE,
)  # fmt: skip

_TEMPLATES = {RELEASE_FILE: "github/release.yml.j2", COMPAT_FILE: "github/compat.yml.j2"}
_CALLED = {KERNEL_FILE: "github/kernel.yml.j2"}
"""What is there besides where every kernel is called on its own."""

_HAS_WHOLE = "needs.plan.outputs.has-matrix == 'true'"
_HAS_WORK = "needs.plan.outputs.has-work == 'true'"
_IS_PR = "github.event_name == 'pull_request' || github.event_name == 'merge_group'"
_OWN_BRANCH = (
    "(github.event_name == 'merge_group' || github.event.pull_request.head.repo.full_name == github.repository)"
)


_FILTER_SIGNS = re.compile(r"^!|\+")
"""What is no text in GitHub's filters for branches, and can be in the name of one."""


class Mode(enum.StrEnum):
    """Where the legs of the build job come from."""

    RUNTIME = "runtime"
    """The plan job computes them when the workflow runs."""
    STATIC = "static"
    """They are written into the file, for review; the file changes with every kernel and catalog."""


class PublishJobs(msgspec.Struct, frozen=True):
    """What the jobs that publish are to do; see `[publish]` of kci.toml."""

    environment: str
    tags: tuple[str, ...]
    attest: bool
    sign: bool
    again: bool = False
    """Whether what is published can be signed again."""
    benchmarks: bool = False
    """Whether each release is measured on the machines that test."""


class Inputs(msgspec.Struct, frozen=True):
    """Everything that the workflow files depend on, besides the templates, the pins and kci's version."""

    names: tuple[str, ...]
    """The names of the kernels; they spread the schedules of different repositories."""
    kernels: tuple[str, ...] = (".",)
    """The directories to plan, relative to the repository's root."""
    mode: Mode = Mode.RUNTIME
    branch: str = "main"
    """A push to this branch builds a release."""
    pin: str = "tag"
    """How kci's own actions are named: `tag` or `sha`."""
    wheel: KciWheel | None = None
    """What jobs run in place of kci's own actions; None where they use them."""
    installer: str = ""
    """What installs the dependencies of kci's actions: `pip` or `uv`; empty for uv where it is there."""
    callers: int = 0
    """How many caller jobs share the kernels, where each kernel is called on its own; 0 for one flat workflow."""
    pr_tier: str = str(Tier.PR)
    """What a pull request and the merge queue build."""
    forks: str = str(Forks.HOSTED)
    """What becomes of legs that need a self-hosted machine, in a pull request from a fork."""
    comment: bool = False
    """Whether pull requests have a comment with the state of their runs."""
    commands: bool = False
    """Whether comments in pull requests can be commands."""
    staging: str = ""
    """The owner on the Hub of the staging repositories; empty for none."""
    schedule_tier: str = str(Tier.COMPAT)
    """What the scheduled run builds."""
    schedule: str = ""
    """When it happens, as a cron line; empty for a moment that depends on the kernels' names."""
    timezone: str = "UTC"
    """What the cron line is in."""
    signatures: bool = False
    """Whether each day somebody looks at who signed what is published."""
    moves: bool = False
    """Whether the scheduled run may open pull requests when the range of toolchains moves."""
    tiers: tuple[str, ...] = ()
    """The repository's own tiers, which can be dispatched besides kci's."""
    tested: bool = False
    """Whether there are machines that test."""
    compiled: bool = False
    """Whether a kernel is compiled, so that there are objects to keep from run to run."""
    nix: bool = False
    """Whether the nix builder makes a variant."""
    install_nix: bool = False
    """Whether jobs that need Nix install it."""
    part_jobs: int = 0
    """How many jobs compile parts of variants that do not fit into a job: one for as many as a matrix takes."""
    finish: bool = False
    """Whether a leg may take so long that it ends itself before it is done, and another job goes on."""
    publish: PublishJobs | None = None
    """How the kernels are published; None for no such workflow."""
    release_legs: tuple[dict[str, Any], ...] = ()
    """Static mode: the legs of the release tier, as in the plan's GitHub form."""
    pr_legs: tuple[dict[str, Any], ...] = ()
    """Static mode: the legs of the pr tier."""
    release_parallel: int = 0
    """Static mode: how many of the release tier's legs the pools of their runners can run at once; 0 for all."""
    pr_parallel: int = 0
    """The same for the pr tier."""


class Group(msgspec.Struct, frozen=True):
    """One build job of the workflow: its id, when it runs, and in static mode its legs."""

    job: str
    condition: str
    legs: tuple[dict[str, Any], ...] = ()
    parallel: int = 0
    """Static mode: how many of its legs may run at once; 0 for all of them."""

    @property
    def limit_keys(self) -> list[str]:
        return [key for key in LIMIT_KEYS if any(key in leg for leg in self.legs)]

    @property
    def own_machines(self) -> bool:
        return not all(is_hosted(leg.get("runner")) for leg in self.legs)


def render(
    inputs: Inputs,
    pins: Mapping[str, Pin],
    version: str,
    own: OwnParts = NO_PARTS,
    committed: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The workflow files, by their path in the repository.

    In the committed files pins of what the repository adds may have been moved.

    Raises:
        UnsafeError: see `refuse_unsafe`.
        FindingsError: static mode without a single leg; or a part of the repository's that cannot be used (KCI422) or
            has no place (KCI423).
    """
    refuse_unsafe(inputs)
    groups = build_groups(inputs)
    values = msgspec.structs.asdict(inputs) | {
        "version": version,
        "command": shlex.join(command(inputs)),
        "digest": input_digest(inputs, own),
        "runner": hosted_runners().default,
        "cron": inputs.schedule or cron(inputs.names),
        "daily": daily(inputs.names, inputs.schedule),
        "cron_origin": "from kci.toml" if inputs.schedule else _CRON_ORIGIN,
        "timezone": "" if inputs.timezone == "UTC" else inputs.timezone,
        "groups": groups,
        "limit_keys": LIMIT_KEYS,
        "uses": lambda action: _uses(action, pins),
        "unreleased": "" if inputs.wheel else unreleased(pins),
        "branch_filter": _FILTER_SIGNS.sub(r"\\\g<0>", inputs.branch),
        "several": inputs.callers > 0,
        "caller_names": caller_names(inputs.callers),
        "kernel_file": KERNEL_FILE,
        "dispatched": inputs.forks == Forks.DISPATCH,
        "by_ref": inputs.forks == Forks.DISPATCH or inputs.commands,
        "by_command": False,
        "publishes": inputs.publish is not None,
        "tiers": [*_DISPATCHED, *inputs.tiers],
        "publish": None,
        "point": own.mark,
        "job_ids": list(own.job_ids),
        "split": inputs.part_jobs > 0,
        "part_names": part_names(inputs.part_jobs),
        "from_base": inputs.tested or inputs.compiled,
    }
    templates = _TEMPLATES | (_CALLED if inputs.callers or inputs.publish else {})
    special: dict[str, dict[str, Any]] = {}
    if inputs.publish is not None:
        # Kernels are published one by one, so they are called one by one too, even if there is only one.
        callers = max(1, inputs.callers)
        templates |= {PUBLISH_FILE: "github/publish.yml.j2"}
        special[PUBLISH_FILE] = {"several": True, "callers": callers, "caller_names": caller_names(callers),
                                 "publish": inputs.publish}  # fmt: skip
    if inputs.forks == Forks.DISPATCH:
        templates |= {OWN_MACHINES_FILE: "github/own_machines.yml.j2"}
    if inputs.comment:
        templates |= {COMMENT_FILE: "github/comment.yml.j2"}
    if inputs.commands:
        templates |= {COMMANDS_FILE: "github/commands.yml.j2", COMMIT_FILE: "github/own_machines.yml.j2"}
        special[COMMIT_FILE] = {"by_command": True}
    if inputs.staging:
        templates |= {STAGE_FILE: "github/stage.yml.j2"}
    with overriding(template_environment(), own) as jinja:
        rendered = {
            path: tidy(jinja.get_template(name).render(values | special.get(path, {})))
            for path, name in sorted(templates.items())
        }
    if lost := own.without_place(rendered):
        raise FindingsError("what the repository adds to the workflows has no place", diagnostics=lost)
    filled = {path: own.fill(text, pins, committed.get(path, "")) for path, text in rendered.items()}
    if inputs.wheel is not None:
        filled = {path: tidy(without_actions(text, inputs.wheel, pins)) for path, text in filled.items()}
    return {path: with_content(text) for path, text in filled.items()}


_CRON_ORIGIN = "minute and hour come from the kernels' names, away from the crowded full hour"
_DISPATCHED = (str(Tier.RELEASE), str(Tier.PR), str(Tier.ALL))


def caller_names(count: int) -> list[str]:
    """The ids of the jobs that call kernels."""
    return ["kernels"] if count == 1 else [f"kernels-{number}" for number in range(1, count + 1)]


def part_names(count: int) -> list[str]:
    """The ids of the jobs that compile parts."""
    return ["parts", *(f"parts-{number}" for number in range(2, count + 1))][:count]


def command(inputs: Inputs) -> list[str]:
    """The command line that renders these inputs again."""
    usual = Inputs(())
    words = ["kci", "render", *(inputs.kernels if inputs.kernels != usual.kernels else ())]
    for name in ("mode", "branch", "pin"):
        if (value := getattr(inputs, name)) != getattr(usual, name):
            words += [f"--{name}", str(value)]
    return [*words, *(["--without-actions"] if inputs.wheel else [])]


def input_digest(inputs: msgspec.Struct, own: OwnParts = NO_PARTS) -> str:
    """A short digest of the inputs, so that two files can be told apart without comparing them."""
    made_from = msgspec.to_builtins(inputs) | ({} if own == NO_PARTS else {"own": msgspec.to_builtins(own)})
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]


def cron(names: tuple[str, ...]) -> str:
    """A weekly moment that depends on the kernels' names only.

    Full hours are crowded, and GitHub delays or drops schedules then; so no minute within five of the full hour.
    """
    seed = int.from_bytes(hashlib.sha256("\n".join(sorted(names)).encode()).digest()[:8], "big")
    minute, seed = 5 + seed % 50, seed // 50
    hour, seed = 1 + seed % 5, seed // 5
    return f"{minute} {hour} * * {seed % 7}"


def daily(names: tuple[str, ...], other: str) -> str:
    """A moment of each day, by the kernels' names, and not as the other schedule is written: that tells them apart."""
    minute, hour, *_ = cron(names).split()
    found = f"{minute} {int(hour) + 6} * * *"
    return found if found != " ".join(other.split()) else f"{minute} {int(hour) + 7} * * *"


def build_groups(inputs: Inputs) -> list[Group]:
    """The build jobs. Static legs cannot be filtered while the workflow runs, so they are split by who may run them."""
    if inputs.mode is Mode.RUNTIME:
        return [Group("build", f"${{{{ {_HAS_WHOLE if inputs.part_jobs else _HAS_WORK} }}}}")]
    on_hosted = tuple(leg for leg in inputs.pr_legs if is_hosted(leg.get("runner")))
    elsewhere = tuple(leg for leg in inputs.pr_legs if not is_hosted(leg.get("runner")))
    groups = [
        Group("build", f"${{{{ !({_IS_PR}) && {_HAS_WORK} }}}}", inputs.release_legs, inputs.release_parallel),
        Group("build-pr", f"${{{{ ({_IS_PR}) && {_HAS_WORK} }}}}", on_hosted, inputs.pr_parallel),
        Group("build-pr-own", f"${{{{ ({_IS_PR}) && {_OWN_BRANCH} && {_HAS_WORK} }}}}", elsewhere, inputs.pr_parallel),
    ]
    groups = [group for group in groups if group.legs]
    if not groups:
        raise FindingsError("there is no leg to write into the workflow", hint="see `kci plan` for what is left out")
    return groups


def _uses(action: str, pins: Mapping[str, Pin]) -> str:
    pin = pins[action_of(action)]
    action = (pin.repository or action_of(action)) + action.removeprefix(action_of(action))
    if pin.sha:
        return f"{action}@{pin.sha}" + (f" # {pin.version}" if pin.version else "")
    # Auditors ask for a commit here; kci's tag is the documented contract, and a committed commit is kept.
    return f"{action}@{pin.version} # zizmor: ignore[unpinned-uses]"


def shipped_templates() -> dict[str, str]:
    """The templates of workflow files, text by name; what a repository's own ones are made from."""
    return {
        path.name: path.read_text(encoding="utf-8") for path in sorted((template_folder() / TEMPLATES).glob("*.j2"))
    }


def refuse_unsafe(inputs: Any) -> None:
    """Refuse what a CI service would evaluate, in quotes too, and control characters, for which YAML has no place.

    UnsafeError if a value has one, at any depth.
    """
    waiting = [msgspec.to_builtins(inputs)]
    while waiting:
        match waiting.pop():
            case str() as value if "${{" in value or "$[[" in value or not value.isprintable():
                raise UnsafeError(
                    f"{value!r} cannot be written into a workflow: it holds an expression or unprintable characters",
                    hint="rename the kernel, directory, label or branch",
                )
            case dict() as table:
                waiting += [*table, *table.values()]
            case list() | tuple() as items:
                waiting += items
