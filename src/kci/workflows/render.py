"""Rendering the workflow files: a pure function of its inputs, byte for byte."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from kci.config.settings import Publish
from kci.config.values import Forks, Tier
from kci.errors import FindingsError, UnsafeError
from kci.matrix.catalog.runners import hosted_runners
from kci.plan.github_limits import LIMIT_KEYS
from kci.plan.plan import Leg
from kci.utils.shipped import template_environment, tidy
from kci.workflows.extensions import NO_PARTS, OwnParts
from kci.workflows.rendered_files import OWN, Pin, action_of, unreleased, with_content


def build_words(leg: Leg, tier: str) -> list[str]:
    """`build` and the options of `kci build` that say what a leg makes and how; not where it is put."""
    words = ["build", *(word for name in leg.variants or [leg.variant] for word in ("--variant", name))]
    words += ["--tier", tier, "--container", "none"]
    words += ["--part", f"{leg.part}/{leg.parts}"] if leg.part else []
    words += ["--builder", leg.builder] if leg.builder else []
    return words


RELEASE_FILE = ".github/workflows/kci.yml"
COMPAT_FILE = ".github/workflows/kci-compat.yml"
KERNEL_FILE = ".github/workflows/kci-kernel.yml"
OWN_MACHINES_FILE = ".github/workflows/kci-own-machines.yml"
PUBLISH_FILE = ".github/workflows/kci-publish.yml"
COMMENT_FILE = ".github/workflows/kci-comment.yml"
REUSABLE_FILES = {
    ".github/workflows/kernel.yml": "github/release.yml.j2",
    ".github/workflows/kernel-legs.yml": "github/kernel.yml.j2",
}
"""The workflow of kci's own repository that short files call, and what it calls for each kernel; their templates."""
FILES = (RELEASE_FILE, COMPAT_FILE, KERNEL_FILE, OWN_MACHINES_FILE, PUBLISH_FILE, COMMENT_FILE)

_TEMPLATES = {RELEASE_FILE: "github/release.yml.j2", COMPAT_FILE: "github/compat.yml.j2"}
_CALLED = {KERNEL_FILE: "github/kernel.yml.j2"}
"""What the others call for each kernel."""

_FILTER_SIGNS = re.compile(r"^!|\+")
"""What is no text in GitHub's filters for branches, and can be in the name of one."""


