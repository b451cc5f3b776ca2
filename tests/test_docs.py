"""The generated pages of docs/ are what their sources say."""

from __future__ import annotations

import re

from conftest import ROOT
from forked import fork_server
from kci.diagnostics import rules


def test_generated_pages_are_up_to_date() -> None:
    code, said, errors = fork_server().run("--check", script=ROOT / "bin" / "gen_docs.py", folder=ROOT)
    assert code == 0, f"run `python bin/gen_docs.py`\n{said}{errors}"


def test_every_rule_is_on_the_page() -> None:
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (KCI[0-9]{3}) ", page, re.MULTILINE) == list(rules())
