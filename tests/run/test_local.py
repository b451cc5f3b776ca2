"""The whole job on one machine: what is built, taken over, left; and that stopping it anywhere
leaves no half tree.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from buildkit import STABLE_CPU, copy_example, noarch_kernel, only_these, variant, write_tree
from cli.runner import kci
from conftest import AT_TOP, ROOT
from kci.builders.process.run import silent
from kci.builders.request import BuildOptions
from kci.config.reader import read_kernel
from kci.diagnostics import Diagnostic, Span, finding
from kci.errors import BuildFailedError, MissingToolError
from kci.plan.workspace import Choice, open_workspace
from kci.run import build_leg, local
from kci.run.local import (
    KEPT_BUILDS,
    Outcome,
    OutcomeState,
    RunResult,
    builds_at_once,
    outcomes_of,
    run_here,
    tree_places,
)
from kci.tree.manifest import Manifest, read_manifest
from kci.tree.merge import merge
from kci.tree.verify import verify
from kci.utils.atomic import in_use, locked
from split_kernel import SOURCES, SplitKernel

SWIGLU = ROOT / "examples" / "swiglu"
NAMES = ["torch-cpu", "torch-cuda", "torch-rocm"]


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    """A noarch kernel outside of any repository."""
    return copy_example("swiglu", tmp_path)


def run(
    directory: Path,
    tree: Path,
    cache: Path,
    changed: object = None,
    log: Callable[[str], None] = silent,
) -> RunResult:
    workspace = open_workspace([directory])
    outcomes = outcomes_of(workspace, Choice())
    tell = changed if callable(changed) else lambda _outcome: None
    trees = tree_places(workspace, tree)
    return run_here(workspace, outcomes, trees, BuildOptions(cache), tell, log)


def states(result: RunResult) -> dict[str, OutcomeState]:
    return {outcome.variant.name: outcome.state for outcome in result.outcomes}


Again = Callable[[], RunResult]


@pytest.fixture
def again(kernel_dir: Path, tmp_path: Path) -> Again:
    """Runs it into the same tree, with the same cache."""
    return lambda: run(kernel_dir, tmp_path / "tree", tmp_path / "cache")


@pytest.fixture
def source(kernel_dir: Path) -> Path:
    return kernel_dir / "torch-ext" / "swiglu" / "__init__.py"


def test_build_merge_verify_and_a_rerun_takes_over_what_still_holds(
    again: Again, source: Path, tmp_path: Path
) -> None:
    result = again()
    assert states(result) == dict.fromkeys(NAMES, OutcomeState.BUILT)
    (tree,) = result.trees
    assert (tree.findings, tree.manifest.complete) == ((), True)
    assert sorted(path.name for path in tree.tree.iterdir()) == ["CARD.md", *AT_TOP, *NAMES]
    assert [entry.variant for entry in tree.manifest.present] == NAMES
    assert read_manifest(tree.tree) == tree.manifest
    reused = dict.fromkeys(NAMES, OutcomeState.REUSED)
    assert states(again()) == reused
    (kept,) = (tmp_path / "cache" / "run").glob("*/*/torch-cpu/__init__.py")
    kept.write_text("import os\n")
    assert states(again()) == reused | {"torch-cpu": OutcomeState.BUILT}, "it was tampered with"
    source.write_text(source.read_text() + "# changed\n")
    assert states(again()) == dict.fromkeys(NAMES, OutcomeState.BUILT)
    assert (tmp_path / "tree" / "torch-cpu" / "__init__.py").read_text().endswith("# changed\n")


def test_a_run_has_one_state_of_the_sources(
    source: Path, again: Again, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit when the first variant is built ends the others; nothing of it is kept under the
    state of before.
    """
    text, make = source.read_text(), local.make_variant_dir

    def edited(*arguments: Any) -> Any:
        made = make(*arguments)
        source.write_text(f"{text}# edited\n")
        return made

    with monkeypatch.context() as patch:
        patch.setattr(local, "builds_at_once", lambda *_: 1)
        patch.setattr(local, "make_variant_dir", edited)
        result = again()
    built, *others = states(result).values()
    assert (built, {*others}) == (OutcomeState.BUILT, {OutcomeState.FAILED})
    said = "torch-ext/swiglu/__init__.py changed while torch-cuda was built from it"
    assert said in result.outcomes[1].note
    source.write_text(text)
    assert len(set(states(again()).values())) == 2
    assert {path.read_text() for path in (tmp_path / "tree").glob("torch-*/__init__.py")} == {text}


