"""`kci matrix`: the variants of kernels, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kci.cli import Command, State
from kci.cli._kernels import runners_for, selected_matrix, selection_options

if TYPE_CHECKING:
    from kci.matrix.types import Dropped, KernelMatrix, Matrix

FORMATS = ["table", "json", "names", "github", "markdown"]


@click.command("matrix", cls=Command)
@click.argument("kernels", nargs=-1, metavar="[KERNEL]...")
@selection_options
@click.option("--format", "output", type=click.Choice(FORMATS), default="table", help="The form of the answer.")
@click.option("--explain", is_flag=True, help="Also every candidate dropped, with rule, reason and place.")
@click.pass_obj
def command(state: State, /, kernels: tuple[str, ...], output: str, explain: bool, **selection: Any) -> None:
    """The variants that must exist for each KERNEL (default: this directory).

    KERNEL is a directory with a build.toml, or one with kernels below it.
    """
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
            entry |= {"kept": kernel.kept, "dropped": kernel.dropped}
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


def _place(dropped: Dropped) -> str:
    return f"{dropped.path}:{dropped.line}" if dropped.line else dropped.path


def _candidate(dropped: Dropped) -> tuple[str, ...]:
    compute = f"{dropped.backend} {dropped.compute}" if dropped.compute else dropped.backend
    torch = f"torch {dropped.torch}" if dropped.torch else ""
    return (dropped.rule, torch, compute, dropped.system, dropped.reason, _place(dropped))


_KEPT_HEADERS = ("kept", "system", "reason", "place")
_DROPPED_HEADERS = ("dropped", "torch", "compute", "system", "reason", "place")


def _kept(kernel: KernelMatrix) -> list[tuple[str, ...]]:
    return [(kept.variant, kept.system, kept.reason, f"{kept.path}:{kept.line}") for kept in kernel.kept]


def _table(kernel: KernelMatrix, explain: bool) -> str:
    from kci.cli._output import table

    parts = [click.style(_title(kernel), bold=True), table(_HEADERS, _rows(kernel))]
    if explain:
        parts += ["", table(_KEPT_HEADERS, _kept(kernel))]
        parts += ["", table(_DROPPED_HEADERS, [_candidate(dropped) for dropped in kernel.dropped])]
    return "\n".join(parts)


def _markdown(kernel: KernelMatrix, explain: bool) -> str:
    from kci.cli._output import markdown_table

    parts = [f"### {_title(kernel)}", "", markdown_table(_HEADERS, _rows(kernel))]
    if explain:
        parts += ["", markdown_table(_KEPT_HEADERS, _kept(kernel))]
        parts += ["", markdown_table(_DROPPED_HEADERS, [_candidate(dropped) for dropped in kernel.dropped])]
    return "\n".join(parts)
