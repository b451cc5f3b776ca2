"""Plain words: what people read uses the terms of docs/glossary.md, and is written as it says."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from conftest import ROOT

INSTEAD = {
    r"(tier|runner|machine|matrix|file|process|job)s? of (one|your|its|his)('s)? own": (
        "custom, self-hosted, separate"
    ),
    r"beside the (supported )?(window|range|ones)": "outside of the supported torch range",
    r"supported window": "supported torch range",
    r"throw-?away": "GitHub-hosted",
    r"\bneighbours?\b": "neighbor",
    r"\b(silences?|silenced|silencing)\b": "suppress, suppression",
    r"without a word\b": "silently",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bhalf understood\b": "misread",
    r"\bmisspelt\b": "misspelled",
    r"\blicence": "license",
    r"\bhand(s|ed)? (it |them )?over\b": "pass, upload",
    r"\btake (it|the row|the backend) out\b": "remove",
    r"\bnobody (knows|offers|hears|but you)\b": "unknown, none",
    r"\b(it|this|that) is none\b": "is not a ..., there is no ...",
    r"\bof which (there (is|are) )?none\b": "there are no ...",
    r"\b(is|are) to exist\b": "must exist, is planned",
    r"\bhave jobs end\b": "jobs finish, GitHub ends a job",
    r"\bone for all\b": "one image for all versions: repeat the noun",
    r"\bor whatever it\b": "or another ...: name it",
    r"\bof which these\b": "the first 20 of 31: count, then name",
    r"accepted for clarity": "it has no effect",
    r"\bput that right\b": "fix this",
    r"\bnobody (declares|is named)\b": "is not declared, there is no ...",
    r"\bsomebody has to decide\b": "the option or the key that decides",
    r"\bat hand\b": "available",
    r"\bfor want of\b": "because memory ran out: name the cause",
    r"\b(can|cannot|could not) be had\b": "be installed, exist",
    r"\b(is|are|was|were) passed over\b": "is ignored",
    r"is no (value|revision|directory|catalog|system|tree|backend|artifact|number)\b": "is not a",
}
"""An idiom, and what to write."""


@cache
def texts() -> dict[Path, str]:
    source = [path for path in (ROOT / "src" / "kci").rglob("*") if path.suffix in (".py", ".toml")]
    others = ("*.md", "docs/*.md", "templates/**/*.j2", ".github/**/*.yml")
    places = (*others, "*/action.yml", "action.yml")
    found = [path for place in places for path in ROOT.glob(place)]
    return {path: path.read_text(encoding="utf-8") for path in sorted([*source, *found])}


@pytest.mark.parametrize("idiom", INSTEAD)
def test_an_idiom_is_not_used(idiom: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path, text in texts().items()
        if re.search(idiom, text, re.IGNORECASE)
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(idiom, line, re.IGNORECASE)
    ]
    assert found == [], f"write: {INSTEAD[idiom]}"


def test_the_texts_are_looked_at() -> None:
    names = {path.name for path in texts()}
    some = "lints.toml selection.py README.md plan.md _jobs.j2 ci.yml action.yml"
    assert names >= {*some.split()}


@pytest.mark.parametrize("first", ["What", "Whether"])
def test_a_docstring_begins_with_its_subject(first: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, text in texts().items()
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if str(node.value.value).startswith(f"{first} ")
    ]
    assert found == []
