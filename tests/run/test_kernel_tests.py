"""`kci test`: what is chosen, what is told, and that nothing which did not run counts as tested."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from buildkit import Bare, files_in, program, quiet, write_tree
from cli.runner import kci
from conftest import ROOT, failure
from kci.cli.test import _job
from kci.errors import FindingsError, MissingToolError, UsageError
from kci.matrix.variants import parse_variant_name
from kci.plan.hardware_tests import tree_under_test
from kci.run import kernel_tests
from kci.run.kernel_tests import (
    TestState,
    first_failure,
    repositories,
    run_kernel_tests,
    select_variants,
    why_not_testable,
)
from kci.run.loader import LoaderEnvironment, probe, python_path, why_incompatible
from kci.run.records import TestRecord
from kci.tree.manifest import read_manifest
from kci.utils.bounded_json import read_json
from planning import replace
from run.cuda_python import python_that_loads, python_with_cuda
from variants import CPU, CUDA, make_artifact, make_variant
from wheels import make_wheel, only_wheels

TEST = """
import pytest
from kernels import get_kernel
gated = get_kernel("somebody/gated-norm")
@pytest.mark.kernels_ci
def test_answer():
    assert gated.answer() == 42
def test_not_for_ci():
    assert False
"""
GOOD: dict[str, str | bytes] = {"__init__.py": "def answer(): return 42\n"}
BAD: dict[str, str | bytes] = {"__init__.py": "def answer(): return 41\n"}


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python with such a module."""
    made = python_that_loads(tmp_path)
    monkeypatch.setattr(kernel_tests, "ensure_runtime", lambda *_, **__: made)
    return made


def sources(tmp_path: Path, **files: str) -> Path:
    named = {f"tests/{name}.py": text for name, text in files.items()}
    return write_tree(tmp_path / "kernel", {"build.toml": "", **named})


def outcome(
    tmp_path: Path, files: Mapping[str, str | bytes], **tests: str
) -> kernel_tests.TestReport:
    variant = make_variant(tmp_path / "tree", CPU, files=dict(files))
    return run_kernel_tests(variant, sources(tmp_path, **tests), quiet, cache=tmp_path)


@pytest.mark.usefixtures("python")
def test_the_marked_tests_run_on_the_build_and_write_nothing_into_it(tmp_path: Path) -> None:
    """One gets it by the name of its repository, the other imports it by its own."""
    by_name = 'gated = get_kernel("somebody/gated-norm")'
    imports = TEST.replace(by_name, "import gated_norm as gated")
    report = outcome(tmp_path, GOOD, test_it=TEST, test_import=imports)
    assert report.state is TestState.PASSED, report.output
    assert (report.passed, report.failed, report.skipped) == (2, 0, 0)
    assert files_in(tmp_path / "tree" / CPU) == ["__init__.py", "metadata.json"]


