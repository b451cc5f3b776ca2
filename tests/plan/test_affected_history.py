"""`--affected` over a history: what it plans between any two commits is what fingerprints at both
ends say.

The truth is rebuilt each time from two checkouts that git makes, without any of the code that reads
a base out of git.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kci.config.discovery import find_kernels
from kci.config.settings import KCI_TOML
from kci.errors import KciError
from kci.plan.affected import Touch, changes_since, only_affected, pull_request_base
from kci.plan.fingerprint import Fingerprints
from kci.plan.inputs.source_tree import SourceTree
from kci.plan.legs import toolchain_of
from kci.plan.workspace import Choice, open_workspace
from planning import Change, append, git, refused, replace, write

REPO = Path(__file__).parent / "affected" / "repo"

# --- the history ---


class Step(NamedTuple):
    """One commit."""

    name: str
    change: Change


def move(old: str, new: str) -> Change:
    return lambda root: git(root, "mv", old, new)


def move_untracked(old: str, new: str) -> Change:
    return lambda root: (root / old).rename(root / new)


def remove(path: str) -> Change:
    return lambda root: git(root, "rm", "-qr", path)


def link(path: str, target: str) -> Change:
    def change(root: Path) -> None:
        (root / path).unlink(missing_ok=True)
        (root / path).symlink_to(target)

    return change


def several(*changes: Change) -> Change:
    def change(root: Path) -> None:
        for one in changes:
            one(root)

    return change


NORM = "norm/build.toml"
STEPS = [
    Step("a CUDA source", append("norm/csrc/cuda/hopper.cu", "// 1\n")),
    Step("a CPU source", append("norm/csrc/cpu/norm.cpp", "// 1\n")),
    Step("a README", write("norm/README.md", "# better\n")),
    Step("a flake", several(write("norm/flake.nix", "{ }\n"), write("norm/flake.lock", "{}\n"))),
    Step("the flake again", write("norm/flake.lock", '{"a": 1}\n')),
    Step("a shared header", append("norm/csrc/shared.h", "// 2\n")),
    Step("a header of one backend", append("norm/csrc/cpu/util.h", "// 2\n")),
    Step("a file that nobody lists", append("norm/csrc/stray.h", "// 2\n")),
    Step("a comment in build.toml", append(NORM, "\n# a comment\n")),
    Step("a flag", replace(NORM, "[kernel.on_cpu]", '[kernel.on_cpu]\ncxx-flags = ["-O2"]')),
    Step("the licence", replace(NORM, '"MIT"', '"Apache-2.0"')),
    Step("the bounds", replace(NORM, 'minver = "12.6"', 'minver = "12.8"')),
    Step("the bounds back", replace(NORM, 'minver = "12.8"', 'minver = "12.6"')),
    Step("a new header that is included", several(
        write("norm/csrc/cuda/new.h", "#pragma once\n"),
        append("norm/csrc/cuda/norm.cu", '#include "new.h"\n'))),
    Step("a header beside it that comes first",
        write("norm/csrc/new.h", "#pragma once\n// other\n")),
    Step("that header gone", remove("norm/csrc/new.h")),
    Step("a rename with its entry", several(
        move("norm/csrc/cuda/hopper.cu", "norm/csrc/cuda/sm90.cu"),
        replace(NORM, "cuda/hopper.cu", "cuda/sm90.cu"))),
    Step("a rename of a header with its includes", several(
        move("norm/csrc/cuda/new.h", "norm/csrc/cuda/newer.h"),
        replace("norm/csrc/cuda/norm.cu", '"new.h"', '"newer.h"'))),
    Step("a header deleted, and its include", several(
        remove("norm/csrc/cuda/newer.h"), replace("norm/csrc/cuda/norm.cu", '#include "newer.h"\n',
            ""))),
    Step("a source becomes a link", several(
        move("norm/csrc/cuda/sm90.cu", "norm/csrc/cuda/real.cu"),
        link("norm/csrc/cuda/sm90.cu", "real.cu"))),
    Step("what the link leads to", append("norm/csrc/cuda/real.cu", "// 3\n")),
    Step("a second target", write("norm/csrc/cuda/other.cu", "// other\n")),
    Step("the link elsewhere", link("norm/csrc/cuda/sm90.cu", "other.cu")),
    Step("the first target, which nothing reads now", append("norm/csrc/cuda/real.cu", "// 4\n")),
    Step("the link becomes a file", several(
        lambda root: (root / "norm/csrc/cuda/sm90.cu").unlink(),
        write("norm/csrc/cuda/sm90.cu", "// a file\n"))),
    Step("a folder behind a link", several(
        write("norm/include/api.h", "#pragma once\n"), link("norm/csrc/api", "../include"),
        append("norm/csrc/cpu/norm.cpp", '#include "../api/api.h"\n'))),
    Step("a header in that folder", append("norm/include/api.h", "// 2\n")),
    Step("the folder's link elsewhere", several(
        write("norm/include2/api.h", "#pragma once\n// two\n"),
        link("norm/csrc/api", "../include2"))),
    Step("the folder that nothing reads now", append("norm/include/api.h", "// 3\n")),
    Step("a module of the package", append("pyonly/torch-ext/pyonly/__init__.py", "MORE = 1\n")),
    Step("data in a package of Python only", write("pyonly/torch-ext/pyonly/data.json", "{}\n")),
    Step("a stub in a compiled package", write("norm/torch-ext/norm/__init__.pyi", "x: int\n")),
    Step("data in a compiled package", write("norm/torch-ext/norm/table.json", "{}\n")),
    Step("that data is installed", replace(NORM, "[torch]", '[torch]\npyext = ["py", "json"]')),
    Step("that data changes", write("norm/torch-ext/norm/table.json", '{"a": 1}\n')),
    Step("kci.toml with a comment", write(KCI_TOML, "# nothing\n")),
    Step("a runner", write(KCI_TOML, '[runners.cuda.x86_64-linux]\nlabels = ["big"]\n')),
    Step("an image", append(KCI_TOML, '[images.cuda]\nx86_64-linux = "acme/cuda:{compute}"\n')),
    Step("another image", replace(KCI_TOML, "acme/cuda:", "acme/cuda-2:")),
    Step("a row less", append(KCI_TOML, '[[overlay]]\ndrop = ["torch == 2.11"]\n')),
    Step("the row back", replace(KCI_TOML, '[[overlay]]\ndrop = ["torch == 2.11"]\n', "")),
    Step("an older catalog", replace(KCI_TOML, "[runners", 'catalog = "2026-03-25"\n[runners')),
    Step("the newer one", replace(KCI_TOML, 'catalog = "2026-03-25"\n', "")),
    Step("a declared input", several(
        write("common/scale.h", "#pragma once\n"),
        append("norm/csrc/cuda/norm.cu", '#include "../../../common/scale.h"\n'),
        append(KCI_TOML, '[[inputs]]\nkernel = "norm"\npaths = ["common"]\n'))),
    Step("the declared input changes", append("common/scale.h", "// 2\n")),
    Step("a declared file that nobody reads", write("common/unused.h", "//\n")),
    Step("a kernel moves", move("pyonly", "python-only")),
    Step("a new kernel", several(
        lambda root: shutil.copytree(REPO / "pyonly", root / "third"),
        replace("third/build.toml", 'name = "pyonly"', 'name = "third"'),
        move_untracked("third/torch-ext/pyonly", "third/torch-ext/third"))),
    Step("its code", append("third/torch-ext/third/__init__.py", "MORE = 2\n")),
    Step("a kernel goes", remove("third")),
    Step("a workflow", write(".github/workflows/kci.yml", "on: push\n")),
    Step("a mode", lambda root: (root / "norm/csrc/cpu/norm.cpp").chmod(0o755)),
    Step("line ends", lambda root: (root / "norm/csrc/cpu/util.h").write_bytes(
        (root / "norm/csrc/cpu/util.h").read_bytes().replace(b"\n", b"\r\n"))),
    Step("an odd name", write('norm/csrc/ä "b".h', "//\n")),
    Step("that name included", append("norm/csrc/cpu/norm.cpp", '#include <ä "b".h>\n')),
    Step("a file becomes a folder", several(remove("norm/csrc/stray.h"),
        write("norm/csrc/stray.h/x.h", "//\n"))),
    Step("the folder becomes a file", several(remove("norm/csrc/stray.h"),
        write("norm/csrc/stray.h", "//\n"))),
    Step("a macro that nobody defines", append("norm/csrc/cpu/norm.cpp", "#include UNKNOWN\n")),
    Step("any file of the kernel then", append("norm/README.md", "more\n")),
    Step("the macro goes", replace("norm/csrc/cpu/norm.cpp", "#include UNKNOWN\n", "")),
    Step("nothing", lambda _root: None),
]  # fmt: skip


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repository with every step as a commit, two branches merged on top, and a submodule that
    moves.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GIT_")]:
            patch.delenv(name)
        place = tmp_path_factory.mktemp("history")
        library = place / "library"
        write("lib.h", "#pragma once\n")(library)
        git(library, "init", "-q", "-b", "main")
        git(library, "add", ".")
        git(library, "commit", "-qm", "one")
        root = place / "r"
        shutil.copytree(REPO, root)
        git(root, "init", "-q", "-b", "main")
        commit(root, "first")
        for step in STEPS:
            step.change(root)
            commit(root, step.name)
        git(root, "checkout", "-qb", "topic", "HEAD~3")
        append("norm/csrc/cuda/norm.cu", "// on a branch\n")(root)
        commit(root, "branch")
        git(root, "checkout", "-q", "main")
        append("norm/csrc/cpu/util.h", "// on main\n")(root)
        commit(root, "main")
        git(root, "merge", "-q", "-m", "merge", "topic")
        git(root, "submodule", "--quiet", "add", str(library), "norm/csrc/lib")
        append("norm/csrc/cuda/norm.cu", '#include "../lib/lib.h"\n')(root)
        commit(root, "submodule")
        append("lib.h", "// two\n")(library)
        git(library, "commit", "-qam", "two")
        git(root / "norm/csrc/lib", "pull", "-q", "origin", "main")
        commit(root, "submodule moves")
        append("norm/csrc/cpu/util.h", "// after it\n")(root)
        commit(root, "after it")
        yield root


def commit(root: Path, name: str) -> None:
    git(root, "add", "--all")
    git(root, "commit", "-q", "--allow-empty", "-m", name)


# --- the truth, and the answer ---


def truth(root: Path) -> dict[tuple[str, str], str]:
    """The fingerprint of every variant of a checkout; those of a kernel that cannot be planned are
    not there.
    """
    here, tree = open_workspace([str(root)]), SourceTree(root)
    found = {}
    for kernel in here.kernels:
        try:
            prints = Fingerprints(kernel, tree, here.settings.settings.inputs_of(kernel.build.name))
            for variant in here.with_kernels([kernel]).matrix().kernels[0].each_once():
                image = toolchain_of(variant, here.runners, container=True)
                found[kernel.build.name, variant.name] = prints.fingerprint(variant, image)
        except KciError:
            continue
    return found


def answer(root: Path, base: str) -> tuple[set[tuple[str, str]], list[Touch]]:
    """What --affected plans."""
    here = open_workspace([str(root)])
    left, decisions = only_affected(here, here.matrix(), Choice(), changes_since(root, base))
    names = {(kernel.name, variant.name) for kernel in left.kernels for variant in kernel.variants}
    return names, decisions


def checkout(history: Path, commit_id: str, into: Path) -> Path:
    """A commit in a clone of its own, with the submodule as it was."""
    git(into.parent, "clone", "-q", "--no-checkout", str(history), str(into))
    git(into, "checkout", "-q", commit_id)
    if (into / ".gitmodules").exists():
        git(into, "submodule", "--quiet", "update", "--init")
    return into


def moved_between(
    old: dict[tuple[str, str], str], new: dict[tuple[str, str], str]
) -> set[tuple[str, str]]:
    return {key for key, value in new.items() if old.get(key) != value}


def commits(history: Path) -> list[str]:
    return git(history, "rev-list", "--first-parent", "--reverse", "HEAD").splitlines()


@pytest.mark.slow
def test_every_commit_against_its_parent_and_against_one_much_older(
    history: Path, tmp_path: Path, no_git_environment: None
) -> None:
    chain = commits(history)
    assert len(chain) > 60
    work = checkout(history, chain[0], tmp_path / "work")
    then: list[dict[tuple[str, str], str]] = []
    compared = planned = 0
    for index, commit_id in enumerate(chain):
        subject = git(history, "log", "-1", "--format=%s", commit_id)
        git(work, "checkout", "-q", commit_id)
        if (work / ".gitmodules").exists():
            git(work, "submodule", "--quiet", "update", "--init")
        elif (work / "norm/csrc/lib").exists():
            shutil.rmtree(work / "norm/csrc/lib")
        now = truth(work)
        for distance in (1, 7):
            if index < distance:
                continue
            found, decisions = answer(work, chain[index - distance])
            expected = moved_between(then[index - distance], now)
            if "kernel moves" in subject or not _same_places(work, chain[index - distance]):
                # A kernel in another folder has no base to be compared with, so all of it is
                # planned.
                assert found >= expected, subject
            else:
                assert found == expected, (subject, distance)
            told = {(item.kernel, name) for item in decisions for name in item.touches}
            assert told == found, (subject, "every variant is named with a file")
            assert all(item.reason for item in decisions)
            compared += 1
            planned += len(found)
        then.append(now)
    print(f"{len(chain)} commits, {compared} comparisons, {planned} variants planned")


def _same_places(work: Path, base: str) -> bool:
    """Whether the kernels lay in the same folders at a base."""
    listed = git(work, "ls-tree", "-r", "--name-only", base).splitlines()
    there = {name for name in listed if name.endswith("build.toml")}
    found = (Path(directory).relative_to(work) for directory in find_kernels([str(work)]))
    return {f"{directory}/build.toml" for directory in found} <= there


@pytest.mark.usefixtures("no_git_environment")
def test_a_shallow_clone_says_what_it_lacks(history: Path, tmp_path: Path) -> None:
    chain = commits(history)
    git(tmp_path, "clone", "-q", "--depth", "2", f"file://{history}", str(tmp_path / "shallow"))
    assert "fetch-depth" in refused("KCI312", answer, tmp_path / "shallow", chain[3]).hint


@pytest.mark.usefixtures("no_git_environment")
def test_what_a_pull_request_would_be_merged_into(history: Path, tmp_path: Path) -> None:
    """As GitHub has it checked out: a merge commit and its two parents."""
    chain, work = commits(history), tmp_path / "work"
    git(tmp_path, "clone", "-q", str(history), str(work))
    git(work, "checkout", "-q", "-b", "feature", chain[1])
    git(work, "commit", "-q", "--allow-empty", "-m", "feature")
    head = git(work, "rev-parse", "HEAD")
    no_merge = "HEAD is not the merge commit"
    assert no_merge in refused("KCI312", pull_request_base, work, head).message
    git(work, "checkout", "-q", "--detach", chain[-1])
    git(work, "merge", "-q", "--no-ff", "-s", "ours", "-m", "merge", head)
    git(tmp_path, "clone", "-q", "--depth", "2", f"file://{work}", str(tmp_path / "shallow"))
    assert pull_request_base(tmp_path / "shallow", head) == chain[-1]
    assert changes_since(tmp_path / "shallow", chain[-1]).files == ()
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{work}", str(tmp_path / "alone"))
    assert "fetch-depth" in refused("KCI312", pull_request_base, tmp_path / "alone", head).hint
    # A pull request whose newest commit is a merge commit itself, checked out as it is.
    found = refused("KCI312", pull_request_base, work, git(work, "rev-parse", "HEAD"))
    assert no_merge in found.message


@pytest.mark.usefixtures("no_git_environment")
def test_a_partial_clone_says_what_it_lacks(history: Path, tmp_path: Path) -> None:
    git(history, "config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{history}", str(partial))
    assert "partial" in refused("KCI312", answer, partial, commits(history)[3]).message
