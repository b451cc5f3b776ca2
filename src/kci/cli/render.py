"""`kci render`: write the workflow files, or check those that are committed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kci import __version__
from kci.cli import Command, Options
from kci.cli._output import print_diagnostics
from kci.config.discover import read_kernels
from kci.diagnostics import Severity
from kci.errors import FindingsError, UsageError
from kci.render.committed import read_committed, write_files
from kci.render.drift import Drift, compare, drift_diagnostics
from kci.render.github_limits import check_files
from kci.render.pins import choose_pins
from kci.render.workflow import COMPAT_FILE, RELEASE_FILE, Inputs, Mode, render

if TYPE_CHECKING:
    from kci.config.model import Build


@click.command("render", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a diff if a file would change.")
@click.option("--diff", is_flag=True, help="Write nothing; show what would change.")
@click.option(
    "--mode",
    type=click.Choice([str(mode) for mode in Mode]),
    default=str(Mode.RUNTIME),
    show_default=True,
    help="Compute the legs when the workflow runs, or write them into the file.",
)
@click.option("--branch", default="main", show_default=True, help="Pushes to this branch build a release.")
@click.option("--output", metavar="DIR", default=".", help="The root of the repository (default: here).")
@click.pass_obj
def command(
    state: Options, kernels: tuple[str, ...], check: bool, diff: bool, mode: str, branch: str, output: str
) -> int:
    """Write .github/workflows/kci.yml and kci-compat.yml for each KERNEL (default: every kernel below here).

    KERNEL is a directory with a build.toml, or one with kernels below it. Action pins that are newer in the committed
    files are kept.
    """
    root = Path(output)
    if not root.is_dir():
        raise UsageError(f"{output}: there is no such directory", hint="name the root of the repository")
    inputs = _inputs(state, kernels or (output,), root, Mode(mode), branch)
    committed = read_committed(root, (RELEASE_FILE, COMPAT_FILE))
    files = render(inputs, choose_pins(committed), __version__)
    problems = check_files(files)
    if problems:
        raise FindingsError("GitHub would not take these workflow files", diagnostics=problems)
    comparisons = compare(files, committed)
    found = drift_diagnostics(comparisons, committed, __version__)
    if check or diff:
        click.echo("".join(item.diff for item in comparisons), nl=False)
        print_diagnostics(found if check else [item for item in found if item.rule == "KCI405"], quiet=state.quiet)
        return int(check and any(item.severity is Severity.ERROR for item in found))
    foreign = [item for item in found if item.rule == "KCI402"]
    if foreign:
        raise FindingsError("nothing was written", diagnostics=foreign)
    print_diagnostics([item for item in found if item.rule == "KCI405"], quiet=state.quiet)
    write_files(root, files)
    for item in comparisons:
        click.echo(f"{item.path}: {'unchanged' if item.state is Drift.SAME else 'written'}")
    return 0


def _inputs(state: Options, kernels: tuple[str, ...], root: Path, mode: Mode, branch: str) -> Inputs:
    read = read_kernels(kernels)
    legs: dict[str, Any] = {}
    if mode is Mode.STATIC:
        legs = {f"{tier}_legs": _legs(state, kernels, root, tier) for tier in ("release", "pr")}
    return Inputs(
        names=tuple(sorted({_published_name(kernel.build) for kernel in read})),
        kernels=tuple(sorted({_relative(kernel, root) for kernel in kernels})),
        mode=mode,
        branch=branch,
        affected=mode is Mode.RUNTIME and len(read) > 1,
        **legs,
    )


def _published_name(build: Build) -> str:
    """What tells kernels of different repositories apart best."""
    hub = build.general.hub
    return str(hub.repo_id if hub and hub.repo_id else build.general.name)


def _legs(state: Options, kernels: tuple[str, ...], root: Path, tier: str) -> tuple[dict[str, Any], ...]:
    import json

    from kci.cli._kernels import runners_for, selected_matrix
    from kci.plan.github import github_matrix
    from kci.plan.legs import make_plan

    matrix, read = selected_matrix(Options(quiet=True, verbose=state.verbose), kernels, tier=tier)
    include = json.loads(github_matrix(make_plan(matrix, runners_for(read))))["include"]
    return tuple({**leg, "path": _relative(leg["path"], root)} for leg in include)


def _relative(directory: str, root: Path) -> str:
    """The directory as the workflow will see it, from the root of the repository."""
    relative = os.path.relpath(Path(directory).resolve(), root.resolve())
    if relative == ".." or relative.startswith("../"):
        raise UsageError(f"{directory}: not below {root}", hint="name the root of the repository with --output")
    return Path(relative).as_posix()
