"""What is planned, and what is refused before a machine is started for it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from conftest import add_package
from kci.errors import FindingsError, UsageError
from kci.inputs import stat_cache
from kci.inputs.source_tree import SourceTree
from kci.plan.fingerprint import PublishedVariant
from kci.plan.hardware_tests import CarriedTree
from kci.plan.plan import KeptObjects
from kci.sources import package_rules
from kci.workspace.planning import PlanRequest, plan_run
from kci.workspace.workspace import Choice, open_workspace

HEAD = '[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
CUDA = '[torch]\n[kernel.a]\nbackend = "cuda"\ndepends = ["torch"]\nsrc = []\n'


def kernel(place: Path, text: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / "build.toml").write_text(HEAD + text)
    return add_package(place)


def refused(place: Path) -> list[str]:
    with pytest.raises(FindingsError, match="nothing is planned") as caught:
        plan_run(open_workspace([place]), PlanRequest())
    return [item.rule for item in caught.value.diagnostics]


@pytest.mark.rule("KCI155", triggers=True)
def test_an_arch_that_no_toolkit_has_is_not_planned(tmp_path: Path) -> None:
    text = f'backends = ["cuda"]\n{CUDA}cuda-capabilities = ["99.9"]\n'
    assert "KCI155" in refused(kernel(tmp_path, text))


def test_a_stable_abi_newer_than_every_torch_is_not_planned(tmp_path: Path) -> None:
    text = f'backends = ["cuda"]\n{CUDA}'.replace("[torch]", '[torch]\nstable-abi = "9.9"')
    assert refused(kernel(tmp_path, text))


def test_what_was_read_is_kept_for_the_next_plan_where_there_is_a_folder_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stat_cache, "_TICK_NS", -(10**12))  # of what was changed just now nothing is kept
    place = kernel(tmp_path / "kernel", f'backends = ["cuda"]\n{CUDA}'.replace("[]", '["a.cu"]'))
    (place / "a.cu").write_text("")
    request = PlanRequest(fingerprints=True, digests=tmp_path / "digests")
    first = plan_run(open_workspace([place]), request)
    assert {kept.suffix for kept in (tmp_path / "digests").iterdir()} == {".msgpack"}

    def read_again(*_: object, **__: object) -> None:
        raise AssertionError("a source is read again")

    monkeypatch.setattr(SourceTree, "_take", read_again)
    monkeypatch.setattr(SourceTree, "content", read_again)
    monkeypatch.setattr(package_rules, "_judged", read_again)
    assert plan_run(open_workspace([place]), request) == first


@pytest.mark.rule("KCI130", triggers=True)
def test_a_backend_without_a_component_is_not_planned(tmp_path: Path) -> None:
    assert refused(kernel(tmp_path, f'backends = ["cpu"]\n{CUDA}')) == ["KCI130"]


def test_a_suppressed_one_is_left_out_and_the_others_are_planned(tmp_path: Path) -> None:
    text = f'# kci: ignore[KCI130] metal comes later\nbackends = ["cuda", "metal"]\n{CUDA}'
    plan = plan_run(open_workspace([kernel(tmp_path, text)]), PlanRequest()).plan
    assert plan.legs
    assert {leg.backend for leg in plan.legs} == {"cuda"}
    assert [(item.variant, item.rule) for item in plan.left_out if item.backend == "metal"] == [
        ("torch-metal", "KCI130")
    ]


XPU = '[kernel.b]\nbackend = "xpu"\ndepends = ["torch"]\nsrc = ["gone.cpp"]\n'


@pytest.mark.parametrize(
    ("text", "backend", "rule", "line"),
    [
        (f'backends = ["cuda", "metal"]\n{CUDA}', "metal", "KCI130", 'backends = ["cuda", "metal"]'),
        (f'backends = ["cuda", "xpu"]\n{CUDA}{XPU}', "xpu", "KCI136", 'src = ["gone.cpp"]'),
        (
            f'backends = ["cuda", "rocm"]\n{CUDA}{XPU.replace("xpu", "rocm")}\n[kernel.c]\nbackend = "rocm"\n'
            'depends = ["torch"]\nsrc = []\nrocm-archs = ["gfx1"]\n',
            "rocm", "KCI136", 'src = ["gone.cpp"]',
        ),
    ],
)  # fmt: skip
def test_a_backend_at_fault_is_left_out_with_rule_and_line(
    tmp_path: Path, text: str, backend: str, rule: str, line: str
) -> None:
    workspace = open_workspace([kernel(tmp_path, text)])
    for fingerprints in (False, True):
        plan = plan_run(workspace, PlanRequest(fingerprints=fingerprints)).plan
        assert ({leg.backend for leg in plan.legs}, plan.faulty) == ({"cuda"}, ())
        left = [item for item in plan.left_out if item.backend == backend]
        assert left
        for item in left:
            assert item.rule == rule
            assert item.path == str(tmp_path / "build.toml")
            assert workspace.kernels[0].document.line(item.line) == line
    assert {name for kernel in plan.kernels for name in kernel.planned} == {leg.variant for leg in plan.legs}


@pytest.mark.parametrize(
    "choice",
    [
        Choice(backends=("xpu",)),
        Choice(backends=("cuda", "xpu")),
        Choice(only=("*xpu*",)),
        Choice(where="backend == xpu"),
    ],
)
def test_a_backend_at_fault_that_was_asked_for_is_not_planned(tmp_path: Path, choice: Choice) -> None:
    place = kernel(tmp_path, f'backends = ["cuda", "xpu"]\n{CUDA}{XPU}')
    with pytest.raises(FindingsError, match="nothing is planned"):
        plan_run(open_workspace([place]), PlanRequest(choice=choice))
    with pytest.raises(FindingsError, match="nothing is planned"):
        plan_run(open_workspace([f"{place}[cuda,xpu]"]), PlanRequest())
    assert plan_run(open_workspace([place]), PlanRequest(choice=Choice(backends=("cuda",)))).plan.left_out == ()


def test_a_fault_of_the_whole_kernel_leaves_no_backend(tmp_path: Path) -> None:
    text = f'backends = ["cuda", "xpu"]\n{CUDA}{XPU}'.replace("[torch]", '[torch]\nsrc = ["gone.cpp"]')
    assert refused(kernel(tmp_path, text)) == ["KCI136", "KCI136"]


@pytest.mark.parametrize(
    "settings",
    [
        "[runners.cpu.x86_64-linux]\nprice = -1\ncurrency = 'USD'\n",
        "[runners.cpu.x86_64-linux]\nprice = nan\ncurrency = 'USD'\n",
        "[runners.cpu.x86_64-linux]\nprice = 1e308\ncurrency = 'USD'\n",
        "[tiers.mine]\nbase = 'release'\nwhere = 'cuda >>'\n",
        "[[overlay]]\ndrop = ['cuda = 1']\n",
        "[schedule]\ntier = 'nightly'\n",
    ],
)
def test_an_error_of_kci_toml_stops_whoever_reads_it(tmp_path: Path, settings: str) -> None:
    place = kernel(tmp_path, f'backends = ["cuda"]\n{CUDA}')
    (place / "kci.toml").write_text(settings)
    with pytest.raises(FindingsError) as caught:
        open_workspace([place])
    assert all(item.path.endswith("kci.toml") for item in caught.value.diagnostics)


@pytest.mark.rule("KCI217", triggers=True)
@pytest.mark.parametrize(
    ("choice", "hint"),
    [
        (Choice(only=("TORCH*CU130*",)), "did you mean one of `torch"),
        (Choice(only=("torch213-cxx11-cu130-x86_64-linus",)), "did you mean `torch213-cxx11-cu130-x86_64-linux`?"),
        (Choice(backends=("xpu",)), "--explain"),
        (Choice(where="torch == 1.0"), "--explain"),
    ],
)
def test_a_selection_that_selects_nothing_is_an_error_with_the_nearest_names(
    tmp_path: Path, choice: Choice, hint: str
) -> None:
    workspace = open_workspace([kernel(tmp_path, f'backends = ["cuda"]\n{CUDA}')])
    with pytest.raises(FindingsError, match="nothing is selected") as caught:
        plan_run(workspace, PlanRequest(choice=choice))
    assert hint in caught.value.hint
    assert plan_run(workspace, PlanRequest(choice=choice, allow_empty=True)).plan.legs == ()


def test_a_name_that_does_not_exist_is_wrong_usage(tmp_path: Path) -> None:
    workspace = open_workspace([kernel(tmp_path, f'backends = ["cuda"]\n{CUDA}')])
    for choice in (Choice(tier="nightly"), Choice(systems=("x86_64-lunix",)), Choice(backends=("cdua",))):
        with pytest.raises(UsageError):
            workspace.matrix(choice)
    with pytest.raises(UsageError, match="no kernel here is named") as caught:
        workspace.kernel("some-kernle")
    assert caught.value.hint == "did you mean `some-kernel`?"


@pytest.mark.parametrize(("kept", "counted"), [("40", 1), ("41", 1), ("42", None), ("", None)])
def test_a_change_of_python_alone_takes_the_objects_of_what_is_published(
    tmp_path: Path, kept: str, counted: int | None
) -> None:
    text = f'backends = ["cuda"]\n{CUDA}'.replace("[torch]", '[torch]\nsrc = ["b.cpp"]').replace(
        "src = []", 'src = ["a.cu"]'
    )
    place = kernel(tmp_path, text)
    (place / "a.cu").write_text("")
    (place / "b.cpp").write_text("REGISTER_EXTENSION(TORCH_EXTENSION_NAME)")
    before = plan_run(open_workspace([place]), PlanRequest(fingerprints=True)).plan
    prints = before.kernels[0].fingerprints or {}
    known = {("some-kernel", name): PublishedVariant(each) for name, each in prints.items()}
    request = PlanRequest(
        fingerprints=True, published=known, trees={"some-kernel": CarriedTree("41", {})},
        objects={key: KeptObjects(kept, "objects.some") for key in known},
    )  # fmt: skip
    assert plan_run(open_workspace([place]), msgspec.structs.replace(request, allow_empty=True)).plan.legs == ()
    (place / "torch-ext" / "some_kernel" / "__init__.py").write_text("x = 1\n")
    after = plan_run(open_workspace([place]), request).plan
    assert {leg.compiles for leg in after.legs} == {counted}
    assert len(after.legs) == len(before.legs)
    assert (sum(leg.minutes for leg in after.legs) < sum(leg.minutes for leg in before.legs)) is (counted is not None)
    (place / "a.cu").write_text("int x;")
    assert {leg.compiles for leg in plan_run(open_workspace([place]), request).plan.legs} == {None}, (
        "nothing says what was read"
    )
