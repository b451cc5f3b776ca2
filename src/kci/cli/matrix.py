"""`kci matrix`: the variants of kernels, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kci.cli import Command, Options
from kci.cli._kernels import runners_for, selected_matrix, selection_options

if TYPE_CHECKING:
    from kci.matrix.variants import KernelMatrix, Matrix

FORMATS = ["table", "json", "names", "github", "markdown"]


@click.command("matrix", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@selection_options
@click.option("--format", "output", type=click.Choice(FORMATS), default="table", help="The form of the answer.")
@click.option("--explain", is_flag=True, help="Also every candidate, kept or dropped, with rule, reason and place.")
@click.option("--coverage", is_flag=True, help="Instead, the pairs of torch, compute and system that the tier covers.")
@click.pass_obj
def command(
    state: Options, /, kernels: tuple[str, ...], output: str, explain: bool, coverage: bool, **selection: Any
) -> None:
    """The variants that must exist for each KERNEL (default: this directory).

    KERNEL is a directory with a build.toml, or one with kernels below it; `KERNEL[cuda,rocm]` is these backends of it.
    """
    if coverage:
        from kci.cli._coverage import show_coverage

        show_coverage(state, kernels, output, selection)
        return
    matrix, read = selected_matrix(state, kernels, explain=explain, **selection)
    match output:
        case "names":
            names = sorted({variant.name for kernel in matrix.kernels for variant in kernel.variants})
            click.echo("".join(f"{name}\n" for name in names), nl=False)
        case "json":
            from kci.cli._output import to_json

            click.echo(to_json(as_json(matrix, explain)))
        case "github":
            from kci.plan.github import github_matrix
            from kci.plan.legs import make_plan

            click.echo(github_matrix(make_plan(matrix, runners_for(read))))
        case "markdown":
            click.echo("\n\n".join(_markdown(kernel, explain) for kernel in matrix.kernels))
        case _:
            click.echo("\n\n".join(_table(kernel, explain) for kernel in matrix.kernels))


def as_json(matrix: Matrix, explain: bool) -> dict[str, Any]:
    """The documented JSON form (schema 1)."""
    kernels = []
    for kernel in matrix.kernels:
        entry: dict[str, Any] = {
            "name": kernel.name,
            "path": kernel.path,
            "version": kernel.version,
            "variants": kernel.variants,
        }
        if explain:
            from kci.cli._explain import explanation_json

            entry |= explanation_json(kernel)
        kernels.append(entry)
    catalog = {"name": matrix.catalog_name, "as_of": matrix.catalog_as_of}
    return {"schema": 1, "tier": matrix.tier, "catalog": catalog, "kernels": kernels}


_HEADERS = ("variant", "kind", "system", "torch", "compute", "archs")


def _rows(kernel: KernelMatrix) -> list[tuple[str, ...]]:
    return [
        (
            variant.name,
            variant.kind.value,
            variant.system,
            variant.torch or "",
            f"{variant.backend} {variant.compute}" if variant.compute else variant.backend,
            " ".join(variant.archs or ()),
        )
        for variant in kernel.variants
    ]


def _title(kernel: KernelMatrix) -> str:
    count = len({variant.name for variant in kernel.variants})
    return f"{kernel.name} v{kernel.version} ({kernel.path}): {count} variant{'' if count == 1 else 's'}"


def _table(kernel: KernelMatrix, explain: bool) -> str:
    from kci.cli._output import table

    parts = [click.style(_title(kernel), bold=True)]
    if kernel.variants:
        parts.append(table(_HEADERS, _rows(kernel)))
    if explain:
        from kci.cli._explain import explanation_text

        parts += ["", explanation_text(kernel)]
    return "\n".join(parts)


def _markdown(kernel: KernelMatrix, explain: bool) -> str:
    from kci.cli._output import markdown_table

    parts = [f"### {_title(kernel)}"]
    if kernel.variants:
        parts += ["", markdown_table(_HEADERS, _rows(kernel))]
    if explain:
        from kci.cli._explain import explanation_markdown

        parts += ["", explanation_markdown(kernel)]
    return "\n".join(parts)
