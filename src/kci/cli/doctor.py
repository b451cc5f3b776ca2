"""`kci doctor`: the abilities of this machine, and the settings of a repository."""

from __future__ import annotations

from collections import Counter

import click

from kci.cli import kci_command
from kci.cli._output import Layout, answer, paragraph, say, table
from kci.cli._workspace import KERNELS, load_workspace
from kci.config.facts import BACKENDS
from kci.config.values import Backend
from kci.errors import KciError
from kci.matrix.catalog.loading import load_catalog
from kci.plan.workspace import Choice, Workspace
from kci.publish.targets import hub_settings
from kci.run.local import OutcomeState, outcomes_of
from kci.run.machine_report import Health, examine_machine
from kci.utils.cache import default_cache
from kci.workflows.repository import read_recorded_options, settings_text

_COLORS = {Health.OK: "green", Health.MISSING: "yellow", Health.NOTE: "cyan"}


@kci_command
@KERNELS
def command(kernels: tuple[str, ...]) -> None:
    """List what this machine can build, what it lacks for the rest, and the command that installs
    it. Builds nothing.

    With KERNEL (default: kernels in this directory), list only the toolkits of its backends, which
    of its variants this machine can build, and the settings that you have to make on GitHub and on
    the Hub.

    Examples:
        # list what this machine lacks, and how to install it
        kci doctor
    """
    workspace = _workspace(kernels)
    declared: set[Backend] = set()
    told: dict[str, list[str]] = {}
    if workspace:
        declared |= {item for read in workspace.kernels for item in read.build.general.backends}
        own = workspace.settings
        short = read_recorded_options(own.root).short
        told = {"On GitHub": settings_text(own.settings, short=short)}
        told["To publish"] = hub_settings(workspace)
    catalog = workspace.catalog if workspace else load_catalog()
    checks = examine_machine(default_cache(), catalog, declared or BACKENDS)
    answer(click.style("This machine", bold=True))
    rows = [(item.name, item.health, item.detail) for item in checks]
    answer(table(("", "state", "found"), rows, Layout(drop=("state",), wrap="found")))
    for item in checks:
        if item.remedy:
            who = click.style(f"for {item.name}", fg=_COLORS[item.health])
            answer(paragraph(f"{who}: {item.remedy}"))
    if workspace:
        answer(f"\n{click.style('These kernels', bold=True)}\n{_variants(workspace)}")
    for title, lines in told.items():
        if lines:
            answer(f"\n{click.style(title, bold=True)}")
        for line in lines:
            answer(paragraph(f"- {line}"))


def _workspace(kernels: tuple[str, ...]) -> Workspace | None:
    try:
        return load_workspace(*kernels)
    except KciError as error:
        if kernels:
            raise
        if error.diagnostics:
            say("build.toml is invalid, so kernels are left out: `kci check` says where")
        return None  # the user did not ask about kernels


def _variants(workspace: Workspace) -> str:
    outcomes = outcomes_of(workspace, Choice())
    reasons = Counter(outcome.note for outcome in outcomes if outcome.state is OutcomeState.LEFT)
    here = len(outcomes) - reasons.total()
    lines = [
        f"{here} of {len(outcomes)} variants are for this system: `kci run` builds those that "
        "have their toolkit"
    ]
    lines += [f"{count} left for others: {note}" for note, count in sorted(reasons.items())]
    return "\n".join(paragraph(line) for line in lines)
