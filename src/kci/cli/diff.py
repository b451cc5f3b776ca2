"""`kci diff`: variants that came, went, or are built differently; and what changed for the users of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kci.cli import Command, FileName, answer_forms
from kci.cli._output import labelled, markdown_table, print_diagnostics, print_json
from kci.cli._workspace import opened, selection_options, take_choice
from kci.config.reader import BUILD_TOML, Kernel
from kci.config.revision import read_revision
from kci.diagnostics import printable
from kci.errors import UsageError
from kci.matrix.diff import KernelDiff, diff_matrices, read_matrix_json
from kci.plurals import count
from kci.sources.interface_changes import InterfaceDiff, compare_kernels, kernels_then
from kci.workspace.workspace import assemble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kci.matrix.variants import KernelMatrix, Variant


@click.command("diff", cls=Command)
@click.argument("sides", type=FileName(), nargs=-1, metavar="OLD NEW")
@click.option(
    "--api",
    metavar="REV",
    help="Compare what kernels offer to their users with a revision: Python names, parameters, operators.",
)
@selection_options
@answer_forms("text", "json", "markdown")
@click.option("--exit-code", is_flag=True, help="Exit 1 if there is a difference.")
def command(sides: tuple[str, ...], api: str | None, output: str, exit_code: bool, **selection: Any) -> int:
    """Compare the variants of OLD and NEW, or with --api the interfaces of kernels.

    Each is a kernel, a directory of kernels, a git revision as REV:PATH, or a file from `kci matrix --format json`,
    which has the variants that were selected then. Kernels are matched by name, variants by name and system.

    With --api the arguments are the kernels of today (default: every kernel in this directory), and nothing is built:
    it reads `torch-ext/<name>` and the operators that C++ registers. A breaking change without a new `version` is
    an error.

    Examples:
        # compare a branch with main
        kci diff main:relu relu
        # what a branch changes for users
        kci diff --api main
    """
    if api is not None:
        refuse_selection()
        return _interfaces(api, sides, output, exit_code)
    if len(sides) != 2:
        raise UsageError(f"OLD and NEW are needed, and there are {count(len(sides), 'argument')}", hint="`kci diff -h`")
    old, new = sides
    kernels = diff_matrices(_side(old, selection), _side(new, selection))
    differs = any(kernel.differs for kernel in kernels)
    match output:
        case "json":
            print_json(old=old, new=new, differs=differs, kernels=kernels)
        case "markdown":
            click.echo(_markdown(kernels))
        case _:
            click.echo("\n".join(_text(kernels)))
    return 1 if differs and exit_code else 0


def refuse_selection() -> None:
    """With --api no variant is selected; UsageError if an option asks for it."""
    context = click.get_current_context()
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in ("api", "sides", "output", "exit_code", "help")
        and context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(f"{given[0]} selects variants, and --api compares sources", hint="name kernels instead")


def _interfaces(revision: str, specs: tuple[str, ...], output: str, exit_code: bool) -> int:
    old: list[Kernel] = []
    new: list[Kernel] = []
    for spec in specs or (".",):
        if ":" in spec and not Path(spec).exists():
            new += read_revision(spec)
            old += read_revision(f"{revision}:{spec.partition(':')[2]}", missing=True)
        else:
            new += opened([spec], None).kernels
            old += kernels_then(revision, spec)
    kernels, found = compare_kernels(old, new)
    problems = [item.diagnostic for item in found]
    match output:
        case "json":
            print_json(
                old=revision, new=list(specs or (".",)), differs=bool(kernels), kernels=kernels, problems=problems
            )
        case "markdown":
            click.echo(_interfaces_markdown(kernels))
        case _:
            click.echo("\n".join(_interfaces_text(kernels)))
    print_diagnostics(problems)
    return int(bool(problems) or (exit_code and bool(kernels)))


def _interfaces_text(kernels: list[InterfaceDiff]) -> list[str]:
    lines = []
    for kernel in kernels:
        lines.append(click.style(_interface_title(kernel), bold=True))
        for change in kernel.changes:
            sign, color = ("!", "red") if change.breaking else ("+", "green")
            lines.append(click.style(f"  {sign} {printable(change.name)} {printable(change.what)}", fg=color))
    return lines or ["no difference for users"]


def _interfaces_markdown(kernels: list[InterfaceDiff]) -> str:
    blocks = []
    for kernel in kernels:
        rows = [("breaking" if item.breaking else "", item.name, item.what) for item in kernel.changes]
        blocks.append(f"### {_interface_title(kernel)}\n\n{markdown_table(('', 'name', 'change'), rows)}")
    return "\n\n".join(blocks) or "Nothing changes for users."


def _interface_title(kernel: InterfaceDiff) -> str:
    breaking = count(sum(change.breaking for change in kernel.changes), "breaking change")
    return f"{kernel.kernel}, version {kernel.versions}: {breaking} of {count(len(kernel.changes), 'change')}"


def _side(spec: str, selection: dict[str, Any]) -> Sequence[KernelMatrix]:
    path = Path(spec)
    if path.exists() and not path.is_dir() and path.name != BUILD_TOML:  # a pipe will do: `kci diff <(...) .`
        return read_matrix_json(path)
    if ":" in spec and not path.exists():
        # A revision's kernels have the kci.toml of the working directory: the same question is asked of both sides.
        workspace = assemble(read_revision(spec), catalog=selection["catalog"], directories=["."])
        print_diagnostics(workspace.diagnostics)
    else:
        workspace = opened([spec], selection["catalog"])
    return workspace.matrix(take_choice(selection)).kernels


def _text(kernels: list[KernelDiff]) -> list[str]:
    lines = []
    for kernel in kernels:
        if not kernel.differs:
            continue
        lines.append(click.style(f"{kernel.name}: {_counts(kernel)}", bold=True))
        lines += [click.style(f"  - {labelled(item.name, item.system)}", fg="red") for item in kernel.removed]
        lines += [click.style(f"  + {labelled(item.name, item.system)}", fg="green") for item in kernel.added]
        for item in kernel.changed:
            lines.append(click.style(f"  ~ {labelled(item.name, item.system)}", fg="yellow"))
            lines += [
                f"      {change.what}: {change.old or 'none'} -> {change.new or 'none'}" for change in item.changes
            ]
    return lines or [f"no difference: {count(sum(kernel.same for kernel in kernels), 'variant')} on both sides"]


def _markdown(kernels: list[KernelDiff]) -> str:
    blocks = []
    for kernel in kernels:
        if not kernel.differs:
            continue
        rows = [("added", labelled(item.name, item.system), _built(item)) for item in kernel.added]
        rows += [("removed", labelled(item.name, item.system), _built(item)) for item in kernel.removed]
        for item in kernel.changed:
            said = "; ".join(
                f"{change.what}: {change.old or 'none'} → {change.new or 'none'}" for change in item.changes
            )
            rows.append(("changed", labelled(item.name, item.system), said))
        table = markdown_table(("", "variant", "built against"), rows)
        blocks.append(f"### {kernel.name}: {_counts(kernel)}\n\n{table}")
    same = sum(kernel.same for kernel in kernels)
    return "\n\n".join(blocks) or f"No variant differs; {same} are the same."


def _counts(kernel: KernelDiff) -> str:
    counts = {"added": kernel.added, "removed": kernel.removed, "changed": kernel.changed}
    return ", ".join(f"{len(items)} {what}" for what, items in counts.items()) + f", {kernel.same} the same"


def _built(variant: Variant) -> str:
    compute = f"{variant.backend} {variant.compute}" if variant.compute else str(variant.backend)
    return ", ".join(part for part in (f"torch {variant.torch}" if variant.torch else "", compute) if part)
