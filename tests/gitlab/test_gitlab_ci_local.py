"""The pipelines for GitLab, run by gitlab-ci-local on this machine with the real kci: jobs,
artifacts, results.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest

from act.harness import commit_all
from act.test_workflow import add_kernel, break_package
from buildkit import program as write_program
from buildkit import warm_cache, write_tree
from cli.runner import ended, kci
from conftest import ROOT, ran
from forked_program import forked_program
from outside_tools import npm_packages
from split_kernel import NAMES, VARIANT, SplitKernel

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(
        sys.platform != "linux", reason="its shell executor stands in for a Linux runner"
    ),
]

PACKAGES = ("gitlab-ci-local@4.75.1", "node@22.23.3")
"""It needs a newer node than many machines have, so it brings one."""
INCLUDED = 'include:\n  - local: .gitlab/kci.gitlab-ci.yml\nvariables:\n  KCI_INSTALL: ""\n'
"""Jobs have kci on their PATH, and install nothing."""


@pytest.fixture(scope="session")
def program() -> list[str]:
    """gitlab-ci-local, from npm; kept for later runs."""
    place = npm_packages("gitlab-ci-local", *PACKAGES, scripts=True) / "node_modules"
    return [str(place / "node/bin/node"), str(place / "gitlab-ci-local/dist/index.js")]


class Pipeline(NamedTuple):
    passed: set[str]
    failed: set[str]
    log: str


def render(repository: Path) -> None:
    commit_all(repository)
    # It copies artifacts here.
    (repository / ".git/info/exclude").write_text("/kci-*\n/.gitlab-ci-local\n")
    ended(kci("render", "--ci", "gitlab", "--output", repository, repository), 0)
    commit_all(repository)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = tmp_path / "repository"
    add_kernel(made, "some-kernel")
    add_kernel(made, "other-kernel", ("cpu",))
    write_tree(made, {"kci.toml": "[plan]\nload = []\n", ".gitlab-ci.yml": INCLUDED})
    render(made)
    return made


RSYNC = f'exec "{sys.executable}" -I -S "{Path(__file__).parent / "stand-ins" / "rsync"}" "$@"'


def run(program: list[str], repository: Path, tmp_path: Path, does: str = "") -> Pipeline:
    """One pipeline, as GitLab would run it for a push to the default branch."""
    tools, home = tmp_path / "tools", tmp_path / "home"
    for folder in (tools, home):
        folder.mkdir(exist_ok=True)
    write_program(tools, "kci", f'{does}\nexec "{forked_program()}" -m kci "$@"')
    write_program(tools, "rsync", RSYNC)
    path = os.pathsep.join([str(tools), str(Path(program[0]).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
    env |= {"KCI_CACHE": str(tmp_path / "cache"), "NO_COLOR": "1", "FORCE_COLOR": "0"}
    for left in ("artifacts", "builds"):  # on GitLab each pipeline has its own
        shutil.rmtree(repository / ".gitlab-ci-local" / left, ignore_errors=True)
    how = ["--force-shell-executor", "--shell-isolation", "--concurrency", "2"]
    done = ran(*program, *how, cwd=repository, env=env)
    log = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    (tmp_path / "pipeline.log").write_text(log)
    passed, failed = (
        {name.removeprefix("[kci] -> ") for name in re.findall(rf"^ {word} +(.+?) *$", log, re.M)}
        for word in ("PASS", "FAIL")
    )
    return Pipeline(passed, failed, log)


def locate_tree(repository: Path, kernel: str) -> set[str]:
    (tar,) = repository.glob(f".gitlab-ci-local/artifacts/{kernel}*merge*/kci-tree.tar")
    with tarfile.open(tar) as archive:
        return {name.split("/")[1] for name in archive.getnames() if "/" in name}


TREES = {"some-kernel": {"torch-cpu", "torch-cuda"}, "other-kernel": {"torch-cpu"}}
JOBS = {
    f"{kernel}: {what}" for kernel, names in TREES.items() for what in (*names, "merge", "record")
}
ALWAYS = {"kci-plan", "kci", "gate"}


def test_pushes_build_what_no_earlier_tree_has_and_a_leg_that_fails_stops_only_its_kernel(
    program: list[str], repository: Path, tmp_path: Path
) -> None:
    first = run(program, repository, tmp_path)
    assert (first.passed, first.failed) == (JOBS | ALWAYS, set()), first.log
    assert "all that was planned is there: 3 variants of 2 kernels" in first.log
    for kernel, names in TREES.items():
        assert {*names, "kci-manifest.json"} <= locate_tree(repository, kernel)

    (repository / "README.md").write_text("about\n")
    commit_all(repository)
    same = run(program, repository, tmp_path)
    assert (same.passed, same.failed) == (ALWAYS, set()), same.log
    assert "all that was planned is there: 3 variants unchanged" in same.log

    break_package(repository / "other-kernel")
    need_capability(repository, "9.0")
    some = run(program, repository, tmp_path)
    # It says of the job that triggers that it passed, which GitLab does not: `strategy: depend`.
    assert some.failed == {"other-kernel: torch-cpu", "other-kernel: merge", "gate"}, some.log
    jobs = {"some-kernel: torch-cuda", "some-kernel: merge", "some-kernel: record"}
    assert some.passed == jobs | {"other-kernel: record"} | ALWAYS - {"gate"}
    row = r"other-kernel +torch-cpu +other-kernel / torch-cpu +.*gone.py is a link to nothing"
    assert re.search(row, some.log)
    assert "kci build --variant=torch-cpu" in some.log, "the command that does the same elsewhere"
    assert "torch-ext/other_kernel/gone.py is a link to nothing" in some.log
    assert TREES["some-kernel"] <= locate_tree(repository, "some-kernel"), "one is carried over"

    # A tree that the cache has lost: the next push mends it.
    (repository / "other-kernel" / "torch-ext" / "other_kernel" / "gone.py").unlink()
    for kept in repository.glob(".gitlab-ci-local/cache/tree.some-kernel-*"):
        shutil.rmtree(kept)
    need_capability(repository, "8.0")
    lost = run(program, repository, tmp_path)
    assert lost.failed == {"some-kernel: merge", "gate"}, lost.log
    assert "is not in this runner's cache" in lost.log
    mended = run(program, repository, tmp_path)
    jobs |= {"some-kernel: torch-cpu"} | ALWAYS
    assert (mended.passed, mended.failed) == (jobs, set()), mended.log


def need_capability(repository: Path, arch: str) -> None:
    """Commit what only the variant for CUDA is made from."""
    file = repository / "some-kernel/build.toml"
    head = file.read_text().partition("[torch-noarch]")[0]
    file.write_text(f'{head}[torch-noarch]\ncuda_capabilities = ["{arch}"]\n')
    commit_all(repository)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("as_users_compile")
def test_parts_are_linked_and_the_next_push_compiles_what_changed(
    program: list[str], tmp_path: Path
) -> None:
    """Objects go from the parts to the link as artifacts, and from pipeline to pipeline by the
    cache.
    """
    split = SplitKernel(tmp_path)
    (tmp_path / "machine").mkdir()
    warm_cache(tmp_path / "machine")
    limits = '[plan]\nload = []\n[[limits]]\nkernel = "split"\nbackend = "cpu"\nparts = 2\n'
    more = f'  KCI_ONLY: "{VARIANT}"\n  CXX: "{split.compiler}"\n'
    texts = {"kci.toml": f'catalog = "2026-08-20"\n{limits}', ".gitlab-ci.yml": INCLUDED + more}
    write_tree(split.directory, texts)
    render(split.directory)
    # Each job is a machine of its own.
    machine = tmp_path / "machine" / "cache"
    does = f"""
        export KCI_CACHE="$(mktemp -d)"
        for part in cuda envs headers; do ln -s {machine}/$part "$KCI_CACHE/$part"; done"""
    parts = {f"split: {VARIANT}.part{number}of2" for number in (1, 2)}
    for made in ([1] * (len(NAMES) + 1), [1] * len(NAMES) + [2]):
        commit_all(split.directory)
        done = run(program, split.directory, tmp_path, does=does)
        jobs = {*ALWAYS, *parts, f"split: {VARIANT}", "split: merge", "split: record"}
        assert (done.passed, done.failed) == (jobs, set()), done.log
        assert sorted(split.made().values()) == made, done.log
        assert VARIANT in locate_tree(split.directory, "split")
        with (split.directory / "csrc/last.cpp").open("a") as source:
            source.write("int changed;\n")
