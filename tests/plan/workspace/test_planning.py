"""What is planned: one answer for whoever asks, and what is refused or reported first."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace as replaced

from act.harness import commit_all
from buildkit import leg_request, write_tree
from cli.runner import kci
from conftest import add_package, failure, write_noarch, write_torch
from kci.builders.request import BuildOptions
from kci.config.values import Tier
from kci.errors import FindingsError, MissingToolError, UsageError
from kci.plan.planning import PlanRequest, plan_run
from kci.plan.workspace import Choice, Workspace, open_workspace
from kci.run.build_leg import leg_commands
from kci.run.local import outcomes_of
from planning import append, replace, write

HEAD = '[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
CUDA = '[torch]\n[kernel.a]\nbackend = "cuda"\ndepends = ["torch"]\nsrc = []\n'


def kernel(
    place: Path, more: str = "", *, backends: str = '["cuda"]', name: str = "some-kernel"
) -> Path:
    """A kernel for CUDA, with more components or backends."""
    text = f"{HEAD}backends = {backends}\n{CUDA}{more}".replace("some-kernel", name)
    return add_package(write_tree(place, {"build.toml": text}))


def refused(place: Path) -> list[str]:
    request = open_workspace([place]), PlanRequest()
    error = failure(FindingsError, "nothing is planned", plan_run, *request)
    return [item.rule for item in error.diagnostics]


@pytest.mark.rule("KCI130", "KCI155", triggers=True)
def test_what_cannot_be_built_is_not_planned(tmp_path: Path) -> None:
    """An arch that no toolkit has, a stable ABI newer than every torch, and a backend without a
    component.
    """
    assert "KCI155" in refused(kernel(tmp_path, 'cuda-capabilities = ["99.9"]\n'))
    replace("build.toml", "[torch]", '[torch]\nstable-abi = "9.9"')(kernel(tmp_path))
    assert refused(tmp_path)
    assert refused(kernel(tmp_path, backends='["cpu"]')) == ["KCI130"]


CU130 = "torch213-cxx11-cu130-x86_64-linux"
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
def test_a_backend_asked_for_without_component_is_at_fault(tmp_path: Path, choice: Choice) -> None:
    place = kernel(tmp_path, backends='["cuda", "metal"]')
    workspace, says = open_workspace([place]), "nothing is planned: .*build.toml: metal is declared"
    failure(FindingsError, says, plan_run, workspace, PlanRequest(choice=choice))
    other = PlanRequest(choice=Choice(backends=("cuda",)))
    assert plan_run(workspace, other).plan.left_out == ()


ARCH = XPU.replace('src = ["gone.cpp"]', 'src = []\nrocm-archs = ["gfx1"]').replace("xpu", "rocm")


@pytest.mark.parametrize(
    ("part", "backend", "rule"),
    [
        (XPU, "xpu", "KCI136"),  # a source that is not there
        (XPU.replace("gone.cpp", "../gone.cpp"), "xpu", "KCI137"),
        (ARCH, "rocm", "KCI155"),
    ],
)
def test_an_error_of_one_backend_is_one_of_the_kernel(
    tmp_path: Path, part: str, backend: str, rule: str
) -> None:
    """A release without one of its backends is not the release; a pull request that breaks one is
    red.
    """
    kernel(tmp_path / "k", part, backends=f'["cuda", "{backend}"]')
    kernel(tmp_path / "sound", name="sound")
    for choice in (Choice(), Choice(backends=("cuda",))):
        plan = plan_run(open_workspace([tmp_path]), PlanRequest(choice=choice)).plan
        (faulty,) = plan.faulty
        assert (faulty.kernel, faulty.diagnostics[0].rule) == ("some-kernel", rule)
        assert (
            {leg.kernel for leg in plan.legs} == {item.name for item in plan.kernels} == {"sound"}
        )


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
        (Choice(only=(f"{CU130[:-1]}s",)), f"did you mean `{CU130}`?"),
        (Choice(backends=("xpu",)), "there are no variants for xpu, only for cuda;"),
        (Choice(where="torch == 1.0"), "there are torch2"),
    ],
)
def test_a_selection_that_selects_nothing_is_an_error_with_the_nearest_names(
    tmp_path: Path, choice: Choice, hint: str
) -> None:
    workspace, request = open_workspace([kernel(tmp_path)]), PlanRequest(choice=choice)
    caught = failure(FindingsError, "nothing is selected", plan_run, workspace, request)
    assert hint in caught.hint
    assert "--explain" in caught.hint
    assert plan_run(workspace, replaced(request, allow_empty=True)).plan.legs == ()


def test_a_name_that_does_not_exist_is_wrong_usage(tmp_path: Path) -> None:
    workspace = open_workspace([kernel(tmp_path)])
    wrong = {"tier": "nightly"}, {"systems": ("x86_64-lunix",)}, {"backends": ("cdua",)}
    for choice in (Choice(**keys) for keys in wrong):  # type: ignore[arg-type]
        failure(UsageError, "", workspace.matrix, choice)
    caught = failure(UsageError, "no kernel here is named", workspace.kernel, "some-kernle")
    assert caught.hint == "did you mean `some-kernel`?"


SOURCES = {"cpu": "csrc/cpu.cpp", "cuda": "csrc/gpu.cu", "rocm": "csrc/gpu.cu"}


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    return write_torch(tmp_path / "some", SOURCES, binding="torch-ext/binding.cpp")


def require_one_answer(workspace: Workspace, tier: str) -> set[str]:
    """Ask everybody, and give the answer."""
    choice = Choice(tier=tier)
    listed = {variant.name for variant in workspace.matrix(choice).kernels[0].variants}
    request = PlanRequest(choice=choice, allow_empty=True)
    plan = plan_run(workspace, request).plan
    (planned,) = plan.kernels
    assert {*planned.planned, *(item.variant for item in plan.left_out)} == listed
    assert {name for leg in plan.legs for name in leg.variants} == set(planned.planned)
    if plan.legs:
        assert set(plan.tree_plan().kernels[0].planned) == set(planned.planned)
    variants = workspace.matrix(choice).kernels[0].variants
    for name in listed:
        assert workspace.variant(name, tier=tier) in variants
        assert workspace.variant(name).name == name, "without a tier it is found as well"
    if listed:
        assert {outcome.variant.name for outcome in outcomes_of(workspace, choice)} == listed
        require_commands(workspace, sorted(listed)[0], tier)
    return listed


def require_commands(workspace: Workspace, name: str, tier: str) -> None:
    """`kci build --dry-run` knows the variant; at most this machine lacks something to build it
    with.
    """
    options = BuildOptions(Path("cache"), unique_id="abc")
    request = leg_request(workspace, Path("out"), options, name=name, tier=tier)
    with suppress(MissingToolError):
        assert leg_commands(workspace, request)


ADDED = '[[overlay.row]]\ntorch = "2.13"\nbackend = "cuda"\n'
ADDED += 'compute = ["13.4"]\nsystems = ["x86_64-linux"]\n'

OVERLAYS = {
    "nothing": "",
    "a row is dropped": '[[overlay]]\ndrop = ["cuda >= 13.0"]\n',
    "a row is added": f"[[overlay]]\n{ADDED}",
    "for this kernel only": '[[overlay]]\nkernel = "some-kernel"\ndrop = ["torch == 2.12"]\n'
    f"{ADDED}",
    "for another kernel": '[[overlay]]\nkernel = "another"\ndrop = ["cuda >= 12.0"]\n',
    "everything is replaced": f"[[overlay]]\nreplace = true\n{ADDED}",
    "an edition": 'catalog = "2026-08-20"\n[[overlay]]\nkeep = ["backend == cpu"]\n',
    "a tier": '[tiers.small]\nbase = "release"\nbackends = ["cpu"]\n[tiers.pairs]\nbase = "all"\n'
    "pairwise = true\n",
}


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_overlay_has_one_answer(kernel_dir: Path, name: str) -> None:
    (kernel_dir / "kci.toml").write_text(OVERLAYS[name])
    workspace = open_workspace([kernel_dir])
    tiers = [*map(str, Tier), *workspace.settings.settings.tiers]
    answers = {tier: require_one_answer(workspace, tier) for tier in tiers}
    assert answers["release"], "the test would prove nothing"
    assert open_workspace([kernel_dir], catalog="2026-08-20").matrix().kernels[0].variants
    if name in ("a row is dropped", "a row is added", "everything is replaced"):
        (kernel_dir / "kci.toml").unlink()
        plain = open_workspace([kernel_dir]).matrix().kernels[0].variants
        assert {item.name for item in plain} != answers["release"]


@pytest.mark.parametrize("system", ["aarch64-linux", "x86_64-linux"])
def test_a_name_that_stands_for_several_systems_means_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setattr("kci.plan.workspace.this_system", lambda: system)
    write_noarch(tmp_path, "py-only")
    assert open_workspace([str(tmp_path)]).variant("torch-cpu").system == system


def test_a_noarch_kernel_is_built_by_name_for_a_backend_without_rows(tmp_path: Path) -> None:
    """cann and neuron have no row, and tpu none that is bundled; a package of Python needs none to
    be made.
    """
    write_noarch(tmp_path, "py-only", ("cuda", "cann", "neuron", "tpu"))
    workspace = open_workspace([str(tmp_path)])
    assert {item.name for item in workspace.matrix().kernels[0].variants} == {"torch-cuda"}
    for backend in ("cann", "neuron", "tpu"):
        made = kci("build", tmp_path, "--variant", f"torch-{backend}", "--output", tmp_path / "out")
        assert made.code == 0, made.stderr
        data = json.loads((tmp_path / "out" / f"torch-{backend}" / "metadata.json").read_text())
        assert data["backend"] == {"type": backend}
        assert not workspace.variant(f"torch-{backend}").bundled, "no release has it"
    refused = kci("build", tmp_path, "--variant", "torch-xpu", "--output", tmp_path / "out")
    assert refused.code == 2, "a backend that is not declared"


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
    assert refused(repository / "wrong")
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


def test_a_changed_shared_file_is_held_up_by_the_kernels_that_declare_it(repository: Path) -> None:
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
