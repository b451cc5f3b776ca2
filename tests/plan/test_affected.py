"""What a change touches, and the git side of it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from act.harness import commit_all as commit
from buildkit import program, write_tree
from kci.config.discovery import find_kernels
from kci.errors import FindingsError
from kci.matrix.variants import parse_variant_name
from kci.plan.affected import Touch, changes_since, clean_commit, only_affected
from kci.plan.workspace import Choice, open_workspace
from kci.tree.identity import commit_time, is_ancestor, provenance, unique_id
from kci.utils.git import read_blob, read_objects, ref_names
from kci.watch.history import remote_url
from planning import git, refused, replace, write

REPO = Path(__file__).parent / "affected" / "repo"
NAMES = ("norm", "pyonly")
BUILD_TOML = "norm/build.toml"


@pytest.fixture
def repository(tmp_path: Path, no_git_environment: None) -> Path:
    root = Path(shutil.copytree(REPO, tmp_path / "r"))
    commit(root)
    git(root, "checkout", "-qb", "topic")
    return root


def planned(root: Path, base: str = "main") -> list[str]:
    return answer(root, base)[0]


def answer(root: Path, base: str) -> tuple[list[str], list[Touch]]:
    workspace = open_workspace([str(root / name) for name in NAMES])
    matrix, found = only_affected(
        workspace, workspace.matrix(), Choice(), changes_since(root, base)
    )
    names = [f"{kernel.name} {item.name}" for kernel in matrix.kernels for item in kernel.variants]
    return names, found


def change(root: Path, path: str, now: str | None, then: str | None = None) -> None:
    """Change a file, or a part of it if `then` is given; without `now` the file goes."""
    if now is None:
        (root / path).unlink()
    else:
        (write(path, now) if then is None else replace(path, then, now))(root)


def backends(names: Iterable[str]) -> set[str]:
    return {parse_variant_name(name).backend for name in names}


ALL = {"cpu", "cuda", "rocm"}


@pytest.mark.parametrize(
    ("path", "now", "then", "expected"),
    [
        ("norm/torch-ext/binding.cpp", "// new\n", None, ALL),
        ("norm/csrc/cuda/norm.cu", "// new\n", None, {"cuda", "rocm"}),
        ("norm/csrc/cuda/hopper.cu", "// new\n", None, {"cuda"}),
        ("norm/csrc/cpu/util.h", "// new\n", None, ALL),
        ("norm/csrc/stray.h", "// new\n", None, set()),
        ("norm/README.md", "new\n", None, set()),
        ("norm/torch-ext/norm/__init__.py", "A = 1\n", None, ALL),
        (BUILD_TOML, "# a comment\n[kernel.on_rocm]", "[kernel.on_rocm]", set()),
        (BUILD_TOML, 'include = ["csrc"]\ncuda-flags = ["-O2"]', 'include = ["csrc"]', {"cuda"}),
        (BUILD_TOML, 'minver = "12.4"', 'minver = "12.6"', set()),
        (BUILD_TOML, '"csrc/cpu/norm.cpp", "csrc/stray.h"', '"csrc/cpu/norm.cpp"', ALL),
    ],
)
def test_a_file_touches_the_variants_that_it_decides(
    repository: Path, path: str, now: str | None, then: str | None, expected: set[str]
) -> None:
    change(repository, path, now, then)
    names, (touch,) = answer(repository, "main")
    assert backends(touch.touches) == expected
    assert (touch.path, touch.kernel) == (path, "norm")
    assert [f"norm {name}" for name in touch.touches] == sorted(names), "what is planned is named"


@pytest.mark.parametrize(
    "path", ["norm/flake.nix", "norm/flake.lock", "flake.lock", "norm/README.md", "norm/csrc/new.h"]
)
def test_what_nix_builds_is_made_of_every_file(repository: Path, path: str) -> None:
    """And of the flakes around the kernel; what kci's own builder makes is not."""
    change(repository, "kci.toml", '[nix]\nsystems = ["aarch64-darwin"]\n')
    commit(repository)
    change(repository, path, "new\n")
    names, touched = answer(repository, "HEAD")
    assert names
    assert all(name.endswith("-aarch64-darwin") for name in names)
    (found,) = [touch for touch in touched if touch.path == path]
    assert found.reason == "an input of these variants"


