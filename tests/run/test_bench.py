"""`kci bench`: numbers that hold, slowdowns that are found in noise, and scripts that try to pass without any."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from huggingface_hub import HfApi, constants

from buildkit import write_tree
from cli.runner import Result, kci
from conftest import ROOT
from kci.errors import FindingsError, UnsafeError, UsageError
from kci.files.bounded_json import decode_json, read_record
from kci.hub import fetched
from kci.hub.fetched import NothingEarlierError
from kci.run import benchmarks, kernel_tests
from kci.run.bench_numbers import change_of, summed_up
from kci.run.benchmarks import with_benchmarks
from kci.run.kernel_tests import Loader, TestReport, TestState
from kci.run.published_builds import other_build, published_tree
from kci.tree.digest import directory_digest, file_hashes
from kci.watch.bench_history import BenchRecord, TimeChange, Verdict, bench_file, benches_of
from kci.watch.bench_page import bench_page
from kci.workspace.workspace import Workspace, open_workspace
from publish.fake_hub import FakeHub, serving
from publish.test_publish import hub_environment
from run.benchkit import SCRIPT, WORK, kernel_with, python_for_benchmarks, tree_that_takes
from variants import CPU, CUDA, make_variant

STEPS = 5000
FEW = ("--rounds", "1", "--iterations", "5")


def bench(tmp_path: Path, *words: str | Path, script: str = SCRIPT, steps: int = 200) -> Result:
    """The benchmarks of a kernel on a build that takes so many steps; tests that measure nothing take few."""
    kernel, python = kernel_with(tmp_path / "kernel", script), python_for_benchmarks(tmp_path)
    tree = tree_that_takes(tmp_path / "new", steps)
    return kci("bench", kernel, "--tree", tree, "--python", python, *words)


def record_of(done: Result) -> BenchRecord:
    (one,) = decode_json(done.stdout, dict[str, Any])["benchmarks"]
    return msgspec.convert(one, BenchRecord)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_times_are_summed_up_as_the_reference_does() -> None:
    found = summed_up([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found.mean_ms, found.min_ms, found.max_ms, found.iterations) == (22.0, 1.0, 100.0, 5)
    assert (found.q1_ms, found.q3_ms, found.iqr_ms, found.outliers) == (2.0, 4.0, 2.0, 1)
    assert found.std_ms == pytest.approx(39.0128, abs=1e-4)  # of the population
    assert summed_up([2.0]).q1_ms == 2.0


def noisy(chance: random.Random, slower: float, by_round: float = 0.02, by_pair: float = 0.1) -> list[list[float]]:
    """Ratios of six rounds of twenty pairs: each process has its own pace, and each pair its own disturbance."""
    rounds = [slower * chance.lognormvariate(0, by_round) for _ in range(6)]
    return [[pace * chance.lognormvariate(0, by_pair) for _ in range(20)] for pace in rounds]


def test_a_slowdown_of_20_percent_is_found_and_none_is_claimed_without_one() -> None:
    chance = random.Random(7)
    assert {change_of(noisy(chance, 1.2)).verdict for _ in range(40)} == {Verdict.SLOWER}
    assert {change_of(noisy(chance, 1 / 1.2)).verdict for _ in range(40)} == {Verdict.FASTER}
    assert {change_of(noisy(chance, 1.0)).verdict for _ in range(40)} <= {Verdict.SAME, Verdict.UNCLEAR}


def test_noise_that_is_larger_than_the_change_has_no_verdict() -> None:
    chance = random.Random(7)
    found = [change_of(noisy(chance, 1.0, by_round=0.3)).verdict for _ in range(40)]
    assert set(found) == {Verdict.UNCLEAR}


def test_too_few_processes_have_no_verdict_whatever_they_say() -> None:
    assert change_of([[1.5] * 20] * 4).verdict is Verdict.UNCLEAR
    assert change_of([[1.5] * 20] * 5).verdict is Verdict.SLOWER


@pytest.mark.parametrize(
    ("agree", "disagree", "verdict"), [(8, 1, "no verdict"), (19, 2, "slower"), (26, 3, "no verdict")]
)
def test_a_tenth_of_the_rounds_that_disagrees_is_too_few_to_matter(agree: int, disagree: int, verdict: str) -> None:
    rounds = [*[[1.3] * 20] * agree, *[[0.9] * 20] * disagree]
    assert change_of(rounds).verdict == verdict
    turned = {"slower": "faster"}.get(verdict, verdict)
    assert change_of([[1 / ratio for ratio in ratios] for ratios in rounds]).verdict == turned


@pytest.mark.parametrize(("verdict", "rounds"), [("no verdict", 15), ("same", 5)])
def test_what_has_no_verdict_is_measured_again(
    verdict: str, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kci.run.benchmarks.change_of", lambda _: TimeChange(1.0, 0.9, 1.1, Verdict(verdict)))
    kernel, old = kernel_with(tmp_path / "kernel"), tree_that_takes(tmp_path / "old", 5)
    words = ("--python", python_for_benchmarks(tmp_path), "--rounds", "5", "--iterations", "5", "--format", "json")
    record = record_of(kci("bench", kernel, "--tree", old, "--against", old, *words))
    assert (record.kci.rounds, record.results[0].timing.iterations) == (rounds, 5 * rounds)


def test_the_same_numbers_give_the_same_answer() -> None:
    ratios = noisy(random.Random(1), 1.1)
    assert change_of(ratios) == change_of(ratios)


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_build_that_takes_three_times_as_long_is_told_from_one_that_does_not(tmp_path: Path) -> None:
    """A ratio that no disturbance of one round turns: a round that disagrees leaves no verdict, as it should.

    How small a change is found is benchmarks/bench_noise.py.
    """
    kernel, python = kernel_with(tmp_path / "kernel"), python_for_benchmarks(tmp_path)
    old, same, slow = (tree_that_takes(tmp_path / name, steps) for name, steps in
                       (("old", STEPS), ("same", STEPS), ("slow", STEPS * 3)))  # fmt: skip
    words = ("bench", kernel, "--python", python, "--against", old, "--iterations", "60", "--format", "json")
    found = kci(*words, "--tree", slow)
    change = record_of(found).results[0].kci.change
    assert change is not None
    assert (found.code, change.verdict) == (1, Verdict.SLOWER), found
    alike = record_of(kci(*words, "--tree", same)).results[0].kci.change
    assert alike is not None
    assert alike.verdict in (Verdict.SAME, Verdict.UNCLEAR), alike


def test_the_record_has_the_reference_s_form_and_the_machine(tmp_path: Path) -> None:
    done = bench(tmp_path, *FEW, "--record", tmp_path / "out", "--history", tmp_path / "history")
    assert (done.code, "Norm.base" in done.stdout, "Quick CPU" in done.stdout) == (0, True, True), done
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == f"gated-norm.{CPU}.bench.json"
    said = decode_json(path.read_bytes(), dict[str, Any])
    assert said["machineInfo"] | {"os": ""} == {
        "gpu": "N/A", "backend": "CPU", "pytorchVersion": "2.13.0", "os": "", "cpu": "Quick CPU",
    }  # fmt: skip
    (one,) = said["results"]
    assert (one["workload"], one["verified"], one["timingResults"]["iterations"]) == ("Norm.base", True, 5)
    assert (said["kernelCommitSha"], len(said["benchmarkScriptSha"])) == ("1a2b3c4", 64)
    assert said["kci"]["threads"] == 2
    problems: list[object] = []
    assert benches_of(tmp_path / "history", problems.append) == [read_record(path, BenchRecord)]
    assert not problems


def test_records_among_results_get_into_a_history_and_onto_a_page(tmp_path: Path) -> None:
    assert bench(tmp_path, *FEW, "--record", tmp_path / "out").code == 0
    (tmp_path / "out" / "cut.bench.json").write_text("{")
    done = kci("compat", "record", tmp_path / "out", "--history", tmp_path / "history")
    assert (done.code, "KCI801" in done.stderr, "1 record of benchmarks; 1 new file" in done.stdout) == (1, True, True)
    made = kci("compat", "report", "--history", tmp_path / "history", "--into", tmp_path / "site")
    assert made.code == 0, made
    assert 'href="benchmarks.html"' in (tmp_path / "site" / "index.html").read_text()
    page = (tmp_path / "site" / "benchmarks.html").read_text()
    assert ("Norm.base" in page, "Quick CPU" in page, "<polyline" in page) == (True, True, True)


def test_a_page_escapes_what_a_record_says() -> None:
    machine = {"gpu": "<b>GPU</b>", "backend": "CUDA", "pytorchVersion": "2", "os": "", "cpu": ""}
    times = {"mean_ms": 1, "std_ms": 0, "min_ms": 1, "max_ms": 1, "q1_ms": 1, "q3_ms": 1, "iqr_ms": 0, "outliers": 0,
             "iterations": 1}  # fmt: skip
    result = {"workload": "A.b", "timingResults": times, "kci": {"median_ms": 1, "cold_ms": 1}}
    facts = {
        "kernel": "relu",
        "version": 1,
        "variant": CUDA,
        "digest": "",
        "at": "2026-01-01T00:00:00+00:00",
        "rounds": 1,
    }
    said = {"results": [result], "machineInfo": machine, "kernelCommitSha": "", "benchmarkScriptSha": "", "kci": facts}
    page = bench_page([msgspec.convert(said, BenchRecord)], "<i>title")
    assert ("<b>GPU" in page, "&lt;b&gt;GPU" in page, "<i>title" in page) == (False, True, False)
    for name in ("**bold**", "a|b", "@team", "x" * 300, "<img>"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(said | {"results": [result | {"workload": name}]}, BenchRecord)
    for time in (-1, 0, 1e308, float("nan"), float("inf")):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(said | {"results": [result | {"timingResults": times | {"mean_ms": time}}]}, BenchRecord)


# --- what must not pass -----------------------------------------------------------------------------------------------

HEAD = "from kernels.benchmark import Benchmark\n"
CLASS = f"{HEAD}class Norm(Benchmark):\n"
FAILS = {
    "exit 0": ("import os; os._exit(0)\n", "ended their process, with exit code 0"),
    "exit": ("raise SystemExit(0)\n", "SystemExit: 0"),
    "exit in a workload": (f"{CLASS}    def benchmark_a(self): raise SystemExit(0)\n", "Norm.a: SystemExit: 0"),
    "end in a workload": (f"{CLASS}    def benchmark_a(self): __import__('os')._exit(0)\n", "code 0, in Norm.a"),
    "no class": ("print('measured: 3 ms')\n", "there is no class of kernels.benchmark.Benchmark"),
    "no method": (f"{CLASS}    pass\n", "there is no class"),
    "imported class": ("from kernels.benchmark import Benchmark as Mine\n", "there is no class"),
    "wrong numbers": (
        f"{CLASS}    def benchmark_a(self): self.out = 1.0\n    def verify_a(self): return 2.0\n",
        "its numbers are not those of its verify_ method",
    ),
    "markdown": (f"{CLASS}    pass\nsetattr(Norm, 'benchmark_a|**b**', lambda self: None)\n", "not one that kci takes"),
    "many": (f"{CLASS}    pass\nfor n in range(10_000): setattr(Norm, f'benchmark_{{n}}', lambda self: None)\n",
             "10000 workloads are more than 500"),
    "error": (f"{CLASS}    def benchmark_a(self): self.kernel.gone()\n", "Norm.a: AttributeError"),
}  # fmt: skip


@pytest.mark.parametrize(("script", "said"), FAILS.values(), ids=FAILS)
def test_a_script_without_a_result_is_an_error(tmp_path: Path, script: str, said: str) -> None:
    done = bench(tmp_path, *FEW, script=script)
    assert (done.code, said in done.stderr, "Traceback" in done.stderr) == (1, True, False), done


def test_a_script_that_hangs_is_ended(tmp_path: Path) -> None:
    done = bench(
        tmp_path, *FEW, "--time-limit", "2", script=f"{CLASS}    def benchmark_a(self):\n        while True: pass\n"
    )
    assert (done.code, "did not end within 2 seconds, in Norm.a" in done.stderr) == (1, True), done


def test_garbage_on_stdout_and_a_clock_that_lies_change_nothing(tmp_path: Path) -> None:
    garbage = (
        "import os, sys, time\ntime.perf_counter_ns = lambda: float('nan')\ntime.perf_counter = time.perf_counter_ns\n"
        "print('{\"times\": [NaN]}'); os.write(1, b'\\xff\\n'); sys.stdout.flush()\n"
    )
    script = f"{garbage}{CLASS}    def benchmark_a(self): print('[1e308]', flush=True)\n"
    assert bench(tmp_path, *FEW, script=script).code == 0


@pytest.mark.parametrize("time", ["NaN", "-5", "1e308", "0", '"1"'])
def test_times_that_cannot_be_are_refused(tmp_path: Path, time: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a script writes the result itself."""
    block = f'[{{"0": [{time}]}}]'
    text = (
        f'{{"workloads": {{"A.b": [{{"cold": {{"0": 1}}, "blocks": {block}, "errors": {{}}, "verified": null, '
        '"reference": null}]}, "commits": ["x"], "error": ""}'
    )
    script = write_tree(tmp_path / "s", {"script.py": f"import sys\nopen(sys.argv[2], 'w').write({text!r})\n"})
    monkeypatch.setattr(benchmarks, "_SCRIPT", script / "script.py")
    done = bench(tmp_path, *FEW)
    assert (done.code, "is not one that kci takes" in done.stderr) == (1, True), done


