"""Rendering of the GitHub workflow files and of the Snakefile: pure functions of their inputs."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import msgspec

from kci.config.facts import BACKENDS, needs_device
from kci.config.settings import Publish
from kci.config.values import Forks, PublishOn, Tier
from kci.errors import FindingsError, UnsafeError
from kci.matrix.catalog.runners import hosted_runners
from kci.plan.github_limits import LIMIT_KEYS
from kci.utils.frozen import Frozen
from kci.utils.shipped import fill_template
from kci.version import __version__
from kci.workflows.extensions import NO_EXTENSIONS, WorkflowExtensions
from kci.workflows.rendered_files import OWN, Pin, action_of, unreleased, with_checksum

RELEASE_FILE = ".github/workflows/kci.yml"
COMPAT_FILE = ".github/workflows/kci-compat.yml"
KERNEL_FILE = ".github/workflows/kci-kernel.yml"
OWN_MACHINES_FILE = ".github/workflows/kci-own-machines.yml"
PUBLISH_FILE = ".github/workflows/kci-publish.yml"
COMMENT_FILE = ".github/workflows/kci-comment.yml"
SNAKEFILE = "Snakefile"
REUSABLE_FILES = {
    ".github/workflows/kernel.yml": "release",
    ".github/workflows/kernel-legs.yml": "kernel",
}
"""Reusable workflows in kci's repository and their templates: the one that short files call, and
the one per kernel."""
FILES = {
    RELEASE_FILE: "release",
    COMPAT_FILE: "compat",
    KERNEL_FILE: "kernel",
    OWN_MACHINES_FILE: "own_machines",
    PUBLISH_FILE: "publish",
    COMMENT_FILE: "comment",
}
"""The workflow files and their templates."""

_FILTER_SIGNS = re.compile(r"^!|\+")
"""Special in GitHub's branch filters, and possible in a branch name."""


class Inputs(Frozen):
    """The inputs of the workflow files, besides templates, pins and kci's version."""

    names: tuple[str, ...]
    """Kernel names, which spread the schedules of different repositories."""
    kernels: tuple[str, ...] = (".",)
    submodules: bool = False
    token: str = ""
    """The secret with the token of checkouts; empty for the job's own."""
    lfs: bool = False
    branch: str = "main"
    """A push to this branch builds a release."""
    pin: str = "tag"
    """The form of kci's own references: `tag` or `sha`."""
    callers: int = 1
    """The number of caller jobs among which the kernels are distributed."""
    pr_tier: str = Tier.PR
    forks: str = Forks.HOSTED
    """The policy for legs on self-hosted machines in pull requests from forks."""
    comment: bool = False
    """True if pull requests get a comment with the state of their runs."""
    schedule_tier: str = Tier.COMPAT
    schedule: str = ""
    """A cron line; empty for one that `cron` derives from the names."""
    tiers: tuple[str, ...] = ()
    compiled: bool = False
    """True if a kernel is compiled, so that objects are kept between runs."""
    nix: bool = False
    part_jobs: int = 0
    """The number of matrix jobs for parts of variants."""
    publish: Publish | None = None
    short: bool = False
    """True for one file that calls kci's reusable workflow."""