def test_steps_before_each_build_touch_every_variant(repository: Path) -> None:
    every = open_workspace([str(repository / name) for name in NAMES]).matrix().kernels
    change(repository, ".github/kci/before-build.yml", "- run: apt-get install gcc-13\n")
    assert len(planned(repository)) == sum(len(kernel.variants) for kernel in every)


@pytest.mark.parametrize("by", ["file", "folder", "chain", "package"])
def test_a_file_behind_a_link_touches_what_reads_it(repository: Path, by: str) -> None:
    """A link in a declared input, a folder that `src` goes through, a link to a link, and one of
    the package.
    """
    change(repository, "other/common.h", "#define SCALE 1\n")
    (repository / "shared").mkdir()
    place, target = {
        "file": ("shared/common.h", "../other/common.h"),
        "folder": ("norm/csrc/common", "../../other"),
        "chain": ("shared/common.h", "../middle.h"),
        "package": ("norm/torch-ext/norm/common.py", "../../../other/common.h"),
    }[by]
    (repository / "middle.h").symlink_to("other/common.h")
    (repository / place).symlink_to(target)
    change(repository, "kci.toml", '[[inputs]]\npaths = ["shared"]\n')
    if by == "folder":
        change(repository, BUILD_TOML, 'norm.cpp", "csrc/common/common.h"', 'norm.cpp"')
    commit(repository)
    change(repository, "other/common.h", "#define SCALE 3\n")
    assert planned(repository, "HEAD")
    if by == "chain":
        change(repository, "other/common.h", "#define SCALE 1\n")
        assert not planned(repository, "HEAD")
        (repository / "middle.h").unlink()
        change(repository, "middle.h", "#define SCALE 2\n")
        assert planned(repository, "HEAD")


@pytest.mark.parametrize("was", [None, "edition = 9"])
def test_a_kernel_not_plannable_at_the_base_is_new(repository: Path, was: str | None) -> None:
    text = (repository / BUILD_TOML).read_text()
    change(repository, BUILD_TOML, was, "edition = 5" if was else None)
    commit(repository)
    change(repository, BUILD_TOML, text)
    change(repository, "norm/csrc/cuda/norm.cu", "// new\n")
    _, found = answer(repository, "HEAD")
    assert [(touch.path, backends(touch.touches)) for touch in found] == [
        (BUILD_TOML, ALL), ("norm/csrc/cuda/norm.cu", {"cuda", "rocm"}),
    ]  # fmt: skip
    assert "could not be planned at the base" in found[0].reason


def test_a_kernel_at_the_root_owns_every_file(repository: Path) -> None:
    for file in (repository / "norm").iterdir():
        file.rename(repository / file.name)
    commit(repository)
    change(repository, "docs/a.md", "new\n")
    workspace = open_workspace([str(repository)])
    _, found = only_affected(
        workspace, workspace.matrix(), Choice(), changes_since(repository, "HEAD")
    )
    assert [touch.kernel for touch in found] == ["norm"]


def test_only_what_the_branch_changed_counts(repository: Path) -> None:
    change(repository, "norm/csrc/cuda/hopper.cu", "// better\n")
    commit(repository)
    git(repository, "checkout", "-q", "main")
    change(repository, "pyonly/torch-ext/pyonly/__init__.py", "VALUE = 2\n")
    commit(repository)
    git(repository, "checkout", "-q", "topic")
    found = planned(repository)
    assert found
    assert all(name.startswith("norm ") and "-cu13" in name for name in found)


def test_a_declared_input_in_a_submodule_that_moves(repository: Path, tmp_path: Path) -> None:
    """git names the submodule as a whole, which is above what the kernel declares."""
    upstream = write_tree(tmp_path / "up", {"include/a.h": "// a\n"})
    commit(upstream)
    git(repository, "submodule", "--quiet", "add", str(upstream), "third_party/up")
    declared = '[[inputs]]\nkernel = "norm"\npaths = ["third_party/up/include"]\n'
    change(repository, "kci.toml", declared)
    commit(repository)
    inside = repository / "third_party/up"
    change(inside, "include/a.h", "// b\n")
    commit(inside)
    commit(repository)
    assert changes_since(repository, "HEAD~1").files == ("third_party/up",)
    assert {name.partition(" ")[0] for name in planned(repository, "HEAD~1")} == {"norm"}