def test_bytecode_is_written_into_the_environment_alone(tmp_path: Path) -> None:
    """There once for all tests: those of the kernel that `kci init` writes import 2,800 modules."""
    places = {"ours": tmp_path / "environment", "theirs": tmp_path / "environment-elsewhere"}
    for name, place in places.items():
        write_tree(place, {f"{name}.py": ""})
    tests = "import ours, theirs\ndef test_it(): pass\n"
    write_tree(tmp_path / "kernel", {"tests/conftest.py": "", "tests/test_it.py": tests})
    script = f"sys.prefix = {str(places['ours'])!r}; exec({kernel_tests._PYTEST.read_text()!r})"
    variables = {**os.environ, **python_path(*places.values()), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", f"import sys; {script}", "tests", "-p", "no:cacheprovider"]
    subprocess.run(command, cwd=tmp_path / "kernel", env=variables, check=True)
    assert [path.name.split(".")[0] for path in tmp_path.rglob("*.pyc")] == ["ours"]


def test_the_tests_of_a_kernel_in_src_lie_beside_it(tmp_path: Path, python: Path) -> None:
    sources(tmp_path, test_it=TEST).rename(tmp_path / "all")
    inner = write_tree(tmp_path / "all" / "src", {"build.toml": ""})
    variant = make_variant(tmp_path / "tree", CPU, files=dict(GOOD))
    report = run_kernel_tests(variant, inner, quiet, cache=tmp_path)
    assert (report.state, report.passed) == (TestState.PASSED, 1), report.output


def test_a_failing_test_fails_and_says_why(tmp_path: Path, python: Path) -> None:
    report = outcome(tmp_path, BAD, test_it=TEST)
    assert (report.state, report.failed) == (TestState.FAILED, 1)
    assert "41 == 42" in report.output
    assert first_failure([report]) == f"{CPU}: failed: assert 41 == 42"


LONG = """
import pytest
pytestmark = pytest.mark.kernels_ci
def test_first():
    print("the first output")
    assert list(range(300)) == list(range(1, 301))
@pytest.mark.parametrize("n", range(60))
def test_more(n):
    print("\\n".join(f"line {n} of {number}" for number in range(ROWS)))
    assert False
"""


@pytest.mark.parametrize(("rows", "cut"), [("5", False), ("100", True)])
@pytest.mark.usefixtures("python")
def test_what_failing_tests_said_is_not_cut(tmp_path: Path, rows: str, cut: bool) -> None:
    report = outcome(tmp_path, GOOD, test_it=LONG.replace("ROWS", rows))
    assert "the first output" in report.output
    assert "line 59 of 4\n" in report.output
    assert "Full output truncated" not in report.output, "by pytest itself"
    assert ("lines left out" in report.output) is cut
    assert ("line 30 of 4\n" in report.output) is not cut


def test_a_keyword_selects_tests_and_makes_no_record(tmp_path: Path, python: Path) -> None:
    make_variant(tmp_path / "tree", CPU, files=BAD)
    kernel = sources(tmp_path, test_it=f"{TEST}@pytest.mark.kernels_ci\ndef test_other(): pass\n")
    words = ("test", tmp_path / "tree", "--variant", CPU, "--kernel", kernel)
    for keyword, code, said in (
        ("other", 0, "passed"),
        ("answer", 1, "failed"),
        ("nothing", 1, "nothing ran"),
    ):
        done = kci(*words, "-k", keyword, KCI_CACHE=str(tmp_path))
        assert (done.code, said in done.stdout) == (code, True), done.stderr
    done = kci(*words, "-k", "other", "--record", tmp_path / "record.json")
    assert (done.code, (tmp_path / "record.json").exists()) == (2, False)


MARKED = "import os, pytest\n@pytest.mark.kernels_ci\n"
LEAVES_AFTER = "import os\ndef pytest_unconfigure(): os._exit(0)\n"


@pytest.mark.parametrize(
    ("tests", "state", "skipped"),
    [
        ({"test_it": "def test_a(): pass\n"}, TestState.NOTHING_RAN, 0),
        ({"test_it": ""}, TestState.NOTHING_RAN, 0),
        ({"test_it": f"{MARKED}@pytest.mark.skip\ndef test_a(): pass\n"}, TestState.NOTHING_RAN, 1),
        ({"test_it": "import nothing_of_this_name\n"}, TestState.FAILED, 0),
        ({"test_it": f"{MARKED}def test_a(): os._exit(0)\n"}, TestState.FAILED, 0),
        ({"test_it": f"{MARKED}def test_a(): assert 0\n", "conftest": LEAVES_AFTER},
            TestState.FAILED, 0),
    ],
    ids=["unmarked", "none", "skipped", "broken", "ended with 0", "ended with 0 after it failed"],
)  # fmt: skip
@pytest.mark.usefixtures("python")
def test_what_did_not_run_to_its_end_is_no_pass(
    tmp_path: Path, tests: dict[str, str], state: TestState, skipped: int
) -> None:
    report = outcome(tmp_path, GOOD, **tests)
    assert (report.state, report.skipped) == (state, skipped)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('undefined symbol: x')", "undefined symbol: x"),
        ("import os; os._exit(0)", ""),
        ("import triton", "triton"),  # torch for the CPU brings none
    ],
)
@pytest.mark.usefixtures("python")
def test_a_variant_that_does_not_load_is_told(tmp_path: Path, code: str, said: str) -> None:
    report = outcome(tmp_path, {"__init__.py": f"{code}\n"}, test_it=TEST)
    assert (report.state, said in report.output) == (TestState.NOT_LOADED, True)


