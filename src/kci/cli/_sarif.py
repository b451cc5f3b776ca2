"""SARIF 2.1.0: findings in the form that GitHub code scanning and many editors take."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kci.cli._output import to_json
from kci.config.suppression import SuppressedFinding
from kci.diagnostics import Diagnostic, Related, Rule, Severity, rules

_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render_sarif(
    diagnostics: Iterable[Diagnostic],
    tool_version: str,
    root: Path | None = None,
    suppressed: Iterable[SuppressedFinding] = (),
    looked_at: Sequence[object] = (),
) -> str:
    """One SARIF log with one run.

    Args:
        diagnostics: in any order; the log keeps it.
        tool_version: the version of kci.
        root: what files are named relative to; the working directory by default. Code scanning wants the top of the
            repository.
        suppressed: findings that somebody suppressed; they are results with a suppression and its reason.
        looked_at: what was looked at, for the properties of the run.
    """
    found = list(diagnostics)
    hidden = list(suppressed)
    base = Path(os.path.realpath(root or "."))
    known = rules()
    used = sorted({item.rule for item in [*found, *(item.diagnostic for item in hidden)]})
    index = {rule: position for position, rule in enumerate(used)}
    seen: Counter[str] = Counter()
    driver = {
        "name": "kci",
        "version": tool_version,
        "informationUri": "https://github.com/kci/build",
        "rules": [_rule(known[rule]) for rule in used],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [
            *(_result(item, index[item.rule], base, seen) for item in found),
            *(_suppressed(item, index[item.diagnostic.rule], base, seen) for item in hidden),
        ],
    }
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


def _suppressed(item: SuppressedFinding, index: int, base: Path, seen: Counter[str]) -> dict[str, Any]:
    suppression = {"kind": "external", "status": "accepted", "justification": item.reason}
    return _result(item.diagnostic, index, base, seen) | {"suppressions": [suppression]}


def _region(diagnostic: Diagnostic | Related) -> dict[str, int]:
    """Where in the file; code scanning wants a line, so what is about a whole file stands at its first."""
    region = {"startLine": diagnostic.line or 1}
    if diagnostic.column:
        region["startColumn"] = diagnostic.column
    if diagnostic.end_line:
        region |= {"endLine": diagnostic.end_line, "endColumn": diagnostic.end_column}
    return region


def _uri(path: str, base: Path) -> str:
    """A file relative to the base, percent-encoded; a file elsewhere by its absolute URI."""
    absolute = os.path.realpath(path)
    relative = os.path.relpath(absolute, base)
    if relative == os.pardir or relative.startswith(os.pardir + os.sep):
        return Path(absolute).as_uri()
    return quote(os.fsencode(relative.replace(os.sep, "/")), safe="/")
