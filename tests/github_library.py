"""GitHub's own libraries for workflow files, from npm: what it reads in a file, and what an
expression comes to.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from conftest import ran
from kci.utils.atomic import locked, write_atomic
from outside_tools import npm_packages, npm_script, program

PACKAGES = ("@actions/workflow-parser@0.3.61", "@actions/expressions@0.3.61")
SCRIPTS = Path(__file__).parent / "workflows"
_IMPORT = re.compile(rb'(from "[^"]*\.json");')
_EXPRESSION = re.compile(r"^\$\{\{(.*)\}\}$", re.DOTALL)


def _script(name: str) -> str:
    place = npm_packages("github-library", *PACKAGES)
    with locked(place):
        for file in place.glob("node_modules/@actions/workflow-parser/dist/*/*-schema.js"):
            data = file.read_bytes()
            told = _IMPORT.sub(rb'\1 with { type: "json" };', data)  # what node wants to be told
            if told != data:
                write_atomic(file, told)
    return npm_script(place, SCRIPTS / name)


def _run(name: str, sent: object) -> Any:
    done = ran(program("node"), _script(name), input=json.dumps(sent))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def parse_errors(*files: Path) -> list[str]:
    """What GitHub's parser says against workflow files."""
    return list(_run("parse.mjs", [str(file) for file in files]))


def evaluate(*asked: tuple[str, dict[str, Any]]) -> list[Any]:
    """What expressions come to, each given as `${{ ... }}` with its contexts."""
    sent = []
    for text, contexts in asked:
        (inner,) = _EXPRESSION.findall(text.strip())
        sent.append({"expression": inner.strip(), "contexts": contexts})
    return list(_run("evaluate.mjs", sent))


def results_of_runs(workflow: Path, runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The result of every job in each of some runs of a workflow file.

    A run has `endings`, how a job ends if it runs; `outputs` of jobs; `begun`, how many jobs had
    begun when somebody cancelled the run, or None; and `contexts`, such as `github`.
    """
    return list(_run("runs.mjs", {"workflow": str(workflow), "runs": runs}))
