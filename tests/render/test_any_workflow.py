"""Rules for any workflow file: each finds what it is about, and nothing in a file that is right."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from cli.runner import kci
from kci.render.workflow_rules import check_workflows
from render.cases import GOLDEN

ROOT = Path(__file__).parents[2]
STEPS = "    runs-on: ubuntu-24.04\n    timeout-minutes: 5\n    steps: []\n"
SHA = "0" * 40


def workflow(job: str = "", *, on: str = "push", top: str = "permissions: {}", other: str = "") -> str:
    """A file with one job; `job` replaces keys of it."""
    usual = {"runs-on": "ubuntu-24.04", "timeout-minutes": "5"}
    body = textwrap.dedent(job).strip("\n")
    own = {line.split(":")[0] for line in body.splitlines() if not line.startswith(" ")}
    if "uses" in own:
        usual = {}
    kept = [f"{key}: {value}" for key, value in usual.items() if key not in own]
    lines = [*kept, *body.splitlines(), *([] if {"steps", "uses"} & own else ["steps: []"])]
    inner = "\n".join(f"    {line}" for line in lines)
    return f"on: {on}\n{top}\njobs:\n  a:\n{inner}\n{textwrap.indent(textwrap.dedent(other), '  ')}"


def rules(text: str, **others: str) -> list[str]:
    files = {"w/x.yml": text} | {f"w/{name}.yml": more for name, more in others.items()}
    return [item.rule for item in check_workflows(files) if item.path == "w/x.yml"]


PLAN = """\
p:
  runs-on: ubuntu-24.04
  timeout-minutes: 5
  outputs: {m: '${{ steps.s.outputs.m }}'}
  steps: [{id: s, run: 'true'}]
"""
COMPUTED = "needs: p\nstrategy: {matrix: '${{ fromJSON(needs.p.outputs.m) }}'}"
UPLOAD = f"actions/upload-artifact@{SHA}"
SLASH = f"steps: [{{uses: {UPLOAD}, with: {{name: 'a/b'}}}}]"
BASE_SHA = "${{ github.event.pull_request.base.sha || github.event.merge_group.base_sha }}"

BAD: list[tuple[str, str]] = [
    ("KCI430", workflow(COMPUTED, other=PLAN)),
    ("KCI430", workflow("needs: p\nstrategy: {matrix: {x: '${{ fromJSON(needs.p.outputs.m) }}'}}", other=PLAN)),
    ("KCI431", workflow("outputs: {x: '${{ secrets.TOKEN }}'}")),
    ("KCI433", workflow(SLASH)),
    ("KCI433", workflow(f"steps: [{{uses: {UPLOAD}, with: {{name: 'a:${{{{ github.sha }}}}'}}}}]")),
    ("KCI434", workflow(f"strategy: {{matrix: {{x: [1, 2]}}}}\nsteps: [{{uses: {UPLOAD}, with: {{name: out}}}}]")),
    ("KCI434", workflow(f"strategy: {{matrix: {{x: [1, 2]}}}}\nsteps: [{{uses: {UPLOAD}}}]")),
    ("KCI435", workflow(f"steps: [{{uses: actions/download-artifact@{SHA}, with: {{merge-multiple: true}}}}]")),
    ("KCI435", workflow(f"steps: [{{uses: actions/upload-artifact/merge@{SHA}}}]")),
    ("KCI440", workflow(on="workflow_call", top="permissions: {}\nconcurrency: '${{ github.workflow }}'")),
    ("KCI441", workflow("container: {image: x, options: '--gpus all'}")),
    ("KCI441", workflow("runs-on: amd\ncontainer: {image: x, options: '--group-add 110'}")),
    ("KCI448", workflow("timeout-minutes: 600")),
    ("KCI449", workflow(f"steps: [{{uses: kci/build/plan@{SHA}, with: {{affected-base: '{BASE_SHA}'}}}}]")),
]  # fmt: skip

GOOD: list[tuple[str, str]] = [
    ("KCI430", workflow(COMPUTED + "\nif: needs.p.outputs.m != ''", other=PLAN)),
    ("KCI430", workflow("strategy: {matrix: {x: [1, 2]}}")),
    ("KCI431", workflow("outputs: {x: '${{ github.sha }}'}")),
    ("KCI433", workflow(f"steps: [{{uses: {UPLOAD}, with: {{name: \"a-${{{{ matrix.x || '/' }}}}\"}}}}]")),
    ("KCI434", workflow(f"strategy: {{matrix: {{x: [1]}}}}\nsteps: [{{uses: {UPLOAD}}}]")),
    ("KCI434", workflow(f"strategy: {{matrix: {{x: [1, 2]}}}}\nsteps: [{{if: matrix.x == 1, uses: {UPLOAD}}}]")),
    ("KCI435", workflow(f"steps: [{{uses: actions/download-artifact@{SHA}, with: {{merge-multiple: false}}}}]")),
    ("KCI440", workflow(on="workflow_call", top="permissions: {}\nconcurrency: 'x-${{ inputs.n }}'")),
    ("KCI440", workflow(top="permissions: {}\nconcurrency: '${{ github.workflow }}'")),
    ("KCI441", workflow("runs-on: [self-hosted, gpu]\ncontainer: {image: x, options: '--gpus all --group-add video'}")),
    ("KCI448", workflow("timeout-minutes: 600\nruns-on: [self-hosted]")),
    ("KCI448", workflow("timeout-minutes: 360")),
    ("KCI449", workflow(f"steps: [{{uses: kci/build/plan@{SHA}, with: {{affected-base: pull-request}}}}]")),
]  # fmt: skip


def cases(listed: list[tuple[str, str]], *, triggers: bool) -> list[Any]:
    return [pytest.param(rule, text, marks=pytest.mark.rule(rule, triggers=triggers)) for rule, text in listed]


@pytest.mark.parametrize(("rule", "text"), cases(BAD, triggers=True))
def test_it_is_found_and_nothing_else(rule: str, text: str) -> None:
    assert rules(text) == [rule]


@pytest.mark.parametrize(("rule", "text"), cases(GOOD, triggers=False))
def test_what_does_it_right(rule: str, text: str) -> None:
    assert rules(text) == []


def test_errors_of_rendered_files_are_errors_of_any() -> None:
    assert rules(workflow("needs: gone")) == ["KCI413"]
    assert rules(workflow("if: ${{ env.A }}")) == ["KCI415"]
    assert rules(workflow("strategy: {matrix: {include: []}}")) == ["KCI416"]
    assert rules(workflow("steps: [{id: s, run: a}, {id: S, run: b}]")) == ["KCI412"]
    assert rules("jobs: [") == ["KCI418"]
    assert rules(workflow("steps: [{if: \"steps.none.outputs.x == '1'\", run: a}]")) == ["KCI414"]


def test_what_scripts_and_actions_set_is_not_judged() -> None:
    """Somebody's action may set any output, and a script may be in a file."""
    read = "env: {A: '${{ steps.s.outputs.a }}', B: '${{ steps.t.outputs.b }}'}"
    steps = f"{{id: s, uses: acme/do@{SHA}}}, {{id: t, run: ./x}}, {{run: a, {read}}}"
    assert rules(workflow(f"steps: [{steps}]")) == []


