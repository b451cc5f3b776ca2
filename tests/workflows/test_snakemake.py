"""The Snakefile of a plan, run by the real Snakemake: here, and on a real Slurm of one node."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buildkit import noarch_kernel, program, wait_for, write_tree
from cli.runner import ended, kci
from forked_program import forked_program
from kci.errors import UnsafeError
from kci.tree.manifest import read_manifest
from kci.workflows.render import SNAKEFILE, render_snakemake
from planning import git
from split_kernel import SOURCES, VARIANT, SplitKernel
from workflows.slurm_cluster import Cluster, NoClusterError, cluster, missing

SNAKEMAKE = Path(sys.executable).with_name("snakemake")

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not SNAKEMAKE.exists(), reason="snakemake is not installed"),
]


def own_kci() -> str:
    return f"{forked_program()} -m kci"


def commit(folder: Path) -> None:
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "kernels")


def snakemake(
    folder: Path, *words: str, kci: str = "", only: str = "*", plan: object = "", **how: Any
) -> subprocess.Popen[str]:
    """Snakemake as a user starts it in the repository's root."""
    config = ("--config", f"kci={kci or own_kci()}", f"only={only}", f"plan={plan}")
    command = [SNAKEMAKE, "--nocolor", *(words or ("--cores", "2")), *config]
    how |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    return subprocess.Popen(command, cwd=folder, text=True, **how)


def run(folder: Path, *words: str, **how: Any) -> tuple[int, str]:
    started = snakemake(folder, *words, **how)
    said, _ = started.communicate()
    return started.returncode, said


def rendered(folder: Path, *kernels: str) -> None:
    places = [folder / name for name in kernels]
    ended(kci("render", *places, "--ci", "snakemake", "--output", folder), 0)


def jobs(said: str) -> list[str]:
    """The rules that a run executed, in the order of their names."""
    return sorted(re.findall(r"^(?:local)?rule (\w+):", said, re.MULTILINE))


