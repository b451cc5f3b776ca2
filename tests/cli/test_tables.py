"""The same tables on a terminal and in Markdown, where no name may become markup."""

from __future__ import annotations

import pytest

from kci.cli._answers import left_out_table, plan_tables, tree_table
from kci.cli._output import as_markdown
from kci.config.discovery import FaultyKernel
from kci.plan.budget import estimate
from kci.plan.plan import SkippedVariant, UnplannedVariant
from kci.plan.planning import PlannedRun
from kci.tree.manifest import Manifest
from planning import leg, plan

HOSTILE = "a|b\n<img src=x> [x](https://x.invalid) `c` **d** \x1b[2J"
HARMLESS = (
    "a&#124;b\N{REPLACEMENT CHARACTER}&lt;img src=x> &#91;x](https://x.invalid) &#96;c&#96; "
    "&#42;&#42;d&#42;&#42; "
    "\N{REPLACEMENT CHARACTER}&#91;2J"
)


def test_what_is_left_out_for_one_reason_is_one_row() -> None:
    """42 of the 380 variants of a repository of 52 kernels were 42 rows that nobody reads."""
    why = ("metal", "aarch64-darwin", "KCI303", "nobody builds it")
    left = tuple(
        UnplannedVariant(f"k{number}", f"torch21{torch}-metal-aarch64-darwin", *why)
        for number in range(3)
        for torch in (3, 4)
    )
    table = left_out_table(plan([leg("torch-cpu"), leg("torch-cuda")], left_out=left))
    assert table.below == "6 of 8 variants of the tier release are left out"
    both = "torch213-metal-aarch64-darwin, torch214-metal-aarch64-darwin"
    assert table.rows == [(6, "KCI303", "nobody builds it", "k0, k1, k2", both)]


def test_no_name_leaves_its_cell() -> None:
    made = plan(
        [leg("torch-cpu")],
        left_out=(UnplannedVariant(HOSTILE, HOSTILE, "cuda", "x86_64-linux", "KCI301", HOSTILE),),
        skipped=(SkippedVariant(HOSTILE, "torch-cpu", HOSTILE),),
        faulty=(FaultyKernel(HOSTILE, HOSTILE, HOSTILE, ()),),
    )
    said = as_markdown(plan_tables(PlannedRun(made, estimate(made.legs), None, ())))
    assert said.count(HARMLESS) == 8
    assert "<img" not in said
    assert "](http" not in said.replace("&#91;x](http", "")
    manifest = Manifest(HOSTILE, 1, (HOSTILE,), (), (HOSTILE,), complete=False)
    tree = as_markdown([tree_table(manifest)])
    assert tree.splitlines()[0] == f"### {HARMLESS} version 1: 0 variants"
    assert tree.splitlines()[-1] == f"| {HARMLESS} | missing |  |  |"


@pytest.mark.parametrize(
    ("planned", "missing", "all_there"),
    [
        (("torch-cpu",), (), True),
        (("torch-cpu",), ("torch-cpu",), False),
        (None, (), False),
        ((), (), True),
    ],
)
def test_a_tree_is_called_whole_only_if_it_was_planned_and_nothing_is_missing(
    planned: tuple[str, ...] | None, missing: tuple[str, ...], all_there: bool
) -> None:
    below = tree_table(Manifest("relu", 1, planned, (), missing, complete=not missing)).below
    assert (below == "all planned variants are there") is all_there
