"""A leg of a scheduled run: what becomes of building and loading is a result, and nothing is told
as what it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from act.test_workflow import add_kernel
from buildkit import leg_request, quiet, write_tree
from conftest import ROOT
from kci.builders.request import BuildOptions
from kci.config.reader import read_kernel
from kci.errors import BuildFailedError, MissingToolError
from kci.matrix.variants import Kind, artifact_name
from kci.plan.workspace import open_workspace
from kci.run.build_leg import BuiltLeg, LegRequest, build_leg
from kci.run.kernel_tests import TestReport, TestState
from kci.watch import scheduled_leg
from kci.watch.history import LegOutcome, LegResult, group_results, read_results
from kci.watch.scheduled_leg import (
    blank_result,
    unpack_legs,
    watch_hardware,
    watch_leg,
    write_results,
)
from run.cuda_python import python_with_cuda

STABLE = "torch-stable-abi211-cpu-x86_64-linux"
RUN = blank_result(7, attempt=2, catalog="one", commit="c0ffee", log="https://example.invalid/7")
Answers = dict[str, TestState | MissingToolError]


Watched = Callable[..., list[LegResult]]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """The results of rms-norm's stable ABI, with a build and a loader that answer what they are
    told to.
    """

    def watched(
        build: object = None, answers: Answers | None = None, output: str = "", name: str = STABLE
    ) -> list[LegResult]:
        workspace = open_workspace([ROOT / "examples" / "rms-norm"], catalog="2026-09-17")

        def built(_workspace: object, request: LegRequest, _log: object) -> BuiltLeg:
            if isinstance(build, Exception):
                raise build
            return BuiltLeg(request.directory, None, None)  # type: ignore[arg-type]

        def tested(*_: object, cache: Path, torch: str) -> TestReport:
            answer = (answers or {}).get(torch, TestState.PASSED)
            if isinstance(answer, MissingToolError):
                raise answer
            return TestReport("rms-norm", name, answer, output=output)

        monkeypatch.setattr(scheduled_leg, "build_leg", built)
        monkeypatch.setattr(scheduled_leg, "run_kernel_tests", tested)
        options = BuildOptions(tmp_path)
        request = leg_request(workspace, tmp_path / "out", options, name=name, tier="compat")
        return watch_leg(workspace, request, RUN, "kci build", quiet)

    return watched


def outcomes(results: list[LegResult]) -> dict[str, LegOutcome]:
    return {result.torch: result.outcome for result in results}


def test_a_stable_abi_is_built_once_and_loaded_with_every_torch(watched: Watched) -> None:
    results = watched()
    assert outcomes(results) == dict.fromkeys(["2.11", "2.12", "2.13", "2.14"], LegOutcome.PASSED)
    first = results[0]
    assert (first.run, first.attempt, first.catalog, first.commit) == (7, 2, "one", "c0ffee")
    assert first.replay.startswith("kci build && kci test --kernel=")
    assert first.replay.endswith("--torch=2.11 build"), "the build of the replay writes to build/"


def test_each_torch_has_a_result_of_its_own(watched: Watched) -> None:
    answers: Answers = {
        "2.12": TestState.NOT_LOADED,
        "2.13": MissingToolError("no torch"),
        "2.14": TestState.NOTHING_RAN,
    }
    output = "Traceback\n  File x\nImportError: undefined symbol: gone"
    results = watched(answers=answers, output=output)
    assert [(torch, str(outcome)) for torch, outcome in outcomes(results).items()] == [
        ("2.11", "passed"), ("2.12", "failed"), ("2.13", "skipped"), ("2.14", "passed"),
    ]  # fmt: skip
    (run,) = group_results(results)
    (failure,) = run.failed
    assert failure.error == "error: not loaded: ImportError: undefined symbol: gone"
    assert "File x" in failure.excerpt


def test_what_a_test_says_is_the_error(watched: Watched) -> None:
    output = "tests/t.py:3\nE       assert 1 == 2\nFAILED tests/t.py::test_x\n1 failed"
    (failed, *_) = watched(answers={"2.11": TestState.FAILED}, output=output)
    assert failed.error.splitlines()[0] == "error: failed: assert 1 == 2"


def test_a_build_that_fails_leaves_the_other_torches_unknown(watched: Watched) -> None:
    said = "the compiler refused:\nin a.cpp\na.cpp:3: error: no member named 'x'"
    results = watched(BuildFailedError(said))
    skipped = dict.fromkeys(["2.11", "2.12", "2.13"], LegOutcome.SKIPPED)
    assert outcomes(results) == {"2.14": LegOutcome.FAILED, **skipped}
    (run,) = group_results(results)
    assert run.failed[0].error == "a.cpp:3: error: no member named 'x'"
    assert len(run.unknown) == 3


def test_a_machine_that_lacks_something_says_nothing_about_the_kernel(watched: Watched) -> None:
    lacking = watched(MissingToolError("nvcc is not installed"))
    assert set(outcomes(lacking).values()) == {LegOutcome.SKIPPED}


def test_what_cannot_be_loaded_here_is_built(watched: Watched) -> None:
    results = watched(name="torch-stable-abi211-cu130-x86_64-linux")
    assert [(result.outcome, result.torch) for result in results] == [(LegOutcome.PASSED, "2.14")]
    assert results[0].compute.startswith("13.0")


def test_results_are_files_that_can_be_recorded(tmp_path: Path, watched: Watched) -> None:
    results = watched()
    write_results(tmp_path / "results", results)
    read, problems = read_results([tmp_path / "results"])
    assert problems == []
    assert sorted(read, key=lambda item: item.torch) == results


def test_the_compat_tier_builds_a_stable_abi_as_the_release_does() -> None:
    workspace = open_workspace([ROOT / "examples" / "rms-norm"], catalog="2026-09-17")
    released, watched_one = workspace.variant(STABLE), workspace.variant(STABLE, tier="compat")
    assert watched_one.kind is Kind.STABLE_ABI
    assert watched_one.loads == ("2.11", "2.12", "2.13", "2.14")
    assert msgspec.structs.replace(watched_one, loads=released.loads) == released


# --- a machine with the hardware: results of its own, and none about what it cannot load ---


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


def on_hardware(
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
    (result,) = on_hardware(kernel, tmp_path, variants)
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
    (result,) = on_hardware(kernel, tmp_path, variants)
    assert result.outcome is LegOutcome.FAILED
    assert result.error.startswith("error: failed")


def test_what_this_machine_cannot_load_has_no_result(kernel: Path, tmp_path: Path) -> None:
    other = tmp_path / "torch213-cxx11-cu126-x86_64-linux"
    said: list[str] = []
    assert on_hardware(kernel, tmp_path, [other], said) == []
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
