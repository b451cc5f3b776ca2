"""From sources and a toolchain to a variant directory: noarch copies, native compiles, nix delegates."""

from __future__ import annotations

from kci.build.builders import BUILDERS, build_variant, plan_commands
from kci.build.request import BuildResult, Request

__all__ = ["BUILDERS", "BuildResult", "Request", "build_variant", "plan_commands"]
