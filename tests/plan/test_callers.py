"""The plan of a repository with many kernels, as the workflow takes it that calls each of them on
its own.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kci.matrix.catalog.runners import Pool
from kci.plan.github_limits import MAX_OUTPUT_UNITS, caller_matrices, check_limits, run_jobs
from kci.plan.hardware_tests import CarriedTree, tree_under_test
from kci.plan.plan import Plan, SkippedVariant
from planning import hardware_leg, leg, whole_plan


def made(sizes: dict[str, int], **keys: Any) -> Plan:
    """A plan with so many legs of each kernel."""
    return whole_plan(
        leg(f"v{number}", kernel, **keys)
        for kernel, size in sizes.items()
        for number in range(size)
    )


def rules(sizes: dict[str, int], count: int = 1) -> list[str]:
    return [item.rule for item in check_limits(made(sizes), count)]


def test_each_kernel_is_told_its_own_part() -> None:
    (caller,) = json.loads(caller_matrices(made({"relu": 2, "rms-norm": 1}), 1))
    assert [entry["kernel"] for entry in caller["include"]] == ["relu", "rms-norm"]
    work = caller["include"][0]["work"]
    assert set(work) == {
        "matrix", "parts", "links", "parallel", "parts_parallel", "plan", "tests", "tree_run",
        "tree_digest",
    }  # fmt: skip
    assert [entry["name"] for entry in work["matrix"]["include"]] == ["v0", "v1"]
    assert {entry["kernel"] for entry in work["matrix"]["include"]} == {"relu"}
    assert work["plan"]["schema"] == 1
    (kernel,) = work["plan"]["kernels"]
    assert (kernel["name"], kernel["path"]) == ("relu", "kernels/relu")
    assert kernel["planned"] == ["v0", "v1"]
    assert work["parallel"] == 256


def test_each_kernel_is_told_its_own_tests() -> None:
    test = hardware_leg("relu", "v0", "kernels/relu")
    both = made({"relu": 2, "rms-norm": 1})
    (caller,) = json.loads(caller_matrices(msgspec.structs.replace(both, tests=(test,)), 1))
    told, none = (entry["work"]["tests"]["include"] for entry in caller["include"])
    assert (told, none) == ([{
        "kernel": "relu", "path": "kernels/relu", "name": "cuda-x86_64-linux", "backend": "cuda",
        "variants": ["v0"], "runner": ["gpu"], "timeout": 60, "run": "",
    }], [])  # fmt: skip


def test_a_pool_is_shared_out_among_the_kernels_that_want_it() -> None:
    legs = (*made({"a": 8, "b": 4}, pool=Pool("gpu", 6)).legs, leg("v0", "c"))
    (caller,) = json.loads(caller_matrices(whole_plan(legs), 1))
    parallel = {entry["kernel"]: entry["work"]["parallel"] for entry in caller["include"]}
    assert parallel["a"] + parallel["b"] == 6
    assert parallel["a"] > parallel["b"]
    assert parallel["c"] == 256, "GitHub's own machines hold nobody back"


def test_a_kernel_of_which_something_is_carried_over_is_told_where_its_tree_is() -> None:
    skipped = (SkippedVariant("a", "v9", "published already"),)
    plan = msgspec.structs.replace(made({"a": 1, "b": 1}), skipped=skipped)
    trees = {kernel: CarriedTree("41", {"v9": kernel}) for kernel in ("a", "b")}
    (caller,) = json.loads(caller_matrices(plan, 1, trees))
    runs = {entry["kernel"]: entry["work"]["tree_run"] for entry in caller["include"]}
    assert runs == {"a": "41", "b": ""}
    digests = {entry["kernel"]: entry["work"]["tree_digest"] for entry in caller["include"]}
    assert digests == {kernel: tree_under_test(tree.digests) for kernel, tree in trees.items()}


@pytest.mark.rule("KCI305", triggers=True)
def test_what_github_refuses() -> None:
    assert rules({"big": 257}) == ["KCI305"]
    assert rules(dict.fromkeys((f"k{number}" for number in range(257)), 1)) == ["KCI305"]
    assert rules(dict.fromkeys((f"k{number}" for number in range(100)), 10)) == ["KCI305"]


@pytest.mark.rule("KCI305", "KCI306", triggers=False)
def test_what_fits() -> None:
    assert rules({"big": 256}) == []
    # The legs, the merges, and the plan with the gate.
    assert run_jobs(made({"a": 2, "b": 1})) == 3 + 2 + 2
    assert rules({"a": 200, "b": 200}) == []


@pytest.mark.rule("KCI306", triggers=True)
def test_more_text_than_the_outputs_of_a_job_may_have() -> None:
    long = "x" * (MAX_OUTPUT_UNITS // 200)
    legs = [leg(f"v{number}", image=long) for number in range(210)]
    assert [item.rule for item in check_limits(whole_plan(legs), 1)] == ["KCI306"]
