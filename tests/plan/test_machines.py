"""What kci.toml does to a plan, and the lints that know what cannot be meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import torch_kernel
from kci.config.discovery import RepositorySettings
from kci.config.document import parse_document
from kci.config.reader import read_as
from kci.config.settings import Settings
from kci.diagnostics import Diagnostic, rules
from kci.errors import FindingsError
from kci.matrix.catalog.rows import Catalog
from kci.matrix.catalog.runners import Runner, default_runners, hosted_runners, runners_from
from kci.matrix.selection import compute_matrix
from kci.plan.github_limits import github_matrix
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.plan import RunnerGroup
from kci.plan.settings_lints import cron_problem, lint_settings
from planning import parse_settings


def runners(text: str):
    return runners_from(parse_settings(text.encode()))


def test_a_backend_goes_before_any_and_any_before_the_defaults() -> None:
    made = runners("""
        [runners.any.x86_64-linux]
        labels = ["mine"]
        memory-gb = 64
        [runners.cuda.x86_64-linux]
        group = "gpu"
        price = 2
        currency = "EUR"
        pool-size = 3
    """)
    assert made.machine("cpu", "x86_64-linux") == Runner(("mine",), 4, 64)
    assert made.machine("noarch", "x86_64-linux") == Runner(("mine",), 4, 64)
    assert made.machine("cuda", "x86_64-linux") == Runner((), 4, 64, "gpu", 2.0, "EUR", 3)
    assert made.machine("cuda", "aarch64-linux") == default_runners().runner["aarch64-linux"]
    assert made.machine("cuda", "aarch64-windows") is None


def test_a_plan_has_the_runners_images_and_limits_of_its_settings(catalog: Catalog) -> None:
    made = runners("""
        [runners.cuda.x86_64-linux]
        group = "gpu"
        labels = ["big"]
        [images.cuda]
        x86_64-linux = "ghcr.io/acme/cuda:{compute}"
        [images.xpu]
        x86_64-linux = "ghcr.io/acme/xpu"
        [[limits]]
        timeout-minutes = 100
        [[limits]]
        kernel = "some-kernel"
        backend = "xpu"
        max-jobs = 1
        [[limits]]
        kernel = "other-kernel"
        timeout-minutes = 1
    """)
    plan = make_plan(compute_matrix([torch_kernel(["cuda", "xpu"])], catalog), made)
    legs = {leg.variant: leg for leg in plan.legs}
    cuda, arm = (legs[f"torch213-cxx11-cu130-{system}-linux"] for system in ("x86_64", "aarch64"))
    assert cuda.runner == RunnerGroup("gpu", ("big",))
    assert (cuda.image, cuda.timeout) == ("ghcr.io/acme/cuda:13.0", 100)
    assert arm.runner == ("ubuntu-24.04-arm",)
    assert arm.image == "docker.io/pytorch/manylinuxaarch64-builder:cuda13.0"
    xpu = legs["torch213-cxx11-xpu20260-x86_64-linux"]
    assert (xpu.image, xpu.max_jobs, xpu.cores, xpu.timeout) == ("ghcr.io/acme/xpu", 1, None, 100)
    entries = json.loads(github_matrix(plan))["include"]
    by_variant = {entry["variant"]: entry for entry in entries}
    assert by_variant[cuda.variant]["runner"] == {"group": "gpu", "labels": ["big"]}
    assert "max_jobs" not in by_variant[cuda.variant]
    entry = by_variant[xpu.variant]
    assert (entry["max_jobs"], "cores" in entry) == (1, False)


DIGEST = "sha256:" + "0" * 64


def lint(text: str, kernels: set[str] | None = None) -> list[Diagnostic]:
    document = parse_document(text.encode(), "kci.toml")
    try:
        settings = read_as(document, Settings)
    except FindingsError as error:
        return list(error.diagnostics)
    return lint_settings(RepositorySettings(settings, Path(), document), kernels)


def _cases(field: str, triggers: bool) -> list:
    found = [rule for name, rule in rules().items() if name[:5] in ("KCI32", "KCI33") and rule.bad]
    return [
        pytest.param(one.id, getattr(one, field), marks=pytest.mark.rule(one.id, triggers=triggers))
        for one in found
    ]


@pytest.mark.parametrize(("rule", "text"), _cases("bad", True))
def test_a_rule_speaks_about_its_bad_example_and_points_at_it(rule: str, text: str) -> None:
    found = lint(text)
    assert [item.rule for item in found] == [rule]
    assert found[0].line


@pytest.mark.parametrize(("rule", "text"), _cases("good", False))
def test_a_rule_is_silent_about_its_good_example(rule: str, text: str) -> None:
    assert lint(text) == []


@pytest.mark.rule("KCI326", triggers=True)
def test_an_entry_for_a_kernel_that_does_not_exist() -> None:
    text = '[[overlay]]\nkernel = "flash-atn"\n[[overlay]]\nkernel = "flash-attn"\n[[overlay]]\n'
    text += '[publish]\npull-request = ["flash-attn", "other"]\n'
    text += '[[limits]]\nkernel = "flash-atn"\nmax-jobs = 1\n'
    found = lint(text, {"flash-attn", "relu"})
    assert [(item.rule, item.line) for item in found] == [("KCI326", line) for line in (2, 7, 9)]
    assert {found[0].hint, found[2].hint} == {"did you mean `flash-attn`?"}


@pytest.mark.rule("KCI326", triggers=False)
def test_limits_are_not_judged_where_nobody_looked_for_kernels() -> None:
    assert lint('[[limits]]\nkernel = "flash-atn"\nmax-jobs = 1\n') == []
    assert lint('[[limits]]\nkernel = "relu"\nmax-jobs = 1\n', {"relu"}) == []


@pytest.mark.rule("KCI322", triggers=True)
@pytest.mark.parametrize("label", ["", " a", "a\\nb", "a,b", "x" * 300, "${{ x }}", "ñ"])
def test_labels_that_no_runner_has(label: str) -> None:
    (found,) = lint(f'[runners.any.x86_64-linux]\nlabels = ["{label}"]\n')
    assert found.rule == "KCI322"
    assert "KCI322" in [item.rule for item in lint(f'[test.any.x86_64-linux]\ngroup = "{label}"\n')]


@pytest.mark.rule("KCI323", triggers=True)
@pytest.mark.parametrize(
    ("system", "label", "says"),
    [
        ("x86_64-linux", "ubuntu-18.04", "retired"),
        ("x86_64-linux", "ubuntu-20.04", "retired"),
        ("aarch64-darwin", "macos-11", "retired"),
        ("aarch64-darwin", "macos-13-xlarge", "retired"),
        ("x86_64-windows", "Windows-2019", "retired"),
        ("aarch64-linux", "ubuntu-24.04", "is a machine of x86_64-linux, not of aarch64-linux"),
        ("x86_64-linux", "ubuntu-26.04-arm", "is a machine of aarch64-linux"),
        ("x86_64-linux", "macos-15", "is a machine of aarch64-darwin"),
        ("x86_64-linux", "ubuntu-slim", "ends after 15 minutes, and has no containers"),
        ("aarch64-darwin", "macos-26-intel", "is a machine of x86_64-darwin"),
        ("x86_64-windows", "windows-11-arm", "is a machine of aarch64-windows"),
        ("x86_64-linux", "ubuntu-24.4", "has no hosted runner"),
        ("aarch64-linux", "ubuntu-27.04-arm", "has no hosted runner"),
    ],
)
def test_labels_that_no_runner_of_the_system_has(system: str, label: str, says: str) -> None:
    (found,) = lint(f'[runners.any.{system}]\nlabels = ["{label}"]\n')
    assert (found.rule, found.line) == ("KCI323", 2)
    assert says in found.message
    offered = found.hint.removeprefix("one of: ").split(", ")
    assert {hosted_runners().labels[name] for name in offered} == {system}
    assert hosted_runners().short.keys().isdisjoint(offered)


@pytest.mark.rule("KCI323", triggers=False)
def test_labels_of_its_own_system_and_of_ones_own_are_fine() -> None:
    slim = 'labels = ["ubuntu-slim"]\n'
    assert lint(f"[runners.noarch.x86_64-linux]\n{slim}[test.cpu.x86_64-linux]\n{slim}") == []
    for label, system in hosted_runners().labels.items() - {("ubuntu-slim", "x86_64-linux")}:
        assert label not in hosted_runners().retired
        if system != "x86_64-darwin":
            assert lint(f'[runners.cpu.{system}]\nlabels = ["{label}"]\n') == []
    for names in ("ubuntu-24.04-16core", "ubuntu-24.4 self-hosted", "my-ubuntu", "Ubuntu-24.04",
            "gpu-t4-4-core"):  # fmt: skip
        assert lint(f"[runners.any.x86_64-linux]\nlabels = {names.split()}\n") == []
    grouped = 'labels = ["ubuntu-24.4"]\ngroup = "g"\n'
    assert lint(f"[runners.any.x86_64-linux]\n{grouped}") == []


IMPOSSIBLE = {
    "[runners.any.x86_64-linux]": [
        *("cpus = 0", "labels = []"),
        *(f'price = {price}\ncurrency = "USD"' for price in ("-1", "nan", "inf")),
    ],
    "[[limits]]": ["timeout-minutes = 0", "max-jobs = 10000", "parts = 0", "parts = 10000"],
    "[images.cpu]": ['x86_64-linux = "Not An Image"'],
    "[images.metal]": ['x86_64-linux = "a/b"'],
    "[nix]": ['systems = ["x86_64-windows"]'],
    "[actions]": ['repository = "https://example.com/kci"', 'ref = "a..b"'],
    '[actions.pins."actions/checkout"]': ['sha = "v4"'],
    '[actions.pins."checkout"]': [f'sha = "{"0" * 40}"'],
    "[publish]": [
        *('repo-prefix = "acme/norm"', 'branch = "a..b"', 'branch = "v{number}"'),
        *('environment = "a\\nb"', "tags = []", 'tags = ["${{ x }}"]'),
    ],
}


@pytest.mark.rule("KCI328", triggers=True)
def test_a_name_that_no_tier_can_have() -> None:
    (found,) = lint('[tiers."a b"]\nbase = "release"\n')
    assert (found.rule, found.line) == ("KCI328", 1)


@pytest.mark.rule("KCI330", triggers=True)
@pytest.mark.parametrize(
    "text", [f"{table}\n{key}\n" for table, keys in IMPOSSIBLE.items() for key in keys]
)
def test_impossible_values(text: str) -> None:
    (found,) = lint(text)
    assert found.rule == "KCI330"
    assert found.line


@pytest.mark.rule("KCI330", triggers=False)
@pytest.mark.parametrize(
    "text",
    [
        '[runners.any.aarch64-windows]\nlabels = ["arm"]\n[runners.cuda.aarch64-windows]\n'
        "cpus = 8\n",
        '[runners.any.x86_64-linux]\ncurrency = "USD"\n[runners.cuda.x86_64-linux]\nprice = 1\n',
        f'[images.cuda]\nx86_64-linux = "example.org/cuda:13.0@{DIGEST}"\n',
        f'[images.cuda.x86_64-linux]\n"13.0" = "example.org/cuda:{{compute}}@{DIGEST}"\n',
    ],
    ids=["labels of any backend", "currency of any backend", "one digest", "one for one version"],
)
def test_values_that_are_fine(text: str) -> None:
    assert lint(text) == []


_CRON = {
    "": "17 4 * * 1|*/15 * * * *|0 0 1,15 * MON-FRI|5 4 * jan-mar sun|0-59/5 0 * * 0|0 3 * * 7|"
        "20/15 * * * *|0 0 29 2 *|0 0 30 feb,apr *|0 0 31 2 mon|59 0,22 * * *",
    "five fields, such as": "|* * * *|* * * * * *|@daily|\N{ARABIC-INDIC DIGIT THREE} * * * *",
    "from 0 to 59 in": " * * * *|".join(["60", "5-1", "5-60", "*/0", "a", "1-2-3", "-1 * * * *"]),
    "from 0 to 23 in '24'": "0 24 * * *",
    "from 1 to 31 in": "0 0 0 * *",
    "from 1 to 12 in": "0 0 * 13 *",
    "from 0 to 7 in": "0 0 * * 8",
    "5 minutes between": "* * * * *|*/2 * * * *|0,3 0 * * *|58,2 * * * *|1,58 0,23 * * *",
    "a day that comes": "0 0 31 2 *|0 0 30-31 feb *|0 0 31 4,6,9,11 */2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"), [(line, says) for says, lines in _CRON.items() for line in lines.split("|")]
)
def test_lines_that_github_does_not_keep_to(line: str, says: str) -> None:
    problem = cron_problem(line)
    assert bool(says) is bool(problem)
    assert says in problem


def test_an_image_for_each_compute_version(catalog: Catalog) -> None:
    made = runners(f"""
        [images.cuda]
        aarch64-linux = "example.org/arm:{{compute}}"
        [images.cuda.x86_64-linux]
        "13.0" = "example.org/cuda@{DIGEST}"
    """)
    plan = make_plan(compute_matrix([torch_kernel(["cuda"])], catalog), made)
    images = {leg.name.partition("-cxx11-")[2]: leg.image for leg in plan.legs}
    assert images["cu130-x86_64-linux"] == f"example.org/cuda@{DIGEST}"
    assert images["cu132-x86_64-linux"] == "docker.io/pytorch/manylinux2_28-builder:cuda13.2"
    assert images["cu130-aarch64-linux"] == "example.org/arm:13.0"


BARE = PlanOptions(container=False)


def test_disk_is_asked_for_where_the_image_needs_it(catalog: Catalog) -> None:
    matrix = compute_matrix([torch_kernel(["cpu", "cuda", "rocm"])], catalog)
    own = runners("[images.cuda]\ndisk-gb = 30\n")
    plans = [make_plan(matrix), make_plan(matrix, own), make_plan(matrix, own, BARE)]
    usual, more, bare = ({leg.backend: leg.disk for leg in plan.legs} for plan in plans)
    assert usual == {"cpu": None, "cuda": None, "rocm": default_runners().build["rocm"].disk}
    assert (more["cuda"], {*bare.values()}) == (30, {None})
    entries = json.loads(github_matrix(plans[0]))["include"]
    assert {leg["disk"] for leg in entries if leg["backend"] == "rocm"} == {40}


def test_runners_that_test_have_no_defaults_but_for_the_cpu() -> None:
    made = runners('[test]\ncpu = false\ncuda.x86_64-linux.labels = ["l4"]\n')
    labels = {place: runner.labels for place, runner in made.test.items()}
    assert labels == {("cuda", "x86_64-linux"): ("l4",)}
