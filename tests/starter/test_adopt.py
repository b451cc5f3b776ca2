"""`kci adopt`: what a repository's CI says becomes kci.toml, nothing is lost in silence, and nothing goes by itself."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from cli.runner import kci
from kci.files import replace
from kci.starter import existing_ci
from kci.starter.existing_ci import read_workflow
from kci.starter.known_ci import (
    Becomes,
    KnownPart,
    WorkflowStep,
    flake_arguments,
    known_ci,
    parts_of,
    parts_of_workflow,
)
from many_kernels import add_kernel

pytestmark = pytest.mark.usefixtures("no_git_environment")

BUILD = """\
name: Build
on:
  workflow_dispatch:
    inputs:
      kernel_name:
        required: true
      own_idea:
        required: false
      repo_prefix:
        description: "Where to"
        required: false
        type: string
        default: "acme"
jobs:
  matrix:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - name: Matrix
        run: python3 .github/workflows/make-matrix.py "$(nix eval .#backendBundle --system aarch64-linux)"
  build:
    runs-on:
      group: ${{ matrix.runner }}
    timeout-minutes: ${{ inputs.mode == 'pr' && 90 || 900 }}
    steps:
      - name: Build
        run: cd "$KERNEL" && nix build -L ".#backendBundle.$BACKEND" --system aarch64-linux
      - name: Sign
        run: cosign sign-blob build/metadata.json
      - name: Upload
        run: nix run -L github:huggingface/kernels#kernel-builder -- upload --repo-type kernel
  gpu:
    runs-on:
      group: gpu-machines
    steps:
      - run: $CI_TEST_PATH/bin/ci-test
"""
MATRIX = 'ARCHES = [\n    ("x86_64-linux", "big-x86"),\n    ("aarch64-linux", "big-arm"),\n]\n'
MAC = """\
on: workflow_dispatch
jobs:
  build:
    runs-on: macos-26
    steps:
      - run: nix build -L .#ci
"""
START = """\
on: [pull_request]
jobs:
  start:
    runs-on: ubuntu-latest
    steps:
      - run: python3 .github/scripts/start.py "$KERNEL" --mode pr
"""
BOT = """\
on:
  issue_comment:
    types: [created]
jobs:
  bot:
    runs-on: ubuntu-latest
    steps:
      - run: python3 .github/scripts/ask_bot.py
"""
ODD = """\
on: push
jobs:
  odd:
    runs-on: ubuntu-latest
    steps:
      - name: Polish the brass
        run: ./polish --all
"""
FILES = {
    ".github/workflows/build.yaml": BUILD,
    ".github/workflows/build-mac.yaml": MAC,
    ".github/workflows/start.yaml": START,
    ".github/workflows/odd.yml": ODD,
    ".github/workflows/make-matrix.py": MATRIX,
    ".github/scripts/start.py": 'WORKFLOWS = ["build.yaml"]\n',
    "build-concurrency.json": '{"first": {"cuda": {"max-jobs": 2, "cores": 16}}, "gone": {"cuda": {"cores": 1}}}',
    "CONTRIBUTING.md": "Please title the PR with the kernel's name.\n",
}


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-qm", "as it is")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in the form of the community's: two kernels, five workflows, scripts and limits."""
    root = tmp_path / "kernels"
    add_kernel(root, "first", 20)
    add_kernel(root, "second", 0)
    lock = {"nodes": {"root": {}, "kernel-builder": {"locked": {"repo": "kernels", "lastModified": 1787184000}}}}
    (root / "first" / "flake.lock").write_text(json.dumps(lock))
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    git(root.parent, "init", "-q", "-b", "main", str(root))
    for key, value in (("user.name", "A"), ("user.email", "a@example.org"), ("core.autocrlf", "false")):
        git(root, "config", key, value)
    commit(root)
    monkeypatch.chdir(root)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return root


