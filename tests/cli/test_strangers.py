"""What somebody types who has not read the pages: cause, remedy, exit code, and never a
traceback.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from act.harness import commit_all
from cli.runner import ended, kci
from conftest import write_torch
from kci.matrix.variants import this_system

TWO = {"cpu": "a.cpp", "cuda": "a.cu"}
NO_MATCH = "no variant of norm in the tier release matches"
NOTHING = "nothing is selected"
NOWHERE = "error: nowhere: there is no such directory"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = write_torch(tmp_path / "norm", TWO, "norm", "a.cpp")
    commit_all(made)
    monkeypatch.chdir(made)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return made


@pytest.mark.parametrize(
    ("words", "code", "cause", "remedy"),
    [
        ("plan --affected mian", 1, "there is no commit 'mian' here", "did you mean `main`?"),
        ("build --variant cu130", 2, "'cu130' is not a variant of norm", f"cu130-{this_system()}`"),
        ("run --only torch231*", 1, NO_MATCH, "did you mean one of `torch213"),
        ("run --only *x86_46*", 1, NO_MATCH, "-x86_64-linux`"),
        ("run a.cpp", 2, "a.cpp: this is a file, not a directory", "name a directory with a build"),
        ("run --only cu130", 1, NO_MATCH, "did you mean one of `torch2"),
        ("matrix --only nothing", 1, NO_MATCH, "there are torch2"),
        ("plan --backend metal", 1, NOTHING, "there are no variants for metal, only for cpu, cuda"),
        ("matrix --system x86_64-windows", 1, NOTHING, "only for aarch64-darwin, aarch64-linux"),
        ("plan --where torch==9.9", 1, NOTHING, "there are torch2"),
        ("test nowhere", 2, NOWHERE, "name a directory with a build.toml, or a tree"),
        ("test nowhere --kernel .", 2, NOWHERE, "or a tree"),
        ("publish nowhere", 2, NOWHERE, "or a tree"),
        ("build", 2, "", "`kci matrix` lists the names; `kci run` builds all that this machine"),
        ("matrix --variant x", 2, "No such option '--variant'.", "--only GLOB chooses variants by"),
        ("test", 1, "there is no variant in build", "kci build --variant NAME, or kci run"),
    ],
)
@pytest.mark.usefixtures("kernel")
def test_the_cause_and_the_remedy_are_told(words: str, code: int, cause: str, remedy: str) -> None:
    done = kci(*words.split())
    ended(done, code, cause, remedy, "hint: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["build --variant torch213-cxx11-cpu-x86_64-linux", "run"])
def test_a_cache_that_cannot_be_written_is_named(kernel: Path, words: str) -> None:
    ended(kci(*words.split(), KCI_CACHE="/proc/no"), 1, "/proc/no", "KCI_CACHE")


def test_kci_test_at_the_root_of_a_repository(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other commands it takes the kernel below, and says of a folder without any what
    they say.
    """
    monkeypatch.chdir(kernel.parent)
    assert "there is no variant in norm/build" in kci("test").stderr
    (kernel.parent / "empty").mkdir()
    for command in ("test", "check"):
        said = kci(command, "empty").stderr
        assert "empty: no build.toml here or below" in said
        assert "`kci init NAME` begins a kernel" in said
    write_torch(kernel.parent / "gelu", TWO, "gelu")
    ended(kci("test"), 2, "name one, such as gelu")


def test_doctor_does_not_pass_over_a_faulty_build_toml(kernel: Path, tmp_path: Path) -> None:
    (kernel / "build.toml").write_text("[general\n")
    done = kci("doctor", KCI_CACHE=str(tmp_path / "cache"))
    assert "This machine" in done.stdout
    assert "build.toml is invalid, so kernels are left out: `kci check` says where" in done.stderr
    (kernel / "build.toml").unlink()
    assert kci("doctor", KCI_CACHE=str(tmp_path / "cache")).stderr == ""