def test_a_renamed_file_counts_with_both_names(repository: Path) -> None:
    names = ("norm/csrc/cuda/blackwell.cu", "norm/csrc/cuda/hopper.cu")
    git(repository, "mv", *names[::-1])
    commit(repository)
    assert changes_since(repository, "main").files == names


def test_git_is_not_started_per_file(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"norm/csrc/cuda/{number}.h" for number in range(250)]
    write_tree(repository, {name: f"// {name}\n" for name in names})
    commit(repository)
    write_tree(repository, {name: f"// more {name}\n" for name in names})
    started: list[object] = []
    run = subprocess.run

    def counted(command: list[str], **options: Any) -> Any:
        started.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    changes = changes_since(repository, "HEAD")
    assert (len(changes.files), len(started)) == (250, 5)
    planned(repository, "HEAD")
    assert len(started) == 5 + 5 + 2 + 1


def test_names_that_git_would_quote(repository: Path) -> None:
    name = 'norm/csrc/ä "b"\n.cu'
    (repository / name).write_text("x")
    commit(repository)
    assert changes_since(repository / "norm", "main").files == (name,)


@pytest.mark.rule("KCI312", triggers=False)
def test_build_toml_is_compared_with_the_base(repository: Path) -> None:
    change(repository, BUILD_TOML, 'license  =  "MIT" # the same', 'license = "MIT"')
    assert planned(repository) == []
    change(repository, BUILD_TOML, '[kernel.on_cpu]\ncxx-flags = ["-O2"]', "[kernel.on_cpu]")
    assert {name.split("-")[-3] for name in planned(repository)} == {"cpu"}


@pytest.mark.rule("KCI312", triggers=True)
@pytest.mark.parametrize(
    "base", ["--output=/tmp/x", "-p", "nowhere", "main..topic", "", "main:norm", "HEAD^{tree}"]
)
def test_a_base_that_is_no_commit_is_refused(repository: Path, base: str) -> None:
    assert refused("KCI312", changes_since, repository, base).hint


@pytest.mark.rule("KCI312", triggers=True)
def test_a_base_without_a_common_commit_is_refused(repository: Path) -> None:
    git(repository, "checkout", "-q", "--orphan", "other")
    git(repository, "commit", "-qm", "alone")
    found = refused("KCI312", changes_since, repository, "main")
    assert ("no common commit" in found.message, "fetch-depth" in found.hint) == (True, True)


@pytest.mark.rule("KCI312", triggers=True)
def test_outside_of_a_repository(tmp_path: Path, no_git_environment: None) -> None:
    assert "not in a git repository" in refused("KCI312", changes_since, tmp_path, "main").message


def test_a_file_is_read_from_a_revision_without_a_checkout(repository: Path) -> None:
    change(repository, BUILD_TOML, "changed")
    read = partial(read_blob, repository, changes_since(repository, "main").base)
    assert read(BUILD_TOML, 10_000) == (REPO / BUILD_TOML).read_bytes()
    assert read("norm/nothing.toml", 10_000) is None
    assert read("norm", 10_000) is None, "a directory is no file"
    assert read(BUILD_TOML, 10) is None, "too large"


PROGRAMS = """core.alternateRefsCommand core.askPass core.editor core.fsmonitor core.gitProxy
core.pager core.sshCommand
    credential.helper diff.external diff.x.command diff.x.textconv filter.x.clean filter.x.process
    filter.x.smudge
    filter.X.Y.clean gpg.program gpg.ssh.program merge.x.driver uploadpack.packObjectsHook"""