@pytest.mark.usefixtures("python")
def test_what_a_test_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "never"
    os.mkfifo(fifo)
    text = f"{MARKED}def test_a(): os.fork() or open({str(fifo)!r}).read()\n"
    assert outcome(tmp_path, GOOD, test_it=text).state is TestState.PASSED


def test_what_a_kernel_declares_is_there_when_it_is_loaded(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what that needs, by way of a .pth file too, but for what is there."""
    here = "import sys, os, inner; sys.path.insert(0, os.path.join(inner.__path__[0], 'more'))\n"
    only_wheels(monkeypatch, tmp_path / "wheels")
    installed = "lib/python3.11/site-packages/kernels-0.17.0.dist-info/METADATA"
    write_tree(python.parents[1], {installed: ""})
    einops = {"einops.py": "import hidden\n", "einops.pth": here}
    inner = {"inner/__init__.py": "", "inner/more/hidden.py": ""}
    make_wheel(tmp_path / "wheels", "inner", "1.0", inner)
    make_wheel(tmp_path / "wheels", "einops", "1.0", einops, ["inner", "kernels"])
    variant = make_variant(tmp_path / "tree", CPU, files={"__init__.py": "import einops\n"})
    key = '"python-depends": ['
    replace("metadata.json", f"{key}]", f'{key}"einops"]')(variant)
    report = run_kernel_tests(variant, None, quiet, cache=tmp_path)
    assert report.state is TestState.NOTHING_RAN, report.output


def test_the_names_that_tests_know_the_kernel_by(tmp_path: Path) -> None:
    others = 'get_kernel("you/relu", 1); "me/gelu"; "a/b/relu"'
    root = sources(tmp_path, test_a="get_kernel('me/relu')", test_b=others)
    assert repositories(root, "relu") == ["kernels-community/relu", "me/relu", "you/relu"]


def test_which_variants_are_tested(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    caught = failure(FindingsError, "there is no variant in", select_variants, tmp_path)
    assert caught.hint.startswith("build one: ")
    made = [make_variant(tree, name) for name in (CPU, CUDA)]
    assert select_variants(made[0]) == [made[0]]
    assert select_variants(tree) == made
    assert select_variants(tree, [CUDA]) == [made[1]]
    failure(UsageError, "has no variant", select_variants, tree, ["torch-cpo"])
    named = failure(UsageError, "", select_variants, tree, ["cu130"])
    assert named.hint == f"did you mean `{CUDA}`?"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tests, "has_device", lambda _: False)


GPU = ("torch-cuda", "torch-rocm")


@pytest.mark.parametrize("words", [[], ["--variant", "torch-cuda"]], ids=["all", "named"])
def test_without_a_gpu_a_sound_variant_is_built_and_verified_and_not_run(
    tmp_path: Path, no_gpu: None, words: list[str]
) -> None:
    """ "Build one" would be false, and what the loader says of a missing driver helps nobody."""
    for name in GPU:
        make_variant(tmp_path / "tree", name, archs=None)
    done = kci("test", tmp_path / "tree", *words)
    assert (done.code, done.stdout) == (3, "")
    assert "torch-cuda: built, verified, not run: needs an NVIDIA GPU" in done.stderr
    assert ("torch-rocm: built, verified, not run: needs an AMD GPU" in done.stderr) is not words
    assert "kci test --no-isolation" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("no_gpu")
def test_what_is_not_sound_is_told_before_what_this_machine_lacks(tmp_path: Path) -> None:
    directory = make_variant(tmp_path / "tree", "torch-cuda")
    (directory / "__init__.py").write_text("import no_such_module\n")
    done = kci("test", tmp_path / "tree")
    assert done.code == 1
    assert "verified" not in done.stderr


@pytest.mark.usefixtures("python", "no_gpu")
def test_where_some_can_be_run_the_others_are_listed(tmp_path: Path) -> None:
    for name in (CPU, "torch-cuda"):
        make_variant(tmp_path / "tree", name, files=dict(GOOD))
    kernel = sources(tmp_path, test_it=TEST)
    record = tmp_path / "record.json"
    words = ("--kernel", kernel, "--record", record)
    done = kci("test", tmp_path / "tree", *words)
    assert done.code == 0, done.stderr
    rows = [line.split()[1:4] for line in done.stdout.splitlines()[1:]]
    assert rows == [[CPU, "passed", "1"], ["torch-cuda", "not", "run"]]
    assert "torch-cuda: not run\nneeds an NVIDIA GPU" in done.stderr
    assert read_json(record, TestRecord).tested == (CPU,)
    named = kci("test", tmp_path / "tree", "--variant", CPU, "--variant", "torch-cuda", *words)
    assert named.code == 3
    assert "torch-cuda: built, not run: needs an NVIDIA GPU" in named.stderr


def test_a_gpu_needs_a_torch_that_kci_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tests, "has_device", lambda _: True)
    assert why_not_testable(CUDA, None).startswith("needs a Python with torch for cuda; kci's own ")


@pytest.mark.parametrize(("more", "code"), [([], 1), (["--allow-empty"], 0)])
def test_the_command_counts_nothing_as_tested_unless_asked_to(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], code: int
) -> None:
    make_variant(tmp_path / "tree", CPU, files=dict(GOOD))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    done = kci("test", tmp_path / "tree", "--variant", CPU, *more, KCI_CACHE=str(tmp_path))
    assert done.code == code, done.stderr
    assert "nothing ran" in done.stdout


@pytest.mark.usefixtures("python")
def test_a_full_abi_is_not_loaded_with_another_torch_and_that_is_said(tmp_path: Path) -> None:
    variant = make_variant(tmp_path / "tree", CPU, files=dict(GOOD))
    own = kernel_tests.parse_variant_name(CPU).framework_version
    test = partial(run_kernel_tests, variant, None, quiet, cache=tmp_path)
    other = test(torch="2.11")
    assert other.state is TestState.OTHER_TORCH
    assert other.output == f"built for torch {own}, whose full ABI torch 2.11 does not have"
    assert test(torch=own).state is TestState.NOTHING_RAN
    words = ("test", tmp_path / "tree", "--variant", CPU, "--torch", "2.11")
    done = kci(*words, KCI_CACHE=str(tmp_path))
    assert other.output in done.stderr
    assert other.output not in done.stdout


def test_the_torch_to_load_with_may_be_named_by_its_release(tmp_path: Path, python: Path) -> None:
    make_variant(tmp_path / "tree", CPU, files=dict(GOOD))
    where = ["test", tmp_path / "tree", "--variant", CPU, "--torch"]
    own = kernel_tests.parse_variant_name(CPU).framework_version
    done = kci(*where, f"{own}.0")
    assert "nothing ran" in done.stdout, done.stderr
    for wrong, said in (
        (f"{own}.7", f"kci loads variants with torch {own}.0"),
        ("new", "expected a version"),
    ):
        done = kci(*where, wrong)
        assert (done.code, said in done.stderr) == (2, True), done.stderr


def test_a_python_with_the_hardware_tests_the_variants_that_it_can_load(tmp_path: Path) -> None:
    """On a machine with CUDA 13.0 and torch 2.14: of four variants, the one for that."""
    fits = "torch214-cxx11-cu130-x86_64-linux"
    for name in (CPU, CUDA, fits, "torch214-cxx11-cu126-x86_64-linux"):
        make_variant(tmp_path / "tree", name, archs=("9.0",) if "cu" in name else None)
    kernel = write_tree(tmp_path / "kernel", {"tests/test_it.py": "# fine\n"})
    python = python_with_cuda(tmp_path)
    done = kci("test", tmp_path / "tree", "--kernel", kernel, "--python", python)
    rows = [line.split()[1:3] for line in done.stdout.splitlines()[1:]]
    assert rows == [[fits, "passed"]], done.stderr
    assert done.code == 0


def test_tests_of_a_cpu_variant_need_a_torch_for_the_cpu(tmp_path: Path) -> None:
    """They ask for the kernel by its name, and the loader looks for what torch is for."""
    make_variant(tmp_path / "tree", "torch-stable-abi211-cpu-x86_64-linux")
    done = kci("test", tmp_path / "tree", "--python", python_with_cuda(tmp_path))
    assert done.code == 3
    needs = "needs a Python with torch for the CPU: in this one tests get the variant for cuda"
    assert f"not run: {needs}" in done.stderr


def test_a_python_that_can_load_nothing_is_no_success(tmp_path: Path) -> None:
    make_variant(tmp_path / "tree", CUDA, archs=("9.0",))
    done = kci("test", tmp_path / "tree", "--python", python_with_cuda(tmp_path))
    assert done.code == 3, "this Python lacks a torch that the variant is for"
    assert "needs torch 2.13" in done.stderr
    record, python = tmp_path / "out" / "record.json", python_with_cuda(tmp_path / "other")
    words = ["--kernel", ROOT / "examples" / "swiglu", "--python", python, "--record", record]
    kci("test", tmp_path / "tree", *words)
    said = read_json(record, TestRecord)
    assert (said.kernel, said.passed, said.tested) == ("swiglu", False, ())
    assert "needs torch 2.13" in said.error


ARM = "torch213-cxx11-cpu-aarch64-linux"


def test_who_has_not_the_machine_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kci.cli.test.verify", lambda *_, **__: [])
    make_variant(tmp_path / "tree", ARM)
    done = kci("test", tmp_path / "tree")
    assert (done.code, done.stdout) == (3, "")
    assert f"{ARM}: built, verified, not run: needs a machine of aarch64-linux" in done.stderr


def test_a_gpu_is_there_if_nvidia_smi_lists_it(bare: Bare) -> None:
    assert not kernel_tests.has_device("cuda")
    for code, there in ((0, True), (9, False)):
        bare.add("nvidia-smi", f'[ "$*" = --list-gpus ] && exit {code}\nexit 77\n')
        assert kernel_tests.has_device("cuda") is there


def test_a_job_tests_what_the_tree_has_of_its_variants(tmp_path: Path) -> None:
    """A variant that no leg has built is no reason to test none: that it lacks is what the gate
    says.
    """
    artifact = make_artifact(tmp_path / "a", make_variant(tmp_path, CPU))
    assert kci("merge", artifact, "--into", tmp_path / "tree").code == 0
    there, told = _job(tmp_path / "tree", [CPU, CUDA])
    assert there == (CPU,)
    assert told == tree_under_test(read_manifest(tmp_path / "tree").digests, [CPU])


# --- what a Python can load, and which variants are for it ---

CUDA_AND_ROCM = {
    (("2.13.1",), "13.1", "cuda"): {
        True: "torch-cpu torch-universal torch-cuda torch213-cxx11-cu130 torch-stable-abi211-cu130",
        False: "torch-rocm torch213-cxx11-cu132 torch213-cxx11-cu126 torch212-cxx11-cu130 "
        "torch-stable-abi214-cu130",
    },
    # Builds of the night, and those of AMD: versions may have more than numbers.
    (("2.15.0.dev20261020", "2.15.0a0"), "7.1.25424-4179531dcd", "rocm"): {
        True: "torch-rocm torch215-cxx11-rocm71 torch-stable-abi215-rocm71",
        False: "torch215-cxx11-rocm72 torch215-cxx11-rocm70 torch214-cxx11-rocm71",
    },
}


@pytest.mark.parametrize(
    ("torches", "toolkit", "backend", "name", "fits"),
    [
        (*machine, f"{name}-x86_64-linux" if name.count("-") > 1 else name, fits)
        for machine, answers in CUDA_AND_ROCM.items()
        for fits, names in answers.items()
        for name in names.split()
    ],
)
def test_which_environment_can_load_a_variant(
    monkeypatch: pytest.MonkeyPatch, torches: tuple[str, ...], toolkit: str, backend: str,
    name: str, fits: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr("kci.run.loader.this_system", lambda: "x86_64-linux")
    for torch in torches:
        environment = LoaderEnvironment(torch=torch, toolkit=toolkit, backend=backend)
        assert (why_incompatible(parse_variant_name(name), environment) == "") is fits


def test_a_python_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kci.run.loader._SECONDS", 0.1)
    hangs = program(tmp_path, "python", "exec sleep 60\n")
    failure(MissingToolError, "does not answer", probe, hangs)


def test_a_python_that_cannot_load_kernels(tmp_path: Path) -> None:
    for python in (tmp_path / "none", program(tmp_path, "python", "echo hello\n")):
        failure(MissingToolError, "does not answer", probe, python)
    answer = 'kci-load-result:{"lacks": "No module named torch"}'
    lacks = program(tmp_path, "python", f"echo '{answer}'\n")
    failure(MissingToolError, "cannot load kernels: No module named torch", probe, lacks)
