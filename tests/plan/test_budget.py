"""What a run takes, from prices, pools, sizes and recorded durations, and when that is too much."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import ROOT, failure, torch_kernel
from kci.config.model import Build
from kci.config.settings import Limit
from kci.diagnostics import Severity
from kci.errors import FindingsError
from kci.matrix.catalog.loading import load_catalog
from kci.matrix.catalog.rows import Catalog
from kci.matrix.catalog.runners import (
    Pool,
    Runner,
    Runners,
    default_prices,
    default_runners,
    hosted_runners,
    max_job_minutes,
    pool_of,
    price_of,
)
from kci.matrix.selection import compute_matrix, select
from kci.matrix.variants import Variant
from kci.plan.budget import check_budget, check_time, estimate
from kci.plan.durations import Duration, encode, read_durations, recorded_minutes
from kci.plan.estimates import Size, estimates, size_of
from kci.plan.legs import PlanOptions, make_plan
from kci.plan.plan import Leg
from planning import leg, matrix, plan, refused

OWN = Pool("gpu", 2)


def test_minutes_and_money_add_up() -> None:
    taken = ((10, 0.006), (20, 0.01), (5, None))
    made = estimate([leg(minutes=minutes, rate=rate) for minutes, rate in taken])
    assert (made.legs, made.minutes, made.unpriced) == (3, 35, 1)
    assert made.costs == {"USD": 0.26}
    assert made.prices_as_of == "2026-01-01"


@pytest.mark.parametrize(
    ("minutes", "pool", "expected"),
    [
        ([], OWN, (0, 0)), ([7], OWN, (1, 7)), ([5, 5, 5], OWN, (2, 10)),
        ([9, 5, 4], OWN, (2, 9)), ([3, 3, 2, 2, 2], OWN, (3, 7)),
        ([5] * 100, Pool("", None), (1, 5)),
    ],
)  # fmt: skip
def test_waves_and_wall_time(minutes: list[int], pool: Pool, expected: tuple[int, int]) -> None:
    legs = [leg(str(n), minutes=took, pool=pool) for n, took in enumerate(minutes)]
    made = estimate(legs)
    assert (made.waves, made.wall_minutes) == expected


@pytest.mark.rule("KCI309", triggers=True)
def test_too_many_jobs_fail_with_what_takes_most() -> None:
    legs = [leg(str(number), backend="cuda" if number < 6 else "rocm") for number in range(9)]
    found = refused("KCI309", check_budget, estimate(legs), 4)
    assert "9 jobs, and 4 are allowed" in found.message
    assert "k cuda on x86_64-linux (6 jobs" in found.message
    assert "`--tier pr`" in found.hint


@pytest.mark.rule("KCI310", triggers=False)
@pytest.mark.rule("KCI309", triggers=True)
def test_too_much_money_fails() -> None:
    made = estimate([leg("a", minutes=100, rate=0.05)])
    with pytest.raises(FindingsError, match=r"up to 5\.00 USD, and 4\.99 are allowed"):
        check_budget(made, max_cost=4.99)
    failure(FindingsError, "", check_budget, made, max_cost=float("nan"))


@pytest.mark.rule("KCI310", triggers=True)
def test_legs_without_a_price_are_said() -> None:
    made = estimate([leg("a", rate=None), leg("b")])
    assert [item.rule for item in check_budget(made, max_cost=1)] == ["KCI310"]
    assert check_budget(made, max_jobs=9) == []


@pytest.mark.rule("KCI309", "KCI310", triggers=False)
def test_within_the_budget_nothing_is_said() -> None:
    made = estimate([leg("a")])
    assert check_budget(made, max_jobs=1, max_cost=0.03) == []
    assert check_budget(made) == []
    assert check_budget(estimate([]), max_jobs=0, max_cost=0) == []


# --- prices and pools ---


def test_every_hosted_default_runner_has_a_price_and_a_source() -> None:
    for runner in default_runners().runner.values():
        assert price_of(runner) is not None, runner
    data = tomllib.loads((ROOT / "src/kci/matrix/catalog/data/prices.toml").read_text())
    assert data["as-of"]
    assert data["source"]
    # A label whose owner chooses it has no price that kci could know.
    assert data["rate"].keys() <= hosted_runners().labels.keys()
    assert all(0 < rate < 1 for rate in default_prices().rate.values())


def test_a_price_of_ones_own_is_by_the_hour() -> None:
    assert price_of(Runner(("ubuntu-24.04",), 4, 16, price=6.0, currency="EUR")) == (0.1, "EUR")
    assert price_of(Runner(("self-hosted", "gpu"), 4, 16)) is None
    # A group's machines are not the standard.
    assert price_of(Runner(("ubuntu-24.04",), 4, 16, group="large")) is None


def test_pools_and_the_longest_job() -> None:
    assert pool_of(Runner(("ubuntu-24.04",), 4, 16)).queued
    assert pool_of(Runner(("macos-26",), 3, 7)).name == "github-macos"
    assert pool_of(Runner(("self-hosted", "gpu"), 4, 16)).size is None
    assert pool_of(Runner(("self-hosted", "gpu"), 4, 16, pool_size=3)) == Pool("self-hosted gpu", 3)
    assert pool_of(Runner(("ubuntu-24.04",), 4, 16, pool_size=3)) == Pool("ubuntu-24.04", 3)
    assert max_job_minutes(Runner(("ubuntu-24.04",), 4, 16)) == 360
    assert max_job_minutes(Runner(("self-hosted",), 4, 16)) == 7200
    # A runner has all of its labels, so it is not GitHub's.
    for labels in (("ubuntu-24.04", "with-a-gpu"), ("with-a-gpu", "ubuntu-24.04")):
        assert max_job_minutes(Runner(labels, 4, 16)) == 7200
    assert max_job_minutes(Runner(("Ubuntu-slim",), 1, 5)) == 15
    assert not Runner((), 4, 16, group="g").hosted


# --- recorded durations ---

CU130 = "torch213-cxx11-cu130-x86_64-linux"


def test_a_recorded_duration_is_the_median_in_whole_minutes() -> None:
    known = recorded_minutes([Duration("k", CU130, seconds) for seconds in (61.0, 500.0, 130.0)])
    assert known == {("k", CU130): 3}
    assert recorded_minutes([Duration("k", "torch-cpu", 0)]) == {("k", "torch-cpu"): 1}


@pytest.mark.rule("KCI303", triggers=False)
def test_durations_change_the_estimate(catalog: Catalog) -> None:
    matrix = compute_matrix([torch_kernel(["cuda"])], catalog)
    usual = make_plan(matrix)
    slow = make_plan(matrix, durations=[Duration("some-kernel", CU130, 6000)])
    assert {leg.name: leg.minutes for leg in slow.legs}[CU130] == 100 + 4, "4 to begin with"
    assert [leg.name for leg in slow.legs if leg.measured] == [CU130]
    assert estimate(slow.legs).measured == 1
    assert estimate(usual.legs).measured == 0
    assert estimate(slow.legs).minutes > estimate(usual.legs).minutes


def limited(**keys: Any) -> Runners:
    return msgspec.structs.replace(default_runners(), limits=(Limit(**keys),))


@pytest.mark.rule("KCI335", triggers=False)
def test_a_leg_that_fits_is_not_worth_a_word() -> None:
    legs = [leg(minutes=30, timeout=60), leg(minutes=60, timeout=60, measured=True)]
    assert check_time(legs, limited()) == []
    # Here kci.toml says how many parts there are.
    assert check_time([leg(minutes=60, timeout=60)], limited(parts=1)) == []


@pytest.mark.rule("KCI335", triggers=True)
def test_a_leg_that_may_not_fit_is_a_warning_with_numbers_and_ways_out() -> None:
    late = [
        leg(CU130, "slow", minutes=minutes, timeout=350, backend="cuda")
        for minutes in (200, 1178, 500)
    ]
    (found,) = check_time([leg(), *late], limited())
    said = f"slow {CU130} is estimated to take 1178 min on ubuntu-24.04, and its job ends after 350"
    assert (found.rule, found.severity) == ("KCI335", Severity.WARNING)
    assert found.message == f"{said}; so it is with 2 other legs of the kernel"
    parts = '`parts = 8` in a [[limits]] of kci.toml with `kernel = "slow"`; name'
    assert found.hint.startswith(f"compile it in parts: {parts}")
    for way in ("[runners]", "fewer architectures", "--durations"):
        assert way in found.hint
    assert "timeout-minutes" not in found.hint, "no hosted runner works that long"
    several = leg(minutes=1178, timeout=350, pool=Pool("own", 2), variants=("a", "b"))
    (own,) = check_time([several], limited())
    assert "raise `timeout-minutes` in [[limits]]" in own.hint
    assert "`group`" in own.hint
    assert "`parts" not in own.hint, "one leg of several variants has no parts"


@pytest.mark.rule("KCI335", triggers=True)
def test_a_record_has_to_fit_into_the_job_and_parts_that_do_not_are_too_few() -> None:
    (late,) = check_time([leg(minutes=61, measured=True)], limited())
    took = "took 61 minutes on ubuntu-24.04, and its job ends after 60"
    assert late.message == f"k {leg().name} {took}"
    assert "`parts = 4`" in late.hint
    (part,) = check_time([leg(minutes=61, part=2, parts=3, variants=())], limited(parts=3))
    assert "`parts = 10`" in part.hint


def test_a_range_is_said_as_one_and_its_upper_end_is_what_a_budget_bounds() -> None:
    guessed = leg("a", minutes=100, at_least=30, at_most=300, timeout=200, rate=0.01)
    made = plan([guessed, leg("b", minutes=10, measured=True, rate=0.01)])
    known = estimate(made.legs)
    assert (known.at_least, known.minutes, known.at_most) == (40, 110, 310)
    assert (known.costs, known.costs_at_most) == ({"USD": 1.1}, {"USD": 3.1})
    with pytest.raises(FindingsError, match=r"up to 3\.10 USD, and 3\.00 are allowed"):
        check_budget(known, max_cost=3)
    assert check_budget(known, max_cost=3.1) == []
    assert [item.takes_text for item in made.legs] == ["30 to 300 min", "10 min"]
    assert check_time(made.legs, limited()) == [], "the middle of the range is half of the limit"
    (late,) = check_time([msgspec.structs.replace(guessed, timeout=90)], limited())
    assert "is estimated to take 30 to 300 min on" in late.message


@pytest.mark.rule("KCI611", triggers=False)
def test_a_file_of_durations_is_kept_up(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    known = [Duration("k", "b", 1.0), Duration("k", "a", 2.0)]
    path.write_bytes(encode(known, [Duration("k", "b", 3.5)]))
    assert read_durations(path) == (Duration("k", "a", 2.0), Duration("k", "b", 3.5))
    assert json.loads(path.read_text())["schema"] == 1


CUDA = "torch213-cxx11-cu130-x86_64-linux"
CPU = "torch213-cxx11-cpu-x86_64-linux"


def build(sources: int, depends: str = "") -> Build:
    listed = ", ".join(f'"csrc/k{number}.cu"' for number in range(sources))
    parts = [
        ("a", "cuda", depends, f'{listed}, "csrc/host.cpp", "csrc/k.cuh"'),
        ("again", "cuda", "", '"csrc/host.cpp"'),
        ("b", "cpu", "", '"csrc/b.cpp"'),
    ]
    component = '[kernel.{}]\nbackend = "{}"\ndepends = [{}]\nsrc = [{}]\n'
    text = "".join(component.format(*part) for part in parts)
    made = torch_kernel(["cuda", "cpu"], components=text).build
    binding = ["torch-ext/binding.cpp", "torch-ext/binding.h"]
    return msgspec.structs.replace(made, torch=msgspec.structs.replace(made.torch, src=binding))


def variants(catalog: Catalog) -> dict[str, Variant]:
    return {item.name: item for item in select(torch_kernel(["cuda", "cpu"]), catalog).variants}


def hosted_leg(
    size: Size | None,
    variant: str = CUDA,
    max_jobs: int | None = None,
    gigabytes: int = 16,
    took: int = 0,
) -> Leg:
    """On a hosted machine of 4 cores."""
    runners = default_runners()
    runner = msgspec.structs.replace(runners.runner["x86_64-linux"], memory_gb=gigabytes)
    own = {(backend, "x86_64-linux"): runner for backend in ("cpu", "cuda")}
    runners = msgspec.structs.replace(runners, own=own, limits=(Limit(max_jobs=max_jobs),))
    options = PlanOptions(sizes={("some", variant): size} if size else {})
    durations = [Duration("some", CUDA, float(took))] * bool(took)
    planned = matrix({"some": [variants(load_catalog())[variant]]})
    return make_plan(planned, runners, options, durations=durations).legs[0]


def test_sources_are_counted_once_and_headers_never(catalog: Catalog) -> None:
    found = variants(catalog)
    assert size_of(build(3), found[CUDA]) == Size(5)
    # host.cpp is the first component's.
    assert size_of(build(3, '"cutlass_4_0"'), found[CUDA]) == Size(5, 4)
    assert size_of(build(3), found[CPU]) == Size(2)


def test_the_minutes_are_those_of_the_table_and_the_range_is_one_factor() -> None:
    data = estimates()
    found, sure = hosted_leg(Size(240)), default_runners().build["cuda"].setup + data.fixed
    hour = data.object["cuda"]
    assert found.minutes == sure + hour, "240 objects, four at once"
    assert found.ends == (sure + hour / data.spread, sure + hour * data.spread)
    assert hosted_leg(Size(1)).minutes == sure + 1


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({}, {"size": Size(160)}),
        ({}, {"size": Size(80, 80)}),
        ({}, {"max_jobs": 1}),
        ({"variant": CPU}, {}),
        ({"size": Size(80, 80), "gigabytes": 64}, {"size": Size(80, 80)}),
    ],
    ids=["objects", "cutlass", "jobs", "backend", "memory"],
)
def test_what_makes_it_longer(less: dict[str, Any], more: dict[str, Any]) -> None:
    assert (
        hosted_leg(**{"size": Size(80)} | less).minutes
        < hosted_leg(**{"size": Size(80)} | more).minutes
    )


def test_of_a_variant_of_which_nothing_is_known_the_backend_tells() -> None:
    usual = default_runners().build["cuda"]
    assert hosted_leg(None).minutes == usual.setup + usual.minutes


def test_a_record_is_one_number_and_goes_before_the_range() -> None:
    guessed, took, other = (
        hosted_leg(Size(60)),
        hosted_leg(Size(60), took=900),
        hosted_leg(Size(60), CPU, took=900),
    )
    assert guessed.ends[0] < guessed.minutes < guessed.ends[1]
    assert took.measured
    assert (took.minutes, took.ends) == (15 + 4, (19, 19)), "4 to begin with"
    assert not guessed.measured
    assert other == hosted_leg(Size(60), CPU), "a record says nothing about another variant"
