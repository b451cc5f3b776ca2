"""The library: its public names, and the page that shows them at work."""

from __future__ import annotations

import ast
import re
import sys

import pytest

import kci
from conftest import ROOT, ran

PAGE = ROOT / "docs" / "api.md"
NAMES = [
    "BuildFailedError", "BuildOptions", "BuiltLeg", "Choice", "Diagnostic", "FindingsError",
    "KciError", "Leg",
    "LegRequest", "Manifest", "Matrix", "MissingToolError", "Plan", "PlanRequest", "PlannedRun",
    "PublishRequest",
    "PublishedTree", "RenderedFiles",
    "RunResult", "Severity", "UnsafeError", "UsageError", "Variant", "Workspace", "__version__",
    "build_leg",
    "check_kernels", "leg_commands", "merge_artifacts", "open_workspace", "outcomes_of", "plan_run",
    "publish_tree", "read_plan", "render_workflows", "run_here", "tree_places", "verify_path",
]  # fmt: skip
"""Other programs rely on these: adding is free, taking away is a breaking change."""


def test_the_public_names_are_these() -> None:
    assert sorted(kci.__all__) == sorted(NAMES)
    with pytest.raises(AttributeError, match="has no attribute 'matrices'"):
        kci.matrices  # noqa: B018


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(kci, name)
    assert name in dir(kci)
    if name != "__version__":
        assert value.__doc__
        assert f"`{name}`" in PAGE.read_text(encoding="utf-8")


def test_importing_kci_imports_nothing_else() -> None:
    script = "import sys, kci; print([name for name in sys.modules if name.startswith('kci.')])"
    assert ran(sys.executable, "-c", script).stdout.strip() == "['kci.version']"


def test_the_examples_of_the_page_run_and_print_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == page.count("```python")
    space: dict[str, object] = {}
    for code, expected in blocks:
        exec(compile(code, str(PAGE), "exec"), space)
        assert capsys.readouterr().out == expected


SCRIPTS = ("card_child.py", "hipify_script.py", "load_script.py")
"""Programs of their own."""


def test_rooms_below_the_command_line_neither_print_nor_know_click() -> None:
    for file in sorted((ROOT / "src" / "kci").rglob("*.py")):
        room = file.relative_to(ROOT / "src" / "kci").parts[0]
        if room in ("cli", "actions") or file.name in SCRIPTS:
            continue
        text = file.read_text(encoding="utf-8")
        if not re.search(r"\b(print|click|rich)\b", text):
            continue
        nodes = [*ast.walk(ast.parse(text))]
        calls = {getattr(node.func, "id", "") for node in nodes if isinstance(node, ast.Call)}
        named = (node.names for node in nodes if isinstance(node, ast.Import))
        imports = {alias.name for names in named for alias in names}
        imports |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert "print" not in calls, file
        assert not {name.partition(".")[0] for name in imports} & {"click", "rich"}, file
