"""A real Slurm on loopback runs legs as an array: built, failed, cancelled, and started again after its node died."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT
from kci.tree.manifest import read_manifest
from kci.verify import verify
from remote.background import Client
from remote.slurm_cluster import Cluster, NoClusterError, cluster, missing, wait_for
from remote.split_kernel import CHOSEN, NAMES, SplitKernel
from run.cuda_python import python_with_cuda

pytestmark = [pytest.mark.programs, pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "-")]


TEST = """\
import pytest, torch
from kernels import get_kernel

@pytest.mark.kernels_ci
def test_halves():
    kernel = get_kernel("kci-examples/swiglu", version=1)
    assert tuple(kernel.silu_and_mul(torch.ones(1, 4)).shape) == (1, 2)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with cluster(tmp_path_factory.mktemp("slurm")) as made:
            yield made
    except NoClusterError as error:
        pytest.skip(f"Slurm does not start here: {error}")


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    return Path(
        shutil.copytree(
            ROOT / "examples" / "swiglu", tmp_path / "swiglu", ignore=shutil.ignore_patterns("build", "__pycache__")
        )
    )


def configure(kernel_dir: Path, script: str = "") -> None:
    """An engine whose kci first does what the script says."""
    kci = kernel_dir.parent / "kci.sh"
    kci.write_text(f'#!/bin/sh\n{script}\nexec "{sys.executable}" -m kci "$@"\n')
    kci.chmod(0o755)
    (kernel_dir / "kci.toml").write_text(
        f'[engines.cluster]\npoll-seconds = 0.2\ntype = "slurm"\nkci = ["{kci}"]\n'
        f'python = "{sys.executable}"\ncores = 1\nmemory-gb = 1\n'
        'partition = "build"\nenvironment = ["PYTHONPATH", "SLURM_CONF"]\n'
    )


def client(slurm: Cluster, kernel_dir: Path, *arguments: str) -> Client:
    cache = kernel_dir.parent / "cache"
    return Client("run", *arguments, "--cache", str(cache), environment=slurm.environment)


def test_an_array_is_built_merged_and_verified(slurm: Cluster, kernel_dir: Path) -> None:
    configure(kernel_dir)
    done = client(slurm, kernel_dir, str(kernel_dir), "--engine", "cluster").end()
    assert done.code == 0, done.output
    manifest = read_manifest(kernel_dir / "build")
    assert manifest is not None
    assert [entry.variant for entry in manifest.present] == ["torch-cpu", "torch-cuda", "torch-rocm"]
    assert verify(kernel_dir / "build") == []
    listed = slurm.ask("squeue", "-h", "-r", "-t", "all", "-o", "%j %K", "--name", f"kci-{done.run}-b1").split("\n")
    assert sorted(line.split()[1] for line in listed if line) == ["0", "1", "2"]


def test_one_fails_one_is_cancelled_one_is_started_again_after_its_node_died(slurm: Cluster, kernel_dir: Path) -> None:
    here = kernel_dir.parent
    configure(
        kernel_dir,
        f"""case "$*" in
*torch-cuda*) echo "error: planned"; exit 4;;
*torch-cpu*) touch {here}/cpu; exec sleep 3600;;
*torch-rocm*) if [ ! -e {here}/rocm ]; then touch {here}/rocm; exec sleep 3600; fi;;
esac""",
    )
    going = client(slurm, kernel_dir, str(kernel_dir), "--engine", "cluster")
    wait_for(lambda: (here / "cpu").exists() and (here / "rocm").exists(), "the legs to run")
    names = {}
    for job in (here / "cache" / "runs").glob("*/jobs/*"):
        text = (job / "job.json").read_text()
        names[next(name for name in ("torch-cpu", "torch-cuda", "torch-rocm") if f'"{name}"' in text)] = job
    slurm.ask("scancel", (names["torch-cpu"] / "claim").read_text().strip())
    wait_for(lambda: "failed" in going.said(), "the failure to be told")
    slurm.kill_node(here)
    slurm.start_node()
    claim = (names["torch-rocm"] / "claim").read_text().strip()
    wait_for(lambda: "PENDING" in slurm.ask("squeue", "-h", "-j", claim, "-o", "%T"), "Slurm to requeue it")
    # By default it waits two minutes. In these a node that is back is told that what it ran has ended, which would end
    # the new one.
    wait_for(slurm.has_told_all, "Slurm to tell the node")
    slurm.ask("scontrol", "update", f"jobid={claim}", "starttime=now")
    done = going.end()
    assert done.code == 4, done.output
    executions = (names["torch-rocm"] / "executions").read_text().splitlines()
    assert len(executions) == 2, executions
    assert len({line.split()[2] for line in executions}) == 1
    assert "it was cancelled there" in done.output
    assert "error: planned" in done.output
    manifest = read_manifest(kernel_dir / "build")
    assert manifest is not None
    assert [entry.variant for entry in manifest.present] == ["torch-rocm"]
    assert manifest.missing == ("torch-cpu", "torch-cuda")


