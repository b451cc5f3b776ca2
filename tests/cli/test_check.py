"""`kci check`: every format, over kernels and kci.toml together."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from buildkit import noarch_kernel, write_tree
from cli.runner import ended, kci
from config.mistakes import FILES, KERNEL, WRONG
from conftest import add_package, torch_toml, write_noarch
from kci.cli import _output
from kci.diagnostics import rules
from kci.plan.check import check_kernels

BUILD = torch_toml({"cuda": "csrc/norm.cu"}, "norm", "torch-ext/binding.cpp")
BUILD = BUILD.replace('"MIT"', '"MIT Licence"').replace("[torch]", 'hub.repo-id = "a/b"\n[torch]')
BUILD += 'cuda-capabilities = ["8.0", "12.0"]\n'


GONE = BUILD.splitlines().index('src = ["csrc/norm.cu"]') + 1
"""The line of a source that is missing."""


@pytest.fixture
def repository(here: Path) -> Path:
    """One error (a source that is missing), one warning (the licence), one note (12.0 at CUDA
    12.6).
    """
    (here / ".git").mkdir()
    files = {"build.toml": BUILD, "torch-ext/binding.cpp": ""}
    add_package(write_tree(here / "kernels" / "a b", files))
    return here


def test_each_format_has_its_answer_on_stdout_and_the_rest_on_stderr(repository: Path) -> None:
    place, total = "kernels/a b/build.toml", "1 file checked: 1 error, 1 warning, 0 infos\n"
    found = (f"{place}:5:11: warning[KCI141]", f"{place}:{GONE}:8: error[KCI136]")
    assert ended(kci("check", "--color", "never"), 1, *found) == total
    result = kci("check", "--format", "json")
    answer = json.loads(result.stdout)
    assert (answer["schema"], result.stderr) == (1, total)
    assert [item["rule"] for item in answer["diagnostics"]] == ["KCI141", "KCI136"]
    assert answer["diagnostics"][1] | {"message": "", "hint": ""} == {
        "rule": "KCI136", "severity": "error", "message": "", "hint": "",
        "path": place, "line": GONE, "column": 8, "end_line": GONE, "end_column": 22, "related": [],
    }  # fmt: skip
    lines = kci("check", "--format", "github").stdout.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::warning", "::error"]
    assert f"file={place},line={GONE}" in lines[1]


def test_folders_without_a_kernel_are_passed_over_beside_others(repository: Path) -> None:
    (repository / "notes").mkdir()
    assert kci("check", "kernels", "notes").stdout.startswith("1 file checked")
    assert (kci("check", "notes").code, kci("matrix", "kernels", "notes").code) == (1, 1)


@pytest.mark.parametrize("marker", [".git", "kci.toml", ""])
def test_a_folder_of_a_kernel_is_enough(
    tmp_path: Path, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As git, cargo and uv do, commands look upward; not beyond the repository."""
    kernel = noarch_kernel(tmp_path / "repo" / "kernels" / "a")
    (kernel / "csrc").mkdir()
    if marker:
        (tmp_path / "repo" / marker).touch()
    monkeypatch.chdir(kernel / "csrc")
    assert kci("check").stdout.startswith("2 files" if marker == "kci.toml" else "1 file")
    assert kci("matrix", "--format", "names").stdout == "torch-cpu\ntorch-cuda\n"
    assert kci("render").code == 0
    rendered = (tmp_path / "repo" if marker else kernel) / ".github/workflows/kci.yml"
    assert rendered.is_file()
    assert kci("render", "--check").code == 0
    assert "../build does not exist" in kci("publish", "--dry-run").stderr
    (kernel / "csrc" / ".git").mkdir()
    assert "no build.toml here or below" in kci("matrix").stderr


def test_kernels_and_settings_are_checked_together(repository: Path) -> None:
    limits = 'catalog = "nowhere.toml"\n[[limits]]\nkernel = "nrom"\nmax-jobs = 1\n'
    path = 'path = "kernels/*/build.toml"\nreason = "asked the lawyers"\n'
    text = f'{limits}[[lint.ignore]]\nrule = "KCI141"\n{path}'
    (repository / "kci.toml").write_text(text)
    result = kci("check", "kernels/a b", "--format", "json")
    found = json.loads(result.stdout)["diagnostics"]
    assert [(item["rule"], item["path"], item["line"]) for item in found] == [
        ("KCI332", "kci.toml", 1), ("KCI326", "kci.toml", 3),
        ("KCI136", "kernels/a b/build.toml", GONE),
    ]  # fmt: skip
    assert "2 files checked" in result.stderr


@pytest.mark.rule("KCI332", triggers=True)
@pytest.mark.parametrize("catalog", ["2020-01-01", "kci.toml", "./nowhere.toml"])
def test_a_catalog_that_cannot_be_used(repository: Path, catalog: str) -> None:
    (repository / "kci.toml").write_text(f'catalog = "{catalog}"\n')
    assert "KCI332" in {item.rule for item in check_kernels(["kernels/a b"]).diagnostics}


