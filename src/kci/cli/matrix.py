"""`kci matrix`: the variants of kernels, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from kci.cli import flag, format_option, kci_command, refuse_idle
from kci.cli._output import (
    AnswerTable,
    Layout,
    answer,
    as_markdown,
    print_diagnostics,
    print_json,
    terminal_width,
)
from kci.cli._workspace import (
    ALLOW_EMPTY,
    KERNELS,
    SYSTEM,
    open_selection,
    selection_options,
)
from kci.config.values import text_of
from kci.matrix.archs import natural
from kci.matrix.variants import (
    DroppedCandidate,
    KernelMatrix,
    Variant,
    matrix_json,
)
from kci.utils.suggest import count

if TYPE_CHECKING:
    from kci.diagnostics import Diagnostic


@kci_command
@KERNELS
@selection_options
@SYSTEM
@ALLOW_EMPTY
@format_option("table", "json", "names", "github", "markdown")
@flag("--explain", "Also list every candidate, kept or dropped, with rule, reason and place.")
def command(
    kernels: tuple[str, ...], output: str, explain: bool, allow_empty: bool, **selection: Any
) -> int:
    """List the variants that must exist for each KERNEL (default: this directory).

    KERNEL is a directory with a build.toml, or a directory of kernels; `KERNEL[cuda,rocm]` selects
    backends. Exit 1 if no variant is selected. `--format github` prints the legs of `kci plan
    --format github`.

    Examples:
        # list kept and dropped variants, with the line that decided it
        kci matrix --explain
        # print only names
        kci matrix --where 'cuda >= 13.0' --format names
    """
    if output in ("names", "github"):
        refuse_idle(f"with --format {output}", explain=explain)
    workspace, choice = open_selection(kernels, selection)
    faulty: list[Diagnostic] = []
    matrix = workspace.matrix(choice, explain=explain)
    match output:
        case "names":
            names = {variant.name for kernel in matrix.kernels for variant in kernel.variants}
            answer("".join(f"{name}\n" for name in sorted(names)), nl=False)
        case "json":
            print_json(**matrix_json(matrix, explain=explain))
        case "github":
            from kci.plan.planning import PlanRequest, plan_run

            planned = plan_run(workspace, PlanRequest(choice=choice, allow_empty=allow_empty))
            faulty = planned.plan.faults
            print_diagnostics(faulty)
            answer(planned.github_matrix())
        case _:
            how = {"explain": explain, "markdown": output == "markdown"}
            answer("\n\n".join(_shown(kernel, **how) for kernel in matrix.kernels))
    if not allow_empty:
        workspace.require_variants(matrix, choice)
    return int(bool(faulty))


_HEADERS = ("variant", "kind", "system", "torch", "compute", "archs")


def _row(variant: Variant) -> tuple[str, ...]:
    compute = f"{variant.backend} {text_of(variant.compute)}".rstrip()
    archs = " ".join(sorted(variant.archs or (), key=natural))
    return variant.name, variant.kind, variant.system, text_of(variant.torch), compute, archs


_LAYOUT = Layout(drop=("kind", "system", "torch", "archs"), cut=("variant",), wrap="archs")


def _shown(kernel: KernelMatrix, *, explain: bool, markdown: bool) -> str:
    names = {variant.name for variant in kernel.variants}
    title = f"{kernel.name} v{kernel.version} ({kernel.path}): {count(len(names), 'variant')}"
    rows = [_row(variant) for variant in kernel.variants]
    variants = AnswerTable(title, _HEADERS, rows, _LAYOUT)
    if markdown:
        reasons = explanation_tables(kernel) if explain else []
        return as_markdown([variants, *reasons])
    parts = [click.style(title, bold=True)]
    parts += [variants.text()] if rows else []
    parts += ["", explanation_text(kernel)] if explain else []
    return "\n".join(parts)


WIDTH = 120
_INDENT = " " * 10


def explanation_text(kernel: KernelMatrix) -> str:
    """Each candidate of a kernel, kept or dropped, with rule, reason and place, as text."""
    return "\n\n".join(_block(reasons) for reasons in explanation_tables(kernel))


def _block(reasons: AnswerTable) -> str:
    across = min(WIDTH, terminal_width() or WIDTH)
    lines = [click.style(reasons.title, bold=True)]
    rows = [[*map(str, row)] for row in reasons.rows]
    width = max((len(what) for decision, what, *_ in rows if decision == "kept"), default=0)
    for decision, what, reason, place in rows:
        line = f"  kept    {what:<{width}}  {reason}  {place}"
        if decision == "kept" and len(line) <= across:
            lines.append(line)
        else:
            lines += _wrapped(f"{decision:<6}  {what}", across, "  ")
            lines += _wrapped(f"{reason} [{place}]" if place else reason, across)
    return "\n".join(lines)


def _wrapped(text: str, across: int, indent: str = _INDENT) -> list[str]:
    from textwrap import TextWrapper

    how = TextWrapper(across, indent, _INDENT, break_long_words=False, break_on_hyphens=False)
    return how.wrap(text)


def explanation_tables(kernel: KernelMatrix) -> list[AnswerTable]:
    """The decisions about a kernel's matrix, computed with `explain`: a table for each backend,
    those with variants first. Candidates that one rule dropped for one reason are a row.
    """
    kept: dict[str, list[tuple[str, ...]]] = {}
    for variant, one in zip(kernel.variants, kernel.kept, strict=True):
        # noarch names lack the system
        name = one.variant if one.variant.endswith(one.system) else f"{one.variant} ({one.system})"
        row = ("kept", name, one.reason, places([(one.path, one.line)]))
        kept.setdefault(variant.backend, []).append(row)
    dropped: dict[str, dict[tuple[str, str], list[DroppedCandidate]]] = {}
    for item in kernel.dropped:
        dropped.setdefault(item.backend, {}).setdefault((item.rule, item.reason), []).append(item)
    tables = []
    for backend in sorted({*kept, *dropped}, key=lambda backend: (backend not in kept, backend)):
        rows, groups = kept.get(backend, []), sorted(dropped.get(backend, {}).items())
        number = sum(len(same) for _, same in groups)
        title = f"{backend}: {len(rows)} kept, {number} dropped"
        whole = not rows and len(groups) == 1
        rows += [
            (rule, _candidates(same, whole), why, places((item.path, item.line) for item in same))
            for (rule, why), same in groups
        ]
        headers = ("decision", "candidates", "reason", "place")
        tables.append(AnswerTable(title, headers, rows))
    return tables


def _candidates(same: Sequence[DroppedCandidate], whole: bool) -> str:
    # in short: `cuda 12.6, 13.0; torch 2.12, 2.13; x86_64-linux`
    first, *others = same
    if whole:
        return "every row" if others else "the only row" if first.system else "no row"
    computes, torches, systems = (
        ", ".join(sorted({*filter(None, texts)}, key=natural))
        for texts in zip(*((item.compute, item.torch, item.system) for item in same), strict=True)
    )
    parts = (f"{first.backend} {computes}".strip(), f"torch {torches}", systems)
    return "; ".join(filter(None, parts))


def places(of: Iterable[tuple[str, int]]) -> str:
    """Files with their line numbers, each file once; an empty path (the command line) is
    skipped.
    """
    lines: dict[str, set[int]] = {}
    for path, line in of:
        if path:
            lines.setdefault(path, set()).add(line)
    numbers = {path: ", ".join(map(str, sorted(its))) for path, its in lines.items() if its - {0}}
    return ", ".join(
        f"{path}:{numbers[path]}" if path in numbers else path for path in sorted(lines)
    )