def test_what_slurm_refuses_costs_the_legs_and_is_told(slurm: Cluster, kernel_dir: Path) -> None:
    configure(kernel_dir)
    text = (kernel_dir / "kci.toml").read_text().replace('partition = "build"', 'partition = "nope"')
    (kernel_dir / "kci.toml").write_text(text)
    done = client(slurm, kernel_dir, str(kernel_dir), "--engine", "cluster").end()
    assert done.code == 1, done.output
    assert "sbatch refuses: sbatch: error: invalid partition specified: nope" in done.output


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_client_that_is_killed_at_the_submission_leaves_one_array(
    slurm: Cluster, kernel_dir: Path, moment: str
) -> None:
    """Killed by its own `sbatch`, before that submits, or when it has; whoever resumes asks for the batch by name."""
    configure(kernel_dir)
    here = kernel_dir.parent
    real = shutil.which("sbatch", path=slurm.environment["PATH"])
    deadly = {"before": "kill -9 $PPID", "after": f'{real} "$@"; kill -9 $PPID'}[moment]
    (here / "bin").mkdir()
    (here / "bin" / "sbatch").write_text(f"#!/bin/sh\n{deadly}\n")
    (here / "bin" / "sbatch").chmod(0o755)
    surroundings = {**slurm.environment, "PATH": f"{here / 'bin'}:{slurm.environment['PATH']}"}
    arguments = [str(kernel_dir), "--engine", "cluster", "--backend", "cpu", "--backend", "cuda"]
    killed = Client("run", *arguments, "--cache", str(here / "cache"), environment=surroundings).end()
    assert killed.code == -signal.SIGKILL, killed.output
    done = client(slurm, kernel_dir, "--resume", killed.run).end()
    assert done.code == 0, done.output
    jobs = (here / "cache" / "runs").glob("*/jobs/*")
    assert [len((job / "executions").read_text().splitlines()) for job in jobs] == [1, 1]
    listed = slurm.ask("squeue", "-h", "-r", "-t", "all", "-o", "%j %i")
    assert len({line.split()[1].partition("_")[0] for line in listed.splitlines() if killed.run in line}) == 1


def test_the_merged_tree_is_tested_on_a_node_with_a_gpu(slurm: Cluster, kernel_dir: Path) -> None:
    """Slurm has a GPU to give away that is none, and the node's Python says that it has torch for CUDA."""
    asked = kernel_dir.parent / "asked"
    configure(kernel_dir, f"if [ $1 = test ]; then scontrol show job $SLURM_JOB_ID > {asked}; fi")
    with (kernel_dir / "kci.toml").open("a") as settings:
        settings.write(f'tests = ["cuda"]\ncapability = "9.0"\ntest-python = "{python_with_cuda(kernel_dir.parent)}"\n')
    arguments = ("--engine", "cluster", "--backend", "cuda", "--test")
    done = client(slurm, kernel_dir, str(kernel_dir), *arguments).end()
    assert done.code == 0, done.output
    assert "tested torch-cuda" in done.output
    assert "gpu:1" in asked.read_text()


@pytest.mark.torch
def test_the_merged_tree_is_tested_with_a_real_torch(slurm: Cluster, kernel_dir: Path) -> None:
    configure(kernel_dir)
    (kernel_dir / "tests" / "test_swiglu.py").write_text(TEST)
    with (kernel_dir / "kci.toml").open("a") as settings:
        settings.write('tests = ["cpu"]\n')
    arguments = ("--engine", "cluster", "--backend", "cpu", "--test")
    done = client(slurm, kernel_dir, str(kernel_dir), *arguments).end()
    assert done.code == 0, done.output
    assert "tested torch-cpu" in done.output


@pytest.mark.torch
def test_parts_are_an_array_and_their_link_waits_in_the_queue(slurm: Cluster, tmp_path: Path) -> None:
    """The first part ends itself; the link, which Slurm then lets begin, is called back until the part is done."""
    split = SplitKernel(tmp_path)
    table = f'type = "slurm"\npoll-seconds = 0.2\ncores = 1\nmemory-gb = 1\nfolder = "{tmp_path}/shared"\n'
    table += 'partition = "build"\nenvironment = ["SLURM_CONF"]\n'
    script = f"""
        if [ "$KCI_ATTEMPT" = 1 ] && [ "${{*#*--part=1/2}}" != "$*" ]; then
            $kci "$@" &
            while [ ! -s "{split.notes}" ]; do sleep 0.1; done
            kill -TERM $!
            wait $!
            exit $?
        fi
    """
    split.engines({"cluster": table}, script=script)
    arguments = ("run", str(split.directory), "--engine", "cluster", "--cache", str(split.cache), *CHOSEN)
    waiting: list[str] = []

    def seen() -> bool:
        queue = slurm.ask("squeue", "-h", "-r", "-o", "%i %E %K").splitlines()
        waiting.extend(line for line in queue if "afterany" in line)
        return bool(waiting)

    with Client(*arguments, environment=slurm.environment) as going:
        going.wait_for(seen, "the link to wait in the queue")
        done = going.end()
    assert done.code == 0, done.output
    events = [line["event"] for line in split.journal()]
    assert "continued" in events
    submitted = [len(line["legs"]) for line in split.journal() if line["event"] == "submitted"]
    assert submitted[:2] == [2, 1], "an array of the parts, and the link"
    assert sum(split.made().values()) <= len(NAMES) + 1 + 2
    assert verify(split.directory / "build", ignore=["KCI721"]) == []
