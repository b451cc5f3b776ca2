"""kci: CI for GPU kernels, from build.toml to a verified tree of binaries.

The names below are the library that the commands and actions are made of; docs/api.md shows them at work. They are
imported when they are first used, so that `import kci` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kci.version import __version__

if TYPE_CHECKING:
    from kci.builders.request import BuildOptions
    from kci.diagnostics import Diagnostic, Severity
    from kci.errors import BuildFailedError, FindingsError, KciError, MissingToolError, UnsafeError, UsageError
    from kci.matrix.variants import Matrix, Variant
    from kci.plan.plan import Leg, Plan
    from kci.publish.publish_tree import PublishedTree, PublishRequest, publish_tree
    from kci.render.repository import RenderedFiles, render_workflows
    from kci.run.build_leg import BuiltLeg, LegRequest, build_leg, leg_commands
    from kci.run.local import RunResult, outcomes_of, run_here, tree_places
    from kci.tree.manifest import Manifest
    from kci.tree.merge import merge as merge_artifacts
    from kci.tree.planned import read_plan
    from kci.verify.requirements import verify as verify_path
    from kci.workspace.check import check_kernels
    from kci.workspace.planning import PlannedRun, PlanRequest, plan_run
    from kci.workspace.workspace import Choice, Workspace, open_workspace

_HOMES = {
    "BuildFailedError": "kci.errors",
    "BuildOptions": "kci.builders.request",
    "BuiltLeg": "kci.run.build_leg",
    "Choice": "kci.workspace.workspace",
    "Diagnostic": "kci.diagnostics",
    "FindingsError": "kci.errors",
    "KciError": "kci.errors",
    "Leg": "kci.plan.plan",
    "LegRequest": "kci.run.build_leg",
    "Manifest": "kci.tree.manifest",
    "Matrix": "kci.matrix.variants",
    "MissingToolError": "kci.errors",
    "Plan": "kci.plan.plan",
    "PlanRequest": "kci.workspace.planning",
    "PlannedRun": "kci.workspace.planning",
    "PublishRequest": "kci.publish.publish_tree",
    "PublishedTree": "kci.publish.publish_tree",
    "RenderedFiles": "kci.render.repository",
    "RunResult": "kci.run.local",
    "Severity": "kci.diagnostics",
    "UnsafeError": "kci.errors",
    "UsageError": "kci.errors",
    "Variant": "kci.matrix.variants",
    "Workspace": "kci.workspace.workspace",
    "build_leg": "kci.run.build_leg",
    "check_kernels": "kci.workspace.check",
    "leg_commands": "kci.run.build_leg",
    "merge_artifacts": "kci.tree.merge:merge",
    "open_workspace": "kci.workspace.workspace",
    "outcomes_of": "kci.run.local",
    "plan_run": "kci.workspace.planning",
    "publish_tree": "kci.publish.publish_tree",
    "read_plan": "kci.tree.planned",
    "render_workflows": "kci.render.repository",
    "run_here": "kci.run.local",
    "tree_places": "kci.run.local",
    "verify_path": "kci.verify.requirements:verify",
}
"""Where each public name lives: a module, and the name there if it is another one."""

__all__ = [
    "BuildFailedError",
    "BuildOptions",
    "BuiltLeg",
    "Choice",
    "Diagnostic",
    "FindingsError",
    "KciError",
    "Leg",
    "LegRequest",
    "Manifest",
    "Matrix",
    "MissingToolError",
    "Plan",
    "PlanRequest",
    "PlannedRun",
    "PublishRequest",
    "PublishedTree",
    "RenderedFiles",
    "RunResult",
    "Severity",
    "UnsafeError",
    "UsageError",
    "Variant",
    "Workspace",
    "__version__",
    "build_leg",
    "check_kernels",
    "leg_commands",
    "merge_artifacts",
    "open_workspace",
    "outcomes_of",
    "plan_run",
    "publish_tree",
    "read_plan",
    "render_workflows",
    "run_here",
    "tree_places",
    "verify_path",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kci' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
