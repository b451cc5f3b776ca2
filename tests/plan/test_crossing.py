"""Legs that are compiled on machines of another CPU, and the tests that they need before anybody gets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.runner import kci
from conftest import torch_kernel
from kci.catalog.rows import Catalog
from kci.catalog.runners import Runners
from kci.matrix.selection import compute_matrix
from kci.plan import github
from kci.plan.budget import both_ways
from kci.plan.github import leg_entry
from kci.plan.legs import PlanOptions, compiled_by, make_plan
from kci.plan.machines import runners_from
from kci.plan.plan import Leg, Plan
from kci.workspace.planning import PlanRequest, plan_run
from kci.workspace.workspace import open_workspace
from planning import parse_settings

ARM = "aarch64-linux"
CROSS = "[runners.any.aarch64-linux]\ncross = true\n"


def runners(text: str) -> Runners:
    return runners_from(parse_settings(text.encode()))


def planned(catalog: Catalog, text: str, *, container: bool = True) -> Plan:
    matrix = compute_matrix([torch_kernel(["cpu", "cuda", "rocm", "metal"])], catalog)
    return make_plan(matrix, runners(text), PlanOptions(container=container))


def arm(plan: Plan) -> dict[str, Leg]:
    return {leg.name: leg for leg in plan.legs if leg.system == ARM}


def test_legs_of_another_cpu_get_the_runners_that_cross(catalog: Catalog) -> None:
    legs, before = arm(planned(catalog, CROSS)), planned(catalog, "")
    assert legs.keys() == arm(before).keys()
    crossed = {name: leg for name, leg in legs.items() if leg.built_on}
    assert {leg.backend for leg in crossed.values()} == {"cpu", "cuda"}
    for leg in crossed.values():
        assert (leg.built_on, leg.image, leg.cross) == ("x86_64-linux", "", "g++-aarch64-linux-gnu")
        assert leg.runner == ("ubuntu-24.04",)
        assert leg_entry("release", leg)["cross"] == "g++-aarch64-linux-gnu"
    for name in legs.keys() - crossed.keys():
        assert "cu126" in name, "PyPI has no nvcc of it"
        assert legs[name] == arm(before)[name]
    others = {leg.name: leg for leg in before.legs if leg.system != ARM}
    assert {leg.name: leg for leg in planned(catalog, CROSS).legs if leg.system != ARM} == others
    assert all("cross" not in leg_entry("release", leg) for leg in others.values())


def test_an_image_with_a_cross_compiler_takes_every_version(catalog: Catalog) -> None:
    text = '[runners.any.aarch64-linux]\ncross = "docker.io/acme/cross:{compute}"\n'
    legs = arm(planned(catalog, text))
    assert {leg.built_on for leg in legs.values()} == {"x86_64-linux"}
    assert {leg.image for name, leg in legs.items() if "cu126" in name} == {"docker.io/acme/cross:12.6"}
    assert {leg.cross for leg in legs.values()} == {None}, "the image has it"
    bare = arm(planned(catalog, text, container=False))
    assert {leg.built_on for name, leg in bare.items() if "cu126" in name} == {""}


def test_a_fingerprint_tells_what_was_crossed_from_what_was_not(catalog: Catalog) -> None:
    kernel = torch_kernel(["cpu"])
    (variant,) = [item for item in compute_matrix([kernel], catalog).kernels[0].each_once() if item.system == ARM][:1]
    image = '[runners.any.aarch64-linux]\ncross = "docker.io/acme/cross:1"\n'
    ways = [("", True), ("", False), (CROSS, True), (image, True)]
    told = [compiled_by(variant, runners(text), container=container) for text, container in ways]
    assert told[1:] == ["", f"g++-{ARM}-gnu on x86_64-linux", "docker.io/acme/cross:1 on x86_64-linux"]
    assert "manylinux" in told[0]


def test_whose_runners_they_are() -> None:
    made = runners(f'{CROSS}[runners.cuda.x86_64-linux]\nlabels = ["big"]\nprice = 2.0\ncurrency = "EUR"\n')
    cpu, cuda = made.machine("cpu", ARM), made.machine("cuda", ARM)
    assert cpu is not None
    assert cuda is not None
    assert (cpu.labels, cuda.labels, cuda.price, cuda.host) == (("ubuntu-24.04",), ("big",), 2.0, "x86_64-linux")
    native = made.native("cuda", ARM)
    assert native is not None
    assert (native.labels, native.host) == (("ubuntu-24.04-arm",), "")
    assert runners_from(parse_settings(b'[runners.cuda.x86_64-linux]\nlabels = ["own"]\n')).native(
        "cuda", "x86_64-linux"
    ).labels == ("own",), "a machine of that very system is taken as it is"
    named = runners('[runners.cpu.aarch64-linux]\ncross = true\nlabels = ["mine"]\n').machine("cpu", ARM)
    assert named is not None
    assert (named.labels, named.host) == (("mine",), "x86_64-linux")
    off = runners(f"{CROSS}[runners.cpu.aarch64-linux]\ncross = false\n").machine("cpu", ARM)
    assert off is not None
    assert (off.labels, off.host) == (("ubuntu-24.04-arm",), "")
    metal = runners("[runners.any.aarch64-darwin]\ncross = true\n").machine("metal", "aarch64-darwin")
    assert metal is not None
    assert metal.host == "", "nothing compiles for it elsewhere"


def test_what_was_crossed_for_cpus_is_tested_by_emulation_unless_there_is_a_machine(catalog: Catalog) -> None:
    (test,) = planned(catalog, CROSS).tests
    assert (test.name, test.host, test.runner) == ("cpu-aarch64-linux", "x86_64-linux", ("ubuntu-24.04",))
    assert all("cpu-aarch64-linux" in name for name in test.variants)
    assert github.tests_matrix([test])["include"][0]["emulate"] is True
    own = f'{CROSS}[test.cpu.aarch64-linux]\nlabels = ["arm"]\n[test.cuda.aarch64-linux]\nlabels = ["grace"]\n'
    tests = planned(catalog, own).tests
    assert [(item.name, item.host, item.runner) for item in tests] == [
        ("cpu-aarch64-linux", "", ("arm",)),
        ("cuda-aarch64-linux", "", ("grace",)),
    ]
    assert "emulate" not in github.tests_matrix(tests)["include"][0]
    assert planned(catalog, "").tests == ()
    assert planned(catalog, "[runners.cuda.aarch64-linux]\ncross = true\n").tests == (), "no emulator has a GPU"


def test_both_ways_have_a_price(catalog: Catalog) -> None:
    for text, share in (("", 0), (CROSS, 1)):
        plan, known = planned(catalog, text), runners(text)
        (way,) = [item for item in both_ways(plan.legs, known) if item.system == ARM]
        assert way.legs == len([leg for leg in plan.legs if leg.system == ARM])
        assert bool(way.now) is bool(share)
        assert way.native["USD"] < way.crossed["USD"], "GitHub's machines with Arm cost less"


def test_the_table_says_which_are_crossed(tmp_path: Path) -> None:
    place = tmp_path / "kk"
    place.mkdir()
    general = 'name = "kk"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
    component = '[torch]\nsrc = ["k.cpp"]\n[kernel.k]\nbackend = "cpu"\ndepends = ["torch"]\nsrc = ["l.cpp"]\n'
    (place / "build.toml").write_text(f"[general]\n{general}{component}")
    for name in ("k", "l"):
        (place / f"{name}.cpp").write_text("int one() { return 1; }\n")
    (place / "torch-ext" / "kk").mkdir(parents=True)
    (place / "torch-ext" / "kk" / "__init__.py").write_text("")
    (tmp_path / ".git").mkdir()
    (tmp_path / "kci.toml").write_text(CROSS)
    shown = kci("plan", place)
    assert shown.code == 0, shown.stderr
    assert "ubuntu-24.04 (crossed)" in shown.stdout
    assert "crossed: " in shown.stdout
    found = json.loads(kci("plan", place, "--format", "json").stdout)
    assert {leg["built_on"] for leg in found["legs"] if leg["system"] == ARM} == {"x86_64-linux"}
    assert found["estimate"]["both_ways"][0]["system"] == ARM
    assert plan_run(open_workspace([place]), PlanRequest()).plan.crossed == "tested"


def checked(tmp_path: Path, text: str) -> str:
    (tmp_path / ".git").mkdir()
    (tmp_path / "kci.toml").write_text(text)
    place = tmp_path / "kk"
    (place / "torch-ext" / "kk").mkdir(parents=True)
    (place / "torch-ext" / "kk" / "__init__.py").write_text("")
    general = 'name = "kk"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cpu"]\n'
    (place / "build.toml").write_text(f"[general]\n{general}[torch-noarch]\n")
    done = kci("check", place, "-v")
    return done.stderr + done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "[runners.metal.aarch64-darwin]\ncross = true\n",
        "[runners.rocm.aarch64-linux]\ncross = true\n",
        '[test.cpu.aarch64-linux]\nlabels = ["arm"]\ncross = true\n',
    ],
)
@pytest.mark.rule("KCI350", triggers=True)
def test_cross_where_nothing_crosses_is_told(tmp_path: Path, text: str) -> None:
    assert "KCI350" in checked(tmp_path, text)


@pytest.mark.parametrize(
    "text", ["[runners.metal.aarch64-darwin]\ncross = false\n", CROSS, CROSS.replace("any", "cuda")]
)
@pytest.mark.rule("KCI350", triggers=False)
def test_cross_that_has_an_effect_is_fine(tmp_path: Path, text: str) -> None:
    assert "KCI350" not in checked(tmp_path, text)
