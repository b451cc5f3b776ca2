"""`kci matrix` and `kci catalog` as a user calls them, and as docs/filters.md shows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import ended, kci, kci_process
from conftest import ROOT, torch_toml
from planning import git

SOURCES = {"cpu": "a.cpp", "cuda": "a.cu", "rocm": "a.cu"}
KCI_TOML = """\
[tiers.pairs]
systems = ["x86_64-linux", "aarch64-linux"]
pairwise = true

[tiers.new]
where = "cuda == newest"

[[overlay]]
kernel = "two"
drop = ["cuda == 13.2"]
"""


@pytest.fixture
def monorepo(here: Path, no_git_environment: None) -> Path:
    for name in ("one", "two"):
        text = torch_toml(SOURCES, name, more='stable-abi = "2.11"\n')
        write_tree(here / "kernels" / name, {"build.toml": text})
    (here / "kci.toml").write_text(KCI_TOML)
    git(here, "init", "-q", "-b", "main")
    return here


def names(*arguments: str) -> list[str]:
    return ended(kci("matrix", *arguments, "--format", "names", "-q"), 0).split()


def test_backends_behind_a_kernel_are_for_that_kernel(monorepo: Path) -> None:
    def backends(*words: str) -> dict[str, set[str]]:
        said = json.loads(kci("matrix", *words, "--format", "json").stdout)["kernels"]
        return {one["name"]: {variant["backend"] for variant in one["variants"]} for one in said}

    found = backends("kernels/one[cpu, rocm]", "kernels/two[cuda]")
    assert found == {"one": {"cpu", "rocm"}, "two": {"cuda"}}
    assert backends("kernels[cpu]") == {"one": {"cpu"}, "two": {"cpu"}}
    assert names("kernels/one[cpu]", "kernels/one[cuda]") == names("kernels/one[cpu,cuda]")
    # The whole kernel was named too; and a backend that it does not have leaves nothing.
    assert names("kernels/one[cpu]", "kernels/one") == names("kernels/one")
    assert names("kernels/one[metal]", "--allow-empty") == []
    assert kci("matrix", "kernels/one[metal]").code == 1
    # A directory with brackets in its name is a directory.
    (monorepo / "kernels" / "one").rename(monorepo / "kernels" / "one[cpu]")
    assert names("kernels/one[cpu]") == names("kernels/one[cpu][cpu,cuda,rocm]")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["[cdua]"], "'cdua' is not a backend\n  hint: did you mean `cuda`?"),
        (["[]"], "'' is not a backend"),
        (["", "--tier=piars"], "there is no tier 'piars'\n  hint: did you mean `pairs`?"),
        (["", "--where=cuda >= and"], f"after `>=`, got `and`\n  cuda >= and\n{' ' * 10}^"),
        (["", "--where="], "expected a field, got the end"),
        (["", "--where=cuda == 1", "--where=cud == 2"], "`cud`\n  (cuda == 1) or (cud == 2)\n"),
        (["", "--where=\x1b[2J"], "\N{REPLACEMENT CHARACTER}[2J"),
    ],
)
def test_wrong_usage_is_told(monorepo: Path, arguments: list[str], said: str) -> None:
    backends, *more = arguments
    assert ended(kci("matrix", f"kernels/one{backends}", *more), 2, said) == ""


def test_answers_do_not_depend_on_the_order_of_hashes(monorepo: Path) -> None:
    how = {"cwd": monorepo, "PYTHONPATH": str(ROOT / "src")}
    for words in ("matrix kernels --explain --format json", "catalog show"):
        said = {kci_process(*words.split(), **how, PYTHONHASHSEED=seed) for seed in "012"}
        assert [done.code for done in said] == [0], words


@pytest.mark.usefixtures("november")
def test_a_tier_of_kci_toml_with_an_expression_and_pairwise(monorepo: Path) -> None:
    assert set(names("kernels", "--tier", "new")) == {
        f"torch-stable-abi211-{compute}-{system}-linux"
        for compute in ("cu130", "cu132")
        for system in ("x86_64", "aarch64")
    }
    assert len(names("kernels/one", "--tier", "pairs")) < len(names("kernels/one"))


@pytest.mark.usefixtures("november")
def test_the_examples_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "filters.md").read_text(encoding="utf-8")
    examples = re.findall(r"(?m)^```console\n\$ kci (.*)\n((?:.*\n)*?)```$", page)
    assert len(examples) == page.count("```console") >= 7
    for command, shown in examples:
        done = kci(*shlex.split(command))
        assert done.stdout + done.stderr == shown, command
