"""Pictures of a plan: a page with its legs over time, and a graph for Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from kci.matrix.table_page import PageRow, PageSection, table_page
from kci.plan.budget import cost_sentence, money, starts
from kci.plan.plan import Estimate, Leg, Plan
from kci.plurals import between, count

_HEADS = ("leg", "kernel", "backend", "system", "runner", "starts", "takes", "cost", "time")
_FILTERS = {"kernel": "Kernel", "backend": "Backend", "system": "System", "runner": "Runner"}
_MOST_SHOWN = 40
"""Legs that a graph shows one by one; GitHub draws no larger ones."""


def plan_page(plan: Plan, made: Estimate) -> str:
    """A page with every leg as a bar over time, and what no job can build."""
    whole = max(made.wall_minutes, 1)
    rows = []
    begins = zip(starts(plan.legs), plan.legs, strict=True)
    for start, leg in sorted(begins, key=lambda item: (item[0], item[1].kernel, item[1].name)):
        cost = money({leg.currency: leg.ends[1] * leg.rate}) if leg.rate is not None else "unknown"
        takes = leg.takes_text
        facts = (leg.kernel, str(leg.backend), leg.system)
        keys = {
            "kernel": facts[0],
            "backend": facts[1],
            "system": facts[2],
            "runner": leg.runner_text.replace(" ", "-"),
        }
        rows.append(
            PageRow(
                (leg.name, *facts, leg.runner_text, f"{start} min", takes, cost),
                keys,
                span=(round(100 * start / whole, 2), round(100 * leg.minutes / whole, 2)),
            )
        )
    sections = [PageSection("Legs", _HEADS, tuple(rows))]
    if plan.left_out:
        left = tuple(
            PageRow((item.variant, item.kernel, item.rule, item.why), {"kernel": item.kernel}, "dropped")
            for item in plan.left_out
        )
        sections.append(PageSection("Left out", ("variant", "kernel", "rule", "reason"), left))
    subtitle = (
        f"{count(made.legs, 'leg')} in {count(made.waves, 'wave')}, "
        f"{between(made.wall_at_least, made.wall_at_most, 'minute')} from the first to the last, "
        f"{between(made.at_least, made.at_most, 'runner minute')}, {cost_sentence(made)}."
    )
    return table_page("Plan", subtitle, sections, _FILTERS)


def mermaid(plan: Plan) -> str:
    """The plan as a graph in Mermaid, which GitHub and many editors draw in Markdown.

    A plan of many legs shows one node for each kernel and backend.
    """
    lines = ["flowchart LR", "  plan([plan])"]
    by_kernel: dict[str, list[Leg]] = {}
    for leg in plan.legs:
        by_kernel.setdefault(leg.kernel, []).append(leg)
    single = len(plan.legs) <= _MOST_SHOWN
    number = 0
    for at, (kernel, legs) in enumerate(sorted(by_kernel.items())):
        lines += [f"  subgraph k{at}[{_quoted(kernel)}]", f"    m{at}[[merge]]"]
        each = [f"{leg.name}<br>{leg.runner_text}, {leg.takes_text}" for leg in legs]
        for text in each if single else _groups(legs):
            lines += [f"    l{number}[{_quoted(text)}] --> m{at}"]
            number += 1
        lines += ["  end", f"  plan --> k{at}", f"  m{at} --> gate([kci])"]
    return "\n".join(lines) + "\n"


def _groups(legs: Sequence[Leg]) -> list[str]:
    found: dict[str, list[Leg]] = {}
    for leg in legs:
        found.setdefault(str(leg.backend), []).append(leg)
    rows = []
    for backend, each in sorted(found.items()):
        least, most = (sum(leg.ends[end] for leg in each) for end in (0, 1))
        rows.append(f"{backend}<br>{count(len(each), 'leg')}, {between(least, most, 'minute')}")
    return rows


def _quoted(text: str) -> str:
    """A label; what Mermaid would read as markup is written as entities."""
    lines = [line.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;") for line in text.split("<br>")]
    return f'"{"<br>".join(lines)}"'
