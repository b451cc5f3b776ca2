"""`kci matrix --coverage`: the pairs of torch, compute version and system that a tier covers, and those it does not."""

from __future__ import annotations

from typing import Any

import click

from kci.cli._output import labelled, markdown_table, table, to_json
from kci.errors import UsageError
from kci.matrix.tiers import Covered, coverage
from kci.workspace.workspace import Choice, Workspace


def show_coverage(workspace: Workspace, choice: Choice, output: str) -> None:
    """Print every pair that occurs in the whole, and which variant of the tier has it.

    Raises:
        UsageError: the form does not exist for this answer, or see `Workspace.matrix`.
    """
    if output not in ("table", "json", "markdown"):
        raise UsageError(f"--coverage has no {output} form", hint="one of: table, json, markdown")
    chosen, full = workspace.matrix(choice), workspace.whole(choice)
    answer: list[dict[str, Any]] = []
    for part, whole in zip(chosen.kernels, full.kernels, strict=True):
        pairs = coverage(whole.variants, part.variants)
        covered = sum(pair.variant is not None for pair in pairs)
        answer.append(
            {
                "name": part.name,
                "path": part.path,
                "variants": len(part.variants),
                "of_variants": len(whole.variants),
                "covered": covered,
                "of_pairs": len(pairs),
                "pairs": pairs,
            }
        )
    if output == "json":
        click.echo(to_json({"schema": 1, "tier": chosen.tier, "kernels": answer}))
        return
    blocks = []
    for entry in answer:
        title = (
            f"{entry['name']} ({entry['path']}): {entry['variants']} of {entry['of_variants']} variants have "
            f"{entry['covered']} of {entry['of_pairs']} pairs"
        )
        rows = [(pair.first, pair.second, _covering(pair)) for pair in entry["pairs"]]
        head = ("one", "other", "covered by")
        body = markdown_table(head, rows) if output == "markdown" else table(head, rows)
        blocks.append(f"{'### ' if output == 'markdown' else ''}{title}\n{body}")
    click.echo("\n\n".join(blocks))


def _covering(pair: Covered) -> str:
    if pair.variant is None or pair.system is None:
        return "nothing"
    return labelled(pair.variant, pair.system)