class Inputs(msgspec.Struct, frozen=True):
    """Everything that the workflow files depend on, besides the templates, the pins and kci's version."""

    names: tuple[str, ...]
    """The names of the kernels; they spread the schedules of different repositories."""
    kernels: tuple[str, ...] = (".",)
    """The directories to plan, relative to the repository's root."""
    submodules: bool = False
    """True if checkouts fetch submodules."""
    lfs: bool = False
    """True if checkouts fetch what Git LFS stores."""
    branch: str = "main"
    """A push to this branch builds a release."""
    pin: str = "tag"
    """How kci's own actions are named: `tag` or `sha`."""
    callers: int = 1
    """How many caller jobs share the kernels; each of them calls a workflow for every kernel of its own."""
    pr_tier: str = str(Tier.PR)
    """What a pull request and the merge queue build."""
    forks: str = str(Forks.HOSTED)
    """What becomes of legs that need a self-hosted machine, in a pull request from a fork."""
    comment: bool = False
    """True if pull requests have a comment with the state of their runs."""
    schedule_tier: str = str(Tier.COMPAT)
    """What the scheduled run builds."""
    schedule: str = ""
    """When it happens, as a cron line; empty for a moment that depends on the kernels' names."""
    tiers: tuple[str, ...] = ()
    """The repository's own tiers, which can be dispatched besides kci's."""
    tested: bool = False
    """True if there are machines that test."""
    compiled: bool = False
    """True if a kernel is compiled, so that there are objects to keep from run to run."""
    nix: bool = False
    """True if the nix builder makes a variant."""
    part_jobs: int = 0
    """How many jobs compile parts of variants that do not fit into a job: one for as many as a matrix takes."""
    publish: Publish | None = None
    """How the kernels are published; None for no such workflow."""
    short: bool = False
    """True if one file calls the reusable workflow of kci, in place of kci.yml with jobs and of kci-compat.yml."""


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
        FindingsError: a part of the repository's has no place (KCI423).
    """
    refuse_unsafe(inputs)
    values = _values(inputs, own) | {
        "version": version,
        "command": shlex.join(command(inputs)),
        "digest": input_digest(inputs, own),
        "uses": lambda action: _uses(action, pins),
        "unreleased": unreleased(pins),
    }
    templates = {RELEASE_FILE: "github/short.yml.j2"} if inputs.short else dict(_TEMPLATES)
    if not inputs.short:
        templates |= _CALLED
    if inputs.publish is not None:
        templates |= {PUBLISH_FILE: "github/publish.yml.j2"}
    if inputs.forks == Forks.DISPATCH and not inputs.short:
        templates |= {OWN_MACHINES_FILE: "github/own_machines.yml.j2"}
    if inputs.comment and not inputs.short:
        templates |= {COMMENT_FILE: "github/comment.yml.j2"}
    jinja = template_environment()
    rendered = {path: tidy(jinja.get_template(name).render(values)) for path, name in sorted(templates.items())}
    if lost := [*own.without_place(rendered), *own.misplaced_jobs(rendered[RELEASE_FILE])]:
        raise FindingsError("what the repository adds to the workflows has no place", diagnostics=lost)
    filled = {path: own.fill(text, pins, committed.get(path, "")) for path, text in rendered.items()}
    return {path: with_content(text) for path, text in filled.items()}


def _values(inputs: Inputs, own: OwnParts) -> dict[str, Any]:
    return msgspec.structs.asdict(inputs) | {
        "runner": hosted_runners().default,
        "cron": inputs.schedule or cron(inputs.names),
        "cron_origin": "from kci.toml" if inputs.schedule else _CRON_ORIGIN,
        "limit_keys": LIMIT_KEYS,
        "branch_filter": _FILTER_SIGNS.sub(r"\\\g<0>", inputs.branch),
        "caller_names": caller_names(inputs.callers),
        "kernel_file": KERNEL_FILE,
        "dispatched": inputs.forks == Forks.DISPATCH,
        "tiers": [*_DISPATCHED, *inputs.tiers],
        "publish": inputs.publish,
        "reusable": False,
        "point": own.mark,
        "job_ids": list(own.job_ids),
        "own_results": own.results,
        "split": inputs.part_jobs > 0,
        "part_names": part_names(inputs.part_jobs),
        "from_base": inputs.tested or inputs.compiled,
    }


_EVERYTHING = Inputs((), submodules=True, tested=True, compiled=True, nix=True, part_jobs=1)


def _beside(action: str) -> str:
    # The runner refuses `$/` without a path.
    return f"$/{action.removeprefix(OWN).removeprefix('/') or '.'}"


def render_reusable(pins: Mapping[str, Pin]) -> dict[str, str]:
    """The reusable workflow that short files call, and what it calls, by their path in kci's repository.

    What a rendered file decides when it is written is decided there when it runs. Kci's own actions are those of the
    same commit: `$/` needs a runner of 2.336 or newer and is not on GitHub Enterprise Server, see
    https://github.blog/changelog/2026-07-30-reference-same-repository-actions-with-self-repository-syntax.
    """
    legs_file = next(reversed(REUSABLE_FILES))
    values = _values(_EVERYTHING, NO_PARTS) | {
        "reusable": True,
        "lfs": "${{ inputs.lfs }}",
        "kernel_file": legs_file,
        "uses": lambda action: _beside(action) if action_of(action) == OWN else _uses(action, pins),
    }
    jinja = template_environment()
    return {path: tidy(jinja.get_template(name).render(values)) for path, name in REUSABLE_FILES.items()}


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
    for name in ("branch", "pin"):
        if (value := getattr(inputs, name)) != getattr(usual, name):
            words += [f"--{name}", str(value)]
    return [*words, "--short"] if inputs.short else words


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


def _uses(action: str, pins: Mapping[str, Pin]) -> str:
    pin = pins[action_of(action)]
    action = (pin.repository or action_of(action)) + action.removeprefix(action_of(action))
    if pin.sha:
        return f"{action}@{pin.sha}" + (f" # {pin.version}" if pin.version else "")
    # Auditors ask for a commit here; kci's tag is the documented contract, and a committed commit is kept.
    return f"{action}@{pin.version} # zizmor: ignore[unpinned-uses]"


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
