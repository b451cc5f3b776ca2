"""`kci check`: every format, over kernels and kci.toml together."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.runner import kci, kci_process
from conftest import ROOT, add_package
from kci import __version__
from kci.cli._findings import render_sarif
from kci.diagnostics import Span, finding, rules
from kci.workspace.check import check_kernels
from outside_tools import npm_packages

BUILD = """\
[general]
name = "norm"
version = 1
edition = 5
license = "MIT Licence"
backends = ["cuda"]
hub.repo-id = "acme/norm"

[torch]
src = ["torch-ext/binding.cpp"]

[kernel.norm]
backend = "cuda"
depends = ["torch"]
src = ["csrc/norm.cu"]
cuda-capabilities = ["8.0", "12.0"]
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One error (a source that is missing), one warning (the licence), one note (12.0 at CUDA 12.6)."""
    (tmp_path / ".git").mkdir()
    kernel = tmp_path / "kernels" / "a b"
    (kernel / "torch-ext").mkdir(parents=True)
    (kernel / "torch-ext" / "binding.cpp").write_text("")
    (kernel / "build.toml").write_text(BUILD)
    add_package(kernel)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_text_has_findings_on_stderr_and_the_sum_on_stdout(repository: Path) -> None:
    result = kci("check", "--color", "never")
    assert result.code == 1
    assert "kernels/a b/build.toml:5:11: warning[KCI141]" in result.stderr
    assert "kernels/a b/build.toml:15:8: error[KCI136]" in result.stderr
    assert "KCI153" not in result.stderr
    assert result.stdout == "1 file checked: 1 error, 1 warning, 1 info (-v shows all)\n"
    assert "info[KCI153]" in kci("check", "-v").stderr


def test_json_is_the_documented_shape_and_alone_on_stdout(repository: Path) -> None:
    result = kci("check", "--format", "json")
    answer = json.loads(result.stdout)
    assert answer["schema"] == 1
    assert [item["rule"] for item in answer["diagnostics"]] == ["KCI141", "KCI136", "KCI153"]
    assert answer["diagnostics"][1] | {"message": "", "hint": ""} == {
        "rule": "KCI136", "severity": "error", "message": "", "hint": "", "path": "kernels/a b/build.toml",
        "line": 15, "column": 8, "end_line": 15, "end_column": 22, "related": [],
    }  # fmt: skip
    assert result.stderr == "1 file checked: 1 error, 1 warning, 1 info\n"


def test_github_has_one_annotation_a_line(repository: Path) -> None:
    lines = kci("check", "--format", "github").stdout.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::warning", "::error", "::notice"]
    assert "file=kernels/a b/build.toml,line=15" in lines[1]


def test_warnings_alone_are_no_failure(repository: Path) -> None:
    (repository / "kernels/a b/csrc").mkdir()
    (repository / "kernels/a b/csrc/norm.cu").write_text("")
    assert kci("check").code == 0


def test_kernels_and_settings_are_checked_together(repository: Path) -> None:
    (repository / "kci.toml").write_text(
        'catalog = "nowhere.toml"\n[[limits]]\nkernel = "nrom"\nmax-jobs = 1\n'
        '[[lint.ignore]]\nrule = "KCI141"\npath = "kernels/*/build.toml"\nreason = "asked the lawyers"\n'
    )
    result = kci("check", "kernels/a b", "--format", "json")
    found = json.loads(result.stdout)["diagnostics"]
    assert [(item["rule"], item["path"], item["line"]) for item in found] == [
        ("KCI332", "kci.toml", 1),
        ("KCI326", "kci.toml", 3),
        ("KCI136", "kernels/a b/build.toml", 15),
        ("KCI153", "kernels/a b/build.toml", 16),
    ]
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
    (repository / "kci.toml").write_text("limits = 1\n")
    (repository / "broken").mkdir()
    (repository / "broken/build.toml").write_text("[general\n")
    found = [f"{item.path}:{item.rule}" for item in check_kernels(["broken", "kernels/a b"]).diagnostics]
    assert found == ["broken/build.toml:KCI004", "kci.toml:KCI103", "kernels/a b/build.toml:KCI141",
                     "kernels/a b/build.toml:KCI136", "kernels/a b/build.toml:KCI153"]  # fmt: skip


def test_kernels_of_several_repositories_have_their_own_settings(tmp_path: Path) -> None:
    for name, suppressed in (("r", True), ("s", False)):
        (tmp_path / name / ".git").mkdir(parents=True)
        (tmp_path / name / "build.toml").write_text(BUILD)
        if suppressed:
            text = '[[lint.ignore]]\nrule = "KCI141"\npath = "build.toml"\nreason = "r"\n'
            (tmp_path / name / "kci.toml").write_text(text)
    found = check_kernels([str(tmp_path / "r"), str(tmp_path / "s")]).diagnostics
    assert [Path(item.path).parent.name for item in found if item.rule == "KCI141"] == ["s"]


# --- SARIF ------------------------------------------------------------------------------------------------------------


def test_sarif_names_files_from_the_top_of_the_repository(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository / "kernels" / "a b")
    result = kci("check", "--format", "sarif")
    assert result.code == 1
    (run,) = json.loads(result.stdout)["runs"]
    assert run["tool"]["driver"]["version"] == __version__
    place = run["results"][1]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "kernels/a%20b/build.toml", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 15, "startColumn": 8, "endLine": 15, "endColumn": 22}
    assert [item["level"] for item in run["results"]] == ["warning", "error", "note"]
    described = run["tool"]["driver"]["rules"]
    for item in run["results"]:
        assert described[item["ruleIndex"]]["id"] == item["ruleId"]
    assert all(rule["help"]["text"] and "**Fix:**" in rule["help"]["markdown"] for rule in described)


def test_fingerprints_outlive_moved_lines_and_tell_twins_apart() -> None:
    def prints(*lines: int) -> list[str]:
        found = [finding("KCI131", "m", path="a.toml", span=Span(line, 1, line, 2)) for line in lines]
        results = json.loads(render_sarif(found, "1"))["runs"][0]["results"]
        return [item["partialFingerprints"]["kciFinding/v1"] for item in results]

    assert prints(1, 2) == prints(11, 12)
    assert len(set(prints(1, 2))) == 2


def everything() -> str:
    """A log with each rule, with and without a place, and hostile texts."""
    found = [finding(rule, "message", hint="hint", path="x/ü %.toml", span=Span(1, 2, 3, 4)) for rule in rules()]
    found += [finding("KCI304", "no file at fault"), finding("KCI001", "a whole file", path="../x.toml")]
    found.append(finding("KCI101", 'a"\n\0\x1b[31m{0} [link](x)', path="a\nb.toml", span=Span(1, 1, 1, 2)))
    return render_sarif(found, __version__)


def test_sarif_is_the_same_every_time() -> None:
    assert everything() == everything()
    first = kci_process("check", "examples", "--format", "sarif", cwd=ROOT, PYTHONHASHSEED="1")
    second = kci_process("check", "examples", "--format", "sarif", cwd=ROOT, PYTHONHASHSEED="2")
    assert first.stdout == second.stdout != ""


@pytest.fixture(scope="session")
def sarif_multitool() -> Path:
    """The SARIF SDK's own package: the official schema, and the validator with GitHub's rules."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("its package has no program for this machine")
    place = npm_packages("sarif-multitool", "@microsoft/sarif-multitool-linux@5.7.0")
    return place / "node_modules" / "@microsoft" / "sarif-multitool-linux"


