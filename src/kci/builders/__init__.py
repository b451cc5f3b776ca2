"""Builds one variant: noarch (copies), native (compiles), nix (delegates), and the container that runs them."""

from __future__ import annotations

from kci.builders.build import BUILDERS, build_variant, plan_commands
from kci.builders.cache import default_cache
from kci.builders.request import Built, Log, Request

__all__ = ["BUILDERS", "Built", "Log", "Request", "build_variant", "default_cache", "plan_commands"]
