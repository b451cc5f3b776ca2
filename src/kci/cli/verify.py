"""`kci verify`: verifies trees, variant directories and kernels."""

from __future__ import annotations

from pathlib import Path

import click

from kci.cli import FileName, file_option, flag, format_option, kci_command, option, repeated
from kci.cli._answers import FORMATS, show_findings
from kci.config.discovery import settings_of_tree
from kci.diagnostics import Diagnostic, placed
from kci.errors import UsageError
from kci.tree.sigstore import SigningContext
from kci.tree.verify import verify_with_suppressions
from kci.tree.verify.subject import PlaceKind, describe_places, find_places
from kci.tree.verify.tree_rules import check_attestation


@kci_command
@click.argument("paths", nargs=-1, type=FileName(), required=True, metavar="PATH...")
@repeated(
    "--select",
    "RULE",
    "Report only this rule, or rules that start with this; unreadable files are always reported.",
)
@repeated("--ignore", "RULE", "Do not report this rule, or rules that start with this.")
@format_option(*FORMATS)
@flag("--signatures", "Also require a signature of the signer that the next options name.")
@option("--repository", "OWNER/NAME", "The repository that must have signed.", default="")
@option("--workflow", "NAME", "The workflow that must have signed, as GitHub names it.", default="")
@file_option("--trust-config", "FILE", "A Sigstore of your own (default: the public one).")
def command(
    paths: tuple[str, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    output: str,
    signatures: bool,
    repository: str,
    workflow: str,
    trust_config: Path | None,
) -> int:
    """Verify each PATH: a tree, a variant directory, or a kernel.

    For a kernel: its sources, and build/ and result/ if they exist. Exit 1 if a requirement is not
    met.

    `[signing]` in the kci.toml of the current repository says what the options about the signer
    leave out. That file does not count if it may have come with the tree: neither may lie in the
    directory of the other.

    Examples:
        # verify a tree
        kci verify build
        # leave out the rules about the card
        kci verify build --ignore KCI72
    """
    if (repository or workflow or trust_config) and not signatures:
        raise UsageError(
            "--repository, --workflow and --trust-config need --signatures", "add --signatures"
        )
    extra: list[Diagnostic] = []
    for path in paths if signatures else ():
        trees = [place.path for place in find_places(path) if place.kind is PlaceKind.TREE]
        for tree in trees or [path]:
            own = settings_of_tree(tree)
            signing = own.settings.signing
            signer = SigningContext(
                repository or signing.repository or "", "", workflow or signing.workflow or ""
            )
            if not signer.repository:
                hint = (
                    "name it with --repository: a kci.toml that may have come with the tree does "
                    "not count"
                )
                raise UsageError(f"nothing says which repository must have signed {tree}", hint)
            trust = trust_config or own.trust_config
            extra += placed(check_attestation(Path(tree), signer, trust), tree)
    verified = [verify_with_suppressions(path, select, ignore) for path in paths]
    signature_findings = {
        (item.rule, item.path) for item in extra
    }  # an unreadable attestation has two findings
    rest = (item for one in verified for item in one.diagnostics)
    findings = [
        *extra,
        *(item for item in rest if (item.rule, item.path) not in signature_findings),
    ]
    return show_findings(
        findings,
        output,
        what=f"{len(paths)} verified",
        suppressed=[item for one in verified for item in one.suppressed],
        looked_at=[
            describe_places(path, one.places) for path, one in zip(paths, verified, strict=True)
        ],
        places=[place for one in verified for place in one.places],
    )
