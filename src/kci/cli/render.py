"""`kci render`: writes or checks workflow files."""

from __future__ import annotations

import os
from pathlib import Path

import click

from kci.cli import FileName, choice_option, file_option, flag, kci_command, option, refuse_idle
from kci.cli._output import answer, print_diagnostics
from kci.cli._workspace import KERNELS, load_workspace
from kci.config.discovery import find_kernels, find_root, find_settings
from kci.diagnostics import errors_in
from kci.errors import UsageError
from kci.plan.plan import read_plan
from kci.workflows.gitlab import GITLAB_FILE, Purpose, child_pipeline
from kci.workflows.render import RELEASE_FILE, SNAKEFILE
from kci.workflows.rendered_files import default_branch
from kci.workflows.repository import (
    RenderedFiles,
    publish_jobs,
    read_recorded_options,
    render_gitlab_files,
    render_snakemake_file,
    render_workflows,
)


@kci_command
@KERNELS
@flag("--check", "Write nothing; exit 1 with a diff if a file would change.")
@flag("--diff", "Write nothing; print what would change.")
@click.option(
    "--short/--no-short",
    default=None,
    help="Write two short files that call kci's reusable workflow, or every job.",
)
@option(
    "--branch",
    "TEXT",
    "Pushes to this branch build a release (default: the repository's default branch).",
)
@choice_option(
    "--pin",
    "Name kci's own actions by their major tag (the default), or by the commit of the installed "
    "release.",
    of=["tag", "sha"],
)
@choice_option(
    "--ci",
    "The files to write: GitHub's workflows, .gitlab/kci.gitlab-ci.yml, or a Snakefile.",
    of=["github", "gitlab", "snakemake"],
    default="github",
    show_default=True,
)
@file_option(
    "--from-plan",
    "FILE",
    "With --ci gitlab: print the child pipeline of this plan, from `kci plan --format json`.",
)
@choice_option(
    "--purpose",
    "With --from-plan: the pipeline keeps its trees for the next one, or publishes.",
    of=map(str, Purpose),
)
@flag("--force", "Overwrite edits in files that kci wrote.")
@option(
    "--output",
    "DIR",
    "The root of the repository (default: this directory; in a kernel, the root that the kernel "
    "is in).",
    type=FileName(),
)
def command(
    kernels: tuple[str, ...],
    check: bool,
    diff: bool,
    short: bool | None,
    branch: str | None,
    pin: str | None,
    ci: str,
    from_plan: Path | None,
    purpose: str | None,
    force: bool,
    output: str | None,
) -> int:
    """Write .github/workflows/kci.yml and kci-compat.yml for each KERNEL (default: every kernel in
    this directory).

    If `kci check` finds an error in a kernel, kci writes nothing; exit 1.

    KERNEL is a directory with a build.toml, or a directory of kernels. Newer action pins in the
    committed files stay.

    Options default to those of the committed kci.yml, whose header has the command: `kci render`
    alone writes the same files again.

    Examples:
        # write the workflows
        kci render
        # short files that call kci's own workflow
        kci render --short
        # fail if they are out of date
        kci render --check
    """
    if ci != "github":
        refuse_idle(f"with --ci {ci}", short=short is not None, branch=branch, pin=pin)
    if not from_plan:
        refuse_idle("without --from-plan", purpose=purpose)
    else:
        if ci != "gitlab":
            raise UsageError(
                "--from-plan needs --ci gitlab", "GitHub's workflows make their plan when they run"
            )
        refuse_idle("with --from-plan", check=check, diff=diff, force=force)
        if kernels:
            raise UsageError("--from-plan has its kernels", "leave out KERNEL")
        plan, publish = read_plan(from_plan), publish_jobs(find_settings(Path(output or ".")))
        answer(child_pipeline(plan, publish, Purpose(purpose) if purpose else None), nl=False)
        return 0
    if check or diff:
        refuse_idle("with --check" if check else "with --diff", force=force)
    if output is None:
        first = "." if kernels else find_kernels(())[0]
        around = first.startswith(os.pardir)
        output = os.path.relpath(find_root(Path(first))[0]) if around else "."
    root = Path(output)
    if not root.is_dir():
        raise UsageError(f"{output}: there is no such directory", "name the root of the repository")
    before = read_recorded_options(
        root, {"gitlab": GITLAB_FILE, "snakemake": SNAKEFILE}.get(ci, RELEASE_FILE)
    )
    there = tuple(os.path.join(output, kernel) for kernel in before.kernels)  # noqa: PTH118
    directories = kernels or there or (output,)
    workspace = load_workspace(*directories)
    if ci == "gitlab":
        rendered = render_gitlab_files(workspace, root, directories)
    elif ci == "snakemake":
        rendered = render_snakemake_file(workspace, root, directories)
    elif before.pin not in (None, "tag", "sha"):
        message = f"{RELEASE_FILE}: the pin {before.pin[:40]!r} in its header does not exist"
        raise UsageError(message, "give --pin")
    else:
        rendered = render_workflows(
            workspace,
            root,
            directories,
            branch=branch or before.branch or default_branch(root),
            by_commit=(pin or before.pin) == "sha" if pin or before.pin else None,
            short=before.short if short is None else short,
        )
    return _answer(rendered, check, diff, force)


def _answer(rendered: RenderedFiles, check: bool, diff: bool, force: bool) -> int:
    diagnostics = rendered.diagnostics
    if check or diff:
        answer("".join(item.diff for item in rendered.comparisons), nl=False)
        print_diagnostics(diagnostics if check else ())
        return int(bool(check and errors_in(diagnostics)))
    rendered.write(force=force)
    print_diagnostics(rendered.notes)
    for item in rendered.comparisons:
        state = "written" if item.new is not None else "removed"
        answer(f"{item.path}: {'unchanged' if item.new == item.old else state}")
    return 0
