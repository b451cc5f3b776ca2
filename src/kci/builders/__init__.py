"""From sources and a toolchain to a variant directory: noarch copies, native compiles, nix
delegates.
"""

from __future__ import annotations

from kci.builders.dispatch import BUILDERS, build_variant, plan_commands
from kci.builders.request import BuildResult, Request

__all__ = ["BUILDERS", "BuildResult", "Request", "build_variant", "plan_commands"]