@pytest.mark.network
def test_sarif_is_valid_by_the_official_schema(repository: Path, sarif_multitool: Path) -> None:
    import jsonschema

    schema = json.loads((sarif_multitool / "sarif-2.1.0.json").read_text(encoding="utf-8-sig"))
    validator = jsonschema.Draft7Validator(schema)
    for text in (everything(), render_sarif([], "0"), kci("check", "--format", "sarif").stdout):
        assert [error.message for error in validator.iter_errors(json.loads(text))] == []
    broken = everything().replace('"ruleId"', '"ruleID"')
    assert list(validator.iter_errors(json.loads(broken))), "the schema does refuse something"


@pytest.mark.network
def test_github_code_scanning_would_take_it(tmp_path: Path, sarif_multitool: Path) -> None:
    """The validator of the SARIF SDK, with its rules for GitHub's ingestion."""
    program = tmp_path / "multitool"
    shutil.copy(sarif_multitool / "Sarif.Multitool", program)
    program.chmod(0o755)
    environment = {**os.environ, "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1", "HOME": str(tmp_path)}

    def findings(text: str) -> list[str]:
        (tmp_path / "log.sarif").write_text(text, encoding="utf-8")
        command = [program, "validate", tmp_path / "log.sarif", "--rule-kind", "Sarif;Ghas", "--output", "out.sarif"]
        command += ["--log", "ForceOverwrite"]
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
        (run,) = json.loads((tmp_path / "out.sarif").read_text(encoding="utf-8-sig"))["runs"]
        return [f"{item['ruleId']} {item['message']}" for item in run["results"] if item.get("level") == "error"]

    assert findings(everything()) == []
    assert findings(everything().replace('"startLine": 1,', '"startLine": -1,')), "the validator does refuse something"