def test_nothing_that_a_script_writes_gets_into_the_tree(tmp_path: Path) -> None:
    writes = (
        f"import pathlib\n{CLASS}    def benchmark_a(self): "
        "[(path / 'planted').write_text('x') for path in (pathlib.Path.cwd(), *pathlib.Path.cwd().rglob('torch213*'), "
        "pathlib.Path(__file__).parent)]\n"
    )
    assert bench(tmp_path, *FEW, script=writes).code == 0
    assert not [*(tmp_path / "new").rglob("planted"), *(tmp_path / "kernel").rglob("planted")]


def test_no_benchmarks_at_all_is_no_success(tmp_path: Path) -> None:
    kernel = kernel_with(tmp_path / "kernel")
    (kernel / "benchmarks" / "benchmark_norm.py").unlink()
    tree = tree_that_takes(tmp_path / "new", 1)
    done = kci("bench", kernel, "--tree", tree, "--python", python_for_benchmarks(tmp_path))
    assert (done.code, "has no benchmarks/benchmark*.py" in done.stderr) == (1, True)


def test_a_variant_for_a_gpu_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_tests, "has_device", lambda _: False)
    make_variant(tmp_path / "tree", CUDA)
    done = kci("bench", kernel_with(tmp_path / "kernel"), "--tree", tmp_path / "tree")
    assert (done.code, "needs an NVIDIA GPU" in done.stderr) == (3, True), done