def rows(report: str, title: str) -> dict[str, list[str]]:
    """The rows of a table of the Markdown report, by their first cell."""
    table = report.partition(f"### {title}\n")[2].partition("\n### ")[0]
    cells = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in table.splitlines() if line.startswith("| ")]
    return {first: more for first, *more in cells[2:]}


def test_what_the_workflows_say_is_in_kci_toml_and_all_of_it_renders(repository: Path) -> None:
    made = kci("adopt", "--format", "markdown")
    assert made.code == 0, made.stderr
    settings = tomllib.loads((repository / "kci.toml").read_text())
    assert settings["runners"]["any"] == {"x86_64-linux": {"group": "big-x86"}, "aarch64-linux": {"group": "big-arm"}}
    assert settings["test"]["cuda"]["x86_64-linux"] == {"group": "gpu-machines"}
    assert settings["publish"] == {"repo-prefix": "acme", "sign": True}
    assert settings["nix"] == {"systems": ["aarch64-darwin"], "backends": ["xpu"]}
    assert settings["catalog"] == "2026-08-20"  # the newest that is not newer than the flake
    assert {"kernel": "first", "backend": "cuda", "max-jobs": 32} in settings["limits"]
    assert {"backend": "cuda", "timeout-minutes": 900} in settings["limits"]
    taken = rows(made.stdout, "kci.toml")
    assert taken["&#91;runners.any.x86_64-linux] group"] == ['"big-x86"', ".github/workflows/make-matrix.py:2"]
    assert "gone, cuda" in made.stdout.partition("### Not taken over")[2]
    assert {"kci.toml", ".github/workflows/kci.yml", ".github/workflows/kci-publish.yml"} <= {
        line.partition(": ")[0] for line in made.stderr.splitlines()
    }
    assert kci("check").code == 0
    assert kci("render", "--check").code == 0


def test_the_report_says_what_becomes_of_each_file(repository: Path) -> None:
    report = kci("adopt", "--dry-run", "--format", "markdown").stdout
    workflows = rows(report, "Workflows")
    assert set(workflows) == {path for path in FILES if path.endswith((".yaml", ".yml"))}
    assert workflows[".github/workflows/build.yaml"][-1] == "can go: kci does all of it"
    assert workflows[".github/workflows/build-mac.yaml"][-1] == "can go: kci does all of it"
    assert workflows[".github/workflows/odd.yml"][-1] == "stays: kci does not recognise 1 step"
    assert ".github/scripts/start.py" in report.partition("### Workflows")[2].partition("###")[0]
    assert rows(report, "Not recognised")[".github/workflows/odd.yml"] == ["odd", "Polish the brass"]
    assert rows(report, "Inputs of dispatches")["own&#95;idea".replace("&#95;", "_")][0] == "not recognised"
    assert "build-concurrency.json" in rows(report, "Files")
    assert "CONTRIBUTING.md:1" in rows(report, "Documentation")
    assert not (repository / "kci.toml").exists()


def test_each_kernel_has_its_variants_before_and_after_and_minutes_as_a_range(repository: Path) -> None:
    report = kci("adopt", "--dry-run", "--format", "markdown").stdout
    first, second = (rows(report, "Kernels")[name] for name in ("first", "second"))
    # The CPU variants for macOS are new: only kernels with the backend metal were built there.
    assert (int(first[1]) - int(first[0]), second[:2]) == (2, ["2", "2"])
    assert (first[2], second[2]) == ("0", "0")
    assert " to " in first[4]
    least, most = zip(*(map(int, row[4].split(" to ")) for row in (first, second)), strict=True)
    assert least[1] <= most[1] < least[0] <= most[0], "each kernel has the minutes of its own jobs"
    (repository / ".github/workflows/build-mac.yaml").unlink()
    report = kci("adopt", "--dry-run", "--format", "markdown").stdout
    assert rows(report, "Kernels")["second"][:3] == ["0", "0", "2"]
    assert "aarch64-darwin" in report.partition("### Left out")[2]


