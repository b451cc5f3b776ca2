"""The plan as a workflow takes it: GitHub's limits, callers, forks, and what a tree must have."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from conftest import torch_kernel
from kci.matrix.catalog.rows import Catalog
from kci.matrix.catalog.runners import Pool
from kci.matrix.selection import compute_matrix
from kci.matrix.variants import Kind
from kci.plan.github_limits import (
    LEG_KEYS,
    MAX_OUTPUT_UNITS,
    artifact_problems,
    check_limits,
    github_matrix,
    only_hosted,
    only_own,
    refuse_errors,
    run_jobs,
    untested,
)
from kci.plan.hardware_tests import CarriedTree, tree_under_test
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.plan import Leg, Plan, RunnerGroup, SkippedVariant
from planning import hardware_leg, leg, plan, refused, whole_plan, works


def many(count: int, **keys: object) -> list[Leg]:
    return [leg(f"v{number}", f"k{number % 75}", **keys) for number in range(count)]


@pytest.mark.rule("KCI305", triggers=True)
def test_256_jobs_are_one_matrix_and_257_are_not() -> None:
    assert len(json.loads(github_matrix(plan(many(256))))["include"]) == 256
    assert github_matrix(plan([])) == '{"include":[]}'
    assert [plan(many(size)).as_json()["has_work"] for size in (0, 1)] == [False, True]
    assert "`kci render`" in refused("KCI305", github_matrix, plan(many(257))).hint


@pytest.mark.rule("KCI307", triggers=False)
@pytest.mark.rule("KCI306", triggers=True)
def test_the_size_of_outputs_is_counted_in_utf16() -> None:
    wide = "\N{MATHEMATICAL SCRIPT CAPITAL A}"  # one character, two units
    image = "x" * 1800
    entries = many(200, image=image)
    usual = len(github_matrix(plan(entries)))
    filler = (MAX_OUTPUT_UNITS - usual) // 2
    exact = [leg("v0", "k0", image=image + wide * filler), *entries[1:]]
    assert len(github_matrix(plan(exact))) < MAX_OUTPUT_UNITS
    more = plan([leg("v0", "k0", image=image + wide * (filler + 1)), *entries[1:]])
    assert "UTF-16" in refused("KCI306", github_matrix, more).message


@pytest.mark.rule("KCI307", triggers=True)
def test_artifacts_of_one_name_are_refused() -> None:
    same = [leg("v0", artifact="kci-a-b"), leg("v1", artifact="kci-A-b")]
    assert "and 1 more" in refused("KCI307", refuse_errors, artifact_problems(plan(same))).message
    long = leg("v0", artifact="kci-" + "x" * 300)
    assert "too long" in artifact_problems(plan([long]))[0].message


def test_limits_are_handed_over_only_where_there_are_some() -> None:
    entry = json.loads(github_matrix(plan([leg(max_jobs=3)])))["include"][0]
    assert entry["max_jobs"] == 3
    assert "cores" not in entry
    assert entry.keys() - {"max_jobs", "tier", "objects"} == set(LEG_KEYS)
    assert entry["objects"] == f"objects.{entry['kernel']}.{entry['name']}"
    assert "objects" not in json.loads(github_matrix(plan([leg(kind=Kind.NOARCH)])))["include"][0]


NAMES = ["torch213-cxx11-cpu-aarch64-linux", "torch213-cxx11-cpu-x86_64-linux"]


@pytest.fixture
def cpu_plan(catalog: Catalog) -> Plan:
    only = torch_kernel(["cpu"], torch='minver = "2.13"\nmaxver = "2.13"\n')
    made = make_plan(compute_matrix([only], catalog), None, PlanOptions(container=False))
    assert sorted(leg.name for leg in made.legs) == NAMES
    return made


@pytest.mark.rule("KCI315", triggers=True)
@pytest.mark.parametrize(
    "runner", [("self-hosted", "gpu"), ("ubuntu-24.04", "gpu"), RunnerGroup("g", ("ubuntu-24.04",))]
)
def test_forks_get_no_legs_elsewhere(cpu_plan: Plan, runner: tuple[str, ...] | RunnerGroup) -> None:
    first, second = cpu_plan.legs
    other = msgspec.structs.replace(second, runner=runner)
    kept = only_hosted(msgspec.structs.replace(cpu_plan, legs=(first, other)))
    assert kept.legs == (first,)
    assert left(cpu_plan, kept) == [(second.name, "KCI315")]


def left(before: Plan, after: Plan) -> list[tuple[str, str]]:
    """What is left out besides."""
    return [(item.variant, item.rule) for item in after.left_out[len(before.left_out) :]]


OWN = hardware_leg("some-kernel", NAMES[0])
TEST = msgspec.structs.replace(OWN, runner=("ubuntu-24.04",))


@pytest.mark.rule("KCI316", triggers=True)
def test_legs_that_wait_for_a_maintainer_are_the_ones_of_the_other_run(cpu_plan: Plan) -> None:
    first, second = cpu_plan.legs
    elsewhere = msgspec.structs.replace(second, runner=("self-hosted", "gpu"))
    mixed = msgspec.structs.replace(cpu_plan, legs=(first, elsewhere))
    waiting, theirs = only_hosted(mixed, dispatched=True), only_own(mixed)
    assert (waiting.legs, theirs.legs) == ((first,), (elsewhere,))
    assert left(cpu_plan, waiting) == [(second.name, "KCI316")]
    assert left(cpu_plan, theirs) == [(first.name, "KCI316")]
    assert [kernel.planned for kernel in theirs.tree_plan().kernels] == [(second.name,)]


@pytest.mark.rule("KCI315", "KCI316", "KCI317", triggers=False)
def test_hosted_legs_are(cpu_plan: Plan) -> None:
    hosted = msgspec.structs.replace(cpu_plan, tests=(TEST,))
    assert (only_hosted(hosted), untested(hosted, only_hosted(hosted))) == (hosted, [])


@pytest.mark.rule("KCI317", triggers=True)
def test_what_a_fork_leaves_untested_is_said(cpu_plan: Plan) -> None:
    whole = msgspec.structs.replace(cpu_plan, tests=(OWN,))
    kept = only_hosted(whole)
    (said,) = untested(whole, kept)
    assert (kept.tests, said.rule) == ((), "KCI317")
    assert "some-kernel is not tested on cuda-x86_64-linux" in said.message


def test_the_tree_must_have_what_is_built_and_what_is_there(cpu_plan: Plan) -> None:
    (kernel,) = cpu_plan.kernels
    assert cpu_plan.tree_plan() == Plan(1, "release", (kernel,), loads=cpu_plan.loads)
    replace = msgspec.structs.replace
    printed = replace(kernel, fingerprints={NAMES[0]: "1", NAMES[1]: "2"})
    built = replace(cpu_plan, legs=cpu_plan.legs[:1], kernels=(printed,), commit="c")
    one = cpu_plan.legs[0].name
    prints = {one: str(NAMES.index(one) + 1)}
    wanted = replace(printed, planned=(one,), fingerprints=prints)
    assert built.tree_plan() == Plan(1, "release", (wanted,), commit="c", loads=cpu_plan.loads)
    assert replace(cpu_plan, legs=()).tree_plan().kernels == (), "nothing of it is built"
    written = msgspec.to_builtins(built.tree_plan())  # an output of a job is short
    assert written.keys() == {"schema", "tier", "kernels", "commit", "loads"}


def made(sizes: dict[str, int], **keys: Any) -> Plan:
    """A plan with so many legs of each kernel."""
    named = ((f"v{number}", name) for name, size in sizes.items() for number in range(size))
    return whole_plan(leg(*names, **keys) for names in named)


def rules(sizes: dict[str, int], count: int = 1) -> list[str]:
    return [item.rule for item in check_limits(made(sizes), count)]


def test_each_kernel_is_told_its_own_part_and_tests() -> None:
    both = made({"relu": 2, "rms-norm": 1})
    test = hardware_leg("relu", "v0", "kernels/relu")
    told = works(msgspec.structs.replace(both, tests=(test,)))
    assert [*told] == ["relu", "rms-norm"]
    work = told["relu"]
    assert {*work} == {
        "matrix", "parts", "links", "parallel", "parts_parallel", "plan", "tests", "tree_run",
        "tree_digest",
    }  # fmt: skip
    entries = [(entry["kernel"], entry["name"]) for entry in work["matrix"]["include"]]
    assert entries == [("relu", "v0"), ("relu", "v1")]
    (kernel,) = work["plan"]["kernels"]
    part = kernel["name"], kernel["path"], kernel["planned"]
    assert part == ("relu", "kernels/relu", ["v0", "v1"])
    assert (work["plan"]["schema"], work["parallel"]) == (1, 256)
    assert told["rms-norm"]["tests"]["include"] == []
    assert work["tests"]["include"] == [{
        "kernel": "relu", "path": "kernels/relu", "name": "cuda-x86_64-linux", "backend": "cuda",
        "variants": ["v0"], "runner": ["gpu"], "timeout": 60, "run": "",
    }]  # fmt: skip


def test_a_pool_is_shared_out_among_the_kernels_that_want_it() -> None:
    legs = (*made({"a": 8, "b": 4}, pool=Pool("gpu", 6)).legs, leg("v0", "c"))
    parallel = {name: work["parallel"] for name, work in works(whole_plan(legs)).items()}
    assert parallel["a"] + parallel["b"] == 6
    assert parallel["a"] > parallel["b"]
    assert parallel["c"] == 256, "GitHub's own machines hold nobody back"


def test_a_kernel_of_which_something_is_carried_over_is_told_where_its_tree_is() -> None:
    skipped = (SkippedVariant("a", "v9", "published already"),)
    plan = msgspec.structs.replace(made({"a": 1, "b": 1}), skipped=skipped)
    trees = {kernel: CarriedTree("41", {"v9": kernel}) for kernel in ("a", "b")}
    found = [(work["tree_run"], work["tree_digest"]) for work in works(plan, trees).values()]
    digests = {kernel: tree_under_test(tree.digests) for kernel, tree in trees.items()}
    assert found == [("41", digests["a"]), ("", digests["b"])]


@pytest.mark.rule("KCI305", triggers=True)
@pytest.mark.parametrize("sizes", [[257], [1] * 257, [10] * 100], ids=["legs", "kernels", "jobs"])
def test_what_github_refuses(sizes: list[int]) -> None:
    assert rules({f"k{number}": size for number, size in enumerate(sizes)}) == ["KCI305"]


@pytest.mark.rule("KCI305", "KCI306", triggers=False)
def test_what_fits() -> None:
    assert rules({"big": 256}) == rules({"a": 200, "b": 200}) == []
    # The legs, the merges, and the plan with the gate.
    assert run_jobs(made({"a": 2, "b": 1})) == 3 + 2 + 2


@pytest.mark.rule("KCI306", triggers=True)
def test_more_text_than_the_outputs_of_a_job_may_have() -> None:
    long = "x" * (MAX_OUTPUT_UNITS // 200)
    legs = [leg(f"v{number}", image=long) for number in range(210)]
    assert [item.rule for item in check_limits(whole_plan(legs), 1)] == ["KCI306"]
