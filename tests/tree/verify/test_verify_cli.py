"""Verification as a user calls it: the commands, the places they look at, suppressions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cli.runner import kci
from conftest import write_noarch
from kci.tree.manifest import Manifest
from kci.tree.merge import merge
from kci.tree.verify import verify, verify_with_suppressions
from variants import artifact_of, make_variant, tree_plan


@pytest.fixture(autouse=True)
def no_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_RUN_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)


def test_pack_then_merge_then_verify(tmp_path: Path) -> None:
    variant = make_variant(tmp_path, "torch-cpu")
    done = kci("pack", variant, "-o", tmp_path / "out/kci-gated-norm-torch-cpu.tar.zst")
    assert (done.code, done.stdout) == (0, f"{tmp_path}/out/kci-gated-norm-torch-cpu.tar.zst\n")
    plan = tmp_path / "plan.json"
    plan.write_bytes(msgspec.json.encode(tree_plan("torch-cpu")))
    build = tmp_path / "build"
    done = kci("merge", tmp_path / "out", "--into", build, "--plan", plan, "--json")
    answer = json.loads(done.stdout)
    assert done.code == 0
    assert (answer["schema"], answer["complete"]) == (1, True)
    msgspec.convert(answer["manifests"][0], Manifest)
    done = kci("verify", build)
    told = f"{build}: tree (1 variant)\n1 verified: 0 errors, 0 warnings, 0 infos\n"
    assert (done.code, done.stdout, done.stderr) == (0, told, "")


def test_a_variant_that_was_changed_can_be_sealed_anew(tmp_path: Path) -> None:
    variant = make_variant(tmp_path)
    (variant / "_ops.py").write_text("x = 1\n")
    done = kci("pack", variant, "-o", tmp_path / "x.tar")
    assert (done.code, done.stdout) == (1, "")
    assert "KCI603" in done.stderr
    done = kci("pack", variant, "-o", tmp_path / "x.tar", "--seal")
    assert (done.code, done.stdout) == (0, f"{tmp_path}/x.tar\n")
    (variant / "link").symlink_to("/etc/passwd")
    assert kci("pack", variant, "-o", tmp_path / "x.tar", "--seal").code == 5
    none = tmp_path / "none"
    usage = (["merge", none, "--into", none], ["verify", none], ["merge"])
    for words in (*usage, ["verify", variant, "--select", "KCI999"]):
        assert kci(*words).code == 2, words


def test_findings_in_every_format(tmp_path: Path) -> None:
    variant = make_variant(tmp_path, "torch-cpu", files={"__init__.py": "import numpy  # <b>|\n"})
    done = kci("verify", variant)
    told = f"{variant}: variant\n1 verified: 1 error, 0 warnings, 0 infos\n"
    assert (done.code, done.stdout) == (1, told)
    assert "__init__.py:1:1: error[KCI771]: it imports numpy" in done.stderr
    done = kci("verify", variant, "--format", "json")
    assert done.code == 1
    assert json.loads(done.stdout)["looked_at"] == [{"kind": "variant", "path": str(variant)}]
    (item,) = json.loads(done.stdout)["diagnostics"]
    assert (item["rule"], item["severity"], item["line"]) == ("KCI771", "error", 1)
    done = kci("verify", variant, "--format", "github")
    assert done.stdout.startswith("::error title=KCI771,file=")
    assert kci("verify", variant, "--ignore", "KCI77").code == 0


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A kernel of which nothing was built."""
    return write_noarch(tmp_path / "gated-norm", "gated-norm", general='hub.repo-id = "a/b"\n')


def built(place: Path, into: Path) -> Path:
    merge([artifact_of(place, "torch-cpu")], into)
    return into


def corrupt(tree: Path) -> None:
    (tree / "torch-cpu" / "_ops.py").write_text("import os\n")


def test_sources_without_binaries_or_with_another_program_s_are_said_to_be_that(
    sources: Path,
) -> None:
    done = kci("verify", sources)
    assert (done.code, done.stdout) == (
        0, f"{sources}: sources, no build/ or result/\n1 verified: 0 errors, 0 warnings, 0 infos\n",
    )  # fmt: skip
    (sources / "build" / "lib.linux-x86_64-cpython-311").mkdir(parents=True)
    done = kci("verify", sources)
    first = done.stdout.splitlines()[0]
    assert (done.code, first) == (0, f"{sources}: sources, build (no variants)")