@pytest.mark.rule("KCI332", triggers=False)
def test_an_edition_of_the_catalog_can_be_used(repository: Path) -> None:
    (repository / "kci.toml").write_text('catalog = "2026-09-02"\n')
    check_kernels(["kernels/a b"])


def test_a_broken_kci_toml_does_not_hide_what_is_wrong_with_kernels(repository: Path) -> None:
    write_tree(repository, {"kci.toml": "limits = 1\n", "broken/build.toml": "[general\n"})
    found = check_kernels(["broken", "kernels/a b"]).diagnostics
    assert [(item.path.removesuffix("build.toml"), item.rule) for item in found] == [
        ("broken/", "KCI004"), ("kci.toml", "KCI103"),
        ("kernels/a b/", "KCI141"), ("kernels/a b/", "KCI136"),
    ]  # fmt: skip


# --- explain --------------------------------------------------------------------------------------


def test_explain_tells_of_a_rule_by_its_id_or_name_or_lists_all() -> None:
    shown = kci("explain", "kci151").stdout
    assert shown == kci("explain", "capability-gone").stdout
    for part in ("KCI151 capability-gone (warning)", "Why: ", "Fix: ", "Wrong:\n\n    [general]"):
        assert part in shown
    assert [line[:6] for line in kci("explain").stdout.splitlines()] == list(rules())
    ended(kci("explain", "KCI151X"), 2, "did you mean `KCI151`?")
    ended(kci("explain", "capability-gonne"), 2, "did you mean `capability-gone`?")
    ended(kci("explain", "xyz"), 2, "`kci explain` lists them all")


NOARCH = (
    '[general]\nname = "norm"\nversion = 1\nlicense = "MIT"\nbackends = ["cpu"]\n'
    'hub.repo-id = "acme/norm"\n\n[torch-noarch]\n'
)


def four_kernels(place: Path, text: str = NOARCH) -> None:
    for name in "abcd":
        folder = write_noarch(place / "kernels" / name, f"norm-{name}")
        (folder / "build.toml").write_text(text.replace("norm", f"norm-{name}", 1))


def test_many_findings_of_one_cause_are_one_and_errors_are_not(here: Path) -> None:
    four_kernels(here)
    hint = "hint: `kci update kernels` writes edition 5; -v lists them all"
    one = kci("check", "kernels")
    said = ended(one, 0, "upgraded in memory (in 4 files, this is the first)", hint)
    assert said == "4 files checked: 0 errors, 4 warnings, 0 infos (-v shows all)\n"
    every = kci("check", "kernels", "-v")
    said = ended(every, 0, "hint: `kci update kernels/c` writes edition 5\n")
    assert said == "4 files checked: 0 errors, 4 warnings, 0 infos\n"
    assert (one.stderr.count("KCI107"), every.stderr.count("KCI107")) == (1, 4)
    four_kernels(here / "wrong", NOARCH.replace("[general]", "[general]\nwrong = 1"))
    assert kci("check", "wrong").stderr.count("error[") == 4


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_slow_command_says_how_far_it_is(
    command: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    four_kernels(here)
    (here / "kci.toml").touch()  # one repository
    clock = itertools.count(0, 3)
    monkeypatch.setattr(_output, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert "checked 3 of 4 kernels" in kci(command, "kernels").stderr
    assert "of 4 kernels" not in kci(command, "kernels", "-q").stderr


def test_a_selection_that_keeps_nothing_and_a_name_of_two_kernels_are_errors(here: Path) -> None:
    """As for matrix and plan."""
    component = '[kernel.a]\nbackend = "cpu"\ndepends = ["torch"]\nsrc = ["a.cpp"]\n'
    four_kernels(here, NOARCH.replace("[torch-noarch]", f'[torch]\nminver = "2.99"\n{component}'))
    write_tree(here, {f"kernels/{name}/a.cpp": "" for name in "abcd"})
    for command in ("check", "matrix", "plan"):
        ended(kci(command, "kernels/a"), 1, "KCI217")
    (here / "kernels" / "b" / "build.toml").write_text(NOARCH.replace("norm", "norm-c", 1))
    add_package(here / "kernels" / "b")
    for command in ("check", "plan"):
        ended(kci(command, "kernels"), 1, "2 kernels are named", "kernels/b, kernels/c")


@pytest.mark.parametrize("name", ["", *WRONG])
def test_every_mistake_is_said_once_with_its_place_and_what_to_do(name: str, here: Path) -> None:
    text = WRONG[name] if name else KERNEL
    files = dict.fromkeys(FILES, "") | {"kci.toml": 'catalog = "2026-08-20"\n'}
    write_tree(here, files | {"build.toml": text})
    done = kci("check", "--color", "never")
    heads = [line for line in done.stderr.splitlines() if line.startswith("build.toml:")]
    assert len(heads) == len(set(heads)), done
    assert (bool(heads), "hint: " in done.stderr) == (bool(name), bool(name)), done
    assert name or done.code == 0
