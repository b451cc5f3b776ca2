"""Which jobs test: one for each kernel and kind of machine, and none on a machine of one's own for
a fork.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from act.harness import commit_all
from buildkit import write_tree
from cli.runner import kci
from conftest import write_noarch
from kci.config.settings import Settings
from kci.matrix.catalog.runners import Runner, default_runners, runners_from
from kci.plan.hardware_tests import (
    CarriedTree,
    TestPass,
    machine_tests,
    plan_tests,
    tree_under_test,
    why_untested,
)
from kci.plan.plan import KernelPlan
from kci.plan.planning import PlanRequest, plan_run
from kci.plan.workspace import open_workspace
from kci.run.gate import success_summary
from planning import Change, append, leg, write

MARKED = "import pytest\n\n@pytest.mark.kernels_ci\ndef test_it():\n    pass\n"
UNMARKED = """
'''Those marked `kernels_ci` run.'''
def pytest_configure(config):
    config.addinivalue_line("markers", "kernels_ci: run by CI")
# @pytest.mark.kernels_ci
"""
HOSTED = {"cpu-x86_64-linux": ["ubuntu-24.04"]}
NO_GPU, NO_CPU = "no machine with a GPU is named", "no machine for the CPU is named"


@pytest.mark.parametrize(
    ("backends", "settings", "test", "machines", "why"),
    [
        (("cpu", "cuda"), "", MARKED, HOSTED, ""),
        (("cpu",), "[test]\ncpu = true\n", MARKED, HOSTED, ""),
        (("cpu",), '[test.cpu.x86_64-linux]\nlabels = ["own"]\n', MARKED,
            {"cpu-x86_64-linux": ["own"]}, ""),
        (("cpu",), "[test]\ncpu = false\n", MARKED, {}, NO_CPU),
        (("cpu",), '[test]\ncpu = false\n[test.any.x86_64-linux]\nlabels = ["own"]\n', MARKED, {},
            NO_CPU),
        (("cpu",), "", UNMARKED, {}, "none is marked `kernels_ci`"),
        (("cpu",), "", "", {}, ""),
        (("cuda", "rocm"), "", MARKED, {}, NO_GPU),
    ],
    ids=["hosted", "said so", "another machine", "off", "off of any", "not for CI", "no tests",
        "GPUs only"],
)  # fmt: skip
def test_what_a_hosted_runner_can_test_is_tested_without_a_key(
    tmp_path: Path, backends: tuple[str, ...], settings: str, test: str,
    machines: dict[str, list[str]], why: str,
) -> None:  # fmt: skip
    place = write_noarch(tmp_path / "norm", "norm", backends)
    if test:
        write("tests/test_it.py", test)(place)
    (tmp_path / ".git").mkdir()
    (tmp_path / "kci.toml").write_text(settings)
    plan = plan_run(open_workspace([str(place)]), PlanRequest()).plan
    assert {item.name: [*item.runner] for item in plan.tests} == machines
    sentence = f"tests: not run, {why} (norm)" if why else ""
    assert plan.untested_sentence == sentence
    shown = [kci("plan", place, "--format", form).stdout for form in ("table", "markdown")]
    assert all(("tests: not run" in text) is bool(why) for text in [*shown, success_summary(plan)])
    assert sentence in shown[0]


@pytest.mark.parametrize("systems", [("x86_64-linux", "aarch64-linux"), ("aarch64-linux",)])
def test_one_system_is_enough_for_the_cpu(systems: tuple[str, ...]) -> None:
    variants = [f"torch213-cxx11-cpu-{system}" for system in systems]
    (machine,) = machine_tests("k", "k", variants, runners_from(Settings()))
    assert (machine.system, machine.variants) == (systems[0], (variants[0],))
    assert not why_untested(variants, runners_from(Settings()), True)
    elsewhere = why_untested(["torch213-cpu-aarch64-darwin"], runners_from(Settings()), True)
    assert elsewhere == f"tests: not run, {NO_CPU}"


CUDA = '[test.cuda.x86_64-linux]\nlabels = ["self-hosted", "l4"]\n'


KERNEL = KernelPlan("k", "k", 1, ("torch-cpu", "torch-cuda"))
DIGESTS = {"torch-cpu": "d0", "torch-cuda": "d1"}
TESTS = {"k": "a hash"}


UNKNOWN = TestPass(tree_under_test(DIGESTS, ["torch-cuda"]), "")


def on(*labels: str) -> Any:
    machine = Runner(labels=labels, cpus=1, memory_gb=1)
    return msgspec.structs.replace(default_runners(), test={("cuda", "x86_64-linux"): machine})


def carried(
    digests: dict[str, str], runners: Any = None, tests: dict[str, str] | None = None
) -> CarriedTree:
    """A tree on which what these machines test has passed."""
    (test,) = plan_tests([KERNEL], [leg("torch-cuda")], runners or on("gpu"), tests or TESTS, {})
    passed = TestPass(tree_under_test(digests, test.variants), test.inputs)
    return CarriedTree("41", digests, {test.name: passed})


def test_a_tree_that_has_passed_is_not_tested_again() -> None:
    assert plan_tests([KERNEL], [], on("gpu"), TESTS, {"k": carried(DIGESTS)}) == ()
    other = carried({**DIGESTS, "torch-cpu": "d9"})  # which is not for this machine
    assert plan_tests([KERNEL], [], on("gpu"), TESTS, {"k": other}) == ()


@pytest.mark.parametrize(
    "tree",
    [
        CarriedTree("41", DIGESTS),
        CarriedTree("41", DIGESTS, carried({**DIGESTS, "torch-cuda": "d2"}).passed),
        carried(DIGESTS, tests={"k": "other tests"}),
        carried(DIGESTS, on("another", "gpu")),
        CarriedTree("41", DIGESTS, {"cuda-x86_64-linux": UNKNOWN}),
    ],
    ids=["nothing is known", "another tree", "other tests", "another machine", "unknown tests"],
)
def test_what_has_not_passed_so_is_tested_where_it_is(tree: CarriedTree) -> None:
    (test,) = plan_tests([KERNEL], [], on("gpu"), TESTS, {"k": tree})
    assert (test.name, test.run) == ("cuda-x86_64-linux", "41")


def test_what_a_tree_has_beyond_the_plan_is_tested_where_it_may_be_published() -> None:
    """A dispatch for one backend hands over the whole tree."""
    narrow = msgspec.structs.replace(KERNEL, planned=("torch-cpu",))
    tree = CarriedTree("41", DIGESTS)
    for legs, run in (([], "41"), ([leg("torch-cpu")], "")):
        (test,) = plan_tests([narrow], legs, on("gpu"), TESTS, {"k": tree}, ["k"])
        assert (test.variants, test.run) == (("torch-cuda",), run)
        assert plan_tests([narrow], legs, on("gpu"), TESTS, {"k": tree}) == ()


def test_what_is_built_is_tested_as_it_is_merged() -> None:
    (test,) = plan_tests([KERNEL], [leg("torch-cuda")], on("gpu"), TESTS, {"k": carried(DIGESTS)})
    assert test.run == ""


@pytest.mark.parametrize(
    "trees", [{}, {"k": CarriedTree("41", {"torch-cpu": "d0"})}], ids=["no tree", "without it"]
)
def test_without_a_tree_that_has_it_nothing_is_tested(trees: dict[str, CarriedTree]) -> None:
    """No job would run, such as where all that is planned is in the `published` trees of the plan
    action.
    """
    assert plan_tests([KERNEL], [], on("gpu"), TESTS, trees) == ()


def changed(tmp_path: Path, settings: str, change: Change, *options: str) -> dict[str, Any]:
    """The plan of a change to a kernel with a test, in a repository with more around it."""
    root = tmp_path / "repository"
    write_noarch(root / "norm", "norm", ("cpu", "cuda"))
    files = {"kci.toml": settings, "pyproject.toml": '[project]\nname = "x"\n'}
    write_tree(root, {**files, TEST_FILE: "# fine\n", "shared/more.py": "# fine\n"})
    (root / "norm" / "tests" / "shared").symlink_to("../../shared")
    commit_all(root)
    change(root)
    done = kci("plan", root, "--affected", "HEAD", "--allow-empty", "--format", "json", *options)
    assert done.code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


TEST_FILE = "norm/tests/test_it.py"
HARDWARE = ["cuda-x86_64-linux"]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (TEST_FILE, write(TEST_FILE, "# other\n")),
        ("norm/tests/new.py", write("norm/tests/new.py", "")),
        (TEST_FILE, lambda root: (root / TEST_FILE).unlink()),
        ("shared/more.py", write("shared/more.py", "# other\n")),
        ("shared/more.py", lambda root: (root / "shared" / "more.py").unlink()),
        ("norm/pytest.ini", write("norm/pytest.ini", "[pytest]\n")),
        ("conftest.py", write("conftest.py", "")),
        ("pyproject.toml", write("pyproject.toml", "[tool.pytest.ini_options]\n")),
        ("kci.toml", write("kci.toml", CUDA.replace("l4", "h100"))),
    ],
    ids=[
        "a test", "a new one", "one that goes", "one behind a link", "one that goes there",
        "pytest's settings", "fixtures", "settings above", "another machine",
    ],
)  # fmt: skip
def test_a_change_of_the_tests_is_tested(tmp_path: Path, path: str, change: Change) -> None:
    answer = changed(tmp_path, CUDA, change)
    # What they need, for there is no tree.
    assert [leg["variant"] for leg in answer["legs"]] == ["torch-cuda"]
    assert [test["name"] for test in answer["tests"]] == HARDWARE
    (touch,) = [item for item in answer["affected"] if item["path"] == path]
    assert (touch["kernel"], touch["touches"], touch["tests"]) == ("norm", [], HARDWARE)
    assert "run again on cuda-x86_64-linux" in touch["reason"]


@pytest.mark.parametrize(
    "path", ["norm/README.md", "pyproject.toml", "conftest.md", "norm/tests.md"]
)
def test_a_change_of_nothing_that_tests_read_is_not(tmp_path: Path, path: str) -> None:
    answer = changed(tmp_path, CUDA, write(path, "# words\n"))
    assert (answer["legs"], answer["tests"]) == ([], [])


def test_what_no_job_runs_is_said(tmp_path: Path) -> None:
    answer = changed(tmp_path, "", write(TEST_FILE, "# other\n"))
    assert (answer["legs"], answer["tests"]) == ([], [])
    (touch,) = answer["affected"]
    assert touch["reason"] == "read by the tests; tests: not run, none is marked `kernels_ci`"


@pytest.mark.parametrize("run", ["41", ""])
def test_changed_tests_have_the_tree_of_the_base_or_a_build(tmp_path: Path, run: str) -> None:
    """What is published elsewhere, and in no tree of a run here, cannot be tested without
    a build.
    """
    place = write_noarch(tmp_path / "norm", "norm", ("cpu", "cuda"))
    write("tests/test_it.py", MARKED)(place)
    commit_all(tmp_path)
    workspace = open_workspace([str(place)])
    (kernel,) = plan_run(workspace, PlanRequest(fingerprints=True)).plan.kernels
    known = {("norm", name): text for name, text in (kernel.fingerprints or {}).items()}
    trees = {"norm": CarriedTree(run, dict.fromkeys(kernel.planned, "d"))} if run else {}
    append("tests/test_it.py", "# better\n")(place)
    done = plan_run(workspace, PlanRequest(affected="HEAD", published=known, trees=trees))
    assert [test.run for test in done.plan.tests] == [run]
    assert [leg.variant for leg in done.plan.legs] == ([] if run else ["torch-cpu"])
    assert done.touches is not None
    assert done.touches[0].reason == "read by the tests; the tests run again on cpu-x86_64-linux"


def test_each_kernel_is_tested_on_all_kinds_of_machines_of_its_variants(tmp_path: Path) -> None:
    place = write_noarch(tmp_path / "norm", "norm", ("cpu", "cuda", "rocm"))
    (tmp_path / ".git").mkdir()
    limit = '[[limits]]\nbackend = "cuda"\ntimeout-minutes = 7\n'
    settings = f'{CUDA}[test.xpu.x86_64-linux]\nlabels = ["arc"]\n{limit}'
    (tmp_path / "kci.toml").write_text(settings)
    (test,) = json.loads(kci("plan", place, "--format", "json").stdout)["tests"]
    assert (test["name"], test["variants"]) == ("cuda-x86_64-linux", ["torch-cuda"])
    assert (test["runner"], test["timeout"]) == (["self-hosted", "l4"], 7)