def test_a_workflow_that_somebody_else_starts_stays_with_them(repository: Path) -> None:
    (repository / ".github/workflows/bot.yaml").write_text(BOT)
    (repository / ".github/scripts/ask_bot.py").write_text("import start\n\nstart.main()\n")
    (repository / ".github/workflows/make-matrix.py").write_text(MATRIX + 'LIMITS = "build-concurrency.json"\n')
    commit(repository)
    workflows = rows(kci("adopt", "--dry-run", "--format", "markdown").stdout, "Workflows")
    held = "kci does all of it; it can go with .github/workflows/bot.yaml, which starts it"
    assert workflows[".github/workflows/build.yaml"][-1] == held
    assert kci("adopt", "--remove").code == 0
    assert (repository / ".github/workflows/build.yaml").exists()
    assert (repository / "build-concurrency.json").exists(), "what stays reads it"
    assert not (repository / ".github/workflows/build-mac.yaml").exists()


def test_one_step_that_nobody_knows_keeps_a_workflow(repository: Path) -> None:
    (repository / ".github/workflows/build-mac.yaml").write_text(MAC + "      - run: ./polish --all\n")
    commit(repository)
    workflows = rows(kci("adopt", "--remove", "--format", "markdown").stdout, "Workflows")
    assert workflows[".github/workflows/build-mac.yaml"][-1] == "stays: kci does not recognise 1 step"
    assert (repository / ".github/workflows/build-mac.yaml").exists()


def test_a_kernel_whose_lock_cannot_be_read_hides_no_other(repository: Path) -> None:
    (repository / "second" / "flake.lock").write_text((repository / "first" / "flake.lock").read_text())
    (repository / "first" / "flake.lock").write_text("{")
    commit(repository)
    assert kci("adopt").code == 0
    assert tomllib.loads((repository / "kci.toml").read_text())["catalog"] == "2026-08-20"


def test_a_second_run_has_nothing_to_do(repository: Path) -> None:
    assert kci("adopt").code == 0
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file() and ".git/" not in str(path)}
    again = kci("adopt")
    assert (again.code, "nothing to write: all of it is there" in again.stderr) == (0, True)
    assert before == {path: path.read_bytes() for path in before}


def test_a_kci_toml_that_is_there_stays_and_what_it_lacks_is_listed(repository: Path) -> None:
    text = '[runners.any.x86_64-linux]\nlabels = ["ubuntu-24.04"]\n[runners.any]\naarch64-linux.group = "mine"\n'
    (repository / "kci.toml").write_text(text)
    made = kci("adopt", "--format", "markdown")
    assert made.code == 0, made.stderr
    assert (repository / "kci.toml").read_text() == text
    missing = rows(made.stdout, "kci.toml")
    assert "&#91;publish] sign" in missing
    assert "&#91;runners.any.aarch64-linux] group" not in missing


def test_nothing_is_removed_unless_asked_and_only_what_git_has(repository: Path) -> None:
    build = repository / ".github/workflows/build.yaml"
    assert kci("adopt").code == 0
    assert build.exists()
    build.write_text(BUILD + "# mine\n")
    refused = kci("adopt", "--remove")
    assert (refused.code, "a workflow to remove has changes" in refused.stderr) == (1, True)
    assert build.exists()
    build.write_text(BUILD)
    assert kci("adopt", "--remove").code == 0
    assert {path.name for path in build.parent.glob("*.y*ml")} == {
        "odd.yml", "kci.yml", "kci-kernel.yml", "kci-compat.yml", "kci-publish.yml"
    }  # fmt: skip
    assert not (repository / "build-concurrency.json").exists()


