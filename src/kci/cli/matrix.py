"""`kci matrix`: the variants of kernels, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kci.cli import Command, Options, answer_forms
from kci.cli._layout import Layout
from kci.cli._output import markdown_table, print_diagnostics, table, to_json
from kci.cli._workspace import ALLOW_EMPTY, opened, selection_options, take_choice
from kci.matrix.archs import natural
from kci.matrix.variants import matrix_json
from kci.plurals import count

if TYPE_CHECKING:
    from kci.diagnostics import Diagnostic
    from kci.matrix.variants import KernelMatrix

FORMATS = ["table", "json", "names", "github", "markdown", "html"]


@click.command("matrix", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@selection_options
@ALLOW_EMPTY
@answer_forms(*FORMATS)
@click.option(
    "--explain", is_flag=True, help="Also list every candidate, kept or dropped, with rule, reason and place."
)
@click.option(
    "--coverage", is_flag=True, help="List instead the pairs of torch, compute version and system that the tier covers."
)
@click.pass_obj
def command(
    options: Options,
    /,
    kernels: tuple[str, ...],
    output: str,
    explain: bool,
    coverage: bool,
    allow_empty: bool,
    **selection: Any,
) -> int:
    """List the variants that must exist for each KERNEL (default: this directory).

    KERNEL is a directory with a build.toml, or a directory of kernels; `KERNEL[cuda,rocm]` selects backends. Exit 1 if
    no variant is selected. `--format github` prints the legs of `kci plan --format github`.
    """
    workspace = opened(options, kernels, selection["catalog"])
    choice = take_choice(selection)
    if coverage:
        from kci.cli._coverage import show_coverage

        show_coverage(workspace, choice, output)
        return 0
    faulty: list[Diagnostic] = []
    matrix = workspace.matrix(choice, explain=explain or output == "html")
    match output:
        case "html":
            from kci.matrix.table_page import matrix_page

            click.echo(matrix_page(matrix), nl=False)
        case "names":
            names = sorted({variant.name for kernel in matrix.kernels for variant in kernel.variants})
            click.echo("".join(f"{name}\n" for name in names), nl=False)
        case "json":
            click.echo(to_json(matrix_json(matrix, explain=explain)))
        case "github":
            from kci.workspace.planning import PlanRequest, plan_run

            planned = plan_run(workspace, PlanRequest(choice=choice, allow_empty=allow_empty))
            faulty = [item for kernel in planned.plan.faulty for item in kernel.diagnostics]
            print_diagnostics(faulty, quiet=options.quiet)
            click.echo(planned.github_matrix())
        case "markdown":
            click.echo("\n\n".join(_markdown(kernel, explain) for kernel in matrix.kernels))
        case _:
            click.echo("\n\n".join(_table(kernel, explain) for kernel in matrix.kernels))
    if not allow_empty:
        workspace.require_variants(matrix, choice)
    return int(bool(faulty))


_HEADERS = ("variant", "kind", "system", "torch", "compute", "archs")


def _rows(kernel: KernelMatrix) -> list[tuple[str, ...]]:
    return [
        (
            variant.name,
            variant.kind.value,
            variant.system,
            variant.torch or "",
            f"{variant.backend} {variant.compute}" if variant.compute else variant.backend,
            " ".join(sorted(variant.archs or (), key=natural)),
        )
        for variant in kernel.variants
    ]


_LAYOUT = Layout(drop=("kind", "system", "torch", "archs"), cut=("variant",), wrap="archs")


def _title(kernel: KernelMatrix) -> str:
    names = {variant.name for variant in kernel.variants}
    return f"{kernel.name} v{kernel.version} ({kernel.path}): {count(len(names), 'variant')}"


def _table(kernel: KernelMatrix, explain: bool) -> str:
    parts = [click.style(_title(kernel), bold=True)]
    if kernel.variants:
        parts.append(table(_HEADERS, _rows(kernel), _LAYOUT))
    if explain:
        from kci.cli._explain import explanation_text

        parts += ["", explanation_text(kernel)]
    return "\n".join(parts)


def _markdown(kernel: KernelMatrix, explain: bool) -> str:
    parts = [f"### {_title(kernel)}"]
    if kernel.variants:
        parts += ["", markdown_table(_HEADERS, _rows(kernel))]
    if explain:
        from kci.cli._explain import explanation_markdown

        parts += ["", explanation_markdown(kernel)]
    return "\n".join(parts)
