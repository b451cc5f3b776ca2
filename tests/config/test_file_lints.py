"""Lints of build.toml: each speaks about its own example alone, at its place, unless ignored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config.examples import complete, with_examples
from conformance_cases import cases
from conftest import add_package, ids
from kci.config.file_lints import repo_id_problem
from kci.config.reader import parse_kernel
from kci.config.values import toml_string
from kci.diagnostics import Diagnostic, Severity, rules
from kci.errors import FindingsError
from kci.matrix.catalog.rows import Catalog
from kci.plan.check import check_kernels, lint_kernel
from kci.plan.inputs.source_lints import source_escapes

LINTS = ("KCI13", "KCI14", "KCI15", "KCI16", "KCI19")


def lint(text: str, catalog: Catalog) -> list[Diagnostic]:
    return lint_kernel(parse_kernel(text.encode()), catalog, None)


def _cases(field: str, triggers: bool) -> list:
    return [
        pytest.param(
            rule.id,
            getattr(rule, field),
            id=rule.id,
            marks=pytest.mark.rule(rule.id, triggers=triggers),
        )
        for rule in with_examples(rules(), LINTS)
    ]


@pytest.mark.parametrize(("rule", "text"), _cases("bad", True))
def test_a_rule_speaks_about_its_bad_example(rule: str, text: str, catalog: Catalog) -> None:
    found = [item for item in lint(complete(text), catalog) if item.rule == rule]
    assert found
    assert all(item.line and item.column and item.hint for item in found)


@pytest.mark.parametrize(("rule", "text"), _cases("good", False))
def test_a_rule_is_silent_about_its_good_example(rule: str, text: str, catalog: Catalog) -> None:
    assert rule not in ids(lint(complete(text), catalog))


HEAD = """\
[general]
name = "norm"
version = 1
edition = 5
license = "mit"
backends = ["cuda"]
hub.repo-id = "acme/norm"
"""


NOARCH = "[torch-noarch]\n"
CASES = [
    ("KCI130", "6:13-19", "add a component", HEAD + "[torch]\n[kernel]\n"),
    *(("KCI130", f"6:13-{15 + len(name)}", "torch-noarch", HEAD.replace("cuda", name) + "[torch]\n")
      for name in ("cann", "neuron", "tpu")),
    ("KCI130", "", "", HEAD + NOARCH),
    ("KCI130", "", "", HEAD + "[tvm-ffi]\nsrc = []\n"),
    ("KCI131", "10:11-16", "",
        HEAD + '[torch]\n[kernel.a]\nbackend = "xpu"\ndepends = []\nsrc = []\n'),
    *(("KCI135", place, hint, f"{HEAD}[general.cuda]\n{bound}\n{NOARCH}") for bound, place,
        hint in (
        ('minver = "13"', "9:10-14", 'write "13.0"'), ('minver = "13.0"', "", ""),
        ('minver = "13.0.0"', "9:10-18", 'write "13.0"'),
        ('minver = "12.6.1"', "9:10-18", "major and minor only"),
        ('maxver = " 13 "', "9:10-16", 'write "13.0"'), ('maxver = " 13.0 "', "", ""))),
    ("KCI135", "9:10-13 10:23-31 15:15-19", "",  # every version is looked at
     HEAD + '[torch]\nminver = "2"\nstable-abi = { cuda = "2.11.0", cpu = "2.11" }\n'
     '[kernel.a]\nbackend = "cuda"\ndepends = []\nsrc = []\ncuda-minver = "13"\n'),
    ("KCI137", "9:17-30", "", HEAD + '[torch]\nsrc = ["a.cpp", "/etc/passwd"]\n'),
    ("KCI140", "9:31-37", "",
        HEAD + '[general.cuda]\nkernel-depends = [{ repo-id = "norm", version = 1 }]\n' + NOARCH),
    ("KCI140", "10:13-19", "", HEAD + 'kernel-depends = [\n{ repo-id = "a/b", version = 1 },\n'
     '{ repo-id = "norm", version = 1 },\n]\n' + NOARCH),
    ("KCI142", "9:19-27", "", HEAD + '[general.tpu]\npython-depends = ["einops"]\n[torch]\n'),
    ("KCI142", "8:19-27", "belongs in `general.xpu.python-depends`",
        HEAD + 'python-depends = ["onednn"]\n' + NOARCH),
    ("KCI142", "8:19-26", "did you mean `einops`?", HEAD + 'python-depends = ["einop"]\n' + NOARCH),
    ("KCI142", "", "",
        HEAD + '[general.neuron]\npython-depends = ["whatever"]\n' + NOARCH),  # never resolved
    ("KCI144", "9:23-26", "", HEAD + '[torch]\nstable-abi = { cuda = "3" }\n'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "places", "hint", "text"),
    [
        pytest.param(*case, marks=pytest.mark.rule(case[0], triggers=bool(case[1])))
        for case in CASES
    ],
)
def test_a_finding_points_at_the_value(
    rule: str, places: str, hint: str, text: str, catalog: Catalog
) -> None:
    found = [item for item in lint(text, catalog) if item.rule == rule]
    assert " ".join(f"{item.line}:{item.column}-{item.end_column}" for item in found) == places
    assert all(hint in item.hint for item in found)


@pytest.mark.rule("KCI135", triggers=False)
@pytest.mark.rule("KCI144", triggers=True)
@pytest.mark.parametrize("text", ['"3"', '"3.0.0"', '{ cuda = "3" }'])
def test_a_stable_abi_without_a_minor_is_said_once(text: str, catalog: Catalog) -> None:
    lint(f"{HEAD}[torch]\nstable-abi = {text}\n", catalog)


KNOWN = ["mit", "MIT", "Apache-2.0", "apache-2.0", "other", "OpenRAIL++", "MIT OR Apache-2.0",
         "GPL-2.0-only WITH Classpath-exception-2.0", "LicenseRef-acme", "bsd"]  # fmt: skip
UNKNOWN = ["", " ", "MIT License", "apache 2", "(" * 500 + "MIT", "mit\0", "not or and"]


@pytest.mark.parametrize("text", [
    pytest.param(text, marks=pytest.mark.rule("KCI141", triggers=text in UNKNOWN))
    for text in (*KNOWN, *UNKNOWN)
])  # fmt: skip
def test_licences(text: str, catalog: Catalog) -> None:
    lint(HEAD.replace('"mit"', toml_string(text)) + NOARCH, catalog)


@pytest.mark.parametrize(
    ("repo_id", "problem"),
    [
        ("a/b", ""), ("A_c.me/x_1.2-y", ""), ("1/2", ""), ("", "no owner"), ("a b/c", "letters"),
        ("a/norm.", "letters"),
        ("https://x/y", "one slash"), ("a/b\n", "letters"), ("a/b--c", "`--`"), ("acme/norm", ""),
        ("a" * 96 + "/" + "b" * 96, ""), ("norm", "no owner"), ("/norm", "empty"),
        ("acme/", "empty"),
        ("a/b/c", "one slash"), ("a" * 97 + "/b", "96"), ("a/" + "b" * 97, "96"),
        ("a/-b", "letters"), ("é/b", "letters"),
        ("a--b/c", "`--`"), ("a/b..c", "`--`"), ("a/b.git", "`--`"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_name_of_a_repository(repo_id: str, problem: str) -> None:
    said = repo_id_problem(repo_id)
    assert problem in said
    assert bool(said) == bool(problem)


@pytest.mark.parametrize(
    ("path", "escapes"),
    [
        ("a.cpp", False), ("csrc/../a.cpp", False), ("./a.cpp", False), ("..a/b.cpp", False),
        ("../a.cpp", True),
        ("csrc/../../a.cpp", True), ("/a.cpp", True), ("C:\\a.cpp", True), ("\\\\host\\a", True),
        ("..\\a.cpp", True),
    ],
)  # fmt: skip
def test_paths_that_lead_out_of_the_kernel(path: str, escapes: bool) -> None:
    made = parse_kernel((HEAD + f"[torch]\nsrc = [{json.dumps(path)}]\n").encode())
    assert bool(list(source_escapes(made))) is escapes


def test_conformance_files_have_errors_only_where_meant_to(catalog: Catalog) -> None:
    wrong = {
        "kernels/relu-invalid-capability": {"KCI130", "KCI155"},
        "kernels/relu-torch-stable-abi": {"KCI130"},
        "edge/16 stable-abi all + backend without component": {"KCI130"},
        "edge/30 [torch] minver on a kernel with no component at all": {"KCI130"},
        "edge/36 cuda.minver > cuda.maxver": {"KCI133"},
    }
    for case in cases():
        try:
            found = lint(case.build, catalog)
        except FindingsError as error:
            pytest.fail(f"{case.name}: {error}")
        errors = {item.rule for item in found if item.severity is Severity.ERROR}
        assert errors == wrong.get(case.name, set()), case.name


TEXT = """\
[general]
name = "norm"
version = 1
license = "mit"
backends = ["cuda"]
hub.repo-id = "acme/norm"