NO_LOAD = "[plan]\nload = []\n"
CODE = "just-python/torch-ext/just_python/__init__.py"
TREE = "kci-out/trees/just-python"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One kernel of Python for two backends."""
    noarch_kernel(tmp_path / "repo" / "just-python")
    (tmp_path / "repo" / "kci.toml").write_text(NO_LOAD)
    commit(tmp_path / "repo")
    rendered(tmp_path / "repo", "just-python")
    return tmp_path / "repo"


EVERY = [
    "all", "build_just_python_torch_cpu", "build_just_python_torch_cuda", "merge_just_python",
    "verify_just_python",
]  # fmt: skip


def test_runs_build_what_is_named_and_what_changed_and_make_the_tree_of_kci_run(
    repository: Path, tmp_path: Path
) -> None:
    """The file has nothing of the repository in it but the kernels that were named."""
    options = ("--format", "json", "--fingerprints", "--only", "*-cpu")
    made_before = kci("plan", repository / "just-python", *options)
    (tmp_path / "plan.json").write_text(made_before.stdout)
    dry, plan = ("--cores", "1", "--dry-run"), tmp_path / "plan.json"
    shown = jobs(run(repository, *dry, kci="/no/kci", plan=plan)[1])
    assert "build_just_python_torch_cpu" in shown
    assert "build_just_python_torch_cuda" not in shown

    assert run(repository, only="*-cuda")[0] == 0
    manifest = read_manifest(repository / TREE)
    assert [entry.variant for entry in manifest.present] == ["torch-cuda"]
    code, said = run(repository)
    cuda = "build_just_python_torch_cuda"
    assert (code, jobs(said)) == (0, [name for name in EVERY if name != cuda]), said
    assert git(repository, "status", "--short").split() == ["??", SNAKEFILE], (
        "what a run leaves is no change of the sources"
    )
    made, own = repository / TREE, tmp_path / "tree"
    kernel, cache = repository / "just-python", str(tmp_path / "cache")
    ended(kci("run", kernel, "--into", own, KCI_CACHE=cache), 0)
    assert read_manifest(made).complete

    def files(tree: Path) -> dict[Path, bytes]:
        """All but the manifest, which says when a variant was built, and its digest at the top."""
        there = (path for path in tree.glob("*/**/*") if path.is_file())
        return {path.relative_to(tree): path.read_bytes() for path in there}

    assert files(made) == files(own)
    assert len(files(made)) > 4
    assert "Nothing to be done" in run(repository)[1]
    (repository / CODE).write_text("more = 1\n")
    assert jobs(run(repository)[1]) == EVERY
    code, said = run(repository, only="nothing-*")
    assert code == 1
    assert "KCI217" in said
    text = (repository / SNAKEFILE).read_text()
    assert len(text.splitlines()) < 160
    assert text.count("just-python") == 2, "in the command of its header, and in KERNELS"


def test_a_killed_run_goes_on_and_a_leg_that_fails_is_started_again(
    repository: Path, tmp_path: Path
) -> None:
    """A second run beside the first is refused; with a retry the leg is tried once more, and the
    others are not.
    """
    tried = tmp_path / "tried"
    waits = f"touch {tmp_path}/waits; test -e {tmp_path}/goes || sleep 600"
    first = f"test -e {tried} || {{ touch {tried}; exit 4; }}"
    fails = f'case "$*" in *torch-cuda*--pack*) {waits}; {first};; esac'
    own = str(program(tmp_path, "own", f'{fails}\nexec {own_kci()} "$@"'))
    killed = snakemake(repository, kci=own)
    wait_for((tmp_path / "waits").exists, "the leg to begin")
    other = repository / "kci-out" / "artifacts" / "kci-just-python-torch-cpu.tar"
    wait_for(other.exists, "the other leg")
    code, said = run(repository)
    assert code == 1
    assert "Directory cannot be locked" in said
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not (repository / TREE).exists()
    assert run(repository, "--cores", "1", "--unlock")[0] == 0
    (tmp_path / "goes").touch()
    code, said = run(repository, "--cores", "1", "--rerun-incomplete", "--retries", "1", kci=own)
    assert code == 0, said
    leg = "build_just_python_torch_cuda"
    assert [name for name in jobs(said) if "torch_cpu" not in name] == [
        "all", leg, leg, "merge_just_python", "verify_just_python",
    ], said  # fmt: skip


def test_a_kernel_with_an_error_or_a_test_that_fails_is_red(repository: Path) -> None:
    (repository / "kci.toml").write_text(NO_LOAD + '[test.cuda.x86_64-linux]\nlabels = ["gpu"]\n')
    code, said = run(repository)
    assert code == 1
    assert any(name.startswith("test_just_python_cuda") for name in jobs(said))
    shutil.rmtree(repository / TREE)
    (repository / CODE).write_text("import numpy\n")
    assert run(repository)[0] == 1
    assert not (repository / TREE).exists()


HOSTILE = ["$(touch pwned)", "a;touch pwned", "a'b", 'a"b', "`touch pwned`"]
HOSTILE += ["a b", "-x", "*", "{input}", "a{b"]


def named_kernels(folder: Path, *names: str) -> None:
    """Kernels of Python, of the names `k-0`, `k-1`..., in folders of these names."""
    for number, name in enumerate(names):
        kernel = noarch_kernel(folder / name)
        build = kernel / "build.toml"
        build.write_text(build.read_text().replace("just-python", f"k-{number}"))
        (kernel / "torch-ext" / "just_python").rename(kernel / "torch-ext" / f"k_{number}")
    (folder / "kci.toml").write_text(NO_LOAD)
    commit(folder)


def test_no_name_becomes_a_part_of_a_shell_line(tmp_path: Path) -> None:
    """A path of a kernel may have any of these; what kci is told is that path, as one word."""
    folder = tmp_path / "repo"
    named_kernels(folder, *HOSTILE)
    rendered(folder, *HOSTILE)
    words = tmp_path / "words"
    note = f'printf "%s\\n" "$1" "$@" . >> {words}'
    script = f'{note}\ntest "$1" = plan || exit 1\nexec {own_kci()} "$@"'
    noted = program(tmp_path, "noted", script)
    numbers = range(len(HOSTILE))
    artifacts = [f"kci-out/artifacts/kci-k-{number}-torch-cpu.tar" for number in numbers]
    assert run(folder, "--cores", "1", "--keep-going", *artifacts, kci=str(noted))[0] == 1
    told = [said.splitlines() for said in words.read_text().removesuffix(".\n").split("\n.\n")]
    (planned,) = (said for said in told if said[0] == "plan")
    assert sorted(planned[planned.index("--") + 1 :]) == sorted(HOSTILE)
    assert sorted(said[-1] for said in told if said[0] == "build") == sorted(HOSTILE)
    assert not list(folder.rglob("pwned"))


@pytest.mark.parametrize("path", ["a\nb", "a\0b", "${{ x }}"])
def test_an_expression_or_a_line_break_is_refused(path: str) -> None:
    with pytest.raises(UnsafeError):
        render_snakemake([path])


SPLIT = '[[limits]]\nkernel = "split"\nbackend = "cpu"\n'


def test_many_kernels_are_one_file_and_the_cluster_is_asked_for_what_kci_toml_says(
    tmp_path: Path,
) -> None:
    """Names that differ only in signs stay apart, parts are rules that a link takes, and a test
    asks for a GPU.
    """
    folder = tmp_path / "repo"
    write_tree(folder, {f"split/{name}": text for name, text in SOURCES.items()})
    named_kernels(folder, *(f"k-{number}" for number in range(25)))
    (folder / "kci.toml").write_text(
        f"{NO_LOAD}{SPLIT}parts = 3\nmax-jobs = 2\ntimeout-minutes = 77\n"
        '[runners.cpu.x86_64-linux]\nlabels = ["x"]\ncpus = 8\nmemory-gb = 30\n'
        '[test.cuda.x86_64-linux]\nlabels = ["gpu"]\n'
    )
    rendered(folder)
    code, said = run(folder, "--cores", "8", "--dry-run", "--printshellcmds")
    assert code == 0, said
    built = [name for name in jobs(said) if name.startswith("build_")]
    assert len([name for name in built if name.startswith("build_k_")]) == 50
    assert len([name for name in built if name.startswith("build_split")]) >= 4
    for word in ("threads: 2", "mem_mb=30720", "runtime=77", "--part 2/3", "--link"):
        assert word in said
    rule = r"rule test_k_3_cuda\w*:\n(?: .*\n)*? +resources: .*gpu=1, mem_mb=16384"
    assert re.search(rule, said), said


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.usefixtures("as_users_compile")
def test_parts_are_compiled_once_and_linked(tmp_path: Path) -> None:
    split = SplitKernel(tmp_path)
    (tmp_path / "kci.toml").write_text(f"{NO_LOAD}{SPLIT}parts = 2\n")
    # The id says whether the checkout is clean, and the compiler's notes would change that in the
    # middle of the run.
    (tmp_path / ".gitignore").write_text("made.txt\ncache/\n")
    commit(tmp_path)
    rendered(tmp_path, "split")
    environment = {**os.environ, "CXX": str(split.compiler), "KCI_CACHE": str(split.cache)}
    code, said = run(tmp_path, only=VARIANT, env=environment)
    assert code == 0, said
    assert set(split.made().values()) == {1}, split.made()
    assert read_manifest(tmp_path / "kci-out" / "trees" / "split").complete


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with cluster(tmp_path_factory.mktemp("slurm")) as made:
            yield made
    except NoClusterError as error:
        pytest.skip(f"Slurm does not start here: {error}")


EXECUTOR = ("--executor", "slurm", "--slurm-status-command", "squeue")
EXECUTOR += ("--slurm-init-seconds-before-status-checks", "2")


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing() or "-")
def test_a_real_slurm_builds_the_legs(slurm: Cluster, repository: Path, tmp_path: Path) -> None:
    # The plugin takes SLURM_CONF from its jobs: a real cluster has its configuration where Slurm
    # looks for it.
    real = shutil.which("srun", path=slurm.environment["PATH"])
    program(tmp_path, "srun", f'SLURM_CONF={slurm.environment["SLURM_CONF"]} exec {real} "$@"')
    environment = slurm.environment | {"PATH": f"{tmp_path}:{slurm.environment['PATH']}"}
    words = (*EXECUTOR, "--jobs", "4", "--latency-wait", "30")
    code, said = run(repository, *words, env=environment)
    assert code == 0, said
    assert jobs(said) == EVERY
    assert read_manifest(repository / TREE).complete