def test_one_for_a_gpu_beside_one_for_the_cpu_is_left_out_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_tests, "has_device", lambda _: False)
    kernel, python = kernel_with(tmp_path / "kernel", SCRIPT), python_for_benchmarks(tmp_path)
    make_variant(tree_that_takes(tmp_path / "new", 200), CUDA)
    words = ("bench", kernel, "--tree", tmp_path / "new", "--python", python, *FEW)
    done = kci(*words)
    assert (done.code, f"{CUDA}: not measured, " in done.stderr) == (0, True), done
    assert kci(*words, "--variant", CUDA, "--variant", CPU).code == 3


def test_what_only_one_build_can_do_is_measured_and_not_compared(tmp_path: Path) -> None:
    """And that a comparison was asked for and says nothing is told by the exit code."""
    make_variant(tmp_path / "old", CPU, files={"__init__.py": "def other(): pass\n"})
    done = bench(tmp_path, *FEW, "--against", tmp_path / "old", "--format", "json")
    assert (done.code, "Norm.base is not compared" in done.stderr) == (1, True), done
    assert record_of(done).results[0].kci.change is None
    done = kci("bench", tmp_path / "kernel", "--tree", tmp_path / "new", "--against", tmp_path / "gone")
    assert (done.code, "to compare with" in done.stderr) == (1, True), done


