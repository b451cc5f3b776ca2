"""`kci test`: what is chosen, what is told, and that nothing which did not run counts as tested."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
    """One gets it by the name of its repository, the other imports it by its own, and one leaves a
    process running. build.toml may lie beside tests/, or in src/.
    """
    os.mkfifo(tmp_path / "never")
    leaves = f"os.fork() or open({str(tmp_path / 'never')!r}).read()"
    by_name = 'gated = get_kernel("somebody/gated-norm")'
    imports = TEST.replace(by_name, "import os, gated_norm as gated")
    imports = imports.replace("    assert gated", f"    {leaves}\n    assert gated")
    report = outcome(tmp_path, GOOD, test_it=TEST, test_import=imports)
    assert report.state is TestState.PASSED, report.output
    assert (report.passed, report.failed, report.skipped) == (2, 0, 0)
    assert files_in(tmp_path / "tree" / CPU) == ["__init__.py", "metadata.json"]
    inner = write_tree(tmp_path / "kernel" / "src", {"build.toml": ""})
    (tmp_path / "kernel" / "build.toml").unlink()
    again = run_kernel_tests(tmp_path / "tree" / CPU, inner, quiet, cache=tmp_path)
    assert (again.state, again.passed) == (TestState.PASSED, 2), again.output


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


GPU, ARM = ("torch-cuda", "torch-rocm"), "torch213-cxx11-cpu-aarch64-linux"


@pytest.mark.parametrize(
    ("names", "words"),
    [(GPU, []), (GPU, ["--variant", "torch-cuda"]), ([ARM], [])],
    ids=["all", "named", "another machine's"],
)
@pytest.mark.usefixtures("no_gpu")
def test_without_the_machine_a_sound_variant_is_built_and_verified_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: Sequence[str], words: list[str]
) -> None:
    """ "Build one" would be false, and what the loader says of a missing driver helps nobody."""
    needs = {"torch-cuda": "an NVIDIA GPU", "torch-rocm": "an AMD GPU"}
    needs[ARM] = "a machine of aarch64-linux"
    for name in names:
        make_variant(tmp_path / "tree", name, archs=None)
    if names == [ARM]:
        monkeypatch.setattr("kci.cli.test.verify", lambda *_, **__: [])  # its library is none
    done = kci("test", tmp_path / "tree", *words)
    assert (done.code, done.stdout, "Traceback" in done.stderr) == (3, "", False)
    for name, need in needs.items():
        listed = name in names and name in (words or names)
        assert (f"{name}: built, verified, not run: needs {need}" in done.stderr) is listed
    assert "kci test --no-isolation" in done.stderr


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


@pytest.mark.usefixtures("python")
def test_the_command_counts_nothing_as_tested_unless_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_variant(tmp_path / "tree", CPU, files=dict(GOOD))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    for more, code in (((), 1), (("--allow-empty",), 0)):
        done = kci("test", tmp_path / "tree", "--variant", CPU, *more, KCI_CACHE=str(tmp_path))
        assert (done.code, "nothing ran" in done.stdout) == (code, True), done.stderr


@pytest.mark.usefixtures("python")
def test_a_full_abi_is_not_loaded_with_another_torch_and_that_is_said(tmp_path: Path) -> None:
    variant = make_variant(tmp_path / "tree", CPU, files=dict(GOOD))
    own = kernel_tests.parse_variant_name(CPU).framework_version
    test = partial(run_kernel_tests, variant, None, quiet, cache=tmp_path)
    other = test(torch="2.11")
    assert other.state is TestState.OTHER_TORCH
    assert other.output == f"built for torch {own}, whose full ABI torch 2.11 does not have"
    assert test(torch=own).state is TestState.NOTHING_RAN
    words = ("test", tmp_path / "tree", "--variant", CPU, "--torch")
    done = kci(*words, "2.11", KCI_CACHE=str(tmp_path))
    assert (other.output in done.stderr, other.output in done.stdout) == (True, False)
    assert "nothing ran" in kci(*words, f"{own}.0").stdout
    for wrong, said in (
        (f"{own}.7", f"kci loads variants with torch {own}.0"),
        ("new", "expected a version"),
    ):
        done = kci(*words, wrong)
        assert (done.code, said in done.stderr) == (2, True), done.stderr


STABLE = "torch-stable-abi211-cpu-x86_64-linux"


def test_a_python_with_the_hardware_tests_the_variants_that_it_can_load(tmp_path: Path) -> None:
    """On a machine with CUDA 13.0 and torch 2.14: of four variants, the one for that. Tests of one
    for the CPU ask for the kernel by its name, and the loader looks for what torch is for.
    """
    fits = "torch214-cxx11-cu130-x86_64-linux"
    kernel = write_tree(tmp_path / "kernel", {"tests/test_it.py": "# fine\n"})
    python, record = python_with_cuda(tmp_path), tmp_path / "out" / "record.json"
    for_cpu = "for the CPU: in this one tests get the variant for cuda"
    for number, (names, more, code, said) in enumerate(
        (
            ((CPU, CUDA, fits, "torch214-cxx11-cu126-x86_64-linux"), ["--kernel", kernel], 0, ""),
            ((STABLE,), [], 3, f"not run: needs a Python with torch {for_cpu}"),
            ((CUDA,), ["--kernel", ROOT / "examples" / "swiglu", "--record", record], 3,
                "needs torch 2.13"),
        )
    ):  # fmt: skip
        tree = tmp_path / str(number)
        for name in names:
            make_variant(tree, name, archs=("9.0",) if "cu" in name else None)
        done = kci("test", tree, "--python", python, *more)
        rows = [line.split()[1:3] for line in done.stdout.splitlines()[1:]]
        assert (done.code, rows) == (code, [[fits, "passed"]] * (not code)), done.stderr
        assert said in done.stderr
    written = read_json(record, TestRecord)
    assert (written.kernel, written.passed, written.tested) == ("swiglu", False, ())
    assert "needs torch 2.13" in written.error


def test_a_gpu_is_there_if_nvidia_smi_lists_it_and_needs_a_torch_that_kci_does_not_have(
    bare: Bare,
) -> None:
    assert not kernel_tests.has_device("cuda")
    for code, there in ((9, False), (0, True)):
        bare.add("nvidia-smi", f'[ "$*" = --list-gpus ] && exit {code}\nexit 77\n')
        assert kernel_tests.has_device("cuda") is there
    assert why_not_testable(CUDA, None).startswith("needs a Python with torch for cuda; kci's own ")


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


def test_a_python_that_cannot_load_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kci.run.loader._SECONDS", 1)
    hangs, hello = (
        program(tmp_path, name, does)
        for name, does in (("a", "exec sleep 60\n"), ("b", "echo hello\n"))
    )
    for python in (tmp_path / "none", hangs, hello):
        failure(MissingToolError, "does not answer", probe, python)
    answer = 'kci-load-result:{"lacks": "No module named torch"}'
    lacks = program(tmp_path, "python", f"echo '{answer}'\n")
    failure(MissingToolError, "cannot load kernels: No module named torch", probe, lacks)
