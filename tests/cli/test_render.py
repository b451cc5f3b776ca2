from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from buildkit import files_in, write_tree
from cli.runner import Result, ended, kci
from conftest import failure, load_script, read_yaml, write_noarch
from kci.version import __version__
from kci.workflows import rendered_files
from kci.workflows.rendered_files import RecordedOptions, recorded_options
from planning import git

RELEASE, COMPAT = ".github/workflows/kci.yml", ".github/workflows/kci-compat.yml"
KERNEL = ".github/workflows/kci-kernel.yml"
UNCHANGED = f"{COMPAT}: unchanged\n{KERNEL}: unchanged\n{RELEASE}: unchanged\n"
WRITTEN = UNCHANGED.replace("unchanged", "written")


@pytest.fixture
def repository(here: Path) -> Path:
    write_noarch(here / "kernels" / "some", backends=("cpu", "cuda"))
    return here


def test_it_writes_its_files_shows_drift_and_overwrites_edits_by_force(repository: Path) -> None:
    assert ended(kci("render"), 0) == WRITTEN
    assert kci("render").stdout == UNCHANGED
    assert kci("render", "--check") == Result(0, "", "")
    file = repository / RELEASE
    written = file.read_text()
    for edited in (
        written.replace("timeout-minutes: 15", "timeout-minutes: 99"),
        written.replace("      - name: Plan\n", "      - run: mine\n\n      - name: Plan\n"),
    ):
        file.write_text(edited)
        found = kci("render", "--check")
        said = ended(found, 1, "KCI406")
        assert ("\n-" in said, COMPAT in said) == (True, False)
        assert kci("render", "--diff") == Result(0, found.stdout, "")
        ended(kci("render"), 1, "KCI406")
        assert file.read_text() == edited
    others = f"{COMPAT}: unchanged\n{KERNEL}: unchanged\n"
    assert ended(kci("render", "--force"), 0) == f"{others}{RELEASE}: written\n"
    assert file.read_text() == written


UP = '[submodule "up"]\n\tpath = csrc/up\n\turl = '
FORKS = '[pull-request]\nforks = "dispatch"\n'


def rendered_jobs(repository: Path) -> tuple[list[Any], list[Any]]:
    """The jobs of the rendered workflows, and what each of their checkouts is told."""
    files = (repository / ".github/workflows").iterdir()
    jobs = [job for path in files for job in read_yaml(path.read_text())["jobs"].values()]
    steps = [step for job in jobs for step in job.get("steps", ())]
    action = "actions/checkout@"
    return jobs, [step["with"] for step in steps if step.get("uses", "").startswith(action)]


@pytest.mark.rule("KCI455", triggers=False)
@pytest.mark.parametrize(
    ("file", "text", "wanted"),
    [
        (".gitmodules", f"{UP}../up\n", {"submodules": "recursive"}),
        (".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n", {"lfs": "true"}),
        ("kernels/deep/.gitattributes", "table.bin  diff=lfs filter=lfs\n", {"lfs": "true"}),
        (".gitattributes", "# *.bin filter=lfs\n*.txt text\n", {}),
    ],
)
def test_a_checkout_has_what_the_authors_has(
    repository: Path, file: str, text: str, wanted: dict[str, str]
) -> None:
    git(repository, "init", "-q")
    write_tree(repository, {file: text, "kci.toml": FORKS})
    assert kci("render").code == 0
    _, checkouts = rendered_jobs(repository)
    assert len(checkouts) > 4
    for inputs in checkouts:
        assert {key: inputs[key] for key in ("submodules", "lfs") if key in inputs} == wanted
    assert kci("render", "--ci", "gitlab").code == 0
    jobs = read_yaml((repository / ".gitlab" / "kci.gitlab-ci.yml").read_text())
    for name in ("kci-plan", "kci"):  # the variables of a trigger are those of its pipeline
        told = jobs[name].get("variables", {}).get("GIT_SUBMODULE_STRATEGY")
        assert told == wanted.get("submodules")


