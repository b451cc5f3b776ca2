"""What is planned, and what is refused before a machine is started for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from conftest import add_package, failure
from kci.errors import FindingsError, UsageError
from kci.plan.planning import PlanRequest, plan_run
from kci.plan.workspace import Choice, open_workspace
from planning import replace

HEAD = '[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
CUDA = '[torch]\n[kernel.a]\nbackend = "cuda"\ndepends = ["torch"]\nsrc = []\n'


def kernel(
    place: Path, more: str = "", *, backends: str = '["cuda"]', name: str = "some-kernel"
) -> Path:
    """A kernel for CUDA, with more components or backends."""
    text = f"{HEAD}backends = {backends}\n{CUDA}{more}".replace("some-kernel", name)
    return add_package(write_tree(place, {"build.toml": text}))


def refused(place: Path) -> list[str]:
    with pytest.raises(FindingsError, match="nothing is planned") as caught:
        plan_run(open_workspace([place]), PlanRequest())
    return [item.rule for item in caught.value.diagnostics]


@pytest.mark.rule("KCI130", "KCI155", triggers=True)
def test_what_cannot_be_built_is_not_planned(tmp_path: Path) -> None:
    """An arch that no toolkit has, a stable ABI newer than every torch, and a backend without a
    component.
    """
    assert "KCI155" in refused(kernel(tmp_path, 'cuda-capabilities = ["99.9"]\n'))
    replace("build.toml", "[torch]", '[torch]\nstable-abi = "9.9"')(kernel(tmp_path))
    assert refused(tmp_path)
    assert refused(kernel(tmp_path, backends='["cpu"]')) == ["KCI130"]


XPU = '[kernel.b]\nbackend = "xpu"\ndepends = ["torch"]\nsrc = ["gone.cpp"]\n'


def test_a_backend_without_a_component_is_left_out_with_its_line(tmp_path: Path) -> None:
    workspace = open_workspace([kernel(tmp_path, backends='["cuda", "metal"]')])
    for fingerprints in (False, True):
        plan = plan_run(workspace, PlanRequest(fingerprints=fingerprints)).plan
        assert ({leg.backend for leg in plan.legs}, plan.faulty) == ({"cuda"}, ())
        (left,) = [item for item in plan.left_out if item.backend == "metal"]
        assert (left.rule, left.path) == ("KCI130", str(tmp_path / "build.toml"))
        line = workspace.kernels[0].document.text.split("\n")[left.line - 1]
        assert line == 'backends = ["cuda", "metal"]'
    planned = {name for kernel in plan.kernels for name in kernel.planned}
    assert planned == {leg.variant for leg in plan.legs}


@pytest.mark.parametrize(
    "choice",
    [Choice(backends=("metal",)), Choice(only=("*metal*",)), Choice(where="backend == metal")],
)
def test_a_backend_without_a_component_that_was_asked_for_is_at_fault(
    tmp_path: Path, choice: Choice
) -> None:
    place = kernel(tmp_path, backends='["cuda", "metal"]')
    workspace, says = open_workspace([place]), "nothing is planned: .*build.toml: metal is declared"
    failure(FindingsError, says, plan_run, workspace, PlanRequest(choice=choice))
    other = PlanRequest(choice=Choice(backends=("cuda",)))
    assert plan_run(workspace, other).plan.left_out == ()


@pytest.mark.parametrize(
    ("xpu", "rule"),
    [
        (XPU, "KCI136"),  # a source that is not there
        (XPU.replace('"gone.cpp"', '"../gone.cpp"'), "KCI137"),
        (
            XPU.replace('src = ["gone.cpp"]', "src = []").replace('"xpu"', '"rocm"')
            + 'rocm-archs = ["gfx1"]\n',
            "KCI155",
        ),
    ],
)
def test_an_error_of_one_backend_is_one_of_the_kernel(tmp_path: Path, xpu: str, rule: str) -> None:
    """A release without one of its backends is not the release; a pull request that breaks one is
    red.
    """
    kernel(tmp_path / "k", xpu, backends=f'["cuda", "{"rocm" if "rocm" in xpu else "xpu"}"]')
    kernel(tmp_path / "sound", name="sound")
    for choice in (Choice(), Choice(backends=("cuda",))):
        plan = plan_run(open_workspace([tmp_path]), PlanRequest(choice=choice)).plan
        (faulty,) = plan.faulty
        assert (faulty.kernel, faulty.diagnostics[0].rule) == ("some-kernel", rule)
        assert {leg.kernel for leg in plan.legs} == {"sound"}
        assert [item.name for item in plan.kernels] == ["sound"]


@pytest.mark.parametrize(
    "settings",
    [
        *(f"[runners.cpu.x86_64-linux]\nprice = {price}\n" for price in ("-1", "nan", "1e308")),
        "[tiers.mine]\nbase = 'release'\nwhere = 'cuda >>'\n",
        "[[overlay]]\ndrop = ['cuda = 1']\n",
        "[schedule]\ntier = 'nightly'\n",
    ],
)
def test_an_error_of_kci_toml_stops_whoever_reads_it(tmp_path: Path, settings: str) -> None:
    place = write_tree(kernel(tmp_path), {"kci.toml": settings})
    caught = failure(FindingsError, "", open_workspace, [place])
    assert all(item.path.endswith("kci.toml") for item in caught.diagnostics)


@pytest.mark.rule("KCI217", triggers=True)
@pytest.mark.parametrize(
    ("choice", "hint"),
    [
        (Choice(only=("TORCH*CU130*",)), "did you mean one of `torch"),
        (
            Choice(only=("torch213-cxx11-cu130-x86_64-linus",)),
            "did you mean `torch213-cxx11-cu130-x86_64-linux`?",
        ),
        (Choice(backends=("xpu",)), "--explain"),
        (Choice(where="torch == 1.0"), "--explain"),
    ],
)
def test_a_selection_that_selects_nothing_is_an_error_with_the_nearest_names(
    tmp_path: Path, choice: Choice, hint: str
) -> None:
    workspace = open_workspace([kernel(tmp_path)])
    with pytest.raises(FindingsError, match="nothing is selected") as caught:
        plan_run(workspace, PlanRequest(choice=choice))
    assert hint in caught.value.hint
    assert plan_run(workspace, PlanRequest(choice=choice, allow_empty=True)).plan.legs == ()


def test_a_name_that_does_not_exist_is_wrong_usage(tmp_path: Path) -> None:
    workspace = open_workspace([kernel(tmp_path)])
    for choice in (
        Choice(tier="nightly"),
        Choice(systems=("x86_64-lunix",)),
        Choice(backends=("cdua",)),
    ):
        failure(UsageError, "", workspace.matrix, choice)
    caught = failure(UsageError, "no kernel here is named", workspace.kernel, "some-kernle")
    assert caught.hint == "did you mean `some-kernel`?"