def render(
    inputs: Inputs,
    pins: Mapping[str, Pin],
    version: str,
    own: WorkflowExtensions = NO_EXTENSIONS,
    committed: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The workflow files by path; UnsafeError as `refuse_unsafe`, FindingsError (KCI423) for a part
    without a place.
    """
    refuse_unsafe(inputs)
    values = _values(inputs, own) | {
        "version": version,
        "command": command(inputs),
        "digest": input_digest(inputs, own),
        "uses": lambda action: _uses(action, pins),
        "unreleased": unreleased(pins),
    }
    templates = dict(FILES)
    if inputs.short:
        templates = dict.fromkeys((RELEASE_FILE, COMPAT_FILE), "short")
        templates[PUBLISH_FILE] = FILES[PUBLISH_FILE]
    not_wanted = {
        PUBLISH_FILE: not inputs.publish,
        OWN_MACHINES_FILE: inputs.forks != Forks.DISPATCH,
        COMMENT_FILE: not inputs.comment,
    }
    rendered = {
        path: fill_template(f"github/{name}.yml.j2", values | {"path": path})
        for path, name in sorted(templates.items())
        if not not_wanted.get(path)
    }
    if lost := [*own.unplaced_parts(rendered), *own.misplaced_jobs(rendered[RELEASE_FILE])]:
        raise FindingsError(
            "what the repository adds to the workflows has no place", diagnostics=lost
        )
    filled = {
        path: own.fill(text, pins, committed.get(path, "")) for path, text in rendered.items()
    }
    return {path: with_checksum(text) for path, text in filled.items()}


def _values(inputs: Inputs, own: WorkflowExtensions) -> dict[str, Any]:
    by_push = inputs.publish and inputs.publish.on is PublishOn.PUSH
    return msgspec.structs.asdict(inputs) | {
        "runner": hosted_runners().default,
        "cron": inputs.schedule or cron(inputs.names),
        "cron_origin": "from kci.toml" if inputs.schedule else _CRON_ORIGIN,
        "limit_keys": LIMIT_KEYS,
        "branch_filter": _FILTER_SIGNS.sub(r"\\\g<0>", inputs.branch),
        "caller_names": ["kernels"]
        if inputs.callers == 1
        else [f"kernels-{number + 1}" for number in range(inputs.callers)],
        "kernel_file": KERNEL_FILE,
        "compat_file": COMPAT_FILE,
        "dispatched": inputs.forks == Forks.DISPATCH,
        "tiers": [*_DISPATCHED, *inputs.tiers],
        "push_file": PurePosixPath(PUBLISH_FILE if by_push else RELEASE_FILE).name,
        "reusable": False,
        "point": own.mark,
        "own_results": own.results(),
        "split": inputs.part_jobs > 0,
        "part_names": [
            f"parts-{number + 1}" if number else "parts" for number in range(inputs.part_jobs)
        ],
    }


_EVERYTHING = Inputs((), submodules=True, compiled=True, nix=True, part_jobs=1)


def render_reusable(pins: Mapping[str, Pin]) -> dict[str, str]:
    """The reusable workflows by path in kci's repository, with kci's own actions of the same
    commit.

    `$/` needs runner 2.336 or newer and is not on GitHub Enterprise Server:
    https://github.blog/changelog/2026-07-30-reference-same-repository-actions-with-self-repository-syntax
    """
    legs_file = next(reversed(REUSABLE_FILES))
    values = _values(_EVERYTHING, NO_EXTENSIONS) | {
        "reusable": True,
        "lfs": "${{ inputs.lfs }}",
        "kernel_file": legs_file,
        # The runner refuses `$/` without a path.
        "uses": lambda action: (
            f"$/{action.removeprefix(OWN).removeprefix('/') or '.'}"
            if action_of(action) == OWN
            else _uses(action, pins)
        ),
    }
    return {
        path: fill_template(f"github/{name}.yml.j2", values)
        for path, name in REUSABLE_FILES.items()
    }


_CRON_ORIGIN = "minute and hour come from the kernels' names, away from the crowded full hour"
_DISPATCHED = (Tier.RELEASE, Tier.PR, Tier.ALL)


def render_snakemake(kernels: Sequence[str]) -> dict[str, str]:
    """The Snakefile by its path, which reads the plan when it runs; UnsafeError as
    `refuse_unsafe`.
    """
    devices = sorted(str(name) for name in BACKENDS if needs_device(name))
    values = {"kernels": list(kernels), "devices": devices}
    return one_file(
        SNAKEFILE, "snakemake/Snakefile.j2", Inputs((), tuple(kernels)), values, "snakemake"
    )


def one_file(
    path: str, template: str, inputs: Inputs, values: Mapping[str, Any], ci: str
) -> dict[str, str]:
    """A file by its path, with the header that says how it was made; UnsafeError as
    `refuse_unsafe`.
    """
    refuse_unsafe(inputs)
    head = {"command": command(inputs, "--ci", ci), "digest": input_digest(inputs)}
    text = fill_template(template, {"version": __version__, **head, **values})
    return {path: with_checksum(text)}


def command(inputs: Inputs, *more: str) -> str:
    """The `kci render` command line of these inputs, with more options."""
    usual = Inputs(())
    words = ["kci", "render", *(inputs.kernels if inputs.kernels != usual.kernels else ())]
    words += ["--branch", inputs.branch] if inputs.branch != usual.branch else []
    words += ["--pin", inputs.pin] if inputs.pin != usual.pin else []
    return shlex.join([*words, *(["--short"] if inputs.short else []), *more])


def input_digest(inputs: object, own: WorkflowExtensions = NO_EXTENSIONS) -> str:
    """A 16-digit sha256 of the inputs, for the header of a file."""
    made_from = msgspec.to_builtins(inputs, enc_hook=str)
    if own.parts:
        made_from["own"] = own.parts
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]


def cron(names: tuple[str, ...]) -> str:
    """A weekly cron line from the kernels' names, five minutes from the full hour, when GitHub
    drops some.
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
    # Auditors want a commit here; the tag is kci's documented contract.
    return f"{action}@{pin.version} # zizmor: ignore[unpinned-uses]"


def refuse_unsafe(inputs: Any) -> None:
    """Raise UnsafeError for a CI expression or an unprintable character at any depth: quoting does
    not stop either.
    """
    waiting = [msgspec.to_builtins(inputs, enc_hook=str)]
    while waiting:
        match waiting.pop():
            case str() as value if "${{" in value or "$[[" in value or not value.isprintable():
                raise UnsafeError(
                    f"{value!r} cannot be written into a workflow: it holds an expression or "
                    "unprintable characters",
                    "rename the kernel, directory, label or branch",
                )
            case dict() as table:
                waiting += [*table, *table.values()]
            case list() | tuple() as items:
                waiting += items
