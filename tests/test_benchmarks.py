"""Benchmarks run in their smallest form, and check what they make; their bounds are judged where a
person runs them.
"""

from __future__ import annotations

import sys

import pytest

from conftest import ROOT, ran

FILES = sorted(path.name for path in (ROOT / "benchmarks").glob("*.py"))
NEEDS = {
    "action_start.py": [pytest.mark.network],
    "builds.py": [pytest.mark.torch, pytest.mark.slow],
}


@pytest.mark.programs
@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, [])) for name in FILES])
def test_it_runs_in_its_smallest_form(name: str) -> None:
    done = ran(sys.executable, ROOT / "benchmarks" / name, "--smallest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