def test_sarif_has_what_code_scanning_asks_for() -> None:
    """The required and used properties of GitHub's page on SARIF, for machines without the schema."""
    log = json.loads(everything())
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    for rule in run["tool"]["driver"]["rules"]:
        assert {"id", "name", "shortDescription", "fullDescription", "help", "defaultConfiguration"} <= rule.keys()
        assert len(rule["name"]) <= 255
        assert len(rule["fullDescription"]["text"]) <= 1024
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    for result in run["results"]:
        assert result["message"]["text"]
        assert result["partialFingerprints"]
        for location in result.get("locations", []):
            assert "\n" not in location["physicalLocation"]["artifactLocation"]["uri"]


# --- explain ----------------------------------------------------------------------------------------------------------


def test_explain_tells_all_of_a_rule_by_its_id_or_name() -> None:
    shown = kci("explain", "kci152").stdout
    assert shown == kci("explain", "capability-lost").stdout
    for part in ("KCI152 capability-lost (warning)", "Why: ", "Fix: ", "Wrong:\n\n    [general]", '"6.0", "8.0"'):
        assert part in shown


def test_explain_lists_every_rule_and_suggests_near_ones() -> None:
    assert [line[:6] for line in kci("explain").stdout.splitlines()] == list(rules())
    assert "did you mean `KCI152`?" in kci("explain", "KCI1522").stderr
    assert "did you mean `capability-lost`?" in kci("explain", "capability-losst").stderr
    assert kci("explain", "xyz").code == 2


NOARCH = """\
[general]
name = "norm"
version = 1
license = "MIT"
backends = ["cpu"]
hub.repo-id = "acme/norm"

[torch-noarch]
"""


def test_many_findings_of_one_cause_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c", "d"):
        folder = tmp_path / "kernels" / name
        folder.mkdir(parents=True)
        (folder / "build.toml").write_text(NOARCH)
        add_package(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    one = kci("check", "kernels")
    assert one.stderr.count("KCI107") == 1
    assert "upgraded in memory (in 4 files, this is the first)" in one.stderr
    assert "hint: `kci update kernels` writes edition 5; -v lists them all" in one.stderr
    assert one.stdout == "4 files checked: 0 errors, 4 warnings, 0 infos (-v shows all)\n"
    every = kci("check", "kernels", "-v")
    assert every.stderr.count("KCI107") == 4
    assert "hint: `kci update kernels/c` writes edition 5\n" in every.stderr
    assert every.stdout == "4 files checked: 0 errors, 4 warnings, 0 infos\n"


def test_errors_are_never_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "build.toml").write_text(NOARCH.replace("[general]", "[general]\nwrong = 1"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert kci("check").stderr.count("error[") == 4