@pytest.mark.parametrize(("settings", "submodules", "token"), [
    ('token = "READ_TOKEN"', "recursive", "${{ secrets.READ_TOKEN || github.token }}"),
    ("submodules = false", None, None),
])  # fmt: skip
def test_private_submodules(
    repository: Path, settings: str, submodules: str | None, token: str | None
) -> None:
    """A called workflow has no secret that it is not given."""
    module = f"{UP}git@github.com:acme/up.git\n"
    toml = f"[checkout]\n{settings}\n{FORKS}"
    write_tree(repository, {".gitmodules": module, "kci.toml": toml})
    assert kci("render").code == 0
    jobs, checkouts = rendered_jobs(repository)
    told = {(given.get("submodules"), given.get("token")) for given in checkouts}
    assert told == {(submodules, token)}
    passed = [job.get("secrets") for job in jobs if "kci-kernel.yml" in job.get("uses", "")]
    assert len(passed) > 3
    assert passed == [{"READ_TOKEN": "${{ secrets.READ_TOKEN }}"} if token else None] * len(passed)
    called = read_yaml((repository / KERNEL).read_text())[True]["workflow_call"]
    assert ("secrets" in called) == bool(token)
    assert "nothing for `checkout`" in kci("render", "--short").stderr


def test_a_file_by_somebody_else_is_left_alone(repository: Path) -> None:
    file = write_tree(repository, {RELEASE: "name: mine\n"}) / RELEASE
    ended(kci("render"), 1, "KCI402")
    assert file.read_text() == "name: mine\n"
    assert not (repository / COMPAT).exists()


def test_a_kernel_with_an_error_is_said_and_nothing_is_written(repository: Path) -> None:
    """Its legs would start machines only to fail there."""
    file = next(repository.rglob("build.toml"))
    file.write_text(file.read_text().replace("[torch-noarch]", '[torch]\nsrc = ["gone.cpp"]'))
    ended(kci("check"), 1, "error[KCI130]")
    for options in ((), ("--ci", "gitlab"), ("--check",)):
        assert ended(kci("render", *options), 1, "error[KCI130]") == ""
    assert {path.name for path in repository.iterdir()} == {"kernels"}


