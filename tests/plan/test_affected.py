"""What a change touches: fixtures of changed files and decisions, and the git side.

Each `affected/<case>.in` lists changed paths of the repository in `affected/repo`, and may say how a file was at the
base: `base PATH | text now | text then`, or `base PATH` for a file that was not there. `affected/<case>.out` has the
decisions. After a change on purpose: KCI_UPDATE_FIXTURES=1 pytest tests/plan/test_affected.py, and read the diff.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kci.config.reader import Kernel, parse_kernel, read_kernel
from kci.config.settings import Settings
from kci.errors import FindingsError, KciError
from kci.matrix.catalog.rows import Catalog
from kci.matrix.catalog.runners import default_runners
from kci.matrix.selection import compute_matrix, select
from kci.plan.affected import KernelEnd, Terms, Touch, View, affected, narrow, only_affected
from kci.plan.changes import changes_since
from kci.plan.fingerprint import Fingerprints
from kci.plan.inputs.source_tree import EntryKind, PatchedTree, SourceTree
from kci.utils.git import read_blob

FIXTURES = Path(__file__).parent / "affected"
REPO = FIXTURES / "repo"
CASES = sorted(path.stem for path in FIXTURES.glob("*.in"))
NAMES = ("norm", "pyonly")


def views(
    changed: Iterable[str], then: dict[str, str | None], catalog: Catalog, names: Iterable[str] = NAMES
) -> list[View]:
    """The kernels now, and at a base at which the changed files said something else."""
    now = SourceTree(REPO)
    patch: dict[str, tuple[EntryKind, bytes] | None] = {}
    for path in changed:
        text = then.get(path, f"// older\n{path}")
        patch[path] = (EntryKind.FILE, text.encode()) if text is not None else None
    return [
        View(name, name, end(read_kernel(REPO / name), now, catalog), base_end(name, patch, now, catalog))
        for name in names
    ]


def base_end(
    name: str, patch: dict[str, tuple[EntryKind, bytes] | None], now: SourceTree, catalog: Catalog
) -> KernelEnd | None:
    entry = patch.get(f"{name}/build.toml", (EntryKind.FILE, (REPO / name / "build.toml").read_bytes()))
    if entry is None:
        return None
    try:
        return end(parse_kernel(entry[1], str(REPO / name)), PatchedTree(now, patch), catalog)
    except KciError:
        return None


def end(kernel: Kernel, tree: SourceTree, catalog: Catalog) -> KernelEnd:
    return KernelEnd(kernel, Fingerprints(kernel, tree), dict.fromkeys(select(kernel, catalog).variants, "an image"))


def built_in(now: KernelEnd, image: str) -> KernelEnd:
    return KernelEnd(now.kernel, now.prints, dict.fromkeys(now.toolchains, image))


def read_case(name: str) -> tuple[list[str], dict[str, str | None]]:
    changed, then = [], {}
    for line in (FIXTURES / f"{name}.in").read_text().splitlines():
        if line.startswith("base "):
            path, *replaced = [part.strip() for part in line.removeprefix("base ").split(" | ")]
            text = (REPO / path).read_text()
            if replaced:
                now, at_base = (part.replace("\\n", "\n") for part in replaced)
                assert now in text
                text = text.replace(now, at_base)
            then[path] = text if replaced else None
        elif line:
            changed.append(line)
    return changed, then


def shown(decisions: list[Touch]) -> str:
    lines = []
    for decision in decisions:
        lines.append(f"{decision.path} [{decision.kernel or '-'}] {decision.reason}")
        lines += [f"    {name}" for name in decision.touches]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_a_change_touches_what_the_fixture_says(case: str, catalog: Catalog) -> None:
    changed, then = read_case(case)
    seen = views(changed, then, catalog)
    decisions = affected(changed, seen, {path: ("runners",) for path in changed if path == "kci.toml"})
    result = shown(decisions)
    expected = FIXTURES / f"{case}.out"
    if os.environ.get("KCI_UPDATE_FIXTURES"):
        expected.write_text(result)
    assert result == expected.read_text()
    for view in seen:
        told = {name for item in decisions if item.kernel == view.name for name in item.touches}
        assert told == view.moved, "every variant that moved is named, and with a file"


def test_the_order_of_files_does_not_matter(catalog: Catalog) -> None:
    files = ["norm/csrc/shared.h", "pyonly/build.toml", "README.md", "norm/README.md"]
    known = views(files, {}, catalog)
    assert affected(files, known) == affected(files[::-1], known) == affected(files * 2, known)


def test_a_kernel_at_the_root_owns_every_file(catalog: Catalog) -> None:
    (here,) = views([], {}, catalog, ["norm"])
    here = View(here.name, "", here.now, here.then)
    assert [item.kernel for item in affected(["norm/csrc/cuda/norm.cu"], [here])] == ["norm"]


def test_a_kernel_inside_of_another_owns_its_files_alone(catalog: Catalog) -> None:
    outer, inner = views([], {}, catalog)
    outer, inner = (View(item.name, path, item.now, item.then) for item, path in ((outer, ""), (inner, "deep/k")))
    assert [item.kernel for item in affected(["deep/k/x", "deep/x"], [outer, inner])] == ["pyonly", "norm"]


def test_of_the_settings_only_the_keys_that_changed_count(catalog: Catalog) -> None:
    seen = views([], {}, catalog)
    assert [item.touches for item in affected(["kci.toml"], seen, {"kci.toml": ()})] == [(), ()]
    moved = [View(view.name, view.directory, view.now, built_in(view.now, "an older image")) for view in seen]
    decisions = affected(["kci.toml"], moved, {"kci.toml": ("images.cuda.x86_64-linux",)})
    assert [set(item.touches) for item in decisions] == [
        {variant.name for variant in view.now.toolchains} for view in seen
    ]
    assert {item.reason for item in decisions} == {"images.cuda.x86_64-linux changed"}


# --- git ---


def git(where: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=where, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, no_git_environment: None) -> Path:
    subprocess.run(["cp", "-r", REPO, tmp_path / "r"], check=True)
    root = tmp_path / "r"
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    git(root, "checkout", "-qb", "topic")
    return root


def commit(root: Path) -> None:
    git(root, "add", ".")
    git(root, "commit", "-qm", "more")


def planned(root: Path, catalog: Catalog, base: str = "main") -> list[str]:
    kernels = [read_kernel(root / name) for name in NAMES]
    terms = Terms(lambda kernel: select(kernel, catalog), default_runners(), Settings())
    matrix, _ = only_affected(compute_matrix(kernels, catalog), kernels, base, terms, lambda _: terms)
    return [f"{kernel.name} {item.name}" for kernel in matrix.kernels for item in kernel.variants]


def test_only_what_the_branch_changed_counts(repository: Path, catalog: Catalog) -> None:
    (repository / "norm/csrc/cuda/hopper.cu").write_text("// better\n")
    commit(repository)
    git(repository, "checkout", "-q", "main")
    (repository / "pyonly/torch-ext/pyonly/__init__.py").write_text("VALUE = 2\n")
    commit(repository)
    git(repository, "checkout", "-q", "topic")
    found = planned(repository, catalog)
    assert found
    assert all(name.startswith("norm ") and "-cu13" in name for name in found)


def test_files_that_are_not_committed_count(repository: Path, catalog: Catalog) -> None:
    (repository / "norm/csrc/cpu/norm.cpp").write_text("// edited\n")
    (repository / "norm/csrc/cpu/new.h").write_text("// new, and nobody lists it\n")
    assert changes_since(repository, "main").files == ("norm/csrc/cpu/new.h", "norm/csrc/cpu/norm.cpp")
    assert {name.split("-")[-3] for name in planned(repository, catalog)} == {"cpu"}


def test_a_renamed_file_counts_with_both_names(repository: Path) -> None:
    git(repository, "mv", "norm/csrc/cuda/hopper.cu", "norm/csrc/cuda/blackwell.cu")
    commit(repository)
    assert changes_since(repository, "main").files == ("norm/csrc/cuda/blackwell.cu", "norm/csrc/cuda/hopper.cu")


def test_git_is_not_started_for_every_file(repository: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(250):
        (repository / f"norm/csrc/cuda/{number}.h").write_text(f"// {number}\n")
    commit(repository)
    for number in range(250):
        (repository / f"norm/csrc/cuda/{number}.h").write_text(f"// more {number}\n")
    started: list[object] = []
    run = subprocess.run

    def counted(command: list[str], **options: Any) -> Any:
        started.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    changes = changes_since(repository, "HEAD")
    assert (len(changes.files), len(started)) == (250, 3)
    planned(repository, catalog, "HEAD")
    assert len(started) == 3 + 3 + 2 + 2


def test_names_that_git_would_quote(repository: Path) -> None:
    name = 'norm/csrc/ä "b"\n.cu'
    (repository / name).write_text("x")
    commit(repository)
    assert changes_since(repository / "norm", "main").files == (name,)


@pytest.mark.rule("KCI312", triggers=False)
def test_build_toml_is_compared_with_the_base(repository: Path, catalog: Catalog) -> None:
    path = repository / "norm/build.toml"
    path.write_text(path.read_text().replace('license = "MIT"', 'license  =  "MIT" # the same'))
    assert planned(repository, catalog) == []
    path.write_text(path.read_text().replace("[kernel.on_cpu]", '[kernel.on_cpu]\ncxx-flags = ["-O2"]'))
    assert {name.split("-")[-3] for name in planned(repository, catalog)} == {"cpu"}


def test_nothing_changed(repository: Path, catalog: Catalog) -> None:
    assert planned(repository, catalog) == []
    assert planned(repository, catalog, "HEAD") == []


@pytest.mark.rule("KCI312", triggers=True)
@pytest.mark.parametrize("base", ["--output=/tmp/x", "-p", "nowhere", "main..topic", "", "main:norm", "HEAD^{tree}"])
def test_a_base_that_is_no_commit_is_refused(repository: Path, base: str) -> None:
    with pytest.raises(FindingsError) as caught:
        changes_since(repository, base)
    assert [item.rule for item in caught.value.diagnostics] == ["KCI312"]
    assert caught.value.hint


@pytest.mark.rule("KCI312", triggers=True)
def test_a_base_without_a_common_commit_is_refused(repository: Path) -> None:
    git(repository, "checkout", "-q", "--orphan", "other")
    git(repository, "commit", "-qm", "alone")
    with pytest.raises(FindingsError, match="no common commit") as caught:
        changes_since(repository, "main")
    assert "fetch-depth" in caught.value.hint


@pytest.mark.rule("KCI312", triggers=True)
def test_outside_of_a_repository(tmp_path: Path, no_git_environment: None) -> None:
    with pytest.raises(FindingsError, match="not in a git repository"):
        changes_since(tmp_path, "main")


def test_a_file_is_read_from_a_revision_without_a_checkout(repository: Path) -> None:
    (repository / "norm/build.toml").write_text("changed")
    commit_id = changes_since(repository, "main").base
    assert read_blob(repository, commit_id, "norm/build.toml", 10_000) == (REPO / "norm/build.toml").read_bytes()
    assert read_blob(repository, commit_id, "norm/nothing.toml", 10_000) is None
    assert read_blob(repository, commit_id, "norm", 10_000) is None, "a directory is no file"
    assert read_blob(repository, commit_id, "norm/build.toml", 10) is None, "too large"


def test_programs_that_a_repository_names_are_not_run(repository: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for key in ("core.fsmonitor", "diff.external", "diff.x.textconv", "core.pager"):
        git(repository, "config", key, f"touch {mark}; false")
    (repository / ".gitattributes").write_text("* diff=x\n")
    (repository / "norm/README.md").write_text("changed")
    assert "norm/README.md" in changes_since(repository, "main").files
    assert not mark.exists()


def test_narrowing_drops_kernels_without_work(catalog: Catalog) -> None:
    kernels = [read_kernel(REPO / name) for name in NAMES]
    path = "pyonly/torch-ext/pyonly/__init__.py"
    left = narrow(compute_matrix(kernels, catalog), views([path], {}, catalog))
    assert [kernel.name for kernel in left.kernels] == ["pyonly"]
