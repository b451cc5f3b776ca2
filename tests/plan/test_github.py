"""The plan as a workflow takes it: GitHub's limits, and its own expression evaluator."""

from __future__ import annotations

import json

import pytest

from kci.matrix.variants import Kind
from kci.plan.github_limits import (
    LEG_KEYS,
    MAX_OUTPUT_UNITS,
    artifact_problems,
    github_matrix,
    refuse_errors,
)
from kci.plan.plan import Leg
from planning import leg, plan, refused


def many(count: int, **keys: object) -> list[Leg]:
    return [leg(f"v{number}", f"k{number % 75}", **keys) for number in range(count)]


@pytest.mark.rule("KCI305", triggers=True)
def test_256_jobs_are_one_matrix_and_257_are_not() -> None:
    assert len(json.loads(github_matrix(plan(many(256))))["include"]) == 256
    assert "`kci render`" in refused("KCI305", github_matrix, plan(many(257))).hint


def test_an_empty_plan_is_an_empty_matrix_and_no_work() -> None:
    made = plan([])
    assert github_matrix(made) == '{"include":[]}'
    assert made.as_json()["has_work"] is False
    assert plan(many(1)).as_json()["has_work"] is True


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
