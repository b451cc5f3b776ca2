"""Every rule has a text that tells what to do, and tests in which it speaks and in which it stays
silent.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from kci.diagnostics import Rule, rules
from kci.utils.atomic import locked


@pytest.fixture(scope="session")
def marked(
    collected_rule_marks: set[tuple[str, bool]] | None, shared_by_workers: Path
) -> set[tuple[str, bool]]:
    """The rule marks of all tests; where a part of them is being run they are collected once for
    all workers.
    """
    if collected_rule_marks is not None:
        return collected_rule_marks
    kept = shared_by_workers / "rule-marks"
    with locked(kept):
        if not kept.exists():
            command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--list-rule-marks"]
            command += ["-p", "no:cacheprovider"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            kept.write_text(done.stdout)
    found = re.findall(r"^rule (KCI[0-9]+) (True|False)$", kept.read_text(), re.MULTILINE)
    return {(rule, triggers == "True") for rule, triggers in found}


@pytest.mark.parametrize("rule", rules().values(), ids=lambda rule: rule.id)
def test_a_rule_tells_what_to_do_and_has_tests_in_which_it_speaks_and_is_silent(
    rule: Rule, marked: set[tuple[str, bool]]
) -> None:
    assert (rule.id, True) in marked, f'no test is marked rule("{rule.id}", triggers=True)'
    assert (rule.id, False) in marked, f'no test is marked rule("{rule.id}", triggers=False)'
    assert re.fullmatch(r"KCI[0-9]{3}", rule.id)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    for text in (rule.summary, rule.why, rule.fix):
        assert re.fullmatch(r"\S.*\.", text), text


def test_marks_and_code_name_rules_that_exist(marked: set[tuple[str, bool]]) -> None:
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    named = {*re.findall(r'"(KCI[0-9]{3})"', code), *(rule for rule, _ in marked)}
    assert named <= set(rules())


def test_no_name_and_no_rule_is_defined_twice() -> None:
    names = [rule.name for rule in rules().values()]
    files = (ROOT / "src" / "kci" / "rules").glob("*.toml")
    ids = re.findall(r"(?m)^\[(KCI[0-9]+)\]", "\n".join(file.read_text() for file in files))
    assert [len(names), len(ids)] == [len(set(names)), len(set(ids))]
