"""`kci explain`: explains a rule."""

from __future__ import annotations

import textwrap

import click

from kci.cli import kci_command
from kci.cli._output import answer
from kci.diagnostics import rules
from kci.errors import UsageError
from kci.utils.suggest import suggestion


@kci_command
@click.argument("rule", required=False)
def command(rule: str | None) -> None:
    """Explain RULE, an id such as KCI101 or a name. Without RULE, list all rules, a line each.

    Examples:
        # explain a finding
        kci explain KCI742
    """
    all_rules = rules()
    if rule is None:
        for entry in all_rules.values():
            answer(f"{entry.id}  {entry.severity:<7}  {entry.name:<24} {entry.summary}")
        return
    by_name = {entry.name: entry for entry in all_rules.values()}
    match = all_rules.get(rule.upper()) or by_name.get(rule.lower())
    if not match:
        near = suggestion(rule.upper(), list(all_rules)) or suggestion(rule.lower(), list(by_name))
        raise UsageError(f"there is no rule {rule[:60]!r}", near or "`kci explain` lists them all")
    answer(
        f"{click.style(f'{match.id} {match.name}', bold=True)} ({match.severity})\n\n"
        f"{match.summary}\n"
    )
    answer(f"Why: {match.why}\n\nFix: {match.fix}")
    for title, example in (("Wrong", match.bad), ("Right", match.good)):
        if example:
            answer(f"\n{title}:\n\n" + textwrap.indent(example.rstrip(), "    "))