def test_one_arch_is_built_and_not_merged(tmp_path: Path) -> None:
    directory, tree = noarch_kernel(tmp_path / "kernel"), tmp_path / "tree"
    cache = str(tmp_path / "cache")
    for _ in range(2):  # the second takes the kept build
        done = kci("run", directory, "--arch", "9.0", "--into", tree, KCI_CACHE=cache)
        assert done.code == 0, done
        assert str(tree / "torch-cuda") in done.stdout.splitlines()
        assert "it has no archs to choose from" in done.stdout
        assert [path.name for path in tree.iterdir()] == ["torch-cuda"]
    merged = kci("merge", tree / "torch-cuda", "--into", tmp_path / "merged")
    assert (merged.code, "KCI617" in merged.stderr) == (1, True)
    assert kci("run", directory, "--into", tree, KCI_CACHE=cache).code == 0
    made = sorted(path.name for path in tree.iterdir() if path.is_dir())
    assert made == ["torch-cpu", "torch-cuda"]


@pytest.mark.parametrize("stop_at", range(1, 10))
def test_stopping_anywhere_leaves_no_half_tree_and_a_rerun_goes_on(
    kernel_dir: Path, again: Again, tmp_path: Path, stop_at: int
) -> None:
    """A build tells of its start, of every line that it says, and of its end; Ctrl-C arrives at one
    of these.
    """
    seen: list[OutcomeState] = []

    def stop(outcome: Outcome) -> None:
        seen.append(outcome.state)
        if len(seen) == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(kernel_dir, tmp_path / "tree", tmp_path / "cache", stop)
    assert not (tmp_path / "tree").exists()
    rerun = again()
    reused = [state for state in states(rerun).values() if state is OutcomeState.REUSED]
    # Others may have ended without being heard.
    assert len(reused) >= seen.count(OutcomeState.BUILT)
    assert rerun.trees[0].findings == ()
    assert not list(tmp_path.glob("**/.kci-*"))


@pytest.mark.usefixtures("november")
def test_what_needs_another_machine_is_left_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these(monkeypatch, tmp_path, "git")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = outcomes_of(open_workspace([ROOT / "examples" / "relu"]), Choice())
    named = {outcome.variant.name: (outcome.state, outcome.note) for outcome in found}
    left = (OutcomeState.LEFT, "needs aarch64-linux")
    assert named["torch213-cxx11-cpu-aarch64-linux"] == left
    assert named["torch213-cxx11-cpu-x86_64-linux"][0] is OutcomeState.WAITING
    # What no job builds; a plan demands what another machine builds.
    elsewhere = {outcome.variant.system for outcome in found if outcome.elsewhere}
    assert elsewhere == {"aarch64-darwin"}


def test_what_was_left_is_missing_in_the_manifest_and_no_finding(
    kernel_dir: Path, tmp_path: Path
) -> None:
    workspace = open_workspace([kernel_dir])
    trees, options = {"swiglu": tmp_path / "tree"}, BuildOptions(tmp_path / "cache")
    for elsewhere, missing in ((False, ("torch-cpu",)), (True, ())):
        outcomes = outcomes_of(workspace, Choice())
        outcomes[0].state, outcomes[0].elsewhere = OutcomeState.LEFT, elsewhere
        (tree,) = run_here(workspace, outcomes, trees, options, lambda _: None).trees
        assert (tree.manifest.missing, tree.manifest.complete) == (missing, elsewhere)
        assert tree.findings == ()