def with_programs(repository: Path, mark: Path, filter_name: str = "x") -> None:
    """A repository as somebody hands it over: whatever its configuration can run is there to be
    run.
    """
    for key in PROGRAMS.split():
        git(repository, "config", key, f"touch {mark}; cat; false")
    for key, value in {
        "filter.x.required": "true",
        "log.showSignature": "true",
        "protocol.ext.allow": "always",
        "remote.origin.promisor": "true",
        "extensions.partialClone": "origin",
        "remote.origin.url": f"ext::sh -c 'touch {mark}'",
    }.items():
        git(repository, "config", key, value)
    (repository / ".gitattributes").write_text(f"* diff=x merge=x filter={filter_name}\n")
    hooks = mark.parent / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
        program(hooks, name, f"touch {mark}\n")
    git(repository, "config", "core.hooksPath", str(hooks))


def asked(repository: Path) -> None:
    """Whatever kci asks git."""
    clean_commit(repository)
    unique_id(repository / "norm")
    provenance(repository / "norm")
    commit_time(repository / "norm")
    is_ancestor(repository, "main", "topic")
    remote_url(repository, "origin")
    ref_names(repository)
    read_blob(repository, "main", BUILD_TOML, 10_000)
    read_objects(repository, ["0" * 39 + "1"])
    find_kernels([str(repository)])


@pytest.mark.parametrize("filter_name", ["x", "X.Y"])
def test_programs_that_a_repository_names_are_not_run(
    repository: Path, tmp_path: Path, filter_name: str
) -> None:
    mark = tmp_path / "ran"
    with_programs(repository, mark, filter_name)
    os.utime(repository / BUILD_TOML, (1, 1))
    (repository / "norm/README.md").write_text("changed")
    assert "norm/README.md" in changes_since(repository, "main").files
    asked(repository)
    assert not mark.exists()
    git(repository, "config", "filter.a=b.clean", f"touch {mark}; cat")
    (repository / ".gitattributes").write_text("* filter=a=b\n")
    with pytest.raises(FindingsError, match="a filter with `=`"):
        changes_since(repository, "main")
    assert not mark.exists()


def test_a_submodule_s_configuration_is_not_run_either(repository: Path, tmp_path: Path) -> None:
    upstream, mark = write_tree(tmp_path / "up", {"a.h": "// a\n"}), tmp_path / "ran"
    commit(upstream)
    git(repository, "submodule", "--quiet", "add", str(upstream), "norm/csrc/up")
    commit(repository)
    inside = repository / "norm/csrc/up"
    assert clean_commit(repository)
    with_programs(inside, mark)
    (inside / ".gitattributes").rename(mark.parent / "attributes")
    git(inside, "config", "core.attributesFile", str(mark.parent / "attributes"))
    os.utime(inside / "a.h", (1, 1))
    asked(repository)
    assert clean_commit(repository), "its bytes are those of the commit"
    (inside / "a.h").write_text("// b\n")
    assert clean_commit(repository) is None
    assert "norm/csrc/up" in changes_since(repository, "HEAD").files
    assert not mark.exists()


def test_a_file_of_lfs_is_compared_with_its_pointer(repository: Path, tmp_path: Path) -> None:
    """As `git lfs install --local` has it, which actions/checkout runs: git would ask the program
    again and again.
    """
    weights = repository / "norm/csrc/weights.bin"
    weights.write_bytes(b"weights" * 1000)
    oid = hashlib.sha256(weights.read_bytes()).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 7000\n"
    (tmp_path / "pointer").write_text(pointer)
    (repository / ".gitattributes").write_text("*.bin filter=lfs\n")
    for setting in ("clean", "smudge"):
        git(repository, "config", f"filter.lfs.{setting}", f"cat {tmp_path}/pointer")
    git(repository, "config", "filter.lfs.required", "true")
    commit(repository)
    os.utime(weights, (1, 1))
    assert clean_commit(repository)
    assert changes_since(repository, "HEAD").files == ()
    weights.chmod(0o755)
    assert changes_since(repository, "HEAD").files == ("norm/csrc/weights.bin",), "another mode"
    weights.chmod(0o644)
    weights.write_bytes(b"others!" * 1000)
    assert changes_since(repository, "HEAD").files == ("norm/csrc/weights.bin",)
    assert clean_commit(repository) is None
