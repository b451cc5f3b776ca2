"""`kci run` and `kci build` as processes: what their exit codes say, and that neither a crash nor a
twin does harm.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from buildkit import CPU, STABLE_CPU, noarch_kernel, variant
from cli.runner import Result, kci, kci_process
from conftest import AT_TOP
from kci.cli.run import _report
from kci.errors import MissingToolError
from kci.matrix.variants import ObjectUse
from kci.run.local import Outcome, OutcomeState, RunResult
from kci.tree.verify import verify
from planning import replace
from run.crash_anywhere import CRASHED

ROUNDS = int(os.environ.get("KCI_TEST_ROUNDS", "4"))
"""Rounds of two processes at once. 200 take some minutes: KCI_TEST_ROUNDS=200 pytest -k at_once."""

NAMES = ["torch-cpu", "torch-cuda"]
CODE = "torch-ext/just_python/__init__.py"


def states(output: str) -> dict[str, str]:
    """What the closing table says of each variant."""
    rows = [line.split() for line in output.splitlines()]
    return {row[1]: row[2] for row in rows if len(row) > 2 and row[1] in NAMES}


def named(kernel: Path, name: str) -> Path:
    """The package of a kernel that is given another name."""
    replace("build.toml", "just-python", name)(kernel)
    return (kernel / "torch-ext/just_python").rename(kernel / "torch-ext" / name.replace("-", "_"))


# --- exit codes ---


def test_the_worst_failure_is_the_exit_code_and_the_others_are_built(tmp_path: Path) -> None:
    """A path that leads out of the kernel is refused for safety, which is worse than a link to
    nothing.
    """
    names = ("good", "missing", "unsafe")
    good, missing, unsafe = (noarch_kernel(tmp_path / name) for name in names)
    (named(missing, "with-a-link") / "gone.py").symlink_to("nowhere.py")
    (tmp_path / "secret.py").write_text("")
    (named(unsafe, "unsafe") / "secret.py").symlink_to(tmp_path / "secret.py")
    alone = kci_process("build", missing, "--variant", "torch-cpu", "--output", tmp_path / "out")
    assert alone.code > 0

    def run(*kernels: Path) -> Result:
        cache = str(tmp_path / "cache")
        return kci_process("run", *kernels, "--into", tmp_path / "trees", KCI_CACHE=cache)

    done = run(good, missing)
    assert done.code == alone.code
    assert "2 variants of with-a-link failed:" in done.stderr
    assert done.stdout.count("failed") == done.stdout.count("built") == 2
    assert verify(tmp_path / "trees" / "just-python") == []
    worse = {run(*kernels).code for kernels in ((missing, unsafe), (unsafe, missing))}
    assert len(worse) == 1
    assert worse.pop() > alone.code


def test_a_tree_that_is_not_right_is_exit_code_1_and_what_hits_all_is_said_once(
    tmp_path: Path,
) -> None:
    """Of a cache that cannot be written each variant fails alike."""
    ignored = '[[lint.ignore]]\nrule = "KCI771"\npath = "torch-ext/*"\nreason = "only here"\n'
    kernel = noarch_kernel(tmp_path / "k", **{CODE: "import requests\n", "kci.toml": ignored})
    done = kci_process("run", kernel, KCI_CACHE=str(tmp_path / "cache"))
    assert (done.code, "1 error" in done.stdout) == (1, True)
    assert states(done.stdout) == dict.fromkeys(NAMES, "built")
    (tmp_path / "file").touch()
    done = kci("run", kernel, KCI_CACHE=str(tmp_path / "file"))
    assert done.code == 1
    assert (done.stderr.count("cannot write"), done.stderr.count("hint: ")) == (1, 1)
    assert "2 variants of just-python failed: cannot write" in done.stderr


def test_what_is_one_variants_own_names_it_and_a_first_build_is_held_against_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lacking = []
    for name in (CPU, STABLE_CPU):
        error = MissingToolError(f"no compiler for {name}", hint="get it")
        lacking.append(Outcome("relu", variant(name), OutcomeState.LEFT, error=error))
    assert _report(RunResult(tuple(lacking), ())) == 3
    said = capsys.readouterr().err
    for name in (CPU, STABLE_CPU):
        assert f"relu {name} left: no compiler for {name}\n  hint: get it" in said
    for found in (0, 1):
        built = [
            Outcome("relu", variant(name), OutcomeState.BUILT, objects=ObjectUse(have, 4 - have))
            for name, have in ((CPU, found), (STABLE_CPU, 0))
        ]
        _report(RunResult(tuple(built), ()))
        told = [line for line in capsys.readouterr().out.splitlines() if " of 8 objects" in line]
        assert told == ["1 of 8 objects are as they were"] * found


# --- what is taken over ---


@pytest.mark.slow
def test_whatever_a_crash_leaves_a_later_run_builds_what_the_sources_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built from one text, crashed while building from another, asked for the first again, then for
    the other.
    """
    kernel = noarch_kernel(tmp_path / "k", **{CODE: "A = 1\n", "kci.toml": "[plan]\nload = []\n"})
    code, cache, tree = kernel / CODE, tmp_path / "cache", tmp_path / "tree"
    arguments = ["run", str(kernel), "--only", "torch-cpu", "--into", str(tree)]
    monkeypatch.setenv("KCI_CACHE", str(cache))
    crashing = [sys.executable, str(Path(__file__).parent / "crash_anywhere.py"), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(crashing, stdin=pipe, stdout=pipe, text=True) as runs:
        assert runs.stdin is not None
        assert runs.stdout is not None
        assert runs.stdout.readline() == "0\n"
        for path in (cache, tree):
            shutil.copytree(path, tmp_path / "before" / path.name)
        for step in itertools.count(1):
            for path in (cache, tree):
                shutil.rmtree(path)
                shutil.copytree(tmp_path / "before" / path.name, path)
            code.write_text("B = 1\n")
            print(step, file=runs.stdin, flush=True)
            crashed = int(runs.stdout.readline())
            for text in ("A = 1\n", "B = 1\n"):
                code.write_text(text)
                again = kci(*arguments)
                assert again.code == 0, (step, again.stderr)
                assert (tree / "torch-cpu" / "__init__.py").read_text() == text, step
            assert verify(tree) == [], step
            assert sorted(path.name for path in tree.iterdir()) == [*AT_TOP, "torch-cpu"], step
            if crashed != CRASHED:
                assert crashed == 0
                break
    assert step > 10


# --- two at once ---


def two_at_once(place: Path, *arguments: str | Path) -> None:
    """Run the same command twice at the same time; neither fails."""
    with ThreadPoolExecutor() as pool:
        how = {"KCI_CACHE": str(place / "cache")}
        both = [pool.submit(kci_process, *arguments, **how) for _ in range(2)]
    assert [done.result().code for done in both] == [0, 0], [done.result() for done in both]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    "words", [["build", "--variant", "torch-cpu", "--output"], ["run", "--into"]]
)
def test_two_at_once_of_one_kernel(tmp_path: Path, words: list[str], again: bool) -> None:
    """Into a place where nothing is, and over an older build."""
    kernel, out = noarch_kernel(tmp_path / "k"), tmp_path / "out"
    names = [*AT_TOP, *NAMES] if words[0] == "run" else ["torch-cpu"]
    for number in range(ROUNDS // 2):
        if not again:
            shutil.rmtree(out, ignore_errors=True)
        (kernel / CODE).write_text(f"NUMBER = {number}\n")
        two_at_once(tmp_path, words[0], kernel, *words[1:], out)
        assert sorted(path.name for path in out.iterdir()) == names
        for code in out.glob("*/__init__.py"):
            assert code.read_text() == f"NUMBER = {number}\n"
        assert verify(out if words[0] == "run" else out / "torch-cpu") == []
