"""`kci init`: a new kernel, or one from an existing project."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from kci.cli import PATH, Command, options
from kci.cli._output import print_diagnostics
from kci.config.reader import BUILD_TOML, read_kernel
from kci.config.values import Backend
from kci.diagnostics import Severity
from kci.errors import UsageError
from kci.starter import new_kernel
from kci.starter.create import add_settings, built_backends, create, repository_of, require_new
from kci.starter.from_existing import Adopted, from_kernel_builder, from_setup_py
from kci.starter.new_kernel import USUAL_LICENSE, NewKernel, choose, files_of, tvm_ffi_overlay


@click.command("init", cls=Command)
@click.argument("directory", metavar="NAME")
@click.option(
    "--framework", type=click.Choice(list(new_kernel.FRAMEWORKS)), help="The framework to write the kernel for."
)
@click.option("--stable-abi", metavar="VERSION", help="Build for the stable ABI of this torch version, such as 2.11.")
@click.option("--backend", "backends", multiple=True, type=click.Choice([str(item) for item in Backend]),
              help="The backend; repeat for more.")  # fmt: skip
@click.option("--license", "license_", metavar="SPDX", help="The license.  [default: Apache-2.0, or the project's]")
@click.option("--repo-id", metavar="OWNER/NAME", help="The repository on the Hub to publish to.")
@click.option("--from", "origin", type=PATH, metavar="DIR",
              help="Convert a kernel-builder repository, or a project with a setup.py.")  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Ask nothing, and use defaults.")
def command(
    directory: str,
    framework: str | None,
    stable_abi: str | None,
    backends: tuple[str, ...],
    license_: str | None,
    repo_id: str | None,
    origin: Path | None,
    yes: bool,
) -> int:
    """Write a new kernel into the directory NAME. It builds, passes its tests and loads.

    On a terminal, kci asks for what no option sets. In a git repository it writes a directory of that repository;
    elsewhere a complete repository, with kci.toml and workflows. It never overwrites a file. Exit 1 if the new kernel
    has an error or no variant; kci lists what is left to do.

    Examples:
        # write a new kernel, and ask for its options
        kci init my-kernel
        # write a kernel for two backends, and ask nothing
        kci init my-kernel --backend cuda --backend rocm --stable-abi 2.11 -y
        # convert a setup.py or a kernel-builder repository
        kci init my-kernel --from ../old-extension
    """
    target = Path(directory)
    name = Path(os.path.normpath(target.absolute())).name
    new_kernel.require_name(name)
    require_new(target)
    standalone = repository_of(target) is None
    adopted: Adopted | None = None
    options_of_new = {"--framework": framework, "--stable-abi": stable_abi, "--backend": backends}
    if origin is not None:
        chosen, adopted = _taken_over(origin, name, options_of_new, {"--license": license_, "--repo-id": repo_id})
        files = adopted.files
    else:
        ask = not yes and sys.stdin.isatty() and sys.stdout.isatty()
        kind = framework or (_asked_framework() if ask else "torch")
        chosen = choose(
            name,
            framework=kind,
            backends=backends or (_asked_backends(kind) if ask else ()),
            stable_abi=stable_abi or (_asked_stable_abi() if ask and kind == "torch" else None),
            license=license_ or (click.prompt("License", default=USUAL_LICENSE) if ask else USUAL_LICENSE),
            repo_id=repo_id or (_asked_repository(name) if ask else ""),
        )
        files = {path: text.encode() for path, text in files_of(chosen, standalone=standalone).items()}
    written, findings = create(target, files, workflows=standalone)
    _tell(target, written, adopted)
    print_diagnostics(findings)
    faulty = any(item.severity is Severity.ERROR for item in findings)
    lacking, unusable = _lacking(target, chosen) if not faulty else ("", False)
    todo = "what `kci check` calls an error" if faulty else "what no variant is built without" if unusable else ""
    if adopted is not None and adopted.left and not todo:
        todo = "what is listed above"
    if not options().quiet:
        click.echo(_next(target, chosen, todo, standalone=standalone), err=True)
    if lacking:
        click.echo(lacking, err=True)
    return int(faulty or unusable)


def _taken_over(
    origin: Path, name: str, of_new: dict[str, Any], of_project: dict[str, str | None]
) -> tuple[NewKernel, Adopted]:
    """What an existing project becomes; an option that would say otherwise than it does is refused."""
    has_build_toml = (origin / BUILD_TOML).is_file()
    for given, value in (of_new | of_project if has_build_toml else of_new).items():
        if value:
            hint = f"what {origin} has is taken over: change it afterwards"
            raise UsageError(f"{given} is not for --from", hint=hint)
    if has_build_toml:
        adopted = from_kernel_builder(origin)
        return NewKernel(name=adopted.name), adopted
    chosen = choose(name, license=of_project["--license"] or "", repo_id=of_project["--repo-id"] or "")
    return chosen, from_setup_py(origin, chosen)


def _lacking(target: Path, chosen: NewKernel) -> tuple[str, bool]:
    """What is left to do before every backend has variants, and whether none has; a kci.toml is written if needed."""
    built = built_backends(target)
    lacking = [str(item) for item in read_kernel(target).build.general.backends if item not in built]
    if not lacking:
        return "", False
    if chosen.framework != "tvm-ffi":
        said = f"Nothing is built for {', '.join(lacking)} yet: `kci matrix {target} --explain` says why"
        by_name = " ".join(f"--variant torch-{backend}" for backend in lacking)
        more = f", and `kci build {target} {by_name}` builds it by name" if chosen.framework == "torch-noarch" else ""
        return f"{said}{more}.", not built
    path, written = add_settings(target, tvm_ffi_overlay())
    if written:
        click.echo(os.path.relpath(path))
        return "", False
    needed = f"Nothing is built for the CPU before you add this to {os.path.relpath(path)}:\n\n{tvm_ffi_overlay()}"
    return needed, not built


def _tell(target: Path, written: list[str], adopted: Adopted | None) -> None:
    for line in adopted.taken if adopted else ():
        click.echo(f"taken over: {line}")
    for path in written if adopted is None or options().verbose else ():
        click.echo(str(target / path))
    for line in adopted.left if adopted else ():
        click.echo(f"{click.style('left to do:', fg='yellow')} {line}")


def _next(target: Path, chosen: NewKernel, todo: str, *, standalone: bool) -> str:
    """The commands that come next, once nothing is left to do."""
    lines = [f"\n{target} is written. Left to do is {todo}. Then:" if todo else f"\n{target} is ready. Next:"]
    if standalone:
        lines += [f"  cd {target}", "  git init && git add . && git commit -m 'A new kernel'"]
        here = "."
    else:
        here = str(target)
    lines += [
        f"  kci run {here}      # build what this machine can build",
        f"  kci test {here}     # load it, and run its tests",
    ]
    if todo or not standalone:
        lines.append("  kci render       # at the root of the repository: the workflows that build it")
    if chosen.placeholder:
        lines.append(
            f"Before you publish, put your account in the place of `{new_kernel.PLACEHOLDER_OWNER}` in repo-id."
        )
    return "\n".join(lines)


def _asked_framework() -> str:
    for name, meaning in new_kernel.FRAMEWORKS.items():
        click.echo(f"  {name:<13} {meaning}")
    return str(click.prompt("Framework", type=click.Choice(list(new_kernel.FRAMEWORKS)), default="torch"))


def _asked_backends(framework: str) -> tuple[str, ...]:
    offered = new_kernel.BACKENDS[framework]
    if len(offered) == 1:
        return offered
    answer = click.prompt(f"Backends, of {' '.join(offered)}", default=" ".join(new_kernel.USUAL[framework]))
    return tuple(answer.replace(",", " ").split())


def _asked_stable_abi() -> str | None:
    oldest = new_kernel.OLDEST_STABLE_ABI.text
    click.echo(
        f"  The stable ABI: one binary for torch {oldest} and newer. Without it: one binary for each torch version."
    )
    return oldest if click.confirm("Build for the stable ABI", default=False) else None


def _asked_repository(name: str) -> str:
    return str(click.prompt("Repository on the Hub", default=f"{new_kernel.PLACEHOLDER_OWNER}/{name}"))
