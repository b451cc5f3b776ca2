"""The generated pages of docs/ are what their sources say."""

from __future__ import annotations

import re
import subprocess
import sys

from conftest import ROOT
from kci.diagnostics import rules


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "bin" / "gen_docs.py"), "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run `python bin/gen_docs.py`\n{done.stdout}{done.stderr}"


def test_every_rule_is_on_the_page() -> None:
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (KCI[0-9]{3}) ", page, re.MULTILINE) == list(rules())
