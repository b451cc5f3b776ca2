"""`kci compat`: expected against published variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kci.cli import CommandGroup, Options
from kci.cli._output import table, to_json
from kci.cli._workspace import opened, selection_options, take_choice
from kci.compat.coverage import CoverageState, coverage
from kci.compat.held import Holding, held_in
from kci.config.reader import Kernel
from kci.errors import UsageError
from kci.workspace.planning import today_fingerprints


@click.group("compat", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """The scheduled side: what should be published against what is."""


@command.command("coverage")
@click.argument("kernel", default=".")
@click.option(
    "--tree",
    type=click.Path(path_type=Path),
    help="The published tree, or its kci-manifest.json (default: KERNEL/build).",
)
@click.option(
    "--hub",
    metavar="REPO[@REVISION]",
    help="A repository on the Hub; `-` for the one that build.toml names. Needs huggingface_hub.",
)
@selection_options
@click.option("--format", "output", type=click.Choice(["table", "json"]), default="table")
@click.pass_obj
def show_coverage(
    options: Options, /, kernel: str, tree: Path | None, hub: str | None, output: str, **selection: Any
) -> int:
    """Which variants of KERNEL are published, missing, stale, corrupt or surplus. Exit 1 if one has to be built."""
    if tree is not None and hub is not None:
        raise UsageError("--tree and --hub are two places", hint="ask for one after the other")
    workspace = opened(options, [kernel], selection["catalog"])
    read = workspace.only_kernel()
    holding = _on_hub(read, hub) if hub is not None else held_in(tree or Path(read.directory) / "build")
    matrix = workspace.matrix(take_choice(selection))
    known = any(held.fingerprint for held in holding.variants)
    prints = today_fingerprints(workspace, matrix) if known else {}
    today = {variant: print_ for (name, variant), print_ in prints.items() if name == read.build.name}
    found = coverage(matrix.kernels[0], holding, today)
    if output == "json":
        counts = {str(state): len(found.names(state)) for state in CoverageState}
        click.echo(to_json({"schema": 1, "coverage": found, "counts": counts}))
    else:
        rows = [(item.variant, str(item.state), item.reason, item.signer or "") for item in found.variants]
        click.echo(table(("variant", "state", "why", "signed by (not verified)"), rows))
        for line in dict.fromkeys(item.command for item in found.variants if item.command):
            click.echo(f"$ {line}")
        expected = [item for item in found.variants if item.state is not CoverageState.SURPLUS]
        there = len(found.names(CoverageState.PRESENT))
        unread = "" if found.digests_checked else "; no file was looked at"
        click.echo(f"{found.source}: {there} of {len(expected)} expected variants are there{unread}")
    return 1 if found.has_gaps else 0


def _on_hub(kernel: Kernel, named: str) -> Holding:
    from kci.compat.hub_listing import HubRepository, held_on_hub

    repo_id, _, revision = named.partition("@")
    hub = kernel.build.general.hub
    if repo_id == "-":
        if hub is None or hub.repo_id is None:
            raise UsageError("build.toml names no repository", hint="name one, such as --hub acme/norm")
        repo_id = hub.repo_id
    branch = (hub.branch if hub else None) or f"v{kernel.build.general.version}"
    return held_on_hub(HubRepository(repo_id, revision or branch))
