"""Diagnostics as an answer on stdout, in the formats that `--format` names."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from kci.cli import options
from kci.cli._output import markdown_table, markdown_text, one_per_cause, print_diagnostics, print_json, to_json
from kci.config.find_settings import locate
from kci.config.suppression import SuppressedFinding
from kci.diagnostics import Diagnostic, Related, Rule, Severity, printable, render_github, rules
from kci.plurals import count
from kci.version import HOME, __version__

if TYPE_CHECKING:
    from kci.run.local import TreeResult
    from kci.verify.subject import VerifiedPlace

FORMATS = ("text", "json", "github", "sarif", "markdown")


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
        places: the same for JSON and SARIF.
    """
    verbose = options().verbose
    lines = [*map(printable, looked_at), counted(found, what, suppressed)]
    summary = "\n".join(lines)
    match output:
        case "json":
            extra: dict[str, object] = {"looked_at": places} if places else {}
            extra |= {"suppressed": suppressed} if suppressed else {}
            print_json(diagnostics=found, **extra)
        case "sarif":
            click.echo(render_sarif(found, __version__, locate(Path())[0], suppressed, places))
        case "github":
            click.echo("".join(render_github(item) + "\n" for item in found), nl=False)
        case "markdown":
            click.echo(markdown(found, "\n\n".join(lines), suppressed), nl=not suppressed)
        case _:
            shown = found if verbose else one_per_cause([item for item in found if item.severity is not Severity.INFO])
            print_diagnostics(shown)
            print_suppressed(suppressed if verbose else ())
            click.echo(summary + (" (-v shows all)" if len(shown) < len(found) else ""))
    if output in ("json", "sarif", "github") and not options().quiet:
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


_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render_sarif(
    diagnostics: Iterable[Diagnostic],
    tool_version: str,
    root: Path | None = None,
    suppressed: Iterable[SuppressedFinding] = (),
    looked_at: Sequence[object] = (),
) -> str:
    """One SARIF 2.1.0 log with one run, in the form that GitHub code scanning and many editors take.

    Args:
        diagnostics: in any order; the log keeps it.
        tool_version: the version of kci.
        root: file names are relative to it (default: the working directory); code scanning wants the repository's root.
        suppressed: become results with a suppression and its reason.
        looked_at: for the properties of the run.
    """
    reasons = [*((item, None) for item in diagnostics), *((item.diagnostic, item.reason) for item in suppressed)]
    base = Path(os.path.realpath(root or "."))
    used = sorted({item.rule for item, _ in reasons})
    seen: Counter[str] = Counter()
    driver = {
        "name": "kci",
        "version": tool_version,
        "informationUri": HOME,
        "rules": [_rule(rules()[rule]) for rule in used],
    }
    results = [_result(item, used.index(item.rule), base, seen) for item, _ in reasons]
    for result, (_, reason) in zip(results, reasons, strict=True):
        if reason is not None:
            result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": reason}]
    run: dict[str, Any] = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    if looked_at:
        run["properties"] = {"lookedAt": looked_at}
    return to_json({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(rule: Rule) -> dict[str, Any]:
    text = f"{rule.summary}\n\nWhy: {rule.why}\n\nFix: {rule.fix}"
    markdown = f"{rule.summary}\n\n**Why:** {rule.why}\n\n**Fix:** {rule.fix}"
    for title, example in (("Wrong", rule.bad), ("Right", rule.good)):
        if example:
            markdown += f"\n\n**{title}:**\n\n```toml\n{example}```"
    return {
        "id": rule.id,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "help": {"text": text, "markdown": markdown},
        "defaultConfiguration": {"level": _LEVEL[rule.severity]},
        "properties": {"problem.severity": _SEVERITY[rule.severity], "precision": "high", "tags": ["kci"]},
    }


_SEVERITY = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "recommendation"}


def _result(diagnostic: Diagnostic, index: int, base: Path, seen: Counter[str]) -> dict[str, Any]:
    text = diagnostic.message + (f"\nhint: {diagnostic.hint}" if diagnostic.hint else "")
    uri = _uri(diagnostic.path, base) if diagnostic.path else ""
    # A finding keeps its identity when lines above it come and go: rule, file and message, and which of several it is.
    identity = f"{diagnostic.rule}\0{uri}\0{diagnostic.message}"
    seen[identity] += 1
    digest = hashlib.sha256(f"{identity}\0{seen[identity]}".encode("utf-8", "surrogateescape")).hexdigest()
    result: dict[str, Any] = {
        "ruleId": diagnostic.rule,
        "ruleIndex": index,
        "level": _LEVEL[diagnostic.severity],
        "message": {"text": text},
        "partialFingerprints": {"kciFinding/v1": digest},
    }
    # Code scanning refuses a result without a location; what no file is to blame for stands at the repository itself.
    place: dict[str, Any] = {"artifactLocation": {"uri": uri or "."}, "region": _region(diagnostic)}
    if not uri.startswith("file:"):
        place["artifactLocation"]["uriBaseId"] = "%SRCROOT%"
    result["locations"] = [{"physicalLocation": place}]
    if diagnostic.related:
        result["relatedLocations"] = [
            {
                "message": {"text": item.message},
                "physicalLocation": {"artifactLocation": {"uri": _uri(item.path, base)}, "region": _region(item)},
            }
            for item in diagnostic.related
        ]
    return result


def _region(diagnostic: Diagnostic | Related) -> dict[str, int]:
    """Where in the file. Code scanning wants a line, so a finding about a whole file stands at its first."""
    region = {"startLine": diagnostic.line or 1}
    if diagnostic.column:
        region["startColumn"] = diagnostic.column
    if diagnostic.end_line:
        region |= {"endLine": diagnostic.end_line, "endColumn": diagnostic.end_column}
    return region


def _uri(path: str, base: Path) -> str:
    absolute = os.path.realpath(path)
    relative = os.path.relpath(absolute, base)
    if relative == os.pardir or relative.startswith(os.pardir + os.sep):
        return Path(absolute).as_uri()
    return quote(os.fsencode(relative.replace(os.sep, "/")), safe="/")