@pytest.mark.parametrize(
    "body",
    [
        "container: {image: x, env: {A: '${{ secrets.A }}'}, credentials: {username: u, password: '${{ secrets.P }}'}}",
        "services: {db: {image: x, env: {A: '${{ secrets.A }}'}, credentials: {password: '${{ env.P }}'}}}",
        "environment: {name: p, url: '${{ steps.s.outputs.u }}'}\nsteps: [{id: s, run: a}]",
        "if: GitHub.ref == 'x' && !Cancelled()",
        "steps: [{run: a, if: \"hashfiles('x') != ''\"}]",
    ],
)
def test_contexts_that_some_places_have(body: str) -> None:
    assert rules(workflow(body)) == []


def test_kcis_own_files_have_no_finding() -> None:
    for folder in sorted(path for path in GOLDEN.iterdir() if (path / "kci.yml").exists()):
        files = {f"{folder.name}/{path.name}": path.read_text() for path in sorted(folder.glob("*.yml"))}
        assert check_workflows(files) == []
    own = {path.name: path.read_text() for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
    assert check_workflows(own) == []


def test_words_are_read_as_yaml_1_2_has_them() -> None:
    assert (
        rules("on: push\npermissions: {}\njobs:\n  no: {uses: ./w/y.yml}\n  on: {needs: no, uses: ./w/y.yml}\n") == []
    )
    assert rules(workflow("name: 2001-13-45")) == []


def test_an_output_that_is_empty_and_an_expression_without_an_end() -> None:
    empty = "p:\n  runs-on: ubuntu-24.04\n  timeout-minutes: 5\n  outputs:\n  steps: []\n"
    assert rules(workflow("needs: p\nif: needs.p.outputs.x", other=empty)) == ["KCI414"]
    assert rules(workflow("name: ${{ " + "'" * 41)) == []
    assert rules(workflow("name: ${{ env.A == 'it''s }}' }}")) == ["KCI415"]


def write(root: Path, name: str, text: str) -> Path:
    place = root / ".github" / "workflows" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


def test_kci_verify_takes_the_folder_or_a_file(tmp_path: Path) -> None:
    bad = write(tmp_path, "bad.yml", workflow(SLASH))
    good = write(tmp_path, "good.yml", workflow())
    found = kci("verify", bad.parent)
    assert found.code == 1
    assert f"{bad}:7:1: error[KCI433]" in found.stderr
    assert str(good) not in found.stderr
    assert kci("verify", good).code == 0
    assert kci("verify", bad).code == 1
    assert kci("verify", bad, "--ignore", "KCI433").code == 0


def test_a_comment_with_a_reason_suppresses(tmp_path: Path) -> None:
    text = workflow(SLASH)
    commented = text.replace("    steps:", "    # kci: ignore[KCI433] a server of ours takes it\n    steps:")
    place = write(tmp_path, "x.yml", commented)
    assert kci("verify", place).code == 0
    assert "KCI433" in kci("verify", place, "-v").stdout + kci("verify", place, "-v").stderr


@pytest.mark.parametrize(
    "text", ["", "\x00", "a: &a [*a]", "[" * 3000, "jobs: {a: {steps: [{with: 1}]}}", "on: 1\njobs: {a: {}}"]
)
def test_hostile_files_are_findings(tmp_path: Path, text: str) -> None:
    place = write(tmp_path, "x.yml", text)
    found = kci("verify", place)
    assert "Traceback" not in found.stderr
    assert found.code in (0, 1)
