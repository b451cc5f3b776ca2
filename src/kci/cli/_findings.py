"""Diagnostics as an answer on stdout, in the formats that `--format` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from kci import __version__
from kci.cli._output import markdown_table, print_diagnostics
from kci.diagnostics import Diagnostic, Severity, render_github, rules

FORMATS = ("text", "json", "github", "sarif", "markdown")


def show_findings(found: Sequence[Diagnostic], output: str, *, quiet: bool = False, what: str = "") -> int:
    """Print diagnostics and give the exit code: 1 if one of them is an error.

    Args:
        found: what was found.
        output: one of `FORMATS`. In text form the findings go to stderr and one line of summary to stdout.
        quiet: show errors only, in text form.
        what: what was looked at, for the summary.
    """
    errors = sum(item.severity is Severity.ERROR for item in found)
    summary = f"{what}: {errors} errors, {len(found) - errors} other findings"
    match output:
        case "json":
            click.echo(_json({"schema": 1, "diagnostics": found}))
        case "sarif":
            click.echo(_json(sarif(found)))
        case "github":
            click.echo("".join(render_github(item) + "\n" for item in found), nl=False)
        case "markdown":
            click.echo(markdown(found, summary))
        case _:
            print_diagnostics(found, quiet=quiet)
            click.echo(summary)
    return 1 if errors else 0


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def markdown(found: Sequence[Diagnostic], summary: str) -> str:
    """A table for a step summary or a comment."""
    if not found:
        return f"{summary}\n"
    rows = [
        (item.severity.value, item.rule, f"`{item.place}`" if item.path else "", _printable(item.message))
        for item in found
    ]
    return f"{summary}\n\n{markdown_table(('', 'rule', 'where', 'finding'), rows)}\n"


def _printable(text: str) -> str:
    """Text that cannot become markup or drive a terminal."""
    kept = "".join(char if char.isprintable() else " " for char in text)
    return kept.replace("&", "&amp;").replace("<", "&lt;")


def sarif(found: Sequence[Diagnostic]) -> dict[str, Any]:
    """SARIF 2.1.0, as GitHub's code scanning reads it."""
    used = sorted({item.rule for item in found})
    described = [
        {
            "id": rule.id,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.fix},
        }
        for rule in (rules()[name] for name in used)
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "kci", "version": __version__, "rules": described}},
                "results": [_result(item, used.index(item.rule)) for item in found],
            }
        ],
    }


_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def _result(item: Diagnostic, index: int) -> dict[str, Any]:
    text = item.message + (f"\n{item.hint}" if item.hint else "")
    result: dict[str, Any] = {
        "ruleId": item.rule,
        "ruleIndex": index,
        "level": _LEVELS[item.severity],
        "message": {"text": text},
    }
    if item.path:
        from urllib.parse import quote

        place: dict[str, Any] = {"artifactLocation": {"uri": quote(item.path.removeprefix("./"))}}
        if item.line:
            place["region"] = {
                "startLine": item.line,
                "startColumn": item.column,
                "endLine": item.end_line,
                "endColumn": item.end_column,
            }
        result["locations"] = [{"physicalLocation": place}]
    return result
