"""`kci diff`: variants that came, went, or are built differently."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kci.cli import Command, FileName, answer_forms
from kci.cli._output import labelled, markdown_table, print_diagnostics, print_json
from kci.cli._workspace import opened, selection_options, take_choice
from kci.config.reader import BUILD_TOML
from kci.config.revision import read_revision
from kci.matrix.diff import KernelDiff, diff_matrices, read_matrix_json
from kci.plurals import count
from kci.workspace.workspace import assemble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kci.matrix.variants import KernelMatrix, Variant


@click.command("diff", cls=Command)
@click.argument("old", type=FileName())
@click.argument("new", type=FileName())
@selection_options
@answer_forms("text", "json", "markdown")
@click.option("--exit-code", is_flag=True, help="Exit 1 if there is a difference.")
def command(old: str, new: str, output: str, exit_code: bool, **selection: Any) -> int:
    """Compare the variants of OLD and NEW.

    Each is a kernel, a directory of kernels, a git revision as REV:PATH, or a file from `kci matrix --format json`,
    which has the variants that were selected then. Kernels are matched by name, variants by name and system.

    Examples:
        # compare a branch with main
        kci diff main:relu relu
    """
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
