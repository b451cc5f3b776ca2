"""The example kernels of the reference, from `kci check` to `kci verify`, and the community's, one repository.

`reference_examples.toml` has the expectations. What a build.toml alone decides is held to it everywhere, with the texts
of `conformance/`. The sources are not here: the rest needs a checkout of the commit that the table names, and its
folder `examples/kernels` in KCI_REFERENCE_EXAMPLES; for the community's, a checkout in KCI_COMMUNITY_KERNELS.
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import conformance_cases
from act.harness import commit_all
from cli.runner import Result, kci, kci_process
from conftest import add_package
from kci import Choice, Plan, PlanRequest, open_workspace, plan_run

TABLE = tomllib.loads((Path(__file__).parent / "reference_examples.toml").read_text(encoding="utf-8"))
EXAMPLES: dict[str, dict[str, Any]] = TABLE["example"]
EDITION = ("--catalog", TABLE["edition"])
SETTINGS = f'catalog = "{TABLE["edition"]}"\n'
TEXTS = {
    case.name.removeprefix("kernels/"): case for case in conformance_cases.cases() if case.name.startswith("kernels/")
}


@pytest.fixture
def sources(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the example that the test is about."""
    folder = os.environ.get("KCI_REFERENCE_EXAMPLES")
    if not folder:
        pytest.skip(f"KCI_REFERENCE_EXAMPLES does not name a checkout of {TABLE['source']}")
    (tmp_path / "kci.toml").write_text(SETTINGS)
    return Path(shutil.copytree(Path(folder) / request.getfixturevalue("name"), tmp_path / "kernel"))


def rules(answer: Result) -> list[str]:
    """The rules of what a command found, sorted; one that spoke twice is there twice."""
    return sorted(item["rule"] for item in json.loads(answer.stdout)["diagnostics"])


def planned(place: Path) -> dict[str, Any]:
    """What `kci plan` says of a kernel: its exit code, and how many variants have a job and have none, by rule."""
    answer = kci("plan", place, *EDITION, "--format", "json")
    plan = json.loads(answer.stdout) if answer.stdout else {"legs": [], "left_out": []}
    left = Counter(item["rule"] for item in plan["left_out"])
    return {"exit": answer.code, "legs": len(plan["legs"]), "left-out": dict(sorted(left.items()))}


def test_every_example_is_in_the_table() -> None:
    assert EXAMPLES.keys() == TEXTS.keys()
    assert list(EXAMPLES) == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_plan_of_its_build_toml(name: str, tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_text(TEXTS[name].build)
    build = tomllib.loads(TEXTS[name].build)
    for table in (build.get("torch", {}), build.get("tvm-ffi", {}), *build.get("kernel", {}).values()):
        for source in table.get("src", ()):
            (tmp_path / source).parent.mkdir(exist_ok=True)
            (tmp_path / source).touch()
    assert planned(add_package(tmp_path)) == EXAMPLES[name]["plan"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_check_and_plan_with_its_sources(name: str, sources: Path) -> None:
    found = kci("check", sources, "--format", "json")
    assert {"exit": found.code, "rules": rules(found)} == EXAMPLES[name]["check"]
    assert planned(sources) == EXAMPLES[name]["plan"]


def builds(kinds: Iterable[str]) -> list[Any]:
    return [
        pytest.param(name, variant, id=f"{name}-{variant}")
        for name, example in EXAMPLES.items()
        for kind in kinds
        for variant in example.get(kind, ())
    ]


@pytest.mark.torch
@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), builds(("builds", "for-one-gpu")))
def test_a_variant_from_its_commands_to_a_verified_tree(
    name: str, variant: str, sources: Path, tmp_path: Path, torch_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for a single GPU is compiled and looked at; merge refuses it, since nobody else can use it."""
    whole = variant in EXAMPLES[name].get("builds", ())
    monkeypatch.setenv("KCI_CACHE", str(torch_cache))
    how = (variant, *(() if whole else ("--arch", TABLE["gpu"])))
    dry = kci_process("build", sources, "--variant", *how, "--dry-run")
    assert dry.code == 0, dry.stderr
    packed = ("--output", tmp_path / "out", "--pack", tmp_path / "packed" / f"kci-{name}-{variant}.tar")
    built = kci_process("build", sources, "--variant", *how, *packed)
    assert built.code == 0, built.stderr
    merged = kci_process("merge", tmp_path / "packed", "--into", tmp_path / "tree")
    assert merged.code == (0 if whole else 1), merged.stderr
    answer = kci("verify", tmp_path / ("tree" if whole else f"out/{variant}"), "--format", "json")
    expected = EXAMPLES[name].get("verify", {"exit": 0, "rules": []})
    assert {"exit": answer.code, "rules": rules(answer)} == expected


COMMUNITY = TABLE["community"]


@pytest.fixture
def community(tmp_path: Path) -> Path:
    """A copy of the community's kernels, as a repository of one commit."""
    folder = os.environ.get("KCI_COMMUNITY_KERNELS")
    if not folder:
        pytest.skip(f"KCI_COMMUNITY_KERNELS does not name a checkout of {COMMUNITY['source']}")
    made = Path(shutil.copytree(folder, tmp_path / "kernels", symlinks=True, ignore=shutil.ignore_patterns(".git")))
    (made / ".github").rename(tmp_path / "theirs") if (made / ".github").exists() else None
    drop = 'drop = ["backend == cpu and system ~ aarch64-*"]'
    overlays = (f'[[overlay]]\nkernel = "{name}"\n{drop}\n' for name in COMMUNITY["x86"])
    (made / "kci.toml").write_text(SETTINGS + "".join(overlays))
    commit_all(made)
    return made


def plan_of_a_run(repository: Path, **how: Any) -> Plan:
    """What the action plans, which checks sources too."""
    return plan_run(open_workspace([str(repository)], set_aside=True), PlanRequest(sources=True, **how)).plan


def test_a_whole_repository_of_kernels(community: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check finds errors in some; they are set aside by the plan, the files are rendered, and others go their way."""
    monkeypatch.chdir(community)
    found = kci("check", "--format", "json")
    errors = {
        item["path"].partition("/")[0]
        for item in json.loads(found.stdout)["diagnostics"]
        if item["severity"] == "error"
    }
    assert sorted(errors) == COMMUNITY["faulty"]
    plan = plan_of_a_run(community)
    assert sorted(Path(item.path).name for item in plan.faulty) == COMMUNITY["faulty"]
    counted = {"kernels": len(plan.kernels), "legs": len(plan.legs)}
    assert counted == {key: COMMUNITY[key] for key in counted}
    assert kci("render").code == 0
    commit_all(community)
    for kernel, faulty in ((COMMUNITY["sound"], []), (COMMUNITY["faulty"][0], [COMMUNITY["faulty"][0]])):
        package = next((community / kernel).glob("torch-ext/*/__init__.py"))
        package.write_text(package.read_text() + "\n")
        plan = plan_of_a_run(community, choice=Choice(tier="pr"), affected="HEAD", allow_empty=True)
        assert [Path(item.path).name for item in plan.faulty] == faulty
        assert {leg.kernel for leg in plan.legs} == set() if faulty else {kernel}
        commit_all(community)
