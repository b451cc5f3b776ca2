"""GitHub's own libraries for workflow files, from npm: what it reads in a file, and what an
expression comes to.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from kci.utils.atomic import locked, write_atomic
from outside_tools import npm_packages, npm_script, program

PACKAGES = ("@actions/workflow-parser@0.3.61", "@actions/expressions@0.3.61")
SCRIPTS = Path(__file__).parent / "workflows"
_IMPORT = re.compile(rb'(from "[^"]*\.json");')
_EXPRESSION = re.compile(r"\$\{\{(.*)\}\}", re.DOTALL)


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
    command = [program("node"), _script(name)]
    done = subprocess.run(
        command, input=json.dumps(sent), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def parse_errors(*files: Path) -> list[str]:
    """What GitHub's parser says against workflow files."""
    found: list[str] = _run("parse.mjs", [str(file) for file in files])
    return found


def evaluate(*asked: tuple[str, dict[str, Any]]) -> list[Any]:
    """What expressions come to, each given as `${{ ... }}` with its contexts."""
    inner = [(_EXPRESSION.fullmatch(text.strip()), contexts) for text, contexts in asked]
    sent = [
        {"expression": found[1].strip(), "contexts": contexts} for found, contexts in inner if found
    ]
    assert len(sent) == len(asked)
    found: list[Any] = _run("evaluate.mjs", sent)
    return found


def results_of_runs(workflow: Path, runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The result of every job in each of some runs of a workflow.

    Args:
        workflow: the file.
        runs: each with `endings`, how a job ends if it runs; `outputs` of jobs; `begun`, how many
        jobs had begun when
            somebody cancelled the run, or None; and `contexts`, such as `github`.
    """
    found: list[dict[str, str]] = _run("runs.mjs", {"workflow": str(workflow), "runs": runs})
    return found
