"""One broken kernel among others: it is reported, and the others are planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from act.harness import commit_all
from cli.runner import kci
from conftest import failure, write_noarch
from kci import FindingsError, PlanRequest, open_workspace, plan_run
from planning import append, replace, write


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A sound kernel, one whose build.toml cannot be read, and one with an error that only `kci
    check` finds.
    """
    for name, old, new in (
        ("sound", "", ""), ("unread", "version", "vershion"),
        ("wrong", "[torch-noarch]", "[torch]\nsrc = ['missing.cpp']"),
    ):  # fmt: skip
        replace("build.toml", old, new)(write_noarch(tmp_path / name, name))
    return tmp_path


def test_the_others_are_planned_and_the_faulty_ones_reported(repository: Path) -> None:
    workspace = open_workspace([repository], set_aside=True)
    plan = plan_run(workspace, PlanRequest()).plan
    assert {leg.kernel for leg in plan.legs} == {"sound"}
    told = [(Path(item.path).name, item.kernel, item.diagnostics[0].rule) for item in plan.faulty]
    assert told == [("unread", "", "KCI101"), ("wrong", "wrong", "KCI130")]


def test_nothing_is_planned_if_nothing_is_sound(repository: Path) -> None:
    with pytest.raises(FindingsError, match="nothing is planned"):
        plan_run(open_workspace([repository / "wrong"]), PlanRequest())
    caught = failure(FindingsError, "", open_workspace, [repository / "unread"], set_aside=True)
    assert "KCI101" in [item.rule for item in caught.diagnostics]


def faulty(repository: Path) -> list[str]:
    """The kernels that hold up a change of the repository."""
    plan = plan_run(open_workspace([repository], set_aside=True), PlanRequest(affected="HEAD")).plan
    return [Path(item.path).name for item in plan.faulty]


def test_a_change_is_held_up_by_the_kernels_that_it_touches_only(repository: Path) -> None:
    commit_all(repository)
    (repository / "sound" / "torch-ext" / "sound" / "__init__.py").write_text("x = 1\n")
    assert faulty(repository) == []
    write(".github/workflows/kci.yml", "")(repository)
    assert faulty(repository) == [], "a workflow is no input"
    (repository / "unread" / "notes.txt").write_text("")
    assert faulty(repository) == ["unread"]
    (repository / "kci.toml").write_text("")
    assert faulty(repository) == ["unread", "wrong"]


def test_a_change_of_a_shared_file_is_held_up_by_the_kernels_that_declare_it(
    repository: Path,
) -> None:
    write("common/scale.h", "")(repository)
    settings = '[[inputs]]\nkernel = "wrong"\npaths = ["common"]\n'
    (repository / "kci.toml").write_text(settings)
    commit_all(repository)
    (repository / "common" / "scale.h").write_text("// changed\n")
    assert faulty(repository) == ["wrong"]
    (repository / "catalog.toml").write_text(kci("catalog", "show", "--format", "toml").stdout)
    (repository / "kci.toml").write_text(f'catalog = "catalog.toml"\n{settings}')
    commit_all(repository)
    assert faulty(repository) == []
    append("catalog.toml", "# changed\n")(repository)
    assert faulty(repository) == ["unread", "wrong"]


def test_commands_choose_kernels_by_name(repository: Path) -> None:
    """A broken kernel beside the chosen one holds up nothing."""
    for words in (["matrix", "--format", "names"], ["plan", "--format", "json"]):
        assert kci(*words, repository, "--kernel", "sound").code == 0
        assert kci(*words, repository, "--kernel", "unread").code == 1
        assert kci(*words, repository, "--kernel", "sund").code == 2
    plan = json.loads(kci("plan", repository, "--kernel", "sound", "--format", "json").stdout)
    assert ([kernel["name"] for kernel in plan["kernels"]], plan["faulty"]) == (["sound"], [])
    done = kci("run", repository, "--kernel", "sound", "--only", "nothing")
    assert (done.code, "KCI217" in done.stderr) == (1, True), done
