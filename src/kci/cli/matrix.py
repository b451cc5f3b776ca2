"""`kci matrix`: the variants of kernels, and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from kci.cli import flag, format_option, kci_command, refuse_idle
from kci.cli._output import (
    Layout,
    answer,
    markdown_table,
    print_diagnostics,
    print_json,
    table,
    terminal_width,
    variant_label,
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
    KeptCandidate,
    KernelMatrix,
    Variant,
    matrix_json,
)
from kci.utils.frozen import Frozen
from kci.utils.suggest import count

if TYPE_CHECKING:
    from kci.diagnostics import Diagnostic

FORMATS = ["table", "json", "names", "github", "markdown"]


@kci_command("matrix")
@KERNELS
@selection_options
@SYSTEM
@ALLOW_EMPTY
@format_option(*FORMATS)
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
    parts = [f"### {title}" if markdown else click.style(title, bold=True)]
    rows = [_row(variant) for variant in kernel.variants]
    if rows and markdown:
        parts += ["", markdown_table(_HEADERS, rows)]
    elif rows:
        parts.append(table(_HEADERS, rows, _LAYOUT))
    if explain:
        parts += ["", explanation_markdown(kernel) if markdown else explanation_text(kernel)]
    return "\n".join(parts)


WIDTH = 120
_INDENT = " " * 10


def explanation_text(kernel: KernelMatrix) -> str:
    """Each candidate of a kernel, kept or dropped, with rule, reason and place, as text."""
    return "\n\n".join(_block(reasons) for reasons in by_backend(kernel))


def _block(reasons: BackendReasons) -> str:
    across = min(WIDTH, terminal_width() or WIDTH)
    lines = [click.style(reasons.title, bold=True)]
    names = [variant_label(kept.variant, kept.system) for kept in reasons.kept]
    width = max(map(len, names), default=0)
    for name, kept in zip(names, reasons.kept, strict=True):
        place = places([(kept.path, kept.line)])
        line = f"  kept    {name.ljust(width)}  {kept.reason}"
        if len(line) + 2 + len(place) <= across:
            lines.append(f"{line}  {place}")
        elif len(line) <= across:
            lines += [line, f"{_INDENT}{place}"]
        else:
            lines += [f"  kept    {name}", *_wrapped(kept.reason, across), f"{_INDENT}{place}"]
    for group in reasons.dropped:
        where = f" [{group.where}]" if group.where else ""
        lines += _wrapped(f"{group.rule}  {group.what}", across, "  ")
        lines += _wrapped(f"{group.reason}{where}", across)
    return "\n".join(lines)


def _wrapped(text: str, across: int, indent: str = _INDENT) -> list[str]:
    from textwrap import TextWrapper

    how = TextWrapper(across, indent, _INDENT, break_long_words=False, break_on_hyphens=False)
    return how.wrap(text)


def explanation_markdown(kernel: KernelMatrix) -> str:
    """The same as Markdown: a table for each backend."""
    parts = []
    for reasons in by_backend(kernel):
        rows = [(group.rule, group.what, group.reason, group.where) for group in reasons.dropped]
        kept = [
            (
                "kept",
                variant_label(one.variant, one.system),
                one.reason,
                places([(one.path, one.line)]),
            )
            for one in reasons.kept
        ]
        headers = ("decision", "candidates", "reason", "place")
        parts.append(f"#### {reasons.title}\n\n{markdown_table(headers, kept + rows)}")
    return "\n\n".join(parts)


class DroppedGroup(Frozen):
    """Candidates of one backend that one rule dropped for one reason."""

    rule: str
    reason: str
    candidates: tuple[DroppedCandidate, ...]
    whole: bool

    @property
    def what(self) -> str:
        """The candidates in short: `cuda 12.6, 13.0; torch 2.12, 2.13; x86_64-linux`."""
        first, *others = self.candidates
        if self.whole:
            return "every row" if others else "the only row" if first.system else "no row"
        computes = _listed(item.compute for item in self.candidates)
        torches = _listed(item.torch for item in self.candidates)
        systems = _listed(item.system for item in self.candidates)
        parts = (f"{first.backend} {computes}".strip(), f"torch {torches}", systems)
        return "; ".join(filter(None, parts))

    @property
    def where(self) -> str:
        """The places of the decisions: `build.toml:9`, or `catalog/2026-08-20.toml:27, 57`."""
        return places((item.path, item.line) for item in self.candidates)


class BackendReasons(Frozen):
    """The decisions about one backend."""

    backend: str
    kept: tuple[KeptCandidate, ...]
    dropped: tuple[DroppedGroup, ...]

    @property
    def title(self) -> str:
        """`cuda: 6 kept, 3 dropped`."""
        dropped = sum(len(group.candidates) for group in self.dropped)
        return f"{self.backend}: {len(self.kept)} kept, {dropped} dropped"


def by_backend(kernel: KernelMatrix) -> list[BackendReasons]:
    """The decisions about a kernel's matrix, computed with `explain`; backends with variants come
    first.
    """
    kept: dict[str, list[KeptCandidate]] = {}
    for variant, reason in zip(kernel.variants, kernel.kept, strict=True):
        kept.setdefault(variant.backend, []).append(reason)
    dropped: dict[str, dict[tuple[str, str], list[DroppedCandidate]]] = {}
    for item in kernel.dropped:
        dropped.setdefault(item.backend, {}).setdefault((item.rule, item.reason), []).append(item)
    found = []
    for backend in sorted({*kept, *dropped}, key=lambda backend: (backend not in kept, backend)):
        reasons = sorted(dropped.get(backend, {}).items())
        whole = backend not in kept and len(reasons) == 1
        groups = tuple(DroppedGroup(*key, tuple(items), whole) for key, items in reasons)
        found.append(BackendReasons(backend, tuple(kept.get(backend, ())), groups))
    return found


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


def _listed(texts: Iterable[str | None]) -> str:
    return ", ".join(sorted({*filter(None, texts)}, key=natural))
