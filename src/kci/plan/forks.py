"""What of a plan may run for a pull request from another repository."""

from __future__ import annotations

import msgspec

from kci.catalog.runners import is_hosted
from kci.plan.plan import LeftOut, Leg, Plan

FORK_RULE = "KCI315"

_REASON = "a pull request from a fork runs on GitHub's own machines only"


def only_hosted(plan: Plan) -> Plan:
    """The plan without the legs that need a self-hosted machine: code that nobody has reviewed must not reach one.

    The other variants are left out (KCI315).
    """
    refused = [leg for leg in plan.legs if not is_hosted(leg.runner)]
    left = [_left_out(leg, name) for leg in refused for name in leg.variants]
    kept = tuple(leg for leg in plan.legs if is_hosted(leg.runner))
    built = {leg.kernel for leg in kept}
    tests = tuple(test for test in plan.tests if test.kernel in built and is_hosted(test.runner))
    return msgspec.structs.replace(plan, legs=kept, left_out=(*plan.left_out, *left), tests=tests)


def _left_out(leg: Leg, variant: str) -> LeftOut:
    return LeftOut(leg.kernel, variant, leg.backend, leg.system, FORK_RULE, _REASON)