[torch-noarch]
"""
ENTRY = '[[lint.ignore]]\nrule = "{}"\npath = "{}"\nreason = "{}"\n'


def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *entry: str) -> None:
    (tmp_path / ".git").mkdir()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "build.toml").write_text(TEXT.replace('"norm"', f'"norm-{name}"'))
        add_package(tmp_path / name)
    (tmp_path / "kci.toml").write_text(ENTRY.format(*entry))
    monkeypatch.chdir(tmp_path)


def places(*directories: str) -> list[str]:
    return [f"{item.path}:{item.rule}" for item in check_kernels(directories).diagnostics]


BOTH = ["a/build.toml:KCI107", "b/build.toml:KCI107"]


@pytest.mark.parametrize(
    ("rule", "path", "said"),
    [
        ("KCI107", "a/build.toml", BOTH[1:]),
        ("KCI107", "*/build.toml", []),
        ("KCI131", "*", BOTH),  # for its rule only
    ],
)
def test_an_entry_ignores_a_rule_in_the_files_that_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, path: str, said: list[str]
) -> None:
    repository(tmp_path, monkeypatch, rule, path, "on purpose")
    assert places("a", "b") == said
    monkeypatch.chdir(tmp_path / "a")
    here = ["build.toml:KCI107"] if said == BOTH else []
    assert places(".") == here, "paths are relative to kci.toml, wherever kci was called"


@pytest.mark.rule("KCI330", triggers=True)
@pytest.mark.parametrize(
    ("rule", "reason"), [("KCI107", " "), ("KCI107 ", "on purpose"), ("KCI9999", "on purpose")]
)
def test_an_entry_without_a_reason_or_a_rule_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, reason: str
) -> None:
    repository(tmp_path, monkeypatch, rule, "*", reason)
    assert places("a") == ["a/build.toml:KCI107", "kci.toml:KCI330"]