def test_the_command_of_the_header_and_the_bare_one_write_the_same(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("kernels")
    assert kci("render", "some", "--output", "..").code == 0
    monkeypatch.chdir(repository)
    text = (repository / RELEASE).read_text()
    assert "kci render kernels/some\n" in text, "paths are relative to the root"
    assert 'kernels: "kernels/some"' in text
    write_noarch(repository / "more" / "other", "other-kernel", backends=("cpu", "cuda"))
    assert kci("render", "kernels", "--branch", "trunk").code == 0
    before = {path: (repository / path).read_text() for path in (RELEASE, COMPAT)}
    assert "#   kci render kernels --branch trunk\n" in before[RELEASE]
    assert kci("render", "--check").code == 0
    assert kci("render").stdout == UNCHANGED
    assert {path: (repository / path).read_text() for path in before} == before


@pytest.mark.parametrize(
    "command", ["kci render ../x", "kci render /etc", "kci render --output x", "kci render 'x", "x"]
)
def test_a_hostile_header_says_nothing(command: str) -> None:
    text = f"# Purpose.\n# Generated by kci 1.0 from build.toml. Do not\n#   {command}\n"
    assert recorded_options(text) == RecordedOptions()


@pytest.mark.parametrize("branch", ["main", "master", "trunk"])
def test_the_default_branch_is_that_of_the_repository(repository: Path, branch: str) -> None:
    git(repository, "init", "--quiet", f"--initial-branch={branch}")
    git(repository, "commit", "--quiet", "--allow-empty", "--message=x")
    if branch == "trunk":  # only the remote's word makes another name the default
        ref = "refs/remotes/origin"
        git(repository, "update-ref", f"{ref}/trunk", "HEAD")
        git(repository, "symbolic-ref", f"{ref}/HEAD", f"{ref}/trunk")
    assert kci("render").code == 0
    assert f'branches: ["{branch}"]' in (repository / RELEASE).read_text()


def test_kcis_own_actions_are_pinned_to_the_release(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = kci("render", "--pin", "sha")
    ended(refused, 2, "was not installed from a release", "`[actions]` with `ref`")
    assert not (repository / RELEASE).exists()
    release, commit = repository / "release.toml", "c" * 40
    release.write_text(load_script("release_data").text(commit, __version__, "2026-11-30"))
    monkeypatch.setattr(rendered_files, "RELEASE_DATA", release)
    assert kci("render", "--pin", "sha").code == 0
    text = (repository / RELEASE).read_text()
    assert f"kci/build/plan@{commit} # v{__version__}\n" in text
    assert "kci/build/plan@v1" not in text
    assert "unpinned-uses" not in text
    assert kci("render").stdout == UNCHANGED, "the header remembers"
    assert kci("render", "--pin", "tag").code == 0
    assert "kci/build/plan@v1" in (repository / RELEASE).read_text()
    assert commit not in (repository / RELEASE).read_text()


@pytest.mark.parametrize("commit", ["", "v1", "C" * 40, "c" * 39])
def test_only_a_full_commit_is_put_into_a_release(commit: str) -> None:
    make = load_script("release_data").text
    failure(SystemExit, "not a full commit", make, commit, "1.0.0", "2026-11-30")


COMMENT = ".github/workflows/kci-comment.yml"


def test_a_file_that_is_not_rendered_any_more_goes(repository: Path) -> None:
    (repository / "kci.toml").write_text("[pull-request]\ncomment = true\n")
    assert kci("render").code == 0
    (repository / "kci.toml").unlink()
    drifted = ended(kci("render", "--check"), 1, f"{COMMENT}: error[KCI401]")
    assert "+++ /dev/null" in drifted
    assert (repository / COMMENT).exists()
    assert f"{COMMENT}: removed\n" in kci("render").stdout
    assert not (repository / COMMENT).exists()
    assert kci("render", "--check").code == 0


@pytest.mark.rule("KCI454", triggers=True)
def test_the_short_file_takes_the_place_of_the_long_ones_and_back(repository: Path) -> None:
    assert kci("render").code == 0
    (repository / "kci.toml").write_text("[pull-request]\ncomment = true\n")
    told = "the short file has nothing for `pull-request.comment` of kci.toml"
    assert "removed" in ended(kci("render", "--short"), 0, told)
    folder = repository / ".github" / "workflows"
    assert files_in(folder) == ["kci-compat.yml", "kci.yml"]
    assert kci("render", "--check").code == 0, "the header of the file says that it is short"
    assert kci("render", "--no-short").code == 0
    assert files_in(folder) == ["kci-comment.yml", "kci-compat.yml", "kci-kernel.yml", "kci.yml"]
    assert kci("render", "--short", "--ci", "gitlab").code == 2


@pytest.mark.rule("KCI455", "KCI450", triggers=True)
def test_a_rendered_file_that_git_ignores_is_named(repository: Path) -> None:
    git(repository, "init", "-q")
    (repository / ".gitignore").write_text(".*\n!.github/\nSnakefile\n")
    said = {ci: kci("render", "--ci", ci).stderr for ci in ("github", "gitlab", "snakemake")}
    ignored = [ci for ci, text in said.items() if "git ignores this file" in text]
    assert ignored == ["gitlab", "snakemake"]
    assert "KCI_INSTALL" in said["gitlab"]


def test_a_newer_pin_survives_rendering(repository: Path) -> None:
    kci("render")
    newer = f"actions/checkout@{'d' * 40} # v99.0.0"
    for file in (repository / RELEASE, repository / COMPAT):
        file.write_text(re.sub("actions/checkout@.*", newer, file.read_text()))
    assert kci("render", "--check").code == 0
    assert f"{RELEASE}: unchanged" in ended(kci("render"), 0)
    assert newer in (repository / RELEASE).read_text()
