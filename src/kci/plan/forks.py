"""What of a plan may run for a pull request from another repository."""

from __future__ import annotations

import msgspec

from kci.catalog.runners import is_hosted
from kci.diagnostics import Diagnostic, finding
from kci.plan.plan import LeftOut, Leg, Plan, TestLeg

FORK_RULE = "KCI315"
"""A leg that a fork's pull request does not get, and nobody else builds."""

WAITING_RULE = "KCI316"
"""A leg that waits for a maintainer, or was built before one came."""

_REASON = "a pull request from a fork runs on GitHub's own machines only"
_WAITS = "it waits for a maintainer, who starts kci-own-machines.yml with the commit that was reviewed"
_ELSEWHERE = "the pull request's own run builds it, on a machine that GitHub hosts"


def only_hosted(plan: Plan, *, dispatched: bool = False) -> Plan:
    """The plan without the legs that need a self-hosted machine: code that nobody has reviewed must not reach one.

    Args:
        plan: everything.
        dispatched: a maintainer starts the others (KCI316); otherwise nobody does (KCI315).
    """
    rule, reason = (WAITING_RULE, _WAITS) if dispatched else (FORK_RULE, _REASON)
    refused = [leg for leg in plan.legs if not is_hosted(leg.runner)]
    built = {leg.kernel for leg in plan.legs if is_hosted(leg.runner)}
    tests = tuple(test for test in plan.tests if (test.run or test.kernel in built) and is_hosted(test.runner))
    return _without(plan, refused, rule, reason, tests)


def untested(whole: Plan, part: Plan) -> list[Diagnostic]:
    """What `only_hosted` leaves untested of a plan: KCI317.

    Args:
        whole: the plan.
        part: what `only_hosted` leaves of it.
    """
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
        LeftOut(leg.kernel, name, leg.backend, leg.system, rule, reason) for leg in refused for name in leg.variants
    ]
    kept = tuple(leg for leg in plan.legs if leg not in refused)
    return msgspec.structs.replace(plan, legs=kept, left_out=(*plan.left_out, *left), tests=tests)
