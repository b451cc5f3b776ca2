"""`kci run --engine --test`: which legs test what where, what they are told, and that only a good record counts."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest

from cli.runner import Result, kci
from conftest import ROOT
from kci.ci.run_records import TestRecord
from kci.config.engine_settings import EngineKind, EngineSettings
from kci.config.values import Backend
from kci.matrix.names import Kind
from kci.matrix.variants import KernelMatrix, Matrix, Variant
from kci.plan.machines import UNKNOWN
from kci.plan.plan import Leg
from kci.remote.engine_choice import has_hardware, need_of
from kci.remote.engine_plan import EngineRun, group_tests
from kci.remote.job import EngineJob, Fetched, HardwareNeed, JobResult
from kci.remote.leg_results import require_passed
from run.cuda_python import python_with_cuda

GPU = """
[engines.gpu]
type = "local"
poll-seconds = 0.05
builds = false
tests = ["cuda"]
capability = "{capability}"
"""


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("build", "__pycache__")
    return Path(shutil.copytree(ROOT / "examples" / "swiglu", tmp_path / "swiglu", ignore=ignored))


def configure(kernel_dir: Path, *, capability: str = "9.0", record: str = "", more: str = "", build: str = "") -> None:
    """An engine that builds and one that tests on a GPU that it says it has.

    Args:
        kernel_dir: with the kernel.
        capability: of the GPU.
        record: what the leg hands back in place of what `kci test` would.
        more: lines of the GPU's engine.
        build: what the kci that builds does first.
    """
    own = kernel_dir.parent / "kci.sh"
    last = 'for word; do case "$before" in --record) record=$word;; esac; before=$word; done'
    forged = f"if [ $1 = test ]; then {last}; {record}; fi" if record else ""
    own.write_text(f'#!/bin/sh\n{forged}\n{build}\nexec "{sys.executable}" -m kci "$@"\n')
    own.chmod(0o755)
    python = python_with_cuda(kernel_dir.parent)
    started = f'kci = ["{own}"]\ntest-python = "{python}"\n'
    (kernel_dir / "kci.toml").write_text(
        f'[engines.here]\ntype = "local"\npoll-seconds = 0.05\nkci = ["{own}"]\ntests = ["rocm"]\n'
        + GPU.format(capability=capability) + started + more
    )  # fmt: skip


def run(kernel_dir: Path, *arguments: str) -> Result:
    arguments = arguments or (str(kernel_dir), "--engine", "auto", "--test", "--backend", "cuda")
    return kci("run", *arguments, "--cache", kernel_dir.parent / "cache")


def jobs(kernel_dir: Path) -> dict[str, tuple[Path, EngineJob]]:
    folders = (kernel_dir.parent / "cache" / "runs").glob("*/jobs/*")
    found = [(folder, msgspec.json.decode((folder / "job.json").read_bytes(), type=EngineJob)) for folder in folders]
    return {job.leg: (folder, job) for folder, job in found}


def states(result: Result) -> dict[str, list[str]]:
    rows = (line.split() for line in result.stdout.splitlines() if line.startswith("swiglu  "))
    return {row[1]: row[2:] for row in rows}


def test_the_merged_tree_is_tested_where_the_hardware_is(kernel_dir: Path) -> None:
    configure(kernel_dir)
    result = run(kernel_dir)
    assert result.code == 0, result.stderr
    assert states(result)["test-cuda"][:2] == ["gpu", "passed"]
    assert "tested torch-cuda" in result.stdout
    folder, job = jobs(kernel_dir)["test-cuda"]
    assert job.hardware == HardwareNeed("cuda", "7.5")
    assert job.artifacts == ("kci-test.json",)
    sources, tree = job.inputs
    assert (sources.name, tree.name) == ("source.tar", "tree.tar")
    archive = folder.parent.parent / "inputs" / tree.sha256
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == tree.sha256
    with tarfile.open(archive) as opened:
        assert {name.split("/")[1] for name in opened.getnames()} == {"torch-cuda"}
    words = " ".join(job.command)
    assert " test source --tree {work}/tree --record {out}/kci-test.json --python " in words
    assert words.endswith("--variant torch-cuda")


def test_a_failed_test_fails_the_run_and_names_kernel_variant_and_line(kernel_dir: Path) -> None:
    configure(kernel_dir)
    (kernel_dir / "tests" / "test_swiglu.py").write_text("BROKEN")
    result = run(kernel_dir)
    assert result.code == 1, result.stderr
    assert "swiglu/test-cuda failed: swiglu torch-cuda: failed: AssertionError: 3 is not 4" in result.stderr
    assert states(result)["torch-cuda"][1] == "built"
    assert (kernel_dir / "build" / "torch-cuda").is_dir()


def test_a_kernel_of_whose_tests_none_ran_fails_unless_allowed(kernel_dir: Path) -> None:
    configure(kernel_dir)
    (kernel_dir / "tests" / "test_swiglu.py").write_text("NOTHING")
    result = run(kernel_dir)
    assert result.code == 1
    assert "swiglu torch-cuda: nothing ran" in result.stderr
    allowed = run(kernel_dir, str(kernel_dir), "--engine", "auto", "--test", "--backend", "cuda", "--allow-empty")
    assert allowed.code == 0, allowed.stderr


def test_nothing_to_test_is_refused_before_anything_runs_unless_allowed(kernel_dir: Path) -> None:
    configure(kernel_dir, capability="7.0")
    result = run(kernel_dir)
    assert result.code == 1
    assert "nothing would be tested: no engine of this run tests cuda 7.5 or newer" in result.stderr
    assert not (kernel_dir.parent / "cache" / "runs").exists()
    allowed = run(kernel_dir, str(kernel_dir), "--engine", "auto", "--test", "--backend", "cuda", "--allow-empty")
    assert allowed.code == 0, allowed.stderr
    assert "untested" in allowed.stdout


def test_what_was_not_built_is_not_tested_and_that_is_no_success(kernel_dir: Path) -> None:
    configure(kernel_dir, build='case "$*" in *"build "*torch-cuda*) echo "error: no"; exit 4;; esac')
    result = run(kernel_dir, str(kernel_dir), "--engine", "auto", "--test")
    assert result.code == 4
    assert "swiglu/test-cuda failed: nothing to test: none of torch-cuda is in the tree" in result.stderr


FORGED = {
    "another kernel's": ('"kernel":"relu","passed":true,"tested":["torch-cuda"]', "of something else: relu"),
    "another variant's": ('"kernel":"swiglu","passed":true,"tested":["torch-cpu"]', "swiglu torch-cpu"),
    "nothing tested": ('"kernel":"swiglu","passed":true', "none of torch-cuda was tested"),
    "none": ("junk", "kci-test.json is not the record of a test"),
    "control characters": ('"kernel":"swiglu","passed":false,"error":"a\\\\u001b]0;b\\\\u0007"', "swiglu a ]0;b"),
}


@pytest.mark.parametrize("what", FORGED)
def test_only_a_good_record_of_these_variants_counts(kernel_dir: Path, what: str) -> None:
    text, said = FORGED[what]
    configure(kernel_dir, record=f'printf \'{{"leg":"t","attempt":1,{text}}}\' > "$record"; exit 0')
    result = run(kernel_dir)
    assert result.code == 1, result.stderr
    assert said in result.stderr
    assert not set(result.stderr) & {"\x1b", "\x07"}


def test_a_good_record_of_a_command_that_failed_does_not_count(kernel_dir: Path) -> None:
    text = '{"kernel":"swiglu","leg":"t","attempt":1,"passed":true,"tested":["torch-cuda"]}'
    configure(kernel_dir, record=f"printf '{text}' > \"$record\"; exit 9")
    result = run(kernel_dir)
    assert result.code == 4
    assert "its command ended with code 9" in result.stderr


@pytest.mark.parametrize("tested", [("torch-cpu", "torch-cuda"), ("torch-cuda",)])
def test_what_a_machine_cannot_load_is_named_and_nothing_else(tmp_path: Path, tested: tuple[str, ...]) -> None:
    both = ("torch-cpu", "torch-cuda")
    record = TestRecord("swiglu", "test", 1, True, tested=tested)
    (tmp_path / "kci-test.json").write_bytes(msgspec.json.encode(record))
    job = EngineJob(
        name="kci-job-1", run="r", attempt=1, kernel="swiglu", leg="test", variants=both, command=(), cores=1,
        memory_gb=1, timeout=1, most_bytes=1000, let_through=(), artifacts=("kci-test.json",),
    )  # fmt: skip
    result = JobResult("kci-job-1", 0, 1.0, "exit")
    fetched = Fetched(result, (tmp_path / "kci-test.json",), tmp_path / "log")
    said = require_passed(job, fetched, EngineRun(id="r", legs=(), engines={}, planned=frozenset(), trees={}))
    assert said == f"tested {', '.join(tested)}" + ("; it cannot load torch-cpu" if tested != both else "")


def test_a_leg_that_leaves_no_record_has_not_tested(kernel_dir: Path) -> None:
    configure(kernel_dir, record="exit 0")
    result = run(kernel_dir)
    assert result.code == 4
    assert "swiglu was not tested: its leg left no kci-test.json" in result.stderr


def test_tests_are_in_the_estimate_that_max_cost_refuses(kernel_dir: Path) -> None:
    configure(kernel_dir, more="price = 60.0\n")
    result = run(kernel_dir, str(kernel_dir), "--engine", "auto", "--test", "--backend", "cuda", "--max-cost", "9")
    assert result.code == 1
    assert "10.00 USD" in result.stderr


def test_testing_is_for_engines(kernel_dir: Path) -> None:
    result = run(kernel_dir, str(kernel_dir), "--test")
    assert result.code == 2
    assert "kci test" in result.stderr


def test_a_resumed_run_tests_what_it_has_merged(kernel_dir: Path) -> None:
    configure(kernel_dir)
    first = run(kernel_dir)
    identifier = first.stderr.split()[1].rstrip(":")
    shutil.rmtree(kernel_dir / "build")
    again = run(kernel_dir, "--resume", identifier)
    assert (again.code, again.stdout) == (0, first.stdout)
    assert len((jobs(kernel_dir)["test-cuda"][0] / "executions").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("engine", "need", "has"),
    [
        ({}, HardwareNeed("cuda", "8.0"), True),
        ({"capability": "8.9"}, HardwareNeed("cuda", "8.0"), True),
        ({"capability": "8.9"}, HardwareNeed("cuda", "9.0"), False),
        ({"capability": "10.0"}, HardwareNeed("cuda", "9.0"), True),
        ({"capability": "8.9"}, HardwareNeed("rocm", archs=("gfx942",)), True),
        ({"archs": ("gfx942",)}, HardwareNeed("rocm", archs=("gfx90a", "gfx942")), True),
        ({"archs": ("gfx942",)}, HardwareNeed("rocm", archs=("gfx90a",)), False),
        ({}, HardwareNeed("xpu"), False),
        ({"type": EngineKind.HF_JOBS}, HardwareNeed("cuda", "7.5"), True),
        ({"type": EngineKind.HF_JOBS}, HardwareNeed("cuda", "99.0"), False),
        ({"type": EngineKind.HF_JOBS, "flavor": "cpu-upgrade"}, HardwareNeed("cuda", "7.5"), False),
        ({"type": EngineKind.HF_JOBS, "flavor": "a-new-one"}, HardwareNeed("cuda", "7.5"), True),
    ],
)
def test_an_engine_tests_what_its_hardware_runs(engine: dict[str, object], need: HardwareNeed, has: bool) -> None:
    settings = {"type": EngineKind.SLURM, "tests": (Backend.CUDA, Backend.ROCM), "cores": 1, "memory_gb": 1, **engine}
    assert has_hardware(EngineSettings(**settings), need) is has  # type: ignore[arg-type]


def test_what_a_variant_needs_is_the_least_of_its_archs() -> None:
    assert need_of("cuda", ["10.0a", "9.0+PTX", "12.0"]) == HardwareNeed("cuda", "9.0")
    assert need_of("rocm", ["gfx942", "gfx90a"]) == HardwareNeed("rocm", archs=("gfx90a", "gfx942"))
    assert need_of("cpu", None) == HardwareNeed("cpu")


def test_variants_with_the_same_need_are_tested_together() -> None:
    archs = {"torch213-cxx11-cu130-x86_64-linux": ("8.0",), "torch214-cxx11-cu130-x86_64-linux": ("8.0", "9.0"),
             "torch214-cxx11-cu132-x86_64-linux": ("9.0a",)}  # fmt: skip
    variants = tuple(
        Variant(name, Kind.FULL, "cuda", "x86_64-linux", "2.13", "13.0", None, None, item, bundled=True)
        for name, item in archs.items()
    )
    legs = [
        Leg("k", ".", name, (name,), name, Kind.FULL, "cuda", "x86_64-linux", ("x",), "an-image", 30, 9, False, UNKNOWN,
            None, "USD", "")
        for name in archs
    ]  # fmt: skip
    matrix = Matrix("release", "c", "d", (KernelMatrix("k", ".", 1, variants, ()),))
    found = group_tests(matrix, legs, {("k", "cuda"): 20})
    named = {item.leg.name: (item.need.minimum, len(item.leg.variants), item.leg.timeout) for item in found}
    assert named == {"test-cuda": ("8.0", 2, 20), "test-cuda-2": ("9.0", 1, 20)}
    assert found[0].leg.image == "an-image"
