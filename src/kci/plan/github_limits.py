"""The plan as a GitHub workflow takes it: JSON for `fromJSON`, within GitHub's limits, and what of it a fork gets.

Each kernel is a unit of its own: a caller job has one entry for each of its kernels and starts the called workflow for
it; there the kernel's legs are one matrix, and its tree is merged. So a kernel's state depends on that kernel only, and
no matrix has more than one kernel's legs. A kernel stays with its caller as long as the number of callers is the same.
A workflow that somebody writes around the actions has one matrix for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kci.diagnostics import Diagnostic, Severity, finding
from kci.errors import FindingsError
from kci.matrix.catalog.runners import is_hosted
from kci.matrix.variants import Kind, objects_name
from kci.plan.plan import (
    MAX_MATRIX,
    Leg,
    Plan,
    Role,
    TestLeg,
    Unplanned,
    allowances,
    caller_count,
    shard_of,
)
from kci.utils.walk import duplicate_names

MAX_OUTPUT_UNITS = 1024 * 1024 // 2
"""UTF-16 code units that the outputs of one job may have: GitHub's limit is 1 MB, counted in UTF-16."""

MAX_ARTIFACT_NAME = 255
"""Characters of an artifact's name; it becomes the name of a file when it is downloaded."""

SMALLER = 'group legs with `group = "image"` or `"backend"` under `[plan]` in kci.toml, or build a smaller tier'
"""The way out of a plan with too many legs."""

LEG_KEYS = ("kernel", "path", "name", "variant", "backend", "system", "runner", "image", "timeout", "artifact")
"""What a job of the matrix gets to know, beside the tier; each is `matrix.<key>` in the workflow."""

TEST_KEYS = ("kernel", "path", "name", "backend", "variants", "runner", "timeout", "run")
"""What a job that tests gets to know."""

LIMIT_KEYS = ("max_jobs", "cores", "disk", "builder")
"""Keys that a job has only where there is such a limit or need."""

OBJECT_KEYS = ("part", "parts", "takes", "objects_run", "objects_from")
"""What a job gets to know about objects, each where there is something to know."""


def github_matrix(plan: Plan) -> str:
    """One line for `fromJSON`: the legs as the `include` of the one matrix of a workflow that knows no parts.

    Raises:
        FindingsError: more legs than one matrix may have (KCI305), more text than the outputs of a job (KCI306), or
            two artifacts of one name (KCI307).
    """
    found = artifact_problems(plan)
    if len(plan.legs) > MAX_MATRIX:
        message = f"{len(plan.legs)} legs, and GitHub allows {MAX_MATRIX} jobs in the one matrix of this workflow"
        hint = "`kci render` writes a workflow with a matrix for each kernel; or plan fewer kernels or backends; or"
        found.append(finding("KCI305", message, hint=f"{hint} {SMALLER}"))
    text = msgspec.json.encode({"include": [leg_entry(plan.tier, leg) for leg in plan.legs]}).decode()
    refuse_errors([*found, *_output_problems(text)])
    return text


def _in_jobs(matrix: dict[str, list[dict[str, Any]]], role: str) -> list[dict[str, list[dict[str, Any]]]]:
    """A matrix as those of several jobs, if it is one of parts and has more than one job may have; at least one."""
    entries, most = matrix["include"], MAX_MATRIX if role == Role.PART else max(1, len(matrix["include"]))
    return [{"include": entries[start : start + most]} for start in range(0, max(1, len(entries)), most)]


def refuse_errors(found: Iterable[Diagnostic]) -> None:
    """Raise the errors among what was found as one FindingsError."""
    problems = [item for item in found if item.severity is Severity.ERROR]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise FindingsError(problems[0].message + more, hint=problems[0].hint, diagnostics=problems)


def leg_entry(tier: str, leg: Leg) -> dict[str, Any]:
    """What a job of the matrix gets to know about its leg."""
    entry = {key: getattr(leg, key) for key in LEG_KEYS} | {"tier": tier}
    entry |= {key: value for key in LIMIT_KEYS if (value := getattr(leg, key)) is not None}
    said = {key: getattr(leg, key) for key in OBJECT_KEYS}
    if leg.kind is not Kind.NOARCH and leg.builder is None:
        said["objects"] = objects_name(leg.kernel, leg.name)
    return entry | {key: value for key, value in said.items() if value not in (None, "", ()) and value is not False}


def tests_matrix(tests: Iterable[TestLeg]) -> dict[str, Any]:
    """The jobs that test as a workflow's matrix."""
    return {"include": [{key: getattr(test, key) for key in TEST_KEYS} for test in tests]}