def test_apply_makes_one_commit_on_a_branch_and_touches_nothing_else(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    made = kci("adopt", "--apply", "--remove")
    assert made.code == 0, made.stderr
    assert (git(repository, "status", "--porcelain"), git(repository, "rev-parse", "HEAD")) == ("", head)
    assert git(repository, "rev-list", f"{head}..kci-adopt").count("\n") == 0
    changed = dict(
        line.split("\t")[::-1] for line in git(repository, "diff", "--name-status", head, "kci-adopt").splitlines()
    )
    assert changed["kci.toml"] == changed[".github/workflows/kci.yml"] == "A"
    assert changed[".github/workflows/build.yaml"] == "D"
    branch = git(repository, "rev-parse", "kci-adopt")
    again = kci("adopt", "--apply", "--remove")
    assert (again.code, "there already" in again.stderr) == (0, True)
    assert git(repository, "rev-parse", "kci-adopt") == branch
    git(repository, "checkout", "-q", "kci-adopt")
    assert kci("render", "--check").code == 0
    merged = kci("adopt", "--apply", "--branch", "other")
    assert (merged.code, "HEAD has all of it already" in merged.stderr) == (0, True)


@pytest.mark.parametrize("name", ["-b", "a..b", "a b", ""])
def test_a_branch_that_git_would_not_take_is_refused(repository: Path, name: str) -> None:
    refused = kci("adopt", "--apply", f"--branch={name}")
    assert (refused.code, "is not the name of a branch" in refused.stderr) == (2, True)


def test_a_tree_with_changes_and_a_branch_with_something_else_are_refused(repository: Path) -> None:
    (repository / "new").write_text("")
    dirty = kci("adopt", "--apply")
    assert (dirty.code, "the working tree has changes, such as new" in dirty.stderr) == (1, True)
    (repository / "new").unlink()
    git(repository, "branch", "kci-adopt")
    taken = kci("adopt", "--apply")
    assert (taken.code, "the branch kci-adopt is there" in taken.stderr) == (1, True)
    assert "git branch -D -- kci-adopt" in taken.stderr
    assert git(repository, "rev-parse", "kci-adopt") == git(repository, "rev-parse", "main")


def test_a_run_that_was_killed_in_between_is_finished_by_the_next(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    def dies(self: replace.Replacement) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(self.target.name)
        commit_as_ever(self)

    commit_as_ever = replace.Replacement.commit
    monkeypatch.setattr(replace.Replacement, "commit", dies)
    assert kci("adopt").code == 130
    monkeypatch.setattr(replace.Replacement, "commit", commit_as_ever)
    assert 0 < len(done) < 5
    assert kci("adopt").code == 0
    assert kci("render", "--check").code == 0
    assert "nothing to write" in kci("adopt").stderr


def test_a_file_of_ours_that_somebody_else_wrote_is_not_overwritten(repository: Path) -> None:
    (repository / ".github/workflows/kci.yml").write_text(ODD)
    refused = kci("adopt")
    assert (refused.code, "KCI402" in refused.stderr) == (1, True)
    assert not (repository / "kci.toml").exists()
    commit(repository)
    assert kci("adopt", "--apply").code == 1
    assert git(repository, "branch", "--list", "kci-adopt") == ""


def test_only_the_root_of_a_repository_is_adopted(repository: Path) -> None:
    refused = kci("adopt", "first")
    assert (refused.code, f"kci adopt {repository}" in refused.stderr) == (2, True)
    assert kci("adopt", "nowhere").code == 2
    assert kci("adopt", "--dry-run", "--apply").code == 2


def test_errors_of_kernels_that_are_published_are_taken_as_they_are_and_said(repository: Path) -> None:
    package = repository / "second" / "torch-ext" / "second" / "__init__.py"
    package.write_text("import numpy\n")
    assert kci("check").code == 1
    made = kci("adopt", "--format", "markdown")
    assert made.code == 0, made.stderr
    (entry,) = tomllib.loads((repository / "kci.toml").read_text())["lint"]["ignore"]
    assert (entry["rule"], entry["path"]) == ("KCI771", "second/*")
    assert "errors in 1 kernel that are built and published" in made.stdout
    assert kci("check").code == 0
    assert rows(made.stdout, "Kernels")["second"][1] != "0"


def test_a_kernel_that_cannot_be_read_is_said_and_fails(repository: Path) -> None:
    (repository / "second" / "build.toml").write_text("[general\n")
    made = kci("adopt")
    assert made.code == 1
    assert "second/build.toml" in made.stderr
    assert kci("plan").code == 1


def test_a_runner_that_is_an_expression_and_limits_of_another_form_are_not_taken(repository: Path) -> None:
    (repository / ".github/workflows/build.yaml").write_text(BUILD.replace("group: gpu-machines", "labels: ${{ x }}"))
    (repository / "build-concurrency.json").write_text('{"first": {"cuda": {"max-jobs": 0}}}')
    report = kci("adopt", "--dry-run", "--format", "markdown").stdout
    said = rows(report, "Not taken over")
    assert "build-concurrency.json" in said
    assert any("its runner is an expression" in cells[0] for cells in said.values())
    assert not any("test." in key for key in rows(report, "kci.toml"))


FLAKE = """\
{
  outputs = { self, kernel-builder }: kernel-builder.lib.genKernelFlakeOutputs {
    inherit self;
    path = ./.;
    %s
  };
}
"""
ONLY_X86 = """\
torchVersions = allVersions:  # not yet elsewhere
      builtins.map (
        version: version // { systems = builtins.filter (system: system == "x86_64-linux") version.systems; }
      ) allVersions;
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (ONLY_X86, [("torchVersions", True)]),
        (ONLY_X86.replace("x86_64", "aarch64"), [("torchVersions", False)]),
        (ONLY_X86 + "doGetKernelCheck = false; patches = [ ./a ];",
         [("torchVersions", True), ("doGetKernelCheck", True), ("patches", False)]),
        ("torchVersions = let a = 1; in a;", [("torchVersions", False)]),
        ("}}}} evil = 1;", []),
        ("((((", []),
    ],
)  # fmt: skip
def test_what_a_flake_says_is_known_or_said_to_be_unknown(text: str, found: list[tuple[str, bool]]) -> None:
    assert [(item.argument, item.known is not None) for item in flake_arguments(FLAKE % text)] == found


def test_what_a_flake_leaves_out_is_left_out(repository: Path) -> None:
    (repository / "first" / "flake.nix").write_text(FLAKE % ONLY_X86)
    (repository / "second" / "flake.nix").write_text("{ outputs = import ./other.nix; }")
    made = kci("adopt", "--format", "markdown")
    (overlay,) = tomllib.loads((repository / "kci.toml").read_text())["overlay"]
    assert overlay == {"kernel": "first", "drop": ["system != x86_64-linux"]}
    flakes = rows(made.stdout, "Flakes")
    assert flakes["second/flake.nix"][:2] == ["the whole file", "not recognised"]
    names = kci("matrix", "first", "--format", "names").stdout.split()
    assert names
    assert all(name.endswith("x86_64-linux") for name in names)


EXAMPLE = """\
on:
  push:
    branches: [main]
jobs:
  build:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: huggingface/kernel-builder-job@main
        with:
          token: ${{ secrets.HF_TOKEN }}
          namespace: somebody
          flavor: cpu-xl
          script: |
            kernel-builder build-and-upload --max-jobs 4 --cores 8 --repo-id somebody/first
"""


def test_a_single_kernel_with_the_workflow_of_kernel_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_kernel(tmp_path, "first", 4)
    root = tmp_path / "first"
    (root / ".git").mkdir()
    (root / ".github" / "workflows").mkdir(parents=True)
    (root / ".github" / "workflows" / "build-kernel.yml").write_text(EXAMPLE)
    monkeypatch.chdir(root)
    made = kci("adopt", "--format", "markdown")
    assert made.code == 0, made.stderr
    assert rows(made.stdout, "Workflows")[".github/workflows/build-kernel.yml"][-1] == "can go: kci does all of it"
    engine = tomllib.loads((root / "kci.toml").read_text())["engines"]["jobs"]
    assert engine == {"type": "hf-jobs", "namespace": "somebody", "flavor": "cpu-xl"}
    assert kci("render", "--check").code == 0
    refused = kci("adopt", "--apply")
    assert refused.code == 2


HOSTILE = {
    "a list": "[]",
    "a text": "hello",
    "nothing": "",
    "no jobs": "on: push",
    "jobs that are no table": "jobs: [1, 2]",
    "a job that is no table": "jobs: {a: 1}",
    "aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "deep": "[" * 200_000,
    "deep blocks": "- " * 200_000,
    "huge": "#" * 600_000,
    "a tag": "a: !!python/object/apply:os.system [ls]",
    "not closed": "jobs: {",
    "keys twice": "jobs: {}\njobs: {}",
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_is_no_workflow_stays_and_is_said(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    (folder / "a.yml").write_text(HOSTILE[kind])
    (found,) = existing_ci.read_existing(tmp_path).workflows
    assert found.problem
    assert not found.may_go


def test_odd_values_in_a_workflow_are_read_as_what_they_are() -> None:
    odd = "on: {1: 2}\njobs: {2: {runs-on: [3], steps: [4, {run: 5, with: 6}, {uses: [7]}]}, b: {uses: ./x@y}}"
    found = read_workflow("a.yml", odd)
    assert (found.problem, found.may_go) == ("", False)
    assert len(found.unrecognised) == 3


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    (tmp_path / "outside.yml").write_text(START)
    (folder / "link.yml").symlink_to(tmp_path / "outside.yml")
    os.mkfifo(folder / "pipe.yml")
    found = existing_ci.read_existing(tmp_path)
    assert [bool(item.problem) for item in found.workflows] == [True, True]
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    (elsewhere / ".github").symlink_to(tmp_path / ".github")
    assert existing_ci.read_existing(elsewhere).workflows == ()


def test_names_cannot_write_into_the_report(repository: Path) -> None:
    evil = 'on: push\njobs:\n  a:\n    steps:\n    - name: "| <b> |\\n# head [l](http://e) @team"\n      run: x'
    evil += "\n    - run: cosign sign-blob"
    for name in ("A\n[evil]\nx = 1\n.yml", "a\n| x | `z` <img src=q> @team [l](http:e).yml", "b\nc.yml"):
        (repository / ".github" / "workflows" / name).write_text(evil)
    report = kci("adopt", "--dry-run", "-v", "--format", "markdown").stdout
    assert "<b>" not in report
    assert "[l](http" not in report
    assert "@team" not in report
    assert "<img" not in report
    assert "\n# head" not in report
    assert kci("adopt").code == 0
    assert "evil" not in tomllib.loads((repository / "kci.toml").read_text())
    assert any(".github/workflows/b" in line and "c.yml" in line for line in report.splitlines())


@pytest.mark.parametrize("part", known_ci().part, ids=lambda part: part.does[:40])
def test_every_known_part_is_recognised_by_each_thing_that_it_looks_for(part: KnownPart) -> None:
    runs_on = tuple(pattern.replace("*", "26") for pattern in part.runs_on)
    if not (part.uses or part.run):
        assert part in parts_of_workflow(part.on)
    for uses, text in [*((item.replace("*", "x"), "") for item in part.uses), *(("", item) for item in part.run)]:
        found = parts_of(WorkflowStep("a", "b", uses, f"first\n{text} more", {}, runs_on), part.on)
        hidden = part.becomes is Becomes.GOES_ALONG and any(one.becomes is not part.becomes for one in found)
        assert part in found or hidden, text
    assert part not in parts_of(WorkflowStep("a", "b", "some/action", "make", {}, ("own",)), ())
    assert bool(part.now) is (part.becomes is not Becomes.GOES_ALONG)
