"""How `--explain` shows decisions: a block for each backend, at most 120 columns wide."""

from __future__ import annotations

import textwrap

import click

from kci.cli._output import labelled, markdown_table, terminal_width
from kci.matrix.reasons import BackendReasons, by_backend, places
from kci.matrix.variants import KernelMatrix

WIDTH = 120
"""The most; a narrower terminal has less."""
_INDENT = " " * 10


def explanation_text(kernel: KernelMatrix) -> str:
    """Every candidate of a kernel for a terminal: what was kept, and what was dropped with rule, reason and place."""
    return "\n\n".join(_block(reasons) for reasons in by_backend(kernel))


def _block(reasons: BackendReasons) -> str:
    across = min(WIDTH, terminal_width() or WIDTH)
    lines = [click.style(reasons.title, bold=True)]
    names = [labelled(kept.variant, kept.system) for kept in reasons.kept]
    width = max(map(len, names), default=0)
    for name, kept in zip(names, reasons.kept, strict=True):
        place = places([(kept.path, kept.line)])
        line = f"  kept    {name.ljust(width)}  {kept.reason}"
        if len(line) + 2 + len(place) <= across:
            lines.append(f"{line}  {place}")
        elif len(line) <= across:
            lines += [line, f"{_INDENT}{place}"]
        else:
            lines += [f"  kept    {name}", *_wrapped(kept.reason, _INDENT, across), f"{_INDENT}{place}"]
    for group in reasons.dropped:
        lines += _wrapped(f"{group.rule}  {group.what}", "  ", across)
        lines += _wrapped(group.reason + (f" [{group.where}]" if group.where else ""), _INDENT, across)
    return "\n".join(lines)


def _wrapped(text: str, indent: str, across: int) -> list[str]:
    return textwrap.wrap(
        text, across, initial_indent=indent, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
    )


def explanation_markdown(kernel: KernelMatrix) -> str:
    """The same as Markdown: a table for each backend."""
    parts = []
    for reasons in by_backend(kernel):
        rows = [
            ("kept", labelled(kept.variant, kept.system), kept.reason, places([(kept.path, kept.line)]))
            for kept in reasons.kept
        ]
        rows += [(group.rule, group.what, group.reason, group.where) for group in reasons.dropped]
        parts.append(f"#### {reasons.title}\n\n" + markdown_table(("decision", "candidates", "reason", "place"), rows))
    return "\n\n".join(parts)