def test_a_record_of_another_time_does_not_change(tmp_path: Path) -> None:
    done = bench(tmp_path, *FEW, "--format", "json")
    name, raw = bench_file(record_of(done))
    assert name.startswith("benchmarks/20")
    assert decode_json(raw, BenchRecord) == record_of(done)


# --- kci test --benchmark ---------------------------------------------------------------------------------------------


def test_a_test_with_benchmarks_fails_if_they_fail(tmp_path: Path) -> None:
    tree, python = tree_that_takes(tmp_path / "new", 10), python_for_benchmarks(tmp_path)
    report = TestReport("gated-norm", CPU, TestState.PASSED)

    def tried(name: str, script: str) -> TestReport:
        kernel = kernel_with(tmp_path / name, script)
        return with_benchmarks(report, tree / CPU, kernel, Loader(python, (), ()), "cpu", print, tmp_path)

    good = tried("good", SCRIPT)
    assert (good.state, [work.verified for work in good.workloads]) == (TestState.PASSED, [True])
    bad = tried("bad", FAILS["wrong numbers"][0])
    assert (bad.state, bad.workloads, "verify_" in bad.output) == (TestState.FAILED, (), True)


# --- the last release -------------------------------------------------------------------------------------------------

REPO = "acme/gated-norm"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with serving(FakeHub(REPO)) as made:
        monkeypatch.setattr(constants, "ENDPOINT", made.url)
        files = f"{made.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
        monkeypatch.setattr(fetched, "hub_client", lambda: HfApi(endpoint=made.url, token=False))
        yield made


