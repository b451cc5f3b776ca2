"""The project's own workflows: the examples' are what kci renders, and the written ones hold to the
same data.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cli.runner import kci
from conftest import ROOT, read_yaml
from kci.matrix.catalog.loading import load_catalog
from kci.workflows.render import REUSABLE_FILES, render_reusable
from kci.workflows.rendered_files import choose_pins, read_committed, shipped_pins
from matrix.test_next_edition import listing, wheels

FOLDER = ROOT / ".github" / "workflows"
WRITTEN = [FOLDER / "ci.yml", FOLDER / "release.yml", FOLDER / "edition.yml"]
USES = re.compile(r"uses: (\S+?)@(\S+)(?: # (\S+))?$", re.MULTILINE)


def read(name: str) -> dict[str, Any]:
    return read_yaml((FOLDER / name).read_text(encoding="utf-8"))


def test_the_workflows_of_the_examples_are_what_kci_renders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    result = kci("render", "examples", "--check")
    assert result.code == 0, f"run `kci render examples` at the root: {result}"


def test_the_reusable_workflow_is_what_the_templates_make() -> None:
    committed = read_committed(ROOT, REUSABLE_FILES)
    assert committed == render_reusable(choose_pins(committed)), "run `python bin/gen_workflows.py`"


def test_an_action_has_one_pin_in_all_files_a_commit_with_its_version() -> None:
    rendered = [FOLDER / "kci.yml", ROOT / "action.yml"]
    used = {file: USES.findall(file.read_text(encoding="utf-8")) for file in [*WRITTEN, *rendered]}
    for action, commit, version in (use for file in WRITTEN for use in used[file]):
        assert re.fullmatch(r"[0-9a-f]{40}", commit), action
        assert re.fullmatch(r"v\d+\.\d+\.\d+", version), action
    assert all(used.values())
    names = [action for action, _ in {use[:2] for uses in used.values() for use in uses}]
    assert len(names) == len(set(names))
    assert set(names) & set(shipped_pins())


def test_the_job_to_require_needs_every_other() -> None:
    jobs = read("ci.yml")["jobs"]
    assert set(jobs["ci"]["needs"]) == set(jobs) - {"ci"}


def test_ci_runs_every_python_that_the_project_names_and_every_kind_of_system() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = set(re.findall(r":: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE))
    jobs = read("ci.yml")["jobs"]
    assert set(jobs["fast"]["strategy"]["matrix"]["python"]) == named
    oldest = min(named, key=lambda version: int(version.split(".")[1]))
    assert project["requires-python"] == f">={oldest}"
    systems = jobs["portable"]["strategy"]["matrix"]["system"]
    assert {system.split("-")[0] for system in systems} == {"ubuntu", "macos", "windows"}


def test_only_the_publishing_jobs_may_write_anything() -> None:
    jobs = {**read("ci.yml")["jobs"], **read("release.yml")["jobs"]}
    rights = {name: job["permissions"] for name, job in jobs.items()}
    writing = {name: given for name, given in rights.items() if "write" in given.values()}
    assert writing == {"publish": {"id-token": "write"}, "major": {"contents": "write"}}
    assert all("environment" in jobs[name] for name in writing)


def test_what_looks_for_the_next_edition_may_write_nothing_and_its_proposer_runs_no_kci() -> None:
    jobs = read("edition.yml")["jobs"]
    assert jobs["look"]["permissions"] == {"contents": "read"}
    assert jobs["propose"]["permissions"] == {"contents": "write", "pull-requests": "write"}
    scripts = "\n".join(step.get("run", "") for step in jobs["propose"]["steps"])
    assert not re.search(r"\b(kci|pip) ", scripts)


@pytest.mark.programs
@pytest.mark.parametrize("newer", [False, True], ids=["none", "torch 2.99"])
def test_the_next_edition_is_proposed_where_toolchains_move(tmp_path: Path, newer: bool) -> None:
    """Whatever the default is.

    What README.md shows comes along, so that nothing is left but to read it.
    """
    flavours: dict[str, set[str]] = {}
    for row in load_catalog().rows:
        if row.bundled:
            version = row.compute.minor_text if row.compute else ""
            known = {"cuda": f"cu{version.replace('.', '')}", "rocm": f"rocm{version}"}
            flavour = (known | {"metal": "cpu"}).get(row.backend, row.backend)
            flavours.setdefault(row.torch.minor_text, set()).add(flavour)
    names = wheels("2.99.0", "cpu", "cu130") if newer else []
    for torch, some in sorted(flavours.items()):
        names += wheels(f"{torch}.0", *sorted(some))
    script = ROOT / "bin" / "next_edition.py"
    command = [sys.executable, script, tmp_path / "found", "--index", listing(tmp_path, names)]
    done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
    assert done.stdout == f"moved={str(newer).lower()}\n"
    changes = (tmp_path / "found" / "changes.md").read_text(encoding="utf-8")
    assert ("+ torch299-cxx11-cu130-x86_64-linux" in changes) is newer
    assert ("no variant changes" not in changes) is newer
    (edition,) = (tmp_path / "found").glob("2*.toml")
    assert load_catalog(str(edition)).rows
    pages = [folder / "README.md" for folder in (tmp_path / "found", ROOT)]
    readme, ours = (page.read_text(encoding="utf-8").splitlines() for page in pages)
    shown = [line for line in readme if line not in ours]
    assert any("  2.99   " in line for line in shown) is bool(shown) is newer


def test_dependabot_knows_every_folder_with_an_action() -> None:
    file = ROOT / ".github" / "dependabot.yml"
    entries = read_yaml(file.read_text(encoding="utf-8"))["updates"]
    (updates,) = (one for one in entries if one["package-ecosystem"] == "github-actions")
    patterns = ("action.yml", "[a-z]*/action.yml", "actions/*/action.yml")
    actions = [file for pattern in patterns for file in ROOT.glob(pattern)]
    folders = {"/" + file.parent.relative_to(ROOT).as_posix().removeprefix(".") for file in actions}
    assert set(updates["directories"]) == folders
