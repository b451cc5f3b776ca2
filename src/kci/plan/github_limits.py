"""Plans within GitHub's limits, as JSON for `fromJSON`; and the parts of a plan for forks.

A caller job calls the kernel workflow for each of its kernels, which has one matrix of legs. So a
kernel's state depends on that kernel only. Handwritten workflows have one matrix for all kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from kci.diagnostics import Diagnostic, errors_in, finding
from kci.errors import FindingsError
from kci.matrix.catalog.runners import is_hosted
from kci.matrix.variants import Kind, objects_name
from kci.plan.hardware_tests import CarriedTree, tree_under_test
from kci.plan.plan import (
    MAX_MATRIX,
    Leg,
    Plan,
    Role,
    TestLeg,
    UnplannedVariant,
    allowances,
    caller_count,
    shard_of,
)
from kci.utils.walk import duplicate_names

MAX_OUTPUT_UNITS = 1024 * 1024 // 2
"""UTF-16 code units of a job's outputs: GitHub's limit is 1 MB."""

MAX_ARTIFACT_NAME = 255

SMALLER = (
    'group legs with `group = "image"` or `"backend"` under `[plan]` in kci.toml, or build a '
    "smaller tier"
)

LEG_KEYS = (
    "kernel",
    "path",
    "name",
    "variant",
    "backend",
    "system",
    "runner",
    "image",
    "timeout",
    "artifact",
)

TEST_KEYS = ("kernel", "path", "name", "backend", "variants", "runner", "timeout", "run")

LIMIT_KEYS = ("max_jobs", "cores", "disk", "builder")

OBJECT_KEYS = ("part", "parts", "takes", "objects_run", "objects_from")


def github_matrix(plan: Plan) -> str:
    """The matrix of all legs in one line; FindingsError for too many legs (KCI305), KCI306 or
    KCI307.
    """
    problems = artifact_problems(plan)
    if len(plan.legs) > MAX_MATRIX:
        message = (
            f"{len(plan.legs)} legs, and GitHub allows {MAX_MATRIX} jobs in the one matrix of "
            "this workflow"
        )
        hint = (
            "`kci render` writes a workflow with a matrix for each kernel; or plan fewer kernels "
            "or backends; or"
        )
        problems.append(finding("KCI305", message, hint=f"{hint} {SMALLER}"))
    text = msgspec.json.encode(
        {"include": [leg_entry(plan.tier, leg) for leg in plan.legs]}
    ).decode()
    refuse_errors([*problems, *_output_problems(text)])
    return text


def refuse_errors(findings: Iterable[Diagnostic]) -> None:
    """Raise FindingsError if there are errors among the findings."""
    if problems := errors_in(findings):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise FindingsError(problems[0].message + more, hint=problems[0].hint, diagnostics=problems)


def leg_entry(tier: str, leg: Leg) -> dict[str, Any]:
    """A leg as an entry of the matrix."""
    entry = {key: getattr(leg, key) for key in LEG_KEYS} | {"tier": tier}
    entry |= {key: value for key in LIMIT_KEYS if (value := getattr(leg, key)) is not None}
    entry |= {
        key: value for key in OBJECT_KEYS if (value := getattr(leg, key)) not in (None, "", ())
    }
    if leg.kind is not Kind.NOARCH and leg.builder is None:
        entry["objects"] = objects_name(leg.kernel, leg.name)
    return entry


def artifact_problems(plan: Plan) -> list[Diagnostic]:
    """KCI307 for artifact names that GitHub refuses."""
    names = [leg.artifact for leg in plan.legs]
    hint = "rename one of the kernels"
    problems = [
        finding("KCI307", f"two legs have an artifact named {name}", hint=hint)
        for name in duplicate_names(names)
    ]
    long = [name for name in names if len(name) > MAX_ARTIFACT_NAME]
    return problems + [
        finding("KCI307", f"the artifact's name is too long: {name[:60]}…", hint=hint)
        for name in long
    ]


def _output_problems(text: str) -> list[Diagnostic]:
    units = output_units(text)
    if units <= MAX_OUTPUT_UNITS:
        return []
    message = (
        f"the plan has {units} UTF-16 units, and GitHub allows {MAX_OUTPUT_UNITS} in a job's "
        "outputs"
    )
    return [finding("KCI306", message, hint=SMALLER)]


def output_units(text: str) -> int:
    """The UTF-16 code units of a text."""
    return len(text.encode("utf-16-le")) // 2


MAX_JOBS = 1000
"""The most jobs of a run: GitHub did not show one of 1,350, and its API lists 1,000 artifacts."""

NO_JOBS: dict[str, list[Any]] = {"include": []}

OWN_JOBS = 2


def run_jobs(plan: Plan) -> int:
    """The jobs of a run: legs, tests, and a merge per kernel."""
    return len(plan.legs) + len(plan.tests) + len({leg.kernel for leg in plan.legs}) + OWN_JOBS


def caller_matrices(
    plan: Plan,
    count: int,
    trees: Mapping[str, CarriedTree] | None = None,
    jobs: int = 1,
    *,
    unmerged: bool = False,
) -> str:
    """The matrices of the caller jobs, as one line of JSON.

    An entry has a `kernel` and its `work` for the kernel workflow: `matrix`, `parts`, `more_parts`
    and `links`, their limits (`parallel`, `parts_parallel`), the `plan` to merge against, the
    `tests`; of its tree in `trees` the `tree_digest`, and the `tree_run` if variants are carried.
    With `unmerged`, kernels with tests only are included.
    """
    return msgspec.json.encode(_work(plan, count, trees or {}, jobs, unmerged=unmerged)).decode()


def check_limits(
    plan: Plan, callers: int | None = None, jobs: int | None = None
) -> list[Diagnostic]:
    """KCI305, KCI306 and KCI307 for a rendered workflow; `callers` and `jobs` (of parts) None for
    as many as needed.
    """
    sizes = Counter((leg.kernel, leg.role) for leg in plan.legs)
    most = max((size for (_, role), size in sizes.items() if role is Role.PART), default=0)
    problems, needed = artifact_problems(plan), -(-most // MAX_MATRIX)
    if jobs is not None and needed > jobs:
        message = f"the parts need {needed} jobs with a matrix of up to {MAX_MATRIX}, and the "
        message += f"workflow file has {jobs}"
        problems.append(finding("KCI305", message, hint="run `kci render`: it writes more of them"))
    work = _work(plan, callers or caller_count(len(plan.kernels)), {})
    limit = f"and GitHub allows {MAX_MATRIX} in a matrix"
    for (kernel, role), size in sorted(sizes.items()):
        if role is not Role.PART and size > MAX_MATRIX:
            what = "legs" if role is Role.WHOLE else "link legs"
            problems.append(finding("KCI305", f"{kernel} has {size} {what}, {limit}", hint=SMALLER))
    for kernels in (caller["include"] for caller in work):
        if len(kernels) > MAX_MATRIX:
            message = f"a caller job has {len(kernels)} kernels, {limit}"
            problems.append(
                finding("KCI305", message, hint="run `kci render`: it writes more caller jobs")
            )
    problems += _output_problems(msgspec.json.encode(work).decode())
    if run_jobs(plan) > MAX_JOBS:
        message = f"{run_jobs(plan)} jobs; kci starts no run of more than {MAX_JOBS}"
        problems.append(finding("KCI305", message, hint=SMALLER))
    return problems


def _work(
    plan: Plan,
    count: int,
    trees: Mapping[str, CarriedTree],
    jobs: int = 1,
    *,
    unmerged: bool = False,
) -> list[dict[str, Any]]:
    by_kernel: dict[str, list[Leg]] = {}
    for leg in plan.legs:
        by_kernel.setdefault(leg.kernel, []).append(leg)
    carried = {item.kernel for item in plan.skipped}
    most = allowances((leg.kernel, leg) for leg in plan.legs)
    promise = plan.tree_plan()
    callers: list[dict[str, Any]] = [{"include": []} for _ in range(count)]
    # A kernel without a leg is included if it tests an earlier tree, or is looked at a second time.
    for name in sorted(by_kernel.keys() | {test.kernel for test in plan.tests}):
        work: dict[str, Any] = {role: {"include": []} for role in Role}
        for leg in by_kernel.get(name, ()):
            work[leg.role]["include"].append(leg_entry(plan.tier, leg))
        tree, parts = trees.get(name), work[Role.PART]["include"]
        starts = range(0, max(1, len(parts)), MAX_MATRIX)
        first, *others = ({"include": parts[start : start + MAX_MATRIX]} for start in starts)
        tests = (
            {key: getattr(test, key) for key in TEST_KEYS}
            for test in plan.tests
            if test.kernel == name
        )
        work |= {
            "parts": first,
            **(
                {"more_parts": [*others, *([NO_JOBS] * (jobs - 1 - len(others)))]}
                if jobs > 1
                else {}
            ),
            "parallel": most.get((name, False), MAX_MATRIX),
            "parts_parallel": max(1, most[name, True] // len(starts))
            if (name, True) in most
            else MAX_MATRIX,
            "plan": replace(
                promise,
                kernels=tuple(
                    kernel for kernel in promise.kernels if kernel.name == name and not unmerged
                ),
            ),
            "tests": {"include": tuple(tests)},
            "tree_run": tree.run if tree and name in carried else "",
            "tree_digest": tree_under_test(tree.digests) if tree else "",
        }
        callers[shard_of(name, count)]["include"].append({"kernel": name, "work": work})
    return callers


FORK_RULE = "KCI315"

WAITING_RULE = "KCI316"

_REASON = "a pull request from a fork runs on GitHub's own machines only"
_WAITS = (
    "it waits for a maintainer, who starts kci-own-machines.yml with the commit that was reviewed"
)
_ELSEWHERE = "the pull request's own run builds it, on a machine that GitHub hosts"


def only_hosted(plan: Plan, *, dispatched: bool = False) -> Plan:
    """The plan without self-hosted legs, which unreviewed code must not reach: KCI316 if
    `dispatched`, else KCI315.
    """
    built = {leg.kernel for leg in plan.legs if is_hosted(leg.runner)}
    tests = tuple(
        test for test in plan.tests if (test.run or test.kernel in built) and is_hosted(test.runner)
    )
    return _only(
        plan, tests, *((WAITING_RULE, _WAITS) if dispatched else (FORK_RULE, _REASON)), hosted=True
    )


def untested(whole: Plan, part: Plan) -> list[Diagnostic]:
    """KCI317 for the tests that `only_hosted` drops."""
    return [
        finding("KCI317", f"{test.kernel} is not tested on {test.name}: {_REASON}", path=test.path)
        for test in whole.tests
        if test not in part.tests
    ]


def without_tests(plan: Plan) -> Plan:
    """The plan for one common matrix, which has legs only."""
    lost = {test.kernel: "tests: not run, a common matrix has none" for test in plan.tests}
    return replace(plan, tests=(), untested=plan.untested | lost)


def only_own(plan: Plan) -> Plan:
    """The legs that `only_hosted` drops, without tests, for a dispatched run."""
    return _only(plan, (), WAITING_RULE, _ELSEWHERE, hosted=False)


def _only(plan: Plan, tests: tuple[TestLeg, ...], rule: str, reason: str, *, hosted: bool) -> Plan:
    legs = tuple(leg for leg in plan.legs if is_hosted(leg.runner) is hosted)
    left_out = [
        UnplannedVariant(leg.kernel, name, leg.backend, leg.system, rule, reason)
        for leg in plan.legs
        if leg not in legs
        for name in leg.variants
    ]
    return replace(plan, legs=legs, left_out=(*plan.left_out, *left_out), tests=tests)