@pytest.mark.parametrize("name", ["build", "result"])
def test_the_binaries_of_a_kernel_are_looked_at(sources: Path, tmp_path: Path, name: str) -> None:
    tree = built(tmp_path, sources / name)
    said = f"{sources}: sources, {name} (1 variant)\n1 verified: 0 errors"
    assert kci("verify", sources).stdout.startswith(said)
    corrupt(tree)
    done = kci("verify", sources, "--format", "json")
    assert done.code == 1
    answer = json.loads(done.stdout)
    assert {item["rule"] for item in answer["diagnostics"]} >= {"KCI718", "KCI731"}
    assert answer["looked_at"] == [
        {"kind": "sources", "path": str(sources)},
        {"kind": "tree", "path": f"{sources}/{name}", "variants": ["torch-cpu"]},
    ]


def without_manifest(tree: Path) -> None:
    (tree / "kci-manifest.json").unlink()


@pytest.mark.parametrize("also", [lambda _tree: None, without_manifest])
def test_a_build_toml_in_a_tree_turns_nothing_off(
    sources: Path, tmp_path: Path, also: Callable[[Path], None]
) -> None:
    tree = built(tmp_path, tmp_path / "tree")
    also(tree)
    text = (sources / "build.toml").read_text()
    for place in (tree, tree / "torch-cpu"):
        (place / "build.toml").write_text(text)
    corrupt(tree)
    assert {item.rule for item in verify(tree)} >= {"KCI707", "KCI731"}
    done = kci("verify", tree / "torch-cpu")
    assert (done.code, done.stdout.splitlines()[0]) == (1, f"{tree}/torch-cpu: variant")


BAD = "import numpy\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    return write_noarch(tmp_path, "gated-norm", general='hub.repo-id = "a/b"\n', code=BAD)


def rules(path: Path) -> list[str]:
    return [item.rule for item in verify(path) if item.rule.startswith("KCI7")]


def ignored(rule: str, path: str, reason: str) -> str:
    return f'[[lint.ignore]]\nrule = "{rule}"\npath = "{path}"\nreason = "{reason}"\n'


def test_an_entry_holds_for_a_source_file(repository: Path) -> None:
    assert rules(repository) == ["KCI771"]
    (repository / "kci.toml").write_text(ignored("KCI771", "torch-ext/*", "our users have numpy"))
    assert rules(repository) == []
    (suppressed,) = verify_with_suppressions(repository).suppressed
    assert (suppressed.diagnostic.rule, suppressed.reason) == ("KCI771", "our users have numpy")
    (repository / "kci.toml").write_text(ignored("KCI771", "torch-ext/*", " "))
    assert rules(repository) == ["KCI771"], "without a reason it does not count"
    (repository / "kci.toml").write_text("[lint\n")
    assert any(not item.rule.startswith("KCI7") for item in verify(repository))


def test_kci_toml_suppressions_in_trees(repository: Path) -> None:
    variant = make_variant(repository / "build", "torch-cpu", files={"__init__.py": BAD})
    assert rules(variant) == ["KCI771"]
    (repository / "kci.toml").write_text(
        ignored("KCI771", "build/*/__init__.py", "numpy is there")
        + ignored("KCI723", "build", "made by hand")
        + ignored("KCI107", "build.toml", "not about trees")
    )
    assert rules(variant) == ["KCI771"], "it may have come with the tree"
    assert verify(variant, kernel=repository) == []
    (repository / "torch-ext/gated_norm/__init__.py").write_text("")
    done = kci("verify", repository, "--format", "json")
    answer = json.loads(done.stdout)
    assert answer["diagnostics"] == []
    reasons = sorted(item["reason"] for item in answer["suppressed"])
    assert reasons == ["made by hand", "numpy is there"]
    assert "2 suppressed" in done.stderr
    assert "because: numpy is there" in kci("verify", repository, "-v").stderr


def test_a_tree_cannot_suppress_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = make_variant(tmp_path / "build", "torch-cpu", files={"__init__.py": BAD})
    ignore = ignored("KCI771", "*", "trust me")
    (variant / "kci.toml").write_text(ignore)
    for place in (tmp_path / "build", tmp_path):
        (place / "kci.toml").write_text(ignore)
        monkeypatch.chdir(place)
        assert "KCI771" in rules(tmp_path / "build")
        assert verify_with_suppressions(tmp_path / "build").suppressed == ()
