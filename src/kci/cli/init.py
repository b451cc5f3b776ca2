"""`kci init`: a new kernel, or one from an existing project."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from kci.cli import (
    FileName,
    choice_option,
    file_option,
    flag,
    kci_command,
    option,
    refuse_idle,
    repeated,
)
from kci.cli._output import answer, options, print_diagnostics, progress_log, say
from kci.config.reader import BUILD_TOML, read_kernel
from kci.config.settings import KCI_TOML
from kci.config.values import PLACEHOLDER_OWNER, Backend
from kci.diagnostics import Severity, errors_in
from kci.errors import UsageError
from kci.scaffold import new_kernel
from kci.scaffold.from_setup import ConvertedProject, from_kernel_builder
from kci.scaffold.new_kernel import (
    NewKernel,
    add_settings,
    built_backends,
    choose,
    create,
    enclosing_repository,
    kernels_beside,
    new_kernel_files,
    require_new,
)
from kci.utils.cache import default_cache
from kci.utils.suggest import command_line, count


@kci_command
@click.argument("directory", type=FileName(), metavar="NAME")
@choice_option(
    "--framework", "The framework to write the kernel for.", of=list(new_kernel.FRAMEWORKS)
)
@option("--stable-abi", "VERSION", "Build for the stable ABI of this torch version, such as 2.11.")
@repeated(
    "--backend",
    "backends",
    "NAME",
    "The backend; repeat for more. For "
    + "; for ".join(
        f"{framework}: {', '.join(offered)}" for framework, offered in new_kernel.OFFERED.items()
    ),
    type=click.Choice(list(map(str, Backend))),
)
@option("--repo-id", "OWNER/NAME", "The repository on the Hub to publish to.")
@file_option(
    "--from",
    "origin",
    "DIR",
    "Convert a kernel-builder repository, or a project with a setup.py; see --run.",
)
@flag(
    "--run",
    "may_run",
    "Run setup.py of --from to see what it builds, in bubblewrap if that is installed.",
)
@flag("-y", "--yes", "Ask nothing, and use defaults.")
def command(directory: str, origin: Path | None, yes: bool, may_run: bool, **choices: Any) -> int:
    """Write a new kernel into the directory NAME. It builds, passes its tests and loads.

    On a terminal, kci asks for what no option sets. In a git repository it writes a directory of
    that repository; elsewhere a complete repository, with kci.toml and workflows. It never
    overwrites a file. Exit 1 if the new kernel has an error or no variant.

    kci runs a setup.py only with --run, because it is somebody else's code. It uses setuptools and
    a torch that it installs into its cache, and compiles nothing. The result is a draft: kci lists
    what is left to do, and `kci check` reports it until it is done.

    Examples:
        # write a new kernel, and ask for its options
        kci init my-kernel
        # write a kernel for two backends, and ask nothing
        kci init my-kernel --backend cuda --backend rocm --stable-abi 2.11 -y
        # convert a kernel-builder repository
        kci init my-kernel --from ../old-kernel
        # run the setup.py of a project, and take over what it builds
        kci init my-kernel --from ../old-extension --run
    """
    if not origin:
        refuse_idle("without --from", run=may_run)
    target = Path(directory)
    name = Path(os.path.normpath(target.absolute())).name
    new_kernel.require_name(name)
    require_new(target)
    alone = not enclosing_repository(target)
    beside = kernels_beside(target, origin) if alone else []
    standalone = alone and not beside
    if origin:
        chosen, made = _convert(
            origin, target, name, choices, may_run=may_run, standalone=standalone
        )
    else:
        if not yes and sys.stdin.isatty() and sys.stdout.isatty():
            _ask(choices)
        chosen = choose(name, **{name: value for name, value in choices.items() if value})
        texts = new_kernel_files(chosen, standalone=standalone)
        made = ConvertedProject(name, {path: text.encode() for path, text in texts.items()}, (), ())
    written, findings = create(target, made.files, workflows=standalone)
    draft = bool(made.todo)
    for line in made.converted:
        answer(f"taken over: {line}")
    for path in written if not origin or options().verbose else ():
        answer(target / path)
    if draft:
        title = f"{target} is a draft: {count(len(made.todo), 'thing')} left"
        answer(click.style(title, bold=True))
    for line in made.todo:
        answer(f"  {line}")
    notes = [item for item in findings if draft or item.severity is Severity.INFO]
    print_diagnostics([item for item in findings if item not in notes])
    if notes and not options().quiet:
        lists = command_line("check", "-v", place=target)
        say(f"`{lists}` reports {count(len(notes), 'more finding')}")
    faulty = not draft and bool(errors_in(findings))
    lacking, unusable = _lacking(target, chosen) if not faulty else ("", False)
    todo = "do what is listed above" if draft else ""
    if faulty or unusable:
        todo = "fix what `kci check` reports" if faulty else "add what a variant needs"
    if not options().quiet:
        say(_next(target, chosen, todo, standalone=standalone))
        click.echo(_one_repository(beside), nl=False, err=True)
    if lacking:
        say(lacking)
    return int(faulty or unusable)


def _ask(choices: dict[str, Any]) -> None:
    if not choices["framework"]:
        for framework, meaning in new_kernel.FRAMEWORKS.items():
            answer(f"  {framework:<13} {meaning}")
        choices["framework"] = click.prompt(
            "Framework", type=click.Choice(list(new_kernel.FRAMEWORKS)), default="torch"
        )
    framework = choices["framework"]
    if not choices["backends"]:
        offered = f"Backends, of {' '.join(new_kernel.OFFERED[framework])}"
        backends = click.prompt(offered, default=" ".join(new_kernel.USUAL[framework]))
        choices["backends"] = backends.replace(",", " ").split()
    if not choices["stable_abi"] and framework == "torch":
        oldest = new_kernel.OLDEST_STABLE_ABI.text
        without = "Without it: one binary for each torch version."
        answer(f"  The stable ABI: one binary for torch {oldest} and newer. {without}")
        if click.confirm("Build for the stable ABI", default=False):
            choices["stable_abi"] = oldest


def _convert(
    origin: Path,
    target: Path,
    name: str,
    choices: dict[str, Any],
    *,
    may_run: bool,
    standalone: bool,
) -> tuple[NewKernel, ConvertedProject]:
    if not origin.is_dir():
        hint = "name the directory of the project with --from"
        raise UsageError(f"{origin}: there is no such directory", hint)
    has_build_toml = (origin / BUILD_TOML).is_file()
    for choice, value in choices.items():
        if value and (has_build_toml or choice != "repo_id"):
            hint = f"kci takes over what {origin} has: change it afterwards"
            given = choice.removesuffix("s").replace("_", "-")
            raise UsageError(f"--{given} is not for --from", hint)
    if has_build_toml:
        adopted = from_kernel_builder(origin)
        if adopted.settings and standalone:
            adopted.files.setdefault(KCI_TOML, adopted.settings.encode())
        elif adopted.settings and not add_settings(target, adopted.settings)[1]:
            answer(f"add to kci.toml what flake.nix says:\n{adopted.settings}")
        return NewKernel(name=adopted.name), adopted
    from kci.scaffold.from_setup import BY_HAND, from_setup_py
    from kci.scaffold.run_setup import sandbox
    from kci.scaffold.setup_driver import SETUP_PY

    setup = origin / SETUP_PY
    if not setup.is_file():
        hint = f"kci takes over these; {BY_HAND}"
        raise UsageError(f"{origin} has neither a {BUILD_TOML} nor a {SETUP_PY}", hint)
    if not may_run:
        hint = f"look at it, then allow it with --run; it runs {sandbox()}"
        raise UsageError(f"kci has to run {setup}, and --run is missing", hint)
    chosen = choose(name, repo_id=choices["repo_id"] or "")
    return chosen, from_setup_py(origin, chosen, default_cache(), progress_log())


def _lacking(target: Path, chosen: NewKernel) -> tuple[str, bool]:
    built = built_backends(target)
    lacking = [item for item in read_kernel(target).build.general.backends if item not in built]
    if not lacking:
        return "", False
    why = command_line("matrix", "--explain", place=target)
    message = f"Nothing is built for {', '.join(lacking)} yet: `{why}` says why"
    by_name = command_line(
        "build", *(f"--variant=torch-{backend}" for backend in lacking), place=target
    )
    more = f", and `{by_name}` builds it by name" if chosen.framework == "torch-noarch" else ""
    return f"{message}{more}.", not built


def _one_repository(beside: list[Path]) -> str:
    if not beside:
        return ""
    folder = os.path.relpath(beside[0].parent)
    settings = next((kernel / KCI_TOML for kernel in beside if (kernel / KCI_TOML).is_file()), None)
    moved = f"move {os.path.relpath(settings)} to {folder}, and " if settings else ""
    return (
        f"To make one repository of the kernels in {folder}: {moved}run `git init -b main` there.\n"
    )


def _next(target: Path, chosen: NewKernel, todo: str, *, standalone: bool) -> str:
    lines = [f"\n{target} is ready. Next:"]
    if todo:
        lines = [f"\n{target} is written. First {todo}. Then:"]
    here = "." if standalone else str(target)
    if standalone:
        lines += [f"  cd {target}"]
        lines += ["  git init -b main && git add . && git commit -m 'A new kernel'"]
    lines += [
        f"  kci run {here}      # build what this machine can build",
        f"  kci test {here}     # load it, and run its tests",
    ]
    if todo or not standalone:
        lines.append(
            f"  {'kci render':<{len(here) + 14}}# at the root of the repository: the workflows "
            "that build it"
        )
    if chosen.placeholder:
        lines.append(
            f"Before you publish, replace `{PLACEHOLDER_OWNER}` in repo-id by your account."
        )
    return "\n".join(lines)
