"""Diagnostics as an answer on stdout, in the formats that `--format` names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from kci.cli import options
from kci.cli._output import markdown_table, markdown_text, one_per_cause, print_diagnostics, print_json
from kci.config.discovery import SuppressedFinding
from kci.diagnostics import Diagnostic, Severity, printable, render_github
from kci.utils.suggest import count

if TYPE_CHECKING:
    from kci.run.local import TreeResult
    from kci.tree.verify.subject import VerifiedPlace

FORMATS = ("text", "json", "github", "markdown")


def show_findings(
    found: Sequence[Diagnostic],
    output: str,
    *,
    what: str = "",
    suppressed: Sequence[SuppressedFinding] = (),
    looked_at: Sequence[str] = (),
    places: Sequence[VerifiedPlace] = (),
) -> int:
    """Print diagnostics and give the exit code: 1 if one of them is an error.

    The answer is on stdout: the findings in the chosen form, or in text form one line of summary, with the findings on
    stderr. The other forms have the summary on stderr. In text form, -v also shows notes of severity info, and each of
    many findings that say the same; all of them are always counted.

    Args:
        found: what was found.
        output: one of `FORMATS`.
        what: what was looked at, in a word or two, for the summary.
        suppressed: is counted, and shown with its reasons with -v and in JSON and Markdown.
        looked_at: a line before the summary for each path on the command line.
        places: the same for JSON.
    """
    verbose = options().verbose
    lines = [*map(printable, looked_at), counted(found, what, suppressed)]
    summary = "\n".join(lines)
    match output:
        case "json":
            extra: dict[str, object] = {"looked_at": places} if places else {}
            extra |= {"suppressed": suppressed} if suppressed else {}
            print_json(diagnostics=found, **extra)
        case "github":
            click.echo("".join(render_github(item) + "\n" for item in found), nl=False)
        case "markdown":
            click.echo(markdown(found, "\n\n".join(lines), suppressed), nl=not suppressed)
        case _:
            shown = found if verbose else one_per_cause([item for item in found if item.severity is not Severity.INFO])
            print_diagnostics(shown)
            print_suppressed(suppressed if verbose else ())
            click.echo(summary + (" (-v shows all)" if len(shown) < len(found) else ""))
    if output in ("json", "github") and not options().quiet:
        click.echo(summary, err=True)
    return int(any(item.severity is Severity.ERROR for item in found))


def print_trees(trees: Iterable[TreeResult]) -> int:
    """Print a line for each tree that was merged, and what was found in it; 1 if that is an error."""
    code = 0
    for tree in trees:
        missing = f", {len(tree.manifest.missing)} missing" if tree.manifest.missing else ""
        hidden = f" ({len(tree.suppressed)} suppressed)" if tree.suppressed else ""
        click.echo(f"{tree.kernel}: {count(len(tree.manifest.present), 'variant')} in {tree.tree}{missing}{hidden}")
        print_suppressed(tree.suppressed if options().verbose else ())
        print_diagnostics(tree.findings)
        code |= any(item.severity is Severity.ERROR for item in tree.findings)
    return code


def counted(found: Sequence[Diagnostic], what: str, suppressed: Sequence[SuppressedFinding] = ()) -> str:
    """A line with what was looked at, and the number of findings of each severity."""
    counts = {severity: sum(item.severity is severity for item in found) for severity in Severity}
    said = ", ".join(count(number, str(severity)) for severity, number in counts.items())
    return f"{what}: {said}" + (f" ({len(suppressed)} suppressed)" if suppressed else "")


def print_suppressed(suppressed: Iterable[SuppressedFinding]) -> None:
    """Print what was suppressed and why, to stderr."""
    for item in suppressed:
        one = item.diagnostic
        click.echo(f"suppressed: {printable(one.place)} {one.rule} because: {printable(item.reason)}", err=True)


def markdown(found: Sequence[Diagnostic], summary: str, suppressed: Sequence[SuppressedFinding] = ()) -> str:
    """The summary, a table of findings, and a table of what was suppressed."""
    rows = [
        (item.severity.value, item.rule, markdown_text(item.place) if item.path else "", markdown_text(item.message))
        for item in found
    ]
    hidden = [
        (item.diagnostic.rule, markdown_text(item.diagnostic.place), markdown_text(item.reason)) for item in suppressed
    ]
    parts = [summary]
    parts += [markdown_table(("", "rule", "where", "finding"), rows)] if rows else []
    parts += [markdown_table(("suppressed", "where", "because"), hidden)] if hidden else []
    return "\n\n".join(parts) + "\n"
