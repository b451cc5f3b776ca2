"""A job of a scheduled run on a machine with the hardware: results of its own, and none about what
it cannot load.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from act.test_workflow import add_kernel
from buildkit import leg_request, quiet, write_tree
from kci.builders.request import BuildOptions
from kci.config.reader import read_kernel
from kci.errors import MissingToolError
from kci.matrix.variants import artifact_name
from kci.plan.workspace import open_workspace
from kci.run.build_leg import build_leg
from kci.watch.history import LegOutcome, LegResult, group_results, read_results
from kci.watch.scheduled_leg import blank_result, unpack_legs, watch_hardware, write_results
from run.cuda_python import python_with_cuda

RUN = blank_result(7, attempt=2, catalog="one", commit="c0ffee", log="https://example.invalid/7")


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A kernel for CUDA of Python only, with a test."""
    made = add_kernel(tmp_path, "some-kernel", ("cuda",))
    return write_tree(made, {"tests/test_it.py": ""})


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


def built(kernel: Path, tmp_path: Path, attempt: int = 1) -> Path:
    """A folder with the artifact of its variant."""
    workspace = open_workspace([kernel])
    artifact = tmp_path / "artifacts" / str(attempt) / artifact_name("some-kernel", "torch-cuda")
    options, output = BuildOptions(tmp_path / "cache", attempt=attempt), tmp_path / f"out-{attempt}"
    request = leg_request(workspace, output, options, artifact, "torch-cuda")
    build_leg(workspace, request, quiet)
    return tmp_path / "artifacts"


def watched(
    kernel: Path, tmp_path: Path, variants: list[Path], said: list[str] | None = None
) -> list[LegResult]:
    python = tmp_path / "cuda" / "python-with-torch"
    if not python.exists():
        python_with_cuda(tmp_path)
    log, cache = (said if said is not None else []).append, tmp_path / "cache"
    return list(watch_hardware(read_kernel(kernel), variants, python, RUN, cache, log))


def test_what_a_leg_built_is_tested_and_recorded_beside_its_build(
    kernel: Path, tmp_path: Path, into: Path
) -> None:
    names = ["torch-cuda", "torch214-cxx11-cu130-x86_64-linux"]
    variants = unpack_legs(built(kernel, tmp_path), names, into)
    assert [path.name for path in variants] == ["torch-cuda"]
    (result,) = watched(kernel, tmp_path, variants)
    assert result.leg == "some-kernel torch-cuda x86_64-linux+hardware 2.14 13.0"
    assert result.outcome is LegOutcome.PASSED
    assert (result.run, result.attempt, result.catalog) == (7, 2, "one")
    assert "kci test" in result.replay
    write_results(tmp_path / "results", [result])
    read, problems = read_results([tmp_path / "results"])
    assert (read, problems) == ([result], [])
    (run,) = group_results(read)
    assert run.passed == (result.leg,)


def test_a_test_that_fails_is_a_failure(kernel: Path, tmp_path: Path, into: Path) -> None:
    (kernel / "tests" / "test_it.py").write_text("BROKEN")
    variants = unpack_legs(built(kernel, tmp_path), ["torch-cuda"], into)
    (result,) = watched(kernel, tmp_path, variants)
    assert result.outcome is LegOutcome.FAILED
    assert result.error.startswith("error: failed")


def test_what_this_machine_cannot_load_has_no_result(kernel: Path, tmp_path: Path) -> None:
    other = tmp_path / "torch213-cxx11-cu126-x86_64-linux"
    said: list[str] = []
    assert watched(kernel, tmp_path, [other], said) == []
    assert said
    assert "is not tested on this machine" in said[0]


def test_no_artifact_is_nothing_to_test(tmp_path: Path) -> None:
    assert unpack_legs(tmp_path / "missing", ["torch-cuda"], tmp_path) == []


def test_the_newest_attempt_is_tested(kernel: Path, tmp_path: Path, into: Path) -> None:
    built(kernel, tmp_path)
    package = kernel / "torch-ext" / "some_kernel" / "__init__.py"
    package.write_text("def double(x):\n    return 2 * x\n")
    (found,) = unpack_legs(built(kernel, tmp_path, attempt=2), ["torch-cuda"], into)
    assert any("2 * x" in path.read_text() for path in found.rglob("__init__.py"))


def test_a_python_without_torch_is_said(kernel: Path, tmp_path: Path) -> None:
    what = read_kernel(kernel), [], tmp_path / "no-python", RUN, tmp_path, print
    with pytest.raises(MissingToolError):
        list(watch_hardware(*what))