def _matrices(tier: str, legs: Iterable[Leg]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """By role."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {"include": []} for name in Role}
    for leg in legs:
        found[leg.role]["include"].append(leg_entry(tier, leg))
    return found


def _more_parts(plan: Plan, jobs: int | None) -> list[Diagnostic]:
    sizes = Counter(leg.kernel for leg in plan.legs if leg.role is Role.PART)
    needed = -(-max(sizes.values(), default=0) // MAX_MATRIX)
    if jobs is None or needed <= jobs:
        return []
    message = f"the parts need {needed} jobs with a matrix of up to {MAX_MATRIX}, and the workflow file has {jobs}"
    return [finding("KCI305", message, hint="run `kci render`: it writes more of them")]


_LEGS = {Role.WHOLE: "legs", Role.PART: "part legs", Role.LINK: "link legs"}


def artifact_problems(plan: Plan) -> list[Diagnostic]:
    """Artifacts that GitHub would refuse because of their names: KCI307."""
    names = [leg.artifact for leg in plan.legs]
    hint = "rename one of the kernels"
    problems = [
        finding("KCI307", f"two legs have an artifact named {name}", hint=hint) for name in duplicate_names(names)
    ]
    long = [name for name in names if len(name) > MAX_ARTIFACT_NAME]
    return problems + [finding("KCI307", f"the artifact's name is too long: {name[:60]}…", hint=hint) for name in long]


def _output_problems(text: str) -> list[Diagnostic]:
    units = output_units(text)
    if units <= MAX_OUTPUT_UNITS:
        return []
    message = f"the plan has {units} UTF-16 units, and GitHub allows {MAX_OUTPUT_UNITS} in a job's outputs"
    return [finding("KCI306", message, hint=SMALLER)]


def output_units(text: str) -> int:
    """How much of the limit of a job's outputs a text takes."""
    return len(text.encode("utf-16-le")) // 2


MAX_JOBS = 1000
"""Jobs from which on a run is refused: one of 1,350 was not shown by GitHub at all, and its artifacts, which an API
lists up to 1,000, could not all be fetched by a second attempt."""

NO_JOBS: dict[str, list[Any]] = {"include": []}
"""A matrix of nothing; what is to run with it is asked first."""

OWN_JOBS = 2
"""The jobs beside those of the kernels: the plan and the gate."""


def run_jobs(plan: Plan) -> int:
    """The jobs of a run: its legs, its tests, and for each kernel one that merges."""
    return len(plan.legs) + len(plan.tests) + len({leg.kernel for leg in plan.legs}) + OWN_JOBS


def work_of(
    plan: Plan, count: int, trees: Mapping[str, str] | None = None, jobs: int = 1, *, unmerged: bool = False
) -> str:
    """One line for `fromJSON`: a list with the matrix of each caller job.

    An entry of it has the `kernel`, and the `work` that the reusable workflow is told: the `matrix` of its build job,
    those of its `parts` (`more_parts` where there are several jobs for them) and its `links`, how many legs may run at
    once (`parallel`, and `parts_parallel` of parts and links), the part of the plan that merging is held against
    (`plan`), the matrix of the jobs that test (`tests`), and the run with the tree
    from which variants are carried over (`tree_run`, from `trees` by kernel). Where nothing is merged (`unmerged`), a
    kernel is there for its tests alone, too.
    """
    return msgspec.json.encode(_work(plan, count, trees or {}, jobs, unmerged=unmerged)).decode()


def check_limits(plan: Plan, callers: int | None = None, jobs: int | None = None) -> list[Diagnostic]:
    """What GitHub would refuse of a rendered workflow: KCI305, KCI306, KCI307.

    `callers` is the number of its caller jobs, `jobs` that of its jobs with a matrix for parts; None for as many as are
    needed. Calls are nested two deep, of the ten that GitHub allows, whatever is planned.
    """
    found = [*artifact_problems(plan), *_more_parts(plan, jobs)]
    work = _work(plan, callers or caller_count(len(plan.kernels)), {})
    for caller in work:
        sizes = {(entry["kernel"], role): len(entry["work"][role]["include"])
                 for entry in caller["include"] for role in (Role.WHOLE, Role.LINK)}  # fmt: skip
        found += [
            finding(
                "KCI305", f"{name} has {size} {_LEGS[role]}, and GitHub allows {MAX_MATRIX} in a matrix", hint=SMALLER
            )
            for (name, role), size in sizes.items()
            if size > MAX_MATRIX
        ]
        if len(caller["include"]) > MAX_MATRIX:
            message = f"a caller job has {len(caller['include'])} kernels, and GitHub allows {MAX_MATRIX} in a matrix"
            found.append(finding("KCI305", message, hint="run `kci render`: it writes more caller jobs"))
    found += _output_problems(msgspec.json.encode(work).decode())
    if run_jobs(plan) > MAX_JOBS:
        message = f"{run_jobs(plan)} jobs; kci starts no run of more than {MAX_JOBS}"
        found.append(finding("KCI305", message, hint=SMALLER))
    return found


def _work(
    plan: Plan, count: int, trees: Mapping[str, str], jobs: int = 1, *, unmerged: bool = False
) -> list[dict[str, Any]]:
    by_kernel: dict[str, list[Leg]] = {}
    for leg in plan.legs:
        by_kernel.setdefault(leg.kernel, []).append(leg)
    # A kernel without a build is there if the run tests a tree of an earlier run.
    names = sorted(by_kernel.keys() | {test.kernel for test in plan.tests if test.run or unmerged})
    carried = {item.kernel for item in plan.skipped}
    index = {name: number for number, name in enumerate(names)}
    most = allowances(plan.legs, [index[leg.kernel] for leg in plan.legs], len(names))
    promise = plan.promised()
    own = {name: tuple(kernel for kernel in promise.kernels if kernel.name == name and not unmerged) for name in names}
    found: list[dict[str, Any]] = [{"include": []} for _ in range(count)]
    for name in names:
        whole, parts_parallel = most[index[name]]
        matrices = _matrices(plan.tier, by_kernel.get(name, ()))
        first, *others = _in_jobs(matrices[Role.PART], Role.PART)
        work = matrices | {
            "parts": first,
            **({"more_parts": [*others, *([NO_JOBS] * (jobs - 1 - len(others)))]} if jobs > 1 else {}),
            "parallel": whole or MAX_MATRIX,
            "parts_parallel": max(1, parts_parallel // (1 + len(others))) if parts_parallel else MAX_MATRIX,
            "plan": msgspec.structs.replace(promise, kernels=own[name]),
            "tests": tests_matrix(test for test in plan.tests if test.kernel == name),
            "tree_run": trees.get(name, "") if name in carried else "",
        }
        found[shard_of(name, count)]["include"].append({"kernel": name, "work": work})
    return found


FORK_RULE = "KCI315"
"""A leg that a fork's pull request does not get, and no other run builds."""

WAITING_RULE = "KCI316"
"""A leg that waits for a maintainer, or was built before one came."""

_REASON = "a pull request from a fork runs on GitHub's own machines only"
_WAITS = "it waits for a maintainer, who starts kci-own-machines.yml with the commit that was reviewed"
_ELSEWHERE = "the pull request's own run builds it, on a machine that GitHub hosts"


def only_hosted(plan: Plan, *, dispatched: bool = False) -> Plan:
    """The plan without the legs that need a self-hosted machine: unreviewed code must not reach one.

    Where that is `dispatched`, a maintainer starts the others (KCI316); otherwise they are not built (KCI315).
    """
    rule, reason = (WAITING_RULE, _WAITS) if dispatched else (FORK_RULE, _REASON)
    refused = [leg for leg in plan.legs if not is_hosted(leg.runner)]
    built = {leg.kernel for leg in plan.legs if is_hosted(leg.runner)}
    tests = tuple(test for test in plan.tests if (test.run or test.kernel in built) and is_hosted(test.runner))
    return _without(plan, refused, rule, reason, tests)


def untested(whole: Plan, part: Plan) -> list[Diagnostic]:
    """What `only_hosted` leaves untested of the whole plan: KCI317."""
    return [
        finding("KCI317", f"{test.kernel} is not tested on {test.name}: {_REASON}", path=test.path)
        for test in whole.tests
        if test not in part.tests
    ]


def only_own(plan: Plan) -> Plan:
    """The legs that `only_hosted` leaves out, for the run that a maintainer has started. It tests nothing."""
    return _without(plan, [leg for leg in plan.legs if is_hosted(leg.runner)], WAITING_RULE, _ELSEWHERE, ())


def _without(plan: Plan, refused: list[Leg], rule: str, reason: str, tests: tuple[TestLeg, ...]) -> Plan:
    left = [
        Unplanned(leg.kernel, name, leg.backend, leg.system, rule, reason) for leg in refused for name in leg.variants
    ]
    kept = tuple(leg for leg in plan.legs if leg not in refused)
    return msgspec.structs.replace(plan, legs=kept, left_out=(*plan.left_out, *left), tests=tests)