def release(hub: FakeHub, tree: Path, branch: str = "v1", **more: bytes) -> None:
    files = {f"build/{path.relative_to(tree)}": path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    hub[REPO].write(branch, files | more, "a release")


def test_the_last_release_is_the_newest_other_build(hub: FakeHub, tmp_path: Path) -> None:
    """What was just published is passed over; without any other build there is nothing to compare with."""
    release(hub, tree_that_takes(tmp_path / "first", 100))
    release(hub, tree_that_takes(tmp_path / "new", 200))
    place, directory = other_build(f"hub:{REPO}", tmp_path / "new" / CPU, opened(tmp_path), tmp_path / "got")
    assert place.startswith(f"{REPO}@")
    assert directory_digest(file_hashes(directory)) == directory_digest(file_hashes(tmp_path / "first" / CPU))
    named, _ = other_build(f"hub:{REPO}@v1", tmp_path / "new" / CPU, None, tmp_path / "named")
    assert named == f"{REPO}@v1"
    with pytest.raises(UsageError, match="which revision"):
        other_build(f"hub:{REPO}", tmp_path / "new" / CPU, None, tmp_path / "got")
    hub[REPO].commits = dict(list(hub[REPO].commits.items())[-1:])
    with pytest.raises(FindingsError, match="no other build"):
        other_build(f"hub:{REPO}", tmp_path / "new" / CPU, opened(tmp_path), tmp_path / "none")


def test_a_first_release_has_none_before_it_and_a_hub_that_does_not_answer_is_not_taken_for_that(
    hub: FakeHub, tmp_path: Path
) -> None:
    """The branch begins with a commit that has no tree; a new version begins with another branch."""
    new = tree_that_takes(tmp_path / "new", 200) / CPU
    hub[REPO].write("v1", {"README.md": b"#"}, "made by hand")
    release(hub, tmp_path / "new")
    with pytest.raises(NothingEarlierError):
        other_build(f"hub:{REPO}", new, opened(tmp_path), tmp_path / "none")
    hub.fail("/commits/", 403, times=99)
    with pytest.raises(FindingsError, match="cannot be read") as caught:
        other_build(f"hub:{REPO}", new, opened(tmp_path), tmp_path / "none")
    assert not isinstance(caught.value, NothingEarlierError)


@pytest.mark.parametrize("before", [None, "v1", "another variant"])
def test_a_first_build_of_version_2_is_compared_with_version_1_where_there_is_one(
    hub: FakeHub, tmp_path: Path, before: str | None
) -> None:
    new = make_variant(tmp_path / "new", CPU, files={"__init__.py": WORK % 2}, version=2)
    release(hub, new.parent, "v2")  # first: a branch's commits are what this Hub got before its head
    if before is not None:
        release(hub, make_variant(tmp_path / "old", CUDA if before == "another variant" else CPU).parent)
    kernel = kernel_with(tmp_path / "kernel")
    toml = kernel / "build.toml"
    toml.write_text(toml.read_text().replace("version = 1", "version = 2"))
    workspace = open_workspace([str(kernel)])
    if before == "v1":
        assert other_build(f"hub:{REPO}", new, workspace, tmp_path / "got")[0] == f"{REPO}@v1"
    else:
        with pytest.raises(NothingEarlierError):
            other_build(f"hub:{REPO}", new, workspace, tmp_path / "got")


MEASURED = {
    "the first": (None, 0, "is measured alone", 1),
    "slower": (200, 1, "slower", 1),
    "a Hub that does not tell": (200, 1, "cannot be read", 0),
}


@pytest.mark.parametrize("what", MEASURED)
def test_a_release_is_measured_against_the_one_before_and_only_a_first_one_alone(
    hub: FakeHub, tmp_path: Path, what: str
) -> None:
    """The action, as a job of kci-publish.yml runs it."""
    earlier, code, said, records = MEASURED[what]
    kernel, python = kernel_with(tmp_path / "kernel"), python_for_benchmarks(tmp_path)
    write_tree(kernel, {"kci.toml": '[publish]\nrepo-prefix = "acme"\n'})
    if earlier is not None:
        release(hub, tree_that_takes(tmp_path / "old", earlier))
    release(hub, tree_that_takes(tmp_path / "new", STEPS))
    if what == "a Hub that does not tell":
        hub.fail("/commits/", 403, times=99)
    (tmp_path / "temp").mkdir()
    given = {
        "KERNEL": kernel,
        "TREE": tmp_path / "new",
        "VARIANT": CPU,
        "PYTHON": python,
        "LEG": "gpu",
        "BENCHMARKS": "true",
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "GITHUB_", "KCI_INPUT_"))}
    env |= hub_environment(hub, tmp_path / "home") | {f"KCI_INPUT_{name}": str(value) for name, value in given.items()}
    env |= {
        "RUNNER_TEMP": str(tmp_path / "temp"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "KCI_CACHE": str(tmp_path / "c"),
    }
    command = [sys.executable, "-E", "-u", str(ROOT / "actions" / "test.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done
    assert len(list((tmp_path / "temp" / "kci-benchmarks").glob("*.bench.json"))) == records
    if records:
        assert "watch-gated-norm.benchmarks-gpu-1" in (tmp_path / "output").read_text()


def test_a_published_variant_is_fetched_whole_or_refused(hub: FakeHub, tmp_path: Path) -> None:
    tree = tree_that_takes(tmp_path / "first", 100)
    release(hub, tree)
    there = published_tree(f"hub:{REPO}@v1", (), None, tmp_path / "got")
    assert [path.name for path in there.iterdir() if not path.name.startswith(".")] == [CPU]
    release(hub, tree, **{f"build/{CPU}/more.py": b"x"})
    with pytest.raises(FindingsError, match=r"more\.py"):
        published_tree(f"hub:{REPO}@v1", (), None, tmp_path / "other")
    release(hub, tree, **{f"build/{CPU}/a:b.py": b"x"})
    with pytest.raises(UnsafeError, match="colon"):
        published_tree(f"hub:{REPO}@v1", (), None, tmp_path / "third")
    with pytest.raises(FindingsError, match="has no torch213-cxx11-cu130"):
        published_tree(f"hub:{REPO}@v1", (CUDA,), None, tmp_path / "gone")


def opened(tmp_path: Path) -> Workspace:
    return open_workspace([str(kernel_with(tmp_path / "kernel"))])