@pytest.mark.parametrize("into", ["swiglu/build", "elsewhere/tree"])
def test_kci_toml_suppresses_in_a_tree_wherever_it_is_made(
    kernel_dir: Path, source: Path, tmp_path: Path, into: str
) -> None:
    source.write_text("import numpy\n" + source.read_text())
    command = ("run", kernel_dir, "--only", "torch-cpu", "--into", tmp_path / into)
    entry = '[[lint.ignore]]\nrule = "KCI771"\npath = "{}"\nreason = "it is there"\n'
    of_source, of_tree = entry.format("torch-ext/*"), entry.format("build/torch-*/__init__.py")
    (kernel_dir / "kci.toml").write_text(of_source)
    assert kci(*command).code == 1
    (kernel_dir / "kci.toml").write_text(of_source + of_tree)
    done = kci(*command, "-v")
    assert done.code == 0, done.stderr
    assert "(1 suppressed)" in done.stdout
    assert "KCI771 because: it is there" in done.stderr


def test_what_the_merge_has_to_say_is_said(
    kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = tmp_path / ".kci-tree.new"
    leftover.mkdir()

    def reporting(
        *arguments: object, report: Callable[[Diagnostic], None], **options: object
    ) -> list[Manifest]:
        report(finding("KCI615", "two attempts differ", path="torch-cpu"))
        return merge(*arguments, report=report, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "merge", reporting)
    result = kci("run", kernel_dir, "--into", tmp_path / "tree", KCI_CACHE=str(tmp_path / "cache"))
    assert "removed what a kci process that was killed left" in result.stderr
    assert "KCI615" in result.stderr
    assert result.code == 0


def test_who_waits_for_a_tree_says_so_once_and_meanwhile(
    kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, said, other = tmp_path / "tree", [], ExitStack()

    def hear(line: str) -> None:
        said.append(line)
        other.close()  # the other kci goes on only now

    def waiting_again(
        *arguments: Any, log: Callable[[str], None], **options: Any
    ) -> list[Manifest]:
        made = merge(*arguments, log=log, **options)
        log(said[0])  # as the lock for verification does where a third kci came first
        return made

    monkeypatch.setattr(local, "merge", waiting_again)
    other.enter_context(locked(tree))
    run(kernel_dir, tree, tmp_path / "cache", log=hear)
    # It is this process that holds it.
    assert said == [f"waiting for another build of this run that uses {tree}"]


def test_nobody_replaces_what_is_being_read(
    kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a tree or a variant that another kci replaces meanwhile, some files would not be
    listed.
    """
    held: list[bool] = []

    def watched(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(place: Path, **options: object) -> Any:
            held.append(in_use(place))
            return read(place, **options)

        return reading

    monkeypatch.setattr(local, "verify_with_suppressions", watched(local.verify_with_suppressions))
    monkeypatch.setattr(build_leg, "leg_for", watched(build_leg.leg_for))
    monkeypatch.setattr(build_leg, "verify", watched(build_leg.verify))
    ran = kci("run", kernel_dir, "--into", tmp_path / "tree", KCI_CACHE=str(tmp_path / "cache"))
    made = kci("build", kernel_dir, "--variant", "torch-cpu", "--output", tmp_path / "out")
    assert (ran.code, made.code) == (0, 0)
    assert held == [True] * (len(NAMES) + 3)


PLACE = finding("KCI513", "'x' was not declared", path="swiglu/a.cpp", span=Span(7, 3, 7, 0))
PIP = "cannot install torch\npip install torch\nCollecting torch\nERROR: no space left"


@pytest.mark.parametrize(
    ("error", "code", "row", "below"),
    [
        (BuildFailedError("building it failed at c++ a.cpp\nsome note", diagnostics=[PLACE]), 4,
            "swiglu/a.cpp:7:3: error: 'x' was not declared", "some note"),
        (MissingToolError(PIP), 3, "ERROR: no space left", "Collecting torch"),
    ],
)  # fmt: skip
def test_the_table_has_the_line_that_says_why_and_all_stand_below(
    kernel_dir: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, row: str,
    below: str,
) -> None:  # fmt: skip
    def failing(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(local, "make_variant_dir", failing)
    done = kci("run", kernel_dir, KCI_CACHE=str(kernel_dir / "cache"))
    assert (done.code, done.stdout.count(row)) == (code, len(NAMES))
    assert (below in done.stdout, below in done.stderr) == (False, True)


def test_a_kernel_is_merged_as_soon_as_its_last_variant_has_ended(
    kernel_dir: Path, tmp_path: Path
) -> None:
    """The second kernel waits for the tree of the first one, which it would not see if all were
    merged at the end.
    """
    other = noarch_kernel(tmp_path / "other")
    workspace = open_workspace([kernel_dir, other])
    outcomes = outcomes_of(workspace, Choice(only=("torch-cpu",)))
    trees = tree_places(workspace, tmp_path / "trees")
    seen: dict[str, bool] = {}

    def changed(outcome: Outcome) -> None:
        if outcome.state is OutcomeState.BUILT:
            seen[outcome.kernel] = any(tree.exists() for tree in trees.values())

    run_here(workspace, outcomes, trees, BuildOptions(tmp_path / "cache"), changed)
    assert sorted(seen.values()) == [False, True]


def test_builds_of_older_sources_do_not_pile_up(again: Again, source: Path, tmp_path: Path) -> None:
    made = tmp_path / "tree" / "torch-cpu" / "__init__.py"
    for number in range(KEPT_BUILDS + 2):
        source.write_text(f"NUMBER = {number}\n")
        again()
        assert made.read_text() == f"NUMBER = {number}\n"
    assert len(list((tmp_path / "cache" / "run").glob("*/*/torch-cpu"))) == KEPT_BUILDS


@pytest.mark.rule("KCI217", triggers=True)
def test_without_a_variant_for_this_machine_a_run_is_no_success(tmp_path: Path) -> None:
    for only, code, said in (
        ("*aarch64*", 3, "every variant needs another machine"),
        ("TORCH213-CXX11-CPU*", 1, "did you mean `torch213-cxx11-cpu-"),
    ):
        done = kci("run", ROOT / "examples" / "relu", "--only", only, KCI_CACHE=str(tmp_path))
        assert (done.code, said in done.stderr) == (code, True), done


class StandInCompiler:
    """A g++ that answers questions, and where it is to compile says so and goes on until it is
    killed.
    """

    def __init__(self, folder: Path, real: Path) -> None:
        pipe = folder / "running"
        os.mkfifo(pipe)
        # It keeps the pipe open, so that the end of what can be read there is the end of the last
        # compiler. It is no shell script, because a shell may lose a signal that comes just before
        # it becomes another program.
        self.program = folder / "g++"
        interpreter = folder / "python"  # such a line ends at the first space
        interpreter.symlink_to(Path(sys.executable).resolve())
        self.program.write_text(
            f"#!{interpreter} -I\nimport os, signal, sys\n"
            f"if not any(word.startswith('kernel/') for word in sys.argv):\n"
            f"    os.execv({str(real)!r}, ['g++', *sys.argv[1:]])\n"
            f"pipe = open({str(pipe)!r}, 'w')\nprint('running', file=pipe, flush=True)\n"
            "signal.pause()\n"
        )
        self.program.chmod(0o755)
        self._handle = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def wait_for_start(self, process: subprocess.Popen[str]) -> None:
        """Until a compiler runs that a process has started."""
        assert process.stderr is not None
        said = ""
        while self._handle not in select.select([self._handle, process.stderr], [], [])[0]:
            line = process.stderr.readline()
            said += line
            assert line, f"it ended before it compiled anything: {said}"
        os.set_blocking(self._handle, True)

    def wait_for_end(self) -> None:
        """Until the last one has ended; for ever if one of them runs on."""
        while os.read(self._handle, 4096):
            pass


@pytest.mark.torch
def test_ctrl_c_while_the_compiler_runs(tmp_path: Path) -> None:
    """A real interrupt while ninja runs a compiler: no tree, no orphaned compiler, and the rerun
    completes the tree.
    """
    split = SplitKernel(tmp_path, SOURCES | {"kci.toml": "[plan]\nload = []\n"}, wait=":")
    kernel, only = split.directory, "--only=torch-stable-abi211-cpu-*"
    command = [sys.executable, "-m", "kci", "run", str(kernel), only, "-v"]
    command += ["--catalog", "2026-08-20"]  # its newest torch is the one that tests have
    environment = {**os.environ, "KCI_CACHE": str(split.cache), "PYTHONUNBUFFERED": "1"}
    compiler = StandInCompiler(tmp_path, split.compiler)
    with subprocess.Popen(
        command,
        env={**environment, "CXX": str(compiler.program)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        compiler.wait_for_start(process)
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        assert "the same command continues" in process.stderr.read()
        assert process.wait() == 130
    compiler.wait_for_end()
    assert not (kernel / "build").exists()
    environment["CXX"] = str(split.compiler)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert verify(kernel / "build", ignore=["KCI721"]) == []


@pytest.mark.torch
@pytest.mark.usefixtures("as_users_compile", "as_old_as_users_systems")
def test_a_rerun_compiles_what_changed_and_says_what_it_took(
    torch_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ccache has the other objects: also in a checkout elsewhere, where no build was."""
    monkeypatch.setenv("KCI_CACHE", str(torch_cache))
    chosen = ("--only", "torch-stable-abi211-cpu-*", "--catalog", "2026-08-20")
    files = {**SOURCES, "kci.toml": "[plan]\nload = []\n"}
    first, second = (write_tree(tmp_path / name / "kernel", files) for name in ("a", "b/c"))
    assert "as they were" not in kci("run", first, *chosen).stdout
    (second / "csrc/unit0.cpp").write_text("int other;\n")
    done = kci("run", second, *chosen)
    assert done.code == 0, done.stderr
    # The name of the module, which the last source has, is made from all sources.
    assert "6 of 8 objects are as they were" in done.stdout


def test_variants_are_built_at_once_where_each_has_a_job_for_every_source(tmp_path: Path) -> None:
    kernel = read_kernel(write_tree(tmp_path / "kernel", SOURCES))
    (component,) = kernel.build.kernel.values()
    sources = len(component.src)
    waiting = [(kernel, variant(STABLE_CPU))] * 3
    jobs = (1, sources, 2 * sources - 1, 2 * sources, 9 * sources)
    assert [builds_at_once(waiting, count) for count in jobs] == [1, 1, 1, 2, 3]
    assert builds_at_once([], 8) == 1


def test_one_variant_is_loaded_while_the_next_is_built(
    again: Again, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are built at once only if their compilers have room, and these have none."""
    building, second, built = threading.Lock(), threading.Event(), []
    make, load = local.make_variant_dir, local.load_built

    def made(*arguments: Any) -> Any:
        assert building.acquire(blocking=False), "two are built at once"
        built.append(arguments[0])
        if len(built) == 2:
            second.set()
        try:
            return make(*arguments)
        finally:
            building.release()

    def loading(*arguments: Any) -> Any:
        assert second.wait(60), "the second build waits for the first load"
        return load(*arguments)

    monkeypatch.setattr(local, "builds_at_once", lambda *_: 1)
    monkeypatch.setattr(local, "make_variant_dir", made)
    monkeypatch.setattr(local, "load_built", loading)
    assert states(again()) == dict.fromkeys(NAMES, OutcomeState.BUILT)
